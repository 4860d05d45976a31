"""In which order layers are gathered when some are told to gather others ahead of their turn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.fully_shard.setting import gradients, group_bytes, parts, wrap
from hyper_parallel_tests.harness import assert_close, contract, trace
from hyper_parallel_tests.models.seeding import build, generator

# Layers of different sizes, so that a gather tells by its bytes whose it is.
WIDTHS = (4, 6, 8, 2)
FORWARD, BACKWARD = "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch"


def stack(world) -> nn.Sequential:
    """Three linear layers, not wrapped, with the same weights each time."""
    sizes = zip(WIDTHS[:-1], WIDTHS[1:], strict=True)
    return build(lambda: nn.Sequential(*[nn.Linear(*size) for size in sizes]), seed=0).to(world.device)


def sharded_stack(engine, world) -> nn.Sequential:
    """The layers, each a unit of one gather."""
    model = stack(world)
    return wrap(engine, model, list(model), world.mesh(dp=world.size), comm_fusion=True)


def inputs(world) -> torch.Tensor:
    """Four rows for each rank, no two alike, the same on all ranks: the mean of the ranks' losses is that of all."""
    return torch.randn(4 * world.size, WIDTHS[0], generator=generator(0, "inputs")).to(world.device)


def mine(world) -> torch.Tensor:
    """This rank's rows."""
    return inputs(world).chunk(world.size)[world.rank]


def loss(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    return model(rows).square().mean()


class Gathers:
    """Which layers had been gathered when each layer's turn came, in forward and in backward."""

    def __init__(self, engine, model: nn.Sequential) -> None:
        self.forward: dict[int, list[int]] = {}
        self.backward: dict[int, list[int]] = {}
        self._layer_of = {size: int(unit) for (unit, _group), size in group_bytes(engine, model).items()}
        self._model = model

    def record(self, world) -> None:
        """Runs one forward and backward."""
        handles = [hook for number, layer in enumerate(self._model) for hook in self._follow(number, layer)]
        self._pass, self._sent = self.forward, trace.collectives()
        with self._sent:
            value = loss(self._model, mine(world))
        self._pass, self._sent = self.backward, trace.collectives()
        with self._sent:
            value.backward()
        for handle in handles:
            handle.remove()

    def _follow(self, number: int, layer: nn.Module):
        def note(*_) -> None:
            self._pass[number] = [self._layer_of[one.bytes] for one in self._sent.of("all_gather")]

        yield layer.register_forward_pre_hook(note)
        yield layer.register_forward_hook(lambda _layer, _inputs, output: output.register_hook(note) and None)


def set_prefetch(model: nn.Sequential, setter: str, lists: dict[int, list[int]]) -> None:
    for number, targets in lists.items():
        getattr(model[number], setter)([model[target] for target in targets])


@contract("FS-1-06")
@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        pytest.param({}, {0: [0], 1: [0, 1], 2: [0, 1, 2]}, id="none"),
        pytest.param({0: [1], 1: [2]}, {0: [0, 1], 1: [0, 1, 2], 2: [0, 1, 2]}, id="next"),
        pytest.param({0: [1, 2]}, {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2]}, id="two_ahead"),
        pytest.param({0: [2, 1]}, {0: [0, 2, 1], 1: [0, 2, 1], 2: [0, 2, 1]}, id="out_of_order"),
        pytest.param({1: [2]}, {0: [0], 1: [0, 1, 2], 2: [0, 1, 2]}, id="one_layer_only"),
    ],
)
def test_forward_prefetch_order(engine, world, lists, expected):
    """Before a layer computes forward, it and those it prefetches are gathered, in the list's order, once each."""
    model = sharded_stack(engine, world)
    set_prefetch(model, FORWARD, lists)
    gathers = Gathers(engine, model)
    for _ in range(2):
        gathers.record(world)
        assert gathers.forward == expected


@contract("FS-1-06")
@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        pytest.param({2: [1], 1: [0]}, {2: [2, 1], 1: [2, 1, 0], 0: [2, 1, 0]}, id="next"),
        pytest.param({2: [1, 0]}, {2: [2, 1, 0], 1: [2, 1, 0], 0: [2, 1, 0]}, id="two_ahead"),
        pytest.param({2: [0, 1]}, {2: [2, 0, 1], 1: [2, 0, 1], 0: [2, 0, 1]}, id="out_of_order"),
    ],
)
def test_backward_prefetch_order(engine, world, lists, expected):
    """Before a layer computes backward, it and those it prefetches are gathered, in the list's order, once each."""
    model = sharded_stack(engine, world)
    set_prefetch(model, BACKWARD, lists)
    gathers = Gathers(engine, model)
    for _ in range(2):
        gathers.record(world)
        assert gathers.backward == expected


@contract("FS-1-06")
def test_prefetch_setting_can_be_taken_back(engine, world):
    """An empty list ends forward prefetch, and a later list replaces an earlier one."""
    model = sharded_stack(engine, world)
    set_prefetch(model, FORWARD, {0: [1, 2]})
    set_prefetch(model, BACKWARD, {2: [1, 0]})
    Gathers(engine, model).record(world)
    set_prefetch(model, FORWARD, {0: []})
    set_prefetch(model, BACKWARD, {2: [0], 1: [0]})
    gathers = Gathers(engine, model)
    gathers.record(world)
    assert gathers.forward == {0: [0], 1: [0, 1], 2: [0, 1, 2]}
    assert gathers.backward == {2: [2, 0], 1: [2, 0, 1], 0: [2, 0, 1]}


@contract("FS-1-06")
def test_prefetched_parameters_are_fresh(engine, world, ledger):
    """With all prefetched both ways, three steps have the single card's loss, gradients and parameters."""
    model, single = sharded_stack(engine, world), stack(world)
    set_prefetch(model, FORWARD, {0: [2, 1], 1: [2]})
    set_prefetch(model, BACKWARD, {2: [0, 1], 1: [0]})
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, single)]
    for step in range(3):
        ours = loss(model, mine(world))
        assert_close(ours, loss(single, mine(world)), ledger["fsdp_1d_fp32"], what=f"loss in step {step}")
        ours.backward()
        loss(single, inputs(world)).backward()
        whole = parts(world, {name: one.grad for name, one in single.named_parameters()})
        assert_close(gradients(engine, model), whole, ledger["fsdp_1d_fp32"], what=f"gradients in step {step}")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@contract("FS-1-06")
@pytest.mark.parametrize("setter", [FORWARD, BACKWARD], ids=["forward", "backward"])
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda model: None, id="none"),
        pytest.param(lambda model: model[1], id="module_without_list"),
        pytest.param(lambda model: [nn.Linear(2, 2)], id="module_not_wrapped"),
        pytest.param(lambda model: [model[1], None], id="none_in_list"),
        pytest.param(lambda model: ["1"], id="name"),
    ],
)
def test_wrong_prefetch_list_is_an_error(engine, world, setter, wrong):
    """Anything but a list of wrapped modules is refused, and the setting before it stays."""
    model = sharded_stack(engine, world)
    set_prefetch(model, FORWARD, {0: [2]})
    set_prefetch(model, BACKWARD, {2: [0], 1: [0]})
    with pytest.raises(ValueError, match="wrapped|FSDPModule"):
        getattr(model[0], setter)(wrong(model))
    gathers = Gathers(engine, model)
    gathers.record(world)
    assert gathers.forward[0] == [0, 2]
    assert gathers.backward[2] == [2, 0]
