"""Cross entropy in chunks over the plan's vocabulary, on a hybrid mesh of two replicas of two shards, against DDP."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.fully_shard.networks import CHUNKED, beside_ddp
from hyper_parallel_tests.harness import assert_parity, contract


@contract("FSDP-L3-05")
@pytest.mark.watchdog(240)
def test_chunked_ce_hsdp_vs_ddp(engine, world, ledger):
    """The large vocabulary is DDP's on the hybrid mesh too: losses, norms, every gradient and parameter."""
    candidate, ddp = beside_ddp(engine, world, CHUNKED, world.mesh(replicate=2, shard=2))
    assert_parity(candidate, ddp, ledger["hsdp_2d_fp32"])
