"""Cross entropy in chunks over the plan's vocabulary, sharded over one mesh dimension, against DDP."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch.nn.parallel import DistributedDataParallel

from hyper_parallel_tests.domains.fully_shard.networks import CHUNKED, SMALL_CHUNKED, beside_ddp, norm_of
from hyper_parallel_tests.domains.fully_shard.setting import either_fusion
from hyper_parallel_tests.harness import (
    assert_bitwise_repeatable,
    assert_close,
    assert_parity,
    contract,
    in_clean_process,
)


@contract("FSDP-L3-05")
@either_fusion
def test_small_chunked_ce_fsdp_vs_ddp(engine, world, ledger, comm_fusion):
    """An output layer that runs three times in a forward is DDP's: losses, norms, every gradient and parameter."""
    candidate, ddp = beside_ddp(engine, world, SMALL_CHUNKED, world.mesh(dp=world.size), comm_fusion=comm_fusion)
    assert_parity(candidate, ddp, ledger["fsdp_1d_fp32"])


@contract("FSDP-L3-05")
# Three runs with two matrices of 32768 words, whole on every rank in each record: the plan's size, and heavy for a CPU.
@pytest.mark.watchdog(120)
def test_chunked_ce_fsdp_vs_ddp(engine, world, ledger):
    """Total and per-chunk losses, norms and the output layer's gradient are DDP's; the chunks add up to the total."""
    row = ledger["fsdp_1d_fp32"]
    candidate, chunks, totals = assert_bitwise_repeatable(
        lambda: in_chunks(world, CHUNKED.sharded(engine, world, world.mesh(dp=world.size), comm_fusion=False))
    )
    ddp, expected_chunks, _ = in_clean_process(in_chunks_under_ddp, world)
    assert_parity(candidate, ddp, row)
    for number, (ours, theirs) in enumerate(zip(candidate.steps, ddp.steps, strict=True)):
        assert len(chunks[number]) > 1
        assert_close(chunks[number], expected_chunks[number], row, what=f"step {number}: losses of the chunks")
        whole = chunks[number].double().sum().float()
        assert_close(whole, totals[number], ledger["chunked_loss_sum_fp32"], what=f"step {number}: sum of the chunks")
        assert_close(
            norm_of(ours, "output.weight"),
            norm_of(theirs, "output.weight"),
            row,
            what=f"step {number}: norm of the output layer's gradient",
        )


def in_chunks_under_ddp(world):
    return in_chunks(world, DistributedDataParallel(CHUNKED.make().to(world.device)))


def in_chunks(world, model):
    """A run, and of each of its steps this rank's losses of the chunks and its total."""
    chunks, totals = [], []

    def loss(module, batch):
        losses = module(batch.inputs, batch.targets)
        chunks.append(losses.chunks)
        totals.append(losses.total.detach())
        return losses.total

    return replace(CHUNKED, loss=loss).run(world, model), chunks, totals
