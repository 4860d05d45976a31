"""Parameters that forward leaves divided over a few neighbouring ranks instead of all."""

from __future__ import annotations

from hyper_parallel_tests.domains.fully_shard.reference import part
from hyper_parallel_tests.domains.fully_shard.setting import (
    accumulated_gradients,
    batch,
    either_fusion,
    gradients,
    group_bytes,
    loss,
    mine,
    network,
    parts,
    resident,
    shards,
    wrap,
)
from hyper_parallel_tests.harness import assert_close, contract, in_clean_process, trace

# The same width divides over all ranks and over a group of two.
WIDTH, GROUP = 8, 2


def single_card_gradients(world, rows):
    """Gradients of the wide network on one card."""
    return in_clean_process(accumulated_gradients, network(world, WIDTH), [rows])


@contract("FS-1-10")
@either_fusion
def test_reshard_to_a_smaller_group(engine, world, ledger, comm_fusion):
    """An int leaves each rank its part among so many neighbours, who alone gather for backward; values are right."""
    model = network(world, WIDTH)
    full = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    options = {"reshard_after_forward": GROUP, "comm_fusion": comm_fusion}
    wrap(engine, model, model.layers, world.mesh(dp=world.size), **options)
    rows = batch(world, width=WIDTH)
    value = loss(model, mine(world, rows))
    halves = {name: part(one, dim=0, index=world.rank % GROUP, count=GROUP) for name, one in full.items()}
    assert_close(resident(engine, model), halves, ledger["exact"], what="what forward leaves")

    with trace.collectives() as sent:
        value.backward()
    first = world.rank - world.rank % GROUP
    groups = len(group_bytes(engine, model))
    assert [one.ranks for one in sent.of("all_gather")] == [tuple(range(first, first + GROUP))] * groups
    assert_close(shards(engine, model), parts(world, full), ledger["exact"], what="what backward leaves")
    expected = parts(world, single_card_gradients(world, rows))
    assert_close(gradients(engine, model), expected, ledger["fsdp_1d_fp32"], what="gradients")
