"""What clipping sees and changes, between backward and step."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from hyper_parallel_tests.domains.clip_grad.reference import NORM_TYPES, clipped, global_norm
from hyper_parallel_tests.domains.clip_grad.setting import (
    LEARNING_RATE,
    batch,
    gradients,
    loss,
    mine,
    network,
    own_shard,
    sgd,
    sharded_network,
    shards,
    single_card_gradients,
)
from hyper_parallel_tests.harness import assert_close, contract

# Far below the network's gradient norm, so that everything is scaled.
BOUND = 0.1
ALL = {f"layers.{layer}.{kind}" for layer in range(3) for kind in ("weight", "bias")}

each_foreach = pytest.mark.parametrize("foreach", [None, False, True], ids=["by_default", "single", "foreach"])
each_norm = pytest.mark.parametrize("norm_type", NORM_TYPES)


def after_backward(engine, world, seed=0):
    """A sharded network with its gradients, and the single card's gradients."""
    model, rows = sharded_network(engine, world), batch(world, seed)
    loss(model, mine(world, rows)).backward()
    return model, single_card_gradients(world, rows)


def on_all_ranks(world, value: torch.Tensor) -> torch.Tensor:
    """A scalar as each rank has it, by rank."""
    found = [torch.empty_like(value) for _ in range(world.size)]
    dist.all_gather(found, value)
    return torch.stack(found)


@contract("CG-1-01")
@each_foreach
@each_norm
def test_clip_sees_reduced_gradients(engine, world, ledger, norm_type, foreach):
    """Right after backward the norm is the whole model's, the same bits everywhere, and all shards are scaled."""
    p = NORM_TYPES[norm_type]
    model, reference = after_backward(engine, world)
    norm = engine.clip_grad_norm_(model.parameters(), BOUND, norm_type=p, foreach=foreach)
    expected = global_norm(reference.values(), p)
    assert type(norm) is torch.Tensor
    assert_close(on_all_ranks(world, norm), norm.expand(world.size), ledger["exact"], what="norm by rank")
    assert_close(norm, expected, ledger["fsdp_1d_fp32"], what="norm")
    after = clipped(reference, expected, BOUND)
    assert_close(gradients(model), after, ledger["fsdp_1d_fp32"], what="gradients")


@contract("CG-1-01")
def test_clip_sees_accumulated_gradients_once(engine, world, ledger):
    """Micro-batches that waited for the last one's reduction are in the norm once and are scaled."""
    rows = [batch(world, seed) for seed in range(3)]
    model = sharded_network(engine, world)
    for step, one in enumerate(rows):
        model.set_requires_gradient_sync(step == len(rows) - 1)
        loss(model, mine(world, one)).backward()
    reference = single_card_gradients(world, *rows)
    norm = engine.clip_grad_norm_(model.parameters(), BOUND)
    assert_close(norm, global_norm(reference.values()), ledger["fsdp_1d_fp32"], what="norm")
    assert_close(gradients(model), clipped(reference, norm, BOUND), ledger["fsdp_1d_fp32"], what="gradients")


@contract("CG-1-01")
def test_clip_leaves_pending_gradients(engine, world, ledger):
    """What waits for a reduction is neither counted nor scaled: the later reduction yields it whole."""
    rows = [batch(world, seed) for seed in range(2)]
    model = sharded_network(engine, world)
    model.set_requires_gradient_sync(False)
    loss(model, mine(world, rows[0])).backward()
    norm = engine.clip_grad_norm_(model.parameters(), BOUND)
    assert_close(norm, 0.0, ledger["exact"], what="norm", zero_because="no gradient is reduced yet")
    model.set_requires_gradient_sync(True)
    loss(model, mine(world, rows[1])).backward()
    reference = single_card_gradients(world, *rows)
    assert_close(gradients(model), reference, ledger["fsdp_1d_fp32"], what="gradients")


