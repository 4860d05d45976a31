"""Vision and multimodal models in the plan's size: fully_shard over one mesh dimension, against DDP."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hyper_parallel_tests.domains.fully_shard.networks import (
    MULTIMODAL,
    VIT,
    assert_same_gradients,
    beside_ddp,
    grads_of,
    names_under,
    norm_of,
    whole_on_every_rank,
)
from hyper_parallel_tests.domains.fully_shard.setting import gradients
from hyper_parallel_tests.harness import assert_close, assert_differs, assert_equal, assert_parity, contract

PATCHES = "encoder.patches."
LAST_MLP = "encoder.blocks.5.mlp."


@contract("FSDP-L3-04")
def test_vit_fsdp_does_not_shard_patch_embedding_and_head(engine, world):
    """Every rank holds all of the patch embedding and of the head, and of no other parameter."""
    model = VIT.sharded(engine, world, world.mesh(dp=world.size), comm_fusion=False)
    assert whole_on_every_rank(engine, model) == names_under(model, PATCHES, "head.")


@contract("FSDP-L3-04")
def test_vit_fsdp_vs_ddp(engine, world, ledger):
    """Losses, norms and the last MLP's gradients are DDP's over two steps."""
    candidate, ddp = beside_ddp(engine, world, VIT, world.mesh(dp=world.size), comm_fusion=False)
    row = ledger["fsdp_1d_fp32"]
    assert_parity(candidate, ddp, row)
    assert_same_gradients(candidate, ddp, row, LAST_MLP)


@contract("FSDP-L3-04")
def test_vit_fsdp_vs_ddp_of_the_patch_embedding(engine, world):
    """The patch embedding's gradient is the same bits on every rank, and DDP's, at both steps."""
    model, ddp = VIT.sharded(engine, world, world.mesh(dp=world.size), comm_fusion=False), VIT.run_ddp(world)
    optimizer = VIT.optimizer(model.parameters())
    for number, (rows, theirs) in enumerate(zip(VIT.batches(world), ddp.steps, strict=True)):
        model.zero_grad()
        VIT.loss(model, rows).backward()
        held = {name: grad for name, grad in gradients(engine, model).items() if name.startswith(PATCHES)}
        for name, grad in held.items():
            everyones = [torch.empty_like(grad) for _ in range(world.size)]
            dist.all_gather(everyones, grad.contiguous())
            assert_equal(everyones, [grad] * world.size, what=f"step {number}: gradient of {name} on every rank")
        assert_equal(held, grads_of(theirs, PATCHES), what=f"step {number}: gradients of the patch embedding")
        optimizer.step()


@contract("FSDP-L3-06")
def test_multimodal_deepstack_fsdp_does_not_shard_the_projection(engine, world):
    """Every rank holds all of the projection, and of no other parameter."""
    model = MULTIMODAL.sharded(engine, world, world.mesh(dp=world.size), comm_fusion=False)
    assert whole_on_every_rank(engine, model) == names_under(model, "projection.")


@contract("FSDP-L3-06")
def test_multimodal_deepstack_fsdp(engine, world, ledger):
    """Loss, the norms of both networks and the projection's gradient, which is not zero, are DDP's over two steps."""
    candidate, ddp = beside_ddp(engine, world, MULTIMODAL, world.mesh(dp=world.size), comm_fusion=False)
    row = ledger["fsdp_1d_fp32"]
    assert_parity(candidate, ddp, row)
    assert_same_gradients(candidate, ddp, row, "projection.")
    for number, (ours, theirs) in enumerate(zip(candidate.steps, ddp.steps, strict=True)):
        for part in ("vision.", "language."):
            assert_close(norm_of(ours, part), norm_of(theirs, part), row, what=f"step {number}: norm of {part}")
        projection = grads_of(ours, "projection.")
        zeros = {name: torch.zeros_like(grad) for name, grad in projection.items()}
        assert_differs(projection, zeros, row, what=f"step {number}: gradients of the projection, against zero,")
