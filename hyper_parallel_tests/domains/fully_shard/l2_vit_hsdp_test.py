"""Vision and multimodal models in the plan's size on a hybrid mesh, two replicas of two shards, against DDP."""

from __future__ import annotations

from hyper_parallel_tests.domains.fully_shard.networks import MULTIMODAL, VIT, beside_ddp
from hyper_parallel_tests.harness import assert_parity, contract


@contract("FSDP-L3-04")
def test_vit_hsdp_vs_ddp(engine, world, ledger):
    """On the hybrid mesh too everything is DDP's: losses, norms, every gradient and parameter."""
    candidate, ddp = beside_ddp(engine, world, VIT, world.mesh(replicate=2, shard=2), comm_fusion=True)
    assert_parity(candidate, ddp, ledger["hsdp_2d_fp32"])


@contract("FSDP-L3-06")
def test_multimodal_deepstack_hsdp(engine, world, ledger):
    """Two networks on hybrid meshes, with a whole projection between them, are DDP's in the same way."""
    candidate, ddp = beside_ddp(engine, world, MULTIMODAL, world.mesh(replicate=2, shard=2), comm_fusion=True)
    assert_parity(candidate, ddp, ledger["hsdp_2d_fp32"])
