"""Backward in two parts, that of the inputs (dx) and later that of the weights (dw), against the joint one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from hyper_parallel_tests.domains.pipeline_parallel.kinds import KINDS, Kind
from hyper_parallel_tests.domains.pipeline_parallel.networks import batches
from hyper_parallel_tests.domains.pipeline_parallel.setting import Pipeline, pipeline
from hyper_parallel_tests.domains.pipeline_parallel.structures import STRUCTURES, Ending, structure
from hyper_parallel_tests.harness import World, assert_close, assert_equal, contract, in_clean_process

SPLIT = [name for name, kind in KINDS.items() if kind.split]
MICRO_BATCHES = 4

each_split_kind = pytest.mark.parametrize("kind", [KINDS[name] for name in SPLIT], ids=SPLIT)
each_structure = pytest.mark.parametrize("name", STRUCTURES)


def of_stages(engine: Any, world: World, kind: Kind, folder: Path, name: str) -> Pipeline:
    stage_num = kind.stage_num(world.size)
    modules = [
        Ending(structure(name, index), index == stage_num - 1, 1 / MICRO_BATCHES).to(world.device)
        for index in kind.stages_of(world.rank, world.size)
    ]
    return pipeline(engine, world, kind, folder, micro_batches=MICRO_BATCHES, modules=modules)


def gradients_on_one_card(name: str, stage_num: int, inputs: Tensor) -> list[dict[str, Tensor]]:
    stages = [structure(name, index).to(inputs.device) for index in range(stage_num)]
    nn.Sequential(*stages)(inputs).square().mean().backward()
    return [{key: one.grad for key, one in stage.named_parameters() if one.grad is not None} for stage in stages]


@contract("PP-2-02")
@each_split_kind
@each_structure
def test_gradients(engine, world, artifacts, ledger, kind, name):
    """Gradients that are computed in two parts are those that autograd computes at once."""
    piped, inputs = of_stages(engine, world, kind, artifacts, name), batches(world)[0].inputs
    for _ in range(2):
        piped.model.zero_grad()
        piped.schedule.run(*([inputs] if piped.is_first else []))
    expected = in_clean_process(gradients_on_one_card, name, kind.stage_num(world.size), inputs)
    for index, module in piped.modules.items():
        found = {key: one.grad for key, one in module.stage.named_parameters() if one.grad is not None}
        assert_close(found, expected[index], ledger["pp_fp32"], what=f"gradients of stage {index}")


@contract("PP-2-02")
@each_structure
def test_same_bits(engine, world, artifacts, name):
    """They have the bits of the same stages' joint backward, over micro-batches in the same order."""
    inputs, gradients = batches(world)[0].inputs, {}
    for kind in (KINDS["interleaved"], KINDS["zero_bubble"]):
        piped = of_stages(engine, world, kind, artifacts, name)
        piped.schedule.run(*([inputs] if piped.is_first else []))
        gradients[kind.split] = [one.grad for one in piped.model.parameters() if one.grad is not None]
    joint, split = gradients[False], gradients[True]

    assert_equal(split, joint, what="gradients")
