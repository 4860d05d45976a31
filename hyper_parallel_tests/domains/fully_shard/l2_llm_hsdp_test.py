"""The plan's decoder on a hybrid mesh, two replicas of two shards, against DDP."""

from __future__ import annotations

from hyper_parallel_tests.domains.fully_shard.networks import LLM, assert_same_gradients, beside_ddp
from hyper_parallel_tests.domains.fully_shard.setting import either_fusion
from hyper_parallel_tests.harness import assert_parity, contract

FIRST_ATTENTION = "blocks.0.attention."
LAST_FFN = "blocks.3.ffn."


@contract("FSDP-L3-01")
@either_fusion
def test_llm_decoder_hsdp_vs_ddp(engine, world, ledger, comm_fusion):
    """Losses of step 0 and of step 1 after the update, norms, and first and last weights' gradients are DDP's."""
    candidate, ddp = beside_ddp(engine, world, LLM, world.mesh(replicate=2, shard=2), comm_fusion=comm_fusion)
    row = ledger["hsdp_2d_fp32"]
    assert_parity(candidate, ddp, row)
    assert_same_gradients(candidate, ddp, row, FIRST_ATTENTION, LAST_FFN)
