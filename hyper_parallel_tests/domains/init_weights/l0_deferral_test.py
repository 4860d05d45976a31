"""What is deferred when a model is made without storage."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.init_weights.setting import Network, deferred, started
from hyper_parallel_tests.harness import assert_close, contract

WIDTH = 5


def devices(tensors) -> set[str]:
    return {tensor.device.type for tensor in tensors}


class Tagged(nn.Module):
    """One parameter in bf16 that does not train, with an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16), requires_grad=False)
        self.weight.tag = "frozen"


class Shared(nn.Module):
    """Two modules that are handed one and the same parameter."""

    def __init__(self) -> None:
        super().__init__()
        weight = nn.Parameter(torch.ones(3, 3))
        self.left, self.right = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.left.weight = weight
        self.right.weight = weight


@contract("IW-0-01")
def test_parameters_are_deferred_and_buffers_are_not(engine, ledger):
    """Every parameter is on the meta device; buffers have their values."""
    model = deferred(engine, lambda: Network(WIDTH))
    assert devices(model.parameters()) == {"meta"}
    expected = dict(started(lambda: Network(WIDTH)).named_buffers())
    assert_close(dict(model.named_buffers()), expected, ledger["exact"], what="buffers")


@contract("IW-0-01")
def test_buffers_are_deferred_if_asked(engine):
    """With include_buffers persistent and other buffers are on the meta device too."""
    model = deferred(engine, lambda: Network(WIDTH), include_buffers=True)
    assert devices(model.parameters()) == {"meta"}
    assert {name: buffer.device.type for name, buffer in model.named_buffers()} == {
        "scale.calls": "meta",
        "scale.table": "meta",
    }


@contract("IW-0-01")
def test_names_and_keys_are_the_ordinary_ones(engine):
    """A deferred model has the parameters and the state dict keys of an ordinary one, of the same shapes."""
    model, ordinary = deferred(engine, lambda: Network(WIDTH)), Network(WIDTH)
    assert [(name, one.shape) for name, one in model.named_parameters()] == [
        (name, one.shape) for name, one in ordinary.named_parameters()
    ]
    assert list(model.state_dict()) == list(ordinary.state_dict())


@contract("IW-0-01")
def test_a_deferred_parameter_is_the_parameter_but_for_its_values(engine):
    """Class, dtype, requires_grad and attributes are those of the parameter that the module was given."""
    weight = deferred(engine, Tagged).weight
    assert isinstance(weight, nn.Parameter)
    assert (weight.shape, weight.dtype, weight.requires_grad, weight.tag) == ((3, 2), torch.bfloat16, False, "frozen")


@contract("IW-0-01")
@pytest.mark.parametrize(
    ("make", "names"),
    [
        pytest.param(lambda: Network(WIDTH), ("first", "third"), id="tied_afterwards"),
        pytest.param(Shared, ("left", "right"), id="given_to_both"),
    ],
)
def test_shared_parameters_are_deferred_as_one(engine, make, names):
    """Two modules that share a parameter share its deferred stand-in."""
    model = deferred(engine, make)
    one, other = (model.get_submodule(name).weight for name in names)
    assert one.is_meta
    assert one is other


@contract("IW-0-01")
def test_the_context_ends(engine):
    """After the block, and after one that an error left, modules are made as ever."""
    deferred(engine, Tagged)
    assert devices(Network(WIDTH).parameters()) == {"cpu"}
    with pytest.raises(KeyError), engine.init_empty_weights(include_buffers=True):
        raise KeyError
    model = Network(WIDTH)
    assert devices([*model.parameters(), *model.buffers()]) == {"cpu"}


@contract("IW-0-01")
def test_the_innermost_context_decides(engine):
    """What is made for a device inside init_empty_weights is on that device, what comes after is deferred."""
    with engine.init_empty_weights():
        with engine.init_on_device("cpu"):
            inner = nn.Linear(2, 2)
        outer = nn.Linear(2, 2)
    assert (devices(inner.parameters()), devices(outer.parameters())) == ({"cpu"}, {"meta"})


@contract("IW-0-01")
@pytest.mark.parametrize("device", ["meta", torch.device("cpu")], ids=str)
def test_parameters_move_to_the_device(engine, device):
    """init_on_device takes a name or a device; buffers stay where they are made."""
    with engine.init_on_device(device):
        model = Network(WIDTH)
    assert devices(model.parameters()) == {torch.device(device).type}
    assert devices(model.buffers()) == {"cpu"}
