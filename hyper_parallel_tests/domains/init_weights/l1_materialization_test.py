"""A deferred, divided model from its making to its first step: storage, hooks, buffers, and being forgotten."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.init_weights.setting import (
    MATERIALIZE,
    Network,
    deferred,
    draw,
    initialise,
    load,
    started,
)
from hyper_parallel_tests.harness import assert_close, contract, in_clean_process, trace, train_baseline

# On two ranks: even shards, and a shorter last one that is padded.
WIDTHS = {"even": 8, "odd": 7}
WIDTH = WIDTHS["odd"]

each_way = pytest.mark.parametrize("materialize", MATERIALIZE.values(), ids=MATERIALIZE)
each_way_with_values = pytest.mark.parametrize(
    "materialize", [draw, load], ids=["init_parameters", "set_model_state_dict"]
)


def network(width: int = WIDTH):
    return Network(width)


def divided(engine, world, model):
    """The network, its second layer wrapped by itself."""
    mesh = world.mesh(dp=world.size)
    engine.fully_shard(model.second, mesh=mesh)
    return engine.fully_shard(model, mesh=mesh)


def inputs(world, width: int = WIDTH) -> torch.Tensor:
    return torch.ones(2, width, device=world.device)


def shard_bytes(engine, model) -> int:
    """Bytes of this rank's shards with their padding."""
    return sum(
        torch.Size(one.padded_shape).numel() * one.shard.element_size() for one in engine.managed_parameters(model)
    )


def storage_bytes(engine, model) -> int:
    """Bytes of the storages behind this rank's shards. One on the meta device has a size, but no memory."""
    storages = {one.shard.untyped_storage() for one in engine.managed_parameters(model) if not one.shard.is_meta}
    return sum(storage.nbytes() for storage in storages)


@contract("IW-1-01")
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@each_way
def test_storage_appears_only_on_materialization(engine, world, materialize, width):
    """Made and divided, the model holds nothing but its buffers; materialized, the shards, and nothing whole."""
    ordinary = started(lambda: network(width), world.device)
    world.mesh(dp=world.size)  # a mesh has a tensor of its ranks, which is not the model's
    with trace.live_tensors() as live:
        model = divided(engine, world, deferred(engine, lambda: network(width)))
        buffers = sum(one.nbytes for one in model.buffers())
        assert storage_bytes(engine, model) == 0
        assert live.grown() == buffers
        materialize(engine, model, ordinary)
        # Padding is added where the model first looks at its shards.
        for unit in (model, model.second):
            unit.unshard()
            unit.reshard()
        expected = shard_bytes(engine, model)
        assert storage_bytes(engine, model) == expected
        assert live.grown(awaited=buffers + expected) == buffers + expected


@contract("IW-1-01")
def test_forgetting_to_materialize_is_a_clear_error(engine, world):
    """Running a deferred model names a parameter and says that it has to be materialized."""
    model = divided(engine, world, deferred(engine, network))
    with pytest.raises(Exception, match=r"(?s)(first|scale|third).*materializ|materializ.*(first|scale|third)"):
        model(inputs(world))


@contract("IW-1-01")
def test_forgetting_under_tensor_parallelism_is_an_error(engine, world):
    """A layer without storage gives no output, and the message names the meta device."""
    model = deferred(engine, lambda: Network(WIDTHS["even"]))
    plan = {"second": engine.ColwiseParallel(output_layouts=engine.Replicate())}
    engine.parallelize_module(model, world.mesh(tp=world.size), plan)
    with pytest.raises(Exception, match="meta"):
        model(inputs(world, WIDTHS["even"]))


@contract("IW-1-01")
def test_a_forgotten_model_can_still_be_materialized(engine, world, ledger):
    """After that error the model is materialized as it says, and computes what an ordinary one does."""
    model = divided(engine, world, deferred(engine, network))
    with pytest.raises(Exception, match="materializ"):
        model(inputs(world))
    initialise(engine, model, world.device)
    try:
        output = model(inputs(world))
    except (AttributeError, RuntimeError) as error:
        pytest.fail(f"the model stays unusable: {error}")
    expected = in_clean_process(started(network, world.device), inputs(world))
    assert_close(output, expected, ledger["fsdp_1d_fp32"], what="the output")


@contract("IW-1-01")
@each_way_with_values
def test_hooks_survive(engine, world, materialize):
    """Hooks that were registered on the deferred model run once a pass afterwards, in their order."""
    model = divided(engine, world, deferred(engine, network))
    seen = []
    model.second.register_forward_pre_hook(lambda *_: seen.append("forward_pre"))
    model.second.register_forward_hook(lambda *_: seen.append("forward"))
    model.second.register_full_backward_hook(lambda *_: seen.append("backward"))
    materialize(engine, model, started(network, world.device))
    model(inputs(world)).sum().backward()
    assert seen == ["forward_pre", "forward", "backward"]


@contract("IW-1-01")
@each_way_with_values
def test_the_first_step_gathers_and_reduces(engine, world, ledger, materialize):
    """The engine's own hooks survive too: output and gradients are those of one card."""
    model = divided(engine, world, deferred(engine, network))
    single = started(network, world.device)
    materialize(engine, model, single)
    output, expected = model(inputs(world)), in_clean_process(single, inputs(world))
    assert_close(output, expected, ledger["fsdp_1d_fp32"], what="the output")
    output.sum().backward()
    whole = train_baseline(single, [inputs(world)], sum_of_outputs).steps[0].grads
    grads = {name: one.grad for name, one in model.named_parameters()}
    assert_close(grads, whole, ledger["fsdp_1d_fp32"], what="gradients")


def sum_of_outputs(model, rows) -> torch.Tensor:
    return model(rows).sum()


@contract("IW-1-01")
def test_buffers_survive(engine, world, ledger):
    """Buffers that were not deferred keep what they hold, in the state dict or not."""
    model = divided(engine, world, deferred(engine, network))
    model.scale.calls.fill_(5)
    model.scale.table.fill_(0.25)
    initialise(engine, model, world.device)
    expected = {"calls": torch.tensor(5.0), "table": torch.full((WIDTH,), 0.25)}
    assert_close(dict(model.scale.named_buffers()), expected, ledger["exact"], what="buffers")


@contract("IW-1-01")
def test_deferred_buffers_are_computed_anew(engine, world, ledger):
    """Deferred buffers, in the state dict or not, have the ordinary start's values and are whole on each rank."""
    model = divided(engine, world, deferred(engine, network, include_buffers=True))
    assert {one.device.type for one in model.buffers()} == {"meta"}
    initialise(engine, model, world.device)
    expected = dict(started(network, world.device).scale.named_buffers())
    assert_close(dict(model.scale.named_buffers()), expected, ledger["exact"], what="buffers")