@contract("CG-1-01")
def test_clip_comes_between_backward_and_step(engine, world, ledger):
    """Post-accumulate hooks see gradients that are reduced and whole, the step sees them clipped."""
    model = sharded_network(engine, world)
    optimizer = sgd(model.parameters())
    in_backward: dict[str, torch.Tensor] = {}
    in_step: dict[str, torch.Tensor] = {}
    for name, one in model.named_parameters():
        one.register_post_accumulate_grad_hook(lambda one, name=name: in_backward.update({name: one.grad.clone()}))
    optimizer.register_step_pre_hook(lambda *_: in_step.update(gradients(model)))
    loss(model, mine(world, batch(world))).backward()
    engine.clip_grad_norm_(model.parameters(), BOUND)
    optimizer.step()
    reference = single_card_gradients(world, batch(world))
    assert_close(in_backward, reference, ledger["fsdp_1d_fp32"], what="gradients in backward")
    expected = clipped(reference, global_norm(reference.values()), BOUND)
    assert_close(in_step, expected, ledger["fsdp_1d_fp32"], what="gradients in step")
    moved = {name: one.detach() - LEARNING_RATE * expected[name] for name, one in network(world).named_parameters()}
    assert_close(dict(model.named_parameters()), moved, ledger["fsdp_1d_fp32"], what="parameters")


@contract("CG-1-01")
@each_foreach
def test_frozen_parameters_are_skipped(engine, world, ledger, foreach):
    """A gradient that a parameter got before it was frozen is neither counted nor scaled."""
    model, reference = after_backward(engine, world)
    frozen = {"layers.1.weight", "layers.1.bias"}
    for name, one in model.named_parameters():
        one.requires_grad_(name not in frozen)
    trained = {name: one for name, one in reference.items() if name not in frozen}
    norm = engine.clip_grad_norm_(model.parameters(), BOUND, foreach=foreach)
    assert_close(norm, global_norm(trained.values()), ledger["fsdp_1d_fp32"], what="norm")
    expected = reference | clipped(trained, norm, BOUND)
    assert_close(gradients(model), expected, ledger["fsdp_1d_fp32"], what="gradients")


@contract("CG-1-01")
@each_foreach
def test_parameters_without_gradient_are_skipped(engine, world, ledger, foreach):
    """A parameter without a gradient counts for nothing and still has none afterwards."""
    model, reference = after_backward(engine, world)
    model.layers[1].weight.grad = None
    del reference["layers.1.weight"]
    norm = engine.clip_grad_norm_(model.parameters(), BOUND, foreach=foreach)
    assert_close(norm, global_norm(reference.values()), ledger["fsdp_1d_fp32"], what="norm")
    assert_close(gradients(model), clipped(reference, norm, BOUND), ledger["fsdp_1d_fp32"], what="gradients")


@contract("CG-1-01")
@pytest.mark.parametrize("lacking", [{"layers.1.weight"}, ALL], ids=["one_gradient", "all_gradients"])
def test_a_rank_without_gradients_takes_part(engine, world, ledger, lacking):
    """What the last rank alone lacks is zero in the norm, which each rank knows, and the rest is scaled."""
    model, reference = after_backward(engine, world)
    last = world.rank == world.size - 1
    for name, one in model.named_parameters():
        if name in lacking:
            reference[name] = without_last_shard(world, reference[name])
            one.grad = None if last else one.grad
    norm = engine.clip_grad_norm_(model.parameters(), BOUND)
    assert_close(norm, global_norm(reference.values()), ledger["fsdp_1d_fp32"], what="norm")
    expected = clipped(reference, norm, BOUND)
    own = {name: own_shard(world, one) for name, one in expected.items() if not (last and name in lacking)}
    nothing = "" if own else "this rank lacks all gradients"
    assert_close(shards(engine, model), own, ledger["fsdp_1d_fp32"], what="shards", zero_because=nothing)


def without_last_shard(world, full: torch.Tensor) -> torch.Tensor:
    *others, last = full.chunk(world.size)
    return torch.cat([*others, torch.zeros_like(last)])
