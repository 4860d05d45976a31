"""Training by each schedule against a single card."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.pipeline_parallel.kinds import each_common_kind, each_kind
from hyper_parallel_tests.domains.pipeline_parallel.networks import batches, sgd, whole_network
from hyper_parallel_tests.domains.pipeline_parallel.setting import pipeline
from hyper_parallel_tests.harness import assert_close, assert_parity, contract, in_clean_process, train_baseline
from hyper_parallel_tests.models.mlp import mlp_loss
from hyper_parallel_tests.models.seeding import Batch


def losses_of_micro_batches(model: nn.Module, batch: Batch, micro_batches: int) -> list[Tensor]:
    """On a single card, each as its share of the batch's mean."""
    return [
        mlp_loss(model, batch.part(micro, micro_batches)).detach() / micro_batches for micro in range(micro_batches)
    ]


@contract("PP-2-01")
@each_kind
def test_losses_of_micro_batches(engine, world, artifacts, ledger, kind):
    """The last stage returns the loss of each micro-batch in order and without its graph, the others nothing."""
    piped, batch = pipeline(engine, world, kind, artifacts), batches(world)[0]
    found = piped.run(batch)
    expected = in_clean_process(losses_of_micro_batches, whole_network(world, kind.stage_num(world.size)), batch, 4)
    if piped.is_last:
        assert not any(one.requires_grad for one in found)
        assert_close(found, expected, ledger["pp_fp32"], what="losses")
    else:
        assert found == []


@contract("PP-2-01")
@each_kind
def test_gradients(engine, world, artifacts, ledger, kind):
    """After one pass each stage has the gradients of its layers over the whole batch."""
    piped, given = pipeline(engine, world, kind, artifacts), batches(world, steps=1)
    baseline = train_baseline(whole_network(world, kind.stage_num(world.size)), given, mlp_loss)
    assert_parity(piped.train(given), baseline.only(piped.names()), ledger["pp_fp32"])


@contract("PP-2-01")
@each_kind
def test_training(engine, world, artifacts, ledger, kind):
    """Loss, gradients and parameters of three steps are those of a single card."""
    piped, given = pipeline(engine, world, kind, artifacts), batches(world, steps=3)
    baseline = train_baseline(whole_network(world, kind.stage_num(world.size)), given, mlp_loss, optimizer=sgd)
    assert_parity(piped.train(given, sgd), baseline.only(piped.names()), ledger["pp_fp32"])


@contract("PP-2-01")
@each_common_kind
def test_fewer_micro_batches_than_stages(engine, world, artifacts, ledger, kind):
    """One micro-batch, the whole batch, gives the loss and the gradients of a single card."""
    piped, given = pipeline(engine, world, kind, artifacts, micro_batches=1), batches(world, steps=1)
    baseline = train_baseline(whole_network(world, kind.stage_num(world.size)), given, mlp_loss)
    assert_parity(piped.train(given), baseline.only(piped.names()), ledger["pp_fp32"])


@contract("PP-2-01")
@each_common_kind
def test_uneven_stages(engine, world, artifacts, ledger, kind):
    """So do stages of one layer, of two and of three."""
    counts = [1 + index % 3 for index in range(kind.stage_num(world.size))]
    piped, given = pipeline(engine, world, kind, artifacts, counts=counts), batches(world, steps=1)
    baseline = train_baseline(whole_network(world, sum(counts)), given, mlp_loss)
    assert_parity(piped.train(given), baseline.only(piped.names()), ledger["pp_fp32"])


@contract("PP-2-01")
@each_common_kind
def test_accumulation(engine, world, artifacts, ledger, kind):
    """Two passes add up their gradients."""
    piped, given = pipeline(engine, world, kind, artifacts), batches(world)
    for batch in given:
        piped.run(batch)
    both = Batch(torch.cat([one.inputs for one in given]), torch.cat([one.targets for one in given]))
    baseline = train_baseline(whole_network(world, kind.stage_num(world.size)), [both], _sum_of_both_means).steps[0]
    expected = {name: one for name, one in baseline.grads.items() if name in piped.names()}
    assert_close(piped.gradients(), expected, ledger["pp_fp32"], what="gradients")


def _sum_of_both_means(model: nn.Module, batch: Batch) -> Tensor:
    return 2 * mlp_loss(model, batch)
