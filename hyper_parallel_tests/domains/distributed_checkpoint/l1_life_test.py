"""What a load leaves of the objects that it fills: parameters, optimizers, hooks."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from hyper_parallel_tests.domains.distributed_checkpoint.networks import (
    WRAPS,
    Tied,
    network,
    restore,
    states,
    step,
    tensors,
    trained,
)
from hyper_parallel_tests.domains.distributed_checkpoint.plans import local
from hyper_parallel_tests.domains.distributed_checkpoint.setting import shared_folder
from hyper_parallel_tests.harness import assert_equal, contract

each_wrap = pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)


@contract("CK-1-01")
@each_wrap
def test_parameters_stay_the_same_objects(engine, world, wrap):
    """A load fills the parameters and buffers that the model has, and leaves whether they want a gradient."""
    with shared_folder(world) as folder:
        saved, _ = trained(engine, world, Tied, wrap, seed=0, steps=1)
        engine.save(engine.get_model_state_dict(saved), checkpoint_id=folder)
        model, _ = trained(engine, world, Tied, wrap, seed=1, steps=1)
        model.layers[0].bias.requires_grad_(False)
        before = {name: id(one) for name, one in model.named_parameters(remove_duplicate=False)}
        calls = model.calls
        state = engine.get_model_state_dict(model)
        engine.load(state, checkpoint_id=folder)
        engine.set_model_state_dict(model, state)
    assert {name: id(one) for name, one in model.named_parameters(remove_duplicate=False)} == before
    assert model.calls is calls
    assert model.layers[1].weight is model.layers[0].weight
    assert [one.requires_grad for one in model.parameters()] == [True, False, True]
    assert_equal(tensors(model), tensors(saved))


@contract("CK-1-01")
@each_wrap
def test_state_dict_is_filled_in_place(engine, world, wrap):
    """The tensors in the state dict that is loaded into are the same objects with the same memory afterwards."""
    with shared_folder(world) as folder:
        model, optimizer = trained(engine, world, network, wrap, seed=0, steps=1)
        values = tensors(model)
        state = engine.get_model_state_dict(model)
        engine.save(state, checkpoint_id=folder)
        before = {key: (id(one), local(one).data_ptr()) for key, one in state.items()}
        step(world, model, optimizer, seed=1)
        engine.load(state, checkpoint_id=folder)
    assert {key: (id(one), local(one).data_ptr()) for key, one in state.items()} == before
    assert_equal(tensors(model), values)


@contract("CK-1-01")
@each_wrap
def test_state_dict_is_left_alone_by_a_save(engine, world, wrap):
    """A save changes neither the state dict nor what is in it, and training goes on as if there had been none."""
    with shared_folder(world) as folder:
        other, its_optimizer = trained(engine, world, network, wrap, seed=0, steps=1)
        model, optimizer = trained(engine, world, network, wrap, seed=0, steps=1)
        state = states(engine, model, optimizer) | {"list": [1, {"a": 2}], "step": 1}
        objects = {key: id(one) for key, one in state["model"].items()}
        engine.save(state, checkpoint_id=folder)
    assert {key: id(one) for key, one in state["model"].items()} == objects
    assert list(state) == ["model", "optimizer", "list", "step"]
    assert state["list"] == [1, {"a": 2}]
    for seed in (1, 2):
        assert_equal(step(world, model, optimizer, seed), step(world, other, its_optimizer, seed), what="the loss")
    assert_equal(tensors(model), tensors(other))


@contract("CK-1-01")
@pytest.mark.parametrize("steps", [0, 2], ids=["new", "used"])
@each_wrap
def test_optimizer_is_still_bound(engine, world, wrap, steps):
    """After a load the optimizer, new or used, steps the model's parameters, and as the saved run does."""
    with shared_folder(world) as folder:
        saved = trained(engine, world, network, wrap, seed=0, steps=2)
        engine.save(states(engine, *saved), checkpoint_id=folder)
        model, optimizer = trained(engine, world, network, wrap, seed=1, steps=steps)
        optimizer.param_groups[0].update(lr=0.7, weight_decay=0.0)
        restore(engine, folder, model, optimizer)
    bound = [id(one) for group in optimizer.param_groups for one in group["params"]]
    assert bound == [id(one) for one in model.parameters()]
    assert {id(one) for one in optimizer.state} == set(bound)
    for seed in (5, 6):
        assert_equal(step(world, model, optimizer, seed), step(world, *saved, seed), what="the loss")
    assert_equal(tensors(model), tensors(saved[0]))


@contract("CK-1-01")
@each_wrap
def test_hooks_still_fire(engine, world, wrap):
    """Hooks on the module and its parameters run once in the step after a load, and those on loads in the load."""
    with shared_folder(world) as folder:
        engine.save(states(engine, *trained(engine, world, network, wrap, seed=0, steps=1)), checkpoint_id=folder)
        model, optimizer = trained(engine, world, network, wrap, seed=1, steps=1)
        fired = Counter()
        hooks(model, optimizer, fired)
        restore(engine, folder, model, optimizer)
    assert fired["module loaded"] == 1
    assert fired["optimizer loaded"] >= 1
    assert fired["state dict"] >= 1
    fired.clear()
    step(world, model, optimizer, seed=1)
    assert fired == dict.fromkeys(["before", "after", "backward", "accumulated", "stepped"], 1)


def hooks(model, optimizer, fired):
    """Puts a hook of each kind on a model, its first bias and its optimizer, which counts its calls."""

    def counting(name):
        def hook(*args, **kwargs):
            fired[name] += 1

        return hook

    model.register_forward_pre_hook(counting("before"))
    model.register_forward_hook(counting("after"))
    model.register_full_backward_hook(counting("backward"))
    model.register_load_state_dict_post_hook(counting("module loaded"))
    model.register_state_dict_post_hook(counting("state dict"))
    model.layers[0].bias.register_post_accumulate_grad_hook(counting("accumulated"))
    optimizer.register_load_state_dict_post_hook(counting("optimizer loaded"))
    optimizer.register_step_post_hook(counting("stepped"))


class Counting:
    """An object with a state of its own that notes what is asked of it."""

    def __init__(self, value):
        self.value, self.calls = torch.full((2,), float(value)), []

    def state_dict(self):
        self.calls.append("state_dict")
        return {"value": self.value, "kind": "counting"}

    def load_state_dict(self, state):
        self.calls.append("load_state_dict")
        self.value, self.kind = state["value"], state["kind"]


@contract("CK-1-01")
def test_objects_with_a_state_are_asked_for_it(engine, world):
    """An object with `state_dict` and `load_state_dict` stays in the dict, and is asked once for each."""
    with shared_folder(world) as folder:
        saved, loaded = Counting(5), Counting(0)
        engine.save({"one": saved}, checkpoint_id=folder)
        assert saved.calls == ["state_dict"]
        state = {"one": loaded}
        engine.load(state, checkpoint_id=folder)
    assert state["one"] is loaded
    assert loaded.calls == ["state_dict", "load_state_dict"]
    assert_equal(loaded.value, torch.full((2,), 5.0))
    assert loaded.kind == "counting"


@contract("CK-1-01")
def test_loaded_tensor_needs_room(engine, world):
    """A tensor on the meta device has no room: after the load there is one with values in its place in the dict."""
    with shared_folder(world) as folder:
        engine.save({"inner": {"t": torch.ones(2, 3)}}, checkpoint_id=folder)
        state = {"inner": {"t": torch.empty(2, 3, device="meta")}}
        engine.load(state, checkpoint_id=folder)
    assert_equal(state["inner"]["t"], torch.ones(2, 3))
