"""Stages of different numbers of layers, of which some are recomputed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from hyper_parallel_tests.domains.pipeline_parallel.kinds import each_kind
from hyper_parallel_tests.domains.pipeline_parallel.networks import batches, cut, whole_network
from hyper_parallel_tests.domains.pipeline_parallel.setting import pipeline
from hyper_parallel_tests.harness import assert_parity, contract, train_baseline
from hyper_parallel_tests.models.mlp import mlp_loss

MIXTURES = {
    "first_stage": lambda spans: [*spans[0]],
    "one_layer_of_each_stage": lambda spans: [span[-1] for span in spans],
    "every_second_layer": lambda spans: [layer for span in spans for layer in span if layer % 2],
    "all": lambda spans: [layer for span in spans for layer in span],
}
each_mixture = pytest.mark.parametrize("mixture", MIXTURES)


def uneven(stage_num: int) -> list[int]:
    return [1 + (index + 1) % 2 + index % 3 for index in range(stage_num)]


@contract("PP-2-03")
@each_kind
@each_mixture
def test_gradients(engine, world, artifacts, ledger, kind, mixture):
    """Whichever layers are recomputed, loss and gradients are those of a single card that keeps all activations."""
    counts = uneven(kind.stage_num(world.size))
    recomputed = MIXTURES[mixture](cut(counts))
    piped = pipeline(engine, world, kind, artifacts, counts=counts, recomputed=recomputed)
    given = batches(world, steps=1)
    baseline = train_baseline(whole_network(world, sum(counts)), given, mlp_loss)
    assert_parity(piped.train(given), baseline.only(piped.names()), ledger["pp_fp32"])


@contract("PP-2-03")
@each_kind
def test_number_of_forwards(engine, world, artifacts, kind):
    """A layer that is recomputed runs again for each micro-batch, the others do not."""
    counts = uneven(kind.stage_num(world.size))
    recomputed = MIXTURES["one_layer_of_each_stage"](cut(counts))
    piped = pipeline(engine, world, kind, artifacts, counts=counts, recomputed=recomputed)
    batch = batches(world)[0]
    # Stages may have a pass of their own at the first run, by which they learn shapes.
    piped.run(batch)

    layers = {int(name): layer for module in piped.modules.values() for name, layer in module.layers.items()}
    passes = dict.fromkeys(layers, 0)

    def count(layer: int) -> Callable[[nn.Module, object], None]:
        def hook(module: nn.Module, given: object) -> None:
            passes[layer] += 1

        return hook

    for index, layer in layers.items():
        layer.register_forward_pre_hook(count(index))
    piped.run(batch)
    # Backward in two parts may recompute for either of them.
    again = 2 if kind.split else 1
    for index, found in passes.items():
        least, most = (8, 4 * (1 + again)) if index in recomputed else (4, 4)
        assert least <= found <= most, f"layer {index}"
