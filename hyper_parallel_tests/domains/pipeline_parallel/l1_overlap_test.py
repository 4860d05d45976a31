"""Messages beside computations: the setting changes when they are received, and nothing else."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.pipeline_parallel.comparison import receives_ahead
from hyper_parallel_tests.domains.pipeline_parallel.kinds import KINDS, each_kind
from hyper_parallel_tests.domains.pipeline_parallel.networks import batches, sgd, whole_network
from hyper_parallel_tests.domains.pipeline_parallel.runs import assert_as_planned, observed
from hyper_parallel_tests.domains.pipeline_parallel.setting import pipeline, sum_over_ranks
from hyper_parallel_tests.harness import assert_equal, assert_parity, contract, train_baseline
from hyper_parallel_tests.models.mlp import mlp_loss

either_way = pytest.mark.parametrize("overlap", [False, True], ids=["in_turn", "overlapped"])


@contract("PP-1-04")
@pytest.mark.parametrize("name", ["1f1b", "interleaved"])
def test_receives_start_early(engine, world, artifacts, name):
    """Overlapped receives start before computations that do not need them, and gradients have the same bits."""
    ahead, gradients = {}, {}
    for overlap in (False, True):
        record = observed(engine, world, KINDS[name], artifacts, 2 * world.size, overlap_p2p=overlap)
        ahead[overlap] = int(sum_over_ranks(torch.tensor(receives_ahead(record.actions), device=world.device)))
        piped = pipeline(engine, world, KINDS[name], artifacts, overlap_p2p=overlap)
        piped.run(batches(world)[0])
        gradients[overlap] = piped.gradients()
    assert ahead[False] < ahead[True]
    assert_equal(gradients[True], gradients[False], what="gradients")


@contract("PP-1-04")
@each_kind
@either_way
def test_order(engine, world, artifacts, kind, overlap):
    """Either way computations, and messages between two ranks, are in the plan's order."""
    record = observed(engine, world, kind, artifacts, 2 * world.size, overlap_p2p=overlap)
    assert_as_planned(record, kind.plan(engine, world.size, 2 * world.size), kind, world)


@contract("PP-1-04")
@each_kind
@either_way
def test_values(engine, world, artifacts, ledger, kind, overlap):
    """Either way stages train as a single card does."""
    piped, given = pipeline(engine, world, kind, artifacts, overlap_p2p=overlap), batches(world)
    baseline = train_baseline(whole_network(world, kind.stage_num(world.size)), given, mlp_loss, optimizer=sgd)
    assert_parity(piped.train(given, sgd), baseline.only(piped.names()), ledger["pp_fp32"])
