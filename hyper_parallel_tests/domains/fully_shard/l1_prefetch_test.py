"""In which order layers are gathered when some are told to gather others ahead of their turn."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from hyper_parallel_tests.domains.fully_shard.setting import either_fusion, gradients, group_bytes, parts, wrap
from hyper_parallel_tests.harness import assert_close, contract, trace, train_baseline
from hyper_parallel_tests.models.seeding import build, generator

# All weights and biases are of different sizes, so that a gather tells by its bytes whose it is.
WIDTHS = (4, 6, 8, 2)
sgd = partial(torch.optim.SGD, lr=0.1)
FORWARD, BACKWARD = "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch"


def stack(world) -> nn.Sequential:
    """Three linear layers, not wrapped, with the same weights each time."""
    sizes = zip(WIDTHS[:-1], WIDTHS[1:], strict=True)
    return build(lambda: nn.Sequential(*[nn.Linear(*size) for size in sizes]), seed=0).to(world.device)


def sharded_stack(engine, world, comm_fusion: bool = False) -> nn.Sequential:
    """The layers, each a unit: of one gather if fused, otherwise of two."""
    model = stack(world)
    return wrap(engine, model, list(model), world.mesh(dp=world.size), comm_fusion=comm_fusion)


def inputs(world) -> torch.Tensor:
    """Four rows for each rank, no two alike, the same on all ranks: the mean of the ranks' losses is that of all."""
    return torch.randn(4 * world.size, WIDTHS[0], generator=generator(0, "inputs")).to(world.device)


def mine(world) -> torch.Tensor:
    """This rank's rows."""
    return inputs(world).chunk(world.size)[world.rank]


def loss(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    return model(rows).square().mean()


class Gathers:
    """Which layers had been gathered when each layer's turn came, in forward and in backward.

    A layer is named once for all of its gathers in a row: for its weight's and its bias's too.
    """

    def __init__(self, engine, model: nn.Sequential) -> None:
        self.forward: dict[int, list[int]] = {}
        self.backward: dict[int, list[int]] = {}
        self._layer_of = {size: int(unit) for (unit, _group), size in group_bytes(engine, model).items()}
        self._gathers_a_layer = len(self._layer_of) // len(model)
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
            gathered = [self._layer_of[one.bytes] for one in self._sent.of("all_gather")]
            self._pass[number] = whole_layers(gathered, self._gathers_a_layer)

        yield layer.register_forward_pre_hook(note)
        yield layer.register_forward_hook(lambda _layer, _inputs, output: output.register_hook(note) and None)


def whole_layers(gathered: list[int], gathers_a_layer: int) -> list[int]:
    """One for each run of so many gathers of one layer; as they are where they come in other numbers."""
    firsts = gathered[::gathers_a_layer]
    return firsts if gathered == [one for one in firsts for _ in range(gathers_a_layer)] else gathered


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
@either_fusion
def test_forward_prefetch_order(engine, world, lists, expected, comm_fusion):
    """Before a layer computes forward, it and those it prefetches are gathered, in the list's order, once each."""
    model = sharded_stack(engine, world, comm_fusion)
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
@either_fusion
def test_backward_prefetch_order(engine, world, lists, expected, comm_fusion):
    """Before a layer computes backward, it and those it prefetches are gathered, in the list's order, once each."""
    model = sharded_stack(engine, world, comm_fusion)
    set_prefetch(model, BACKWARD, lists)
    gathers = Gathers(engine, model)
    for _ in range(2):
        gathers.record(world)
        assert gathers.backward == expected


@contract("FS-1-06")
@either_fusion
def test_prefetch_setting_can_be_taken_back(engine, world, comm_fusion):
    """An empty list ends forward prefetch, and a later list replaces an earlier one."""
    model = sharded_stack(engine, world, comm_fusion)
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
@either_fusion
def test_prefetched_parameters_are_fresh(engine, world, ledger, comm_fusion):
    """With all prefetched both ways, three steps have DDP's loss, gradients and parameters."""
    ddp = train_baseline(stack(world), [mine(world)] * 3, loss, wrap=DDP, optimizer=sgd)
    model = sharded_stack(engine, world, comm_fusion)
    set_prefetch(model, FORWARD, {0: [2, 1], 1: [2]})
    set_prefetch(model, BACKWARD, {2: [0, 1], 1: [0]})
    optimizer = sgd(model.parameters())
    for step, theirs in enumerate(ddp.steps):
        value = loss(model, mine(world))
        assert_close(value, theirs.loss, ledger["fsdp_1d_fp32"], what=f"loss in step {step}")
        value.backward()
        whole = parts(world, theirs.grads)
        assert_close(gradients(engine, model), whole, ledger["fsdp_1d_fp32"], what=f"gradients in step {step}")
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
    with pytest.raises(ValueError, match="wrapped|[FH]SDP(Module|Cell)"):
        getattr(model[0], setter)(wrong(model))
    gathers = Gathers(engine, model)
    gathers.record(world)
    assert gathers.forward[0] == [0, 2]
    assert gathers.backward[2] == [2, 0]
