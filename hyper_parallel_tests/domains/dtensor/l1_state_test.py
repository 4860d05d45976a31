"""State dicts of modules with distributed parameters."""

from __future__ import annotations

import pytest
from torch import nn

from hyper_parallel_tests.domains.dtensor.setting import Product, numbers, on, placed
from hyper_parallel_tests.harness import assert_equal, contract


def module_of(engine, mesh, kind: str, seed: int) -> nn.Module:
    """Two products of one distributed and one plain parameter, with a distributed buffer."""
    module = nn.Sequential(Product(numbers(8, 4, seed=seed)), Product(numbers(4, 4, seed=seed + 1)))
    module[0].weight = nn.Parameter(on(engine, mesh, module[0].weight.detach(), kind))
    module.register_buffer("scale", on(engine, mesh, numbers(8, 4, seed=seed + 2), kind))
    return module


@contract("DT-1-05")
@pytest.mark.parametrize("kind", ["R", "S0", "S1"])
def test_state_dict_holds_distributed_tensors(engine, world, kind):
    """Entries of distributed parameters and buffers keep placements and mesh; plain ones stay plain."""
    mesh = world.mesh(tp=world.size)
    state = module_of(engine, mesh, kind, seed=0).state_dict()
    assert list(state) == ["scale", "0.weight", "1.weight"]
    for name in ("scale", "0.weight"):
        assert isinstance(state[name], engine.DTensor), name
        assert list(state[name].placements) == placed(engine, kind), name
        assert state[name].device_mesh == mesh, name
    assert not isinstance(state["1.weight"], engine.DTensor)
    assert_equal(state["0.weight"].full_tensor(), numbers(8, 4), what="0.weight")


@contract("DT-1-05")
def test_load_keeps_the_parameters(engine, world):
    """Loading changes values in place: the same parameters, where they were, so an optimizer goes on with them."""
    mesh = world.mesh(tp=world.size)
    for kind in ("R", "S0", "S1"):
        module = module_of(engine, mesh, kind, seed=0)
        parameters = list(module.parameters())
        memory = module[0].weight.to_local().data_ptr()
        module.load_state_dict(module_of(engine, mesh, kind, seed=5).state_dict())
        assert all(one is other for one, other in zip(module.parameters(), parameters, strict=True))
        assert module[0].weight.to_local().data_ptr() == memory
        assert list(module[0].weight.placements) == placed(engine, kind)
        assert_equal(module[0].weight.full_tensor().detach(), numbers(8, 4, seed=5), what=f"{kind} parameter")
        assert_equal(module.scale.full_tensor(), numbers(8, 4, seed=7), what=f"{kind} buffer")


@contract("DT-1-05")
def test_load_from_other_placements(engine, world):
    """A state that lies otherwise is loaded by value; the parameter stays where it lies."""
    mesh = world.mesh(tp=world.size)
    for kind, other in [("S0", "S1"), ("S0", "R"), ("R", "S1")]:
        module = module_of(engine, mesh, kind, seed=0)
        module.load_state_dict(module_of(engine, mesh, other, seed=5).state_dict())
        assert list(module[0].weight.placements) == placed(engine, kind)
        assert_equal(module[0].weight.full_tensor().detach(), numbers(8, 4, seed=5), what=f"{kind} from {other}")


@contract("DT-1-05")
def test_load_of_another_shape_is_an_error(engine, world):
    """A state of another full shape is refused although the parts may fit, and the message names the parameter."""
    mesh = world.mesh(tp=world.size)
    module = module_of(engine, mesh, "S0", seed=0)
    state = module.state_dict()
    state["0.weight"] = on(engine, mesh, numbers(8 // world.size, 4), "R")
    with pytest.raises(RuntimeError, match=r"0\.weight"):
        module.load_state_dict(state)


@contract("DT-1-05")
def test_assign_takes_the_tensors_of_the_state(engine, world):
    """With `assign` the parameters become those of the state, placements included, and need gradients as before."""
    mesh = world.mesh(tp=world.size)
    module = module_of(engine, mesh, "S0", seed=0)
    state = module_of(engine, mesh, "S1", seed=5).state_dict()
    module.load_state_dict(state, assign=True)
    assert list(module[0].weight.placements) == placed(engine, "S1")
    assert module[0].weight.requires_grad
    assert module[0].weight.to_local().data_ptr() == state["0.weight"].to_local().data_ptr()
