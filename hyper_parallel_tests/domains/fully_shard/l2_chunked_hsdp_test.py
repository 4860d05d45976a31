"""Cross entropy in chunks on a hybrid mesh of two replicas of two shards, against DDP."""

from __future__ import annotations

from hyper_parallel_tests.domains.fully_shard.networks import SMALL_CHUNKED, beside_ddp
from hyper_parallel_tests.domains.fully_shard.setting import either_fusion
from hyper_parallel_tests.harness import assert_parity, contract


@contract("FSDP-L3-05")
@either_fusion
def test_chunked_ce_hsdp_vs_ddp(engine, world, ledger, comm_fusion):
    """The sharded vocabulary is DDP's on the hybrid mesh too: losses, norms, every gradient and parameter."""
    candidate, ddp = beside_ddp(engine, world, SMALL_CHUNKED, world.mesh(replicate=2, shard=2), comm_fusion=comm_fusion)
    assert_parity(candidate, ddp, ledger["hsdp_2d_fp32"])
