"""Dry runs in one process: against a real run on one card, and of ranks of worlds that are not there."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.monitor.counting import really, told
from hyper_parallel_tests.domains.monitor.programs import MODELS, dry_run_of
from hyper_parallel_tests.engines.port.dry_run import DryRunProgram
from hyper_parallel_tests.harness import assert_close, contract
from hyper_parallel_tests.models.decoder import Decoder, DecoderShape
from hyper_parallel_tests.models.decoder_layouts import adam, lay_out
from hyper_parallel_tests.models.mlp import mlp, mlp_batch, mlp_loss

FLOAT = 4
WIDTH, DEPTH, ROWS = 6, 3, 5
WORLD = {"dp": 512, "tp": 2}


def mlp_program(_: Any, optimizer: Any = adam, in_flight: int = 1) -> DryRunProgram:
    """Linear layers on one card."""
    model, batch = mlp(WIDTH, DEPTH), mlp_batch(0, ROWS, WIDTH)
    return DryRunProgram(
        model, optimizer(model.parameters()), partial(mlp_loss, model, batch), data=batch, in_flight=in_flight
    )


OPTIMIZERS = {
    "adam": adam,
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "plain": partial(torch.optim.SGD, lr=0.1),
    "amsgrad": partial(torch.optim.AdamW, amsgrad=True, foreach=False),
}


@contract("MO-0-01")
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_one_card(engine, optimizer):
    """Bytes of each kind are those of a real run, with the states that each optimizer has."""
    estimate = engine.dry_run(partial(mlp_program, optimizer=optimizer), {"fsdp": 1})
    assert told(estimate) == really(mlp_program(None, optimizer))
    assert estimate.total == sum(told(estimate).values())


@contract("MO-0-01")
def test_counted_by_hand(engine):
    """Linear layers have what their shapes say: two states of Adam and a count, and inputs and squashed outputs."""
    elements = DEPTH * (WIDTH * WIDTH + WIDTH)
    rows = ROWS * WIDTH
    found = told(engine.dry_run(mlp_program, {"fsdp": 1}))
    # The first layer's input is the user's; each later one's is the tanh's output, and the loss saves the last output.
    assert found == {
        "parameters": FLOAT * elements,
        "gradients": FLOAT * elements,
        "optimizer": FLOAT * (2 * elements + 2 * DEPTH),
        "activations": FLOAT * DEPTH * rows,
    }


@contract("MO-0-01")
def test_micro_batches_in_flight(engine):
    """Each micro-batch in flight has its activations, and parameters and states are there once."""
    one = told(engine.dry_run(mlp_program, {"pp": 4}))
    three = told(engine.dry_run(partial(mlp_program, in_flight=3), {"pp": 4}))
    assert three == one | {"activations": 3 * one["activations"]}


@contract("MO-0-01")
def test_experts(engine):
    """Layers of experts are counted without knowing what tokens would choose."""
    estimate = told(dry_run_of(engine, "moe", {"fsdp": 1}, 0))
    model = MODELS["moe"]()
    assert estimate["parameters"] == FLOAT * sum(one.numel() for one in model.parameters())
    assert estimate["activations"] > told(dry_run_of(engine, "decoder", {"fsdp": 1}, 0))["activations"]


def large_program(engine: Any, mesh: Any) -> DryRunProgram:
    """A block of linear layers, sharded over 512 ranks and divided over 2."""
    model = nn.Sequential(nn.Linear(600, 8, bias=False), nn.Linear(8, 1040, bias=False))
    engine.parallelize_module(model, mesh["tp"], {"0": engine.ColwiseParallel(), "1": engine.RowwiseParallel()})
    engine.fully_shard(model, mesh=mesh["dp"])
    inputs = torch.ones(2, 600)
    return DryRunProgram(model, adam(model.parameters()), lambda: model(inputs).sum(), data=[inputs])


def own_rows(rows: int, ranks: int, rank: int) -> int:
    """Of rows in equal shards, the last ones shorter or empty."""
    each = math.ceil(rows / ranks)
    return max(0, min(each, rows - rank * each))


@contract("MO-0-01")
@pytest.mark.parametrize("rank", [0, 7, 8, 693, 694, 1023])
def test_rank_of_a_large_world(engine, rank):
    """One process has the bytes of any of 1024 ranks, whether its shard is full, padded or empty."""
    estimate = engine.dry_run(partial(large_program, engine), WORLD, rank=rank)
    # 8 rows divided by columns over 2, then over 512; 1040 whole rows of half the columns, over 512.
    own = own_rows(4, 512, rank // 2) * 600 + own_rows(1040, 512, rank // 2) * 4
    # Shards are padded in memory to the size of the first, and so are their gradients; states are not.
    padded = own_rows(4, 512, 0) * 600 + own_rows(1040, 512, 0) * 4
    found = told(estimate)
    assert (found["parameters"], found["gradients"]) == (FLOAT * padded, FLOAT * padded)
    assert found["optimizer"] == FLOAT * (2 * own + 2)


@contract("MO-0-01")
def test_model_that_does_not_fit(engine):
    """A model larger than this machine is counted without its memory: 2**38 elements take a terabyte and more."""
    width = 1 << 18

    def program(_: Any) -> DryRunProgram:
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4)))
        inputs = torch.ones(1, width)
        return DryRunProgram(model, adam(model.parameters()), lambda: model(inputs).sum(), data=[inputs])

    estimate = engine.dry_run(program, {"fsdp": 1})
    assert estimate.parameters == 4 * FLOAT * width * width
    assert estimate.activations == 3 * FLOAT * width


@contract("MO-0-01")
def test_nothing_is_left_behind(engine, ledger):
    """Random state, default group and a model made beforehand are as before, and so is what is computed afterwards."""
    model, batch = mlp(WIDTH, DEPTH), mlp_batch(0, ROWS, WIDTH)
    before, state = mlp_loss(model, batch), torch.get_rng_state()
    engine.dry_run(mlp_program, {"fsdp": 1})
    engine.dry_run(partial(large_program, engine), WORLD)
    assert_close(torch.get_rng_state(), state, ledger["exact"], what="random state")
    assert_close(mlp_loss(model, batch).detach(), before.detach(), ledger["exact"], what="loss")
    assert not torch.distributed.is_initialized()


@contract("MO-0-01")
def test_ranks_one_after_the_other(engine):
    """One process is one rank after the other, and none sees the groups of the one before."""
    shape = DecoderShape(vocab=8, hidden=8, layers=1, heads=2, kv_heads=2, ffn=8, seq=4, tied=False)

    def program(mesh: Any) -> DryRunProgram:
        laid = lay_out(engine, Decoder(shape), mesh)
        tokens = torch.zeros(1, shape.seq, dtype=torch.int64)
        forward = partial(laid.model, tokens, tokens)
        return DryRunProgram(laid.model, adam(laid.model.parameters()), forward, data=[tokens])

    degrees = {"fsdp": 2, "tp": 2}
    found = []
    for rank in range(4):
        try:
            found.append(told(engine.dry_run(program, degrees, rank=rank)))
        except RuntimeError as error:
            pytest.fail(f"rank {rank} after the ranks before it: {error}")
    assert found == [found[0]] * 4


def without_minlength() -> Tensor:
    weight = torch.ones(3, requires_grad=True)
    return weight[torch.bincount(torch.zeros(2, dtype=torch.int64))].sum()


REFUSED = {
    "no_degrees": ({}, 0, {}, "no degrees"),
    "zero": ({"fsdp": 4, "tp": 0}, 0, {}, "degree tp is 0"),
    "no_integer": ({"fsdp": 2.0}, 0, {}, "degree fsdp is 2.0"),
    "rank_outside": ({"fsdp": 2, "tp": 2}, 4, {}, "rank 4 is not in the world of fsdp=2 x tp=2"),
    "negative_rank": ({"fsdp": 2}, -1, {}, "rank -1"),
    "none_in_flight": ({"pp": 2}, 0, {"in_flight": 0}, "in_flight is 0"),
}


@contract("MO-0-01")
@pytest.mark.parametrize(("degrees", "rank", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_questions_are_refused(engine, degrees, rank, options, message):
    """What has no answer is an error that names the culprit."""
    with pytest.raises(ValueError, match=message):
        engine.dry_run(partial(mlp_program, **options), degrees, rank=rank)


@contract("MO-0-01")
def test_shape_that_hangs_on_data(engine):
    """A number of values that only data would tell is refused, and not guessed."""

    def program(_: Any) -> DryRunProgram:
        model = nn.Linear(1, 1)
        return DryRunProgram(model, adam(model.parameters()), without_minlength)

    with pytest.raises(ValueError, match="minlength"):
        engine.dry_run(program, {"fsdp": 1})


@contract("MO-0-01")
def test_table(engine):
    """Estimates make a table, a line each."""
    estimate = engine.dry_run(mlp_program, {"fsdp": 1})
    lines = engine.format_estimates({"one": estimate, "other": estimate}).splitlines()
    assert lines[0] == "| | parameters | gradients | optimizer | activations | total |"
    numbers = [estimate.parameters, estimate.gradients, estimate.optimizer, estimate.activations, estimate.total]
    assert lines[2] == f"| one | {' | '.join(map(str, numbers))} |"
    assert len(lines) == 4
