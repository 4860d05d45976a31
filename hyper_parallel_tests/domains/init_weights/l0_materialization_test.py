"""In which order deferred parameters get storage and values, which values, and what stays tied."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.init_weights.setting import MATERIALIZE, SEED, Network, deferred, started
from hyper_parallel_tests.harness import assert_close, assert_differs, contract
from hyper_parallel_tests.models.decoder import Decoder, DecoderShape

WIDTH = 5
MODELS = {"network": lambda: Network(WIDTH), "decoder": lambda: Decoder(DecoderShape())}

each_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


class Recorder(nn.Module):
    """Writes down when it is asked for its values, whether its children have storage, and its own shape then."""

    def __init__(self, name: str, log: list, *children: nn.Module) -> None:
        super().__init__()
        self.name, self.log = name, log
        self.weight = nn.Parameter(torch.empty(4, 2))
        for index, child in enumerate(children):
            self.add_module(str(index), child)

    def reset_parameters(self) -> None:
        ready = not any(one.is_meta for child in self.children() for one in child.parameters())
        self.log.append((self.name, ready, tuple(self.weight.shape)))
        nn.init.normal_(self.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.weight


class Mute(nn.Module):
    """Has a parameter and no way to give it values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))


def recorders(log: list) -> nn.Module:
    """A root over two subtrees; the second's leaf is the first's too."""
    leaf = Recorder("leaf", log)
    return Recorder("root", log, Recorder("left", log, leaf), Recorder("right", log, leaf, Recorder("last", log)))


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def own_part(parameter: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a parameter, divided or not; nothing communicates."""
    return getattr(parameter, "to_local", lambda: parameter)().detach()


@contract("IW-0-01")
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "fully_shard"])
def test_children_come_first_and_each_module_once(engine, wrapped):
    """Depth first, in order of registration, a shared module once; its own parameters are whole, also if sharded."""
    log = []
    with engine.simulated_world(rank=0, world_size=2):
        model = deferred(engine, lambda: recorders(log))
        if wrapped:
            engine.fully_shard(model, mesh=engine.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
        engine.init_parameters(model)
    assert log == [(name, True, (4, 2)) for name in ("leaf", "left", "last", "right", "root")]


@contract("IW-0-01")
@each_model
def test_values_are_those_of_an_ordinary_start(engine, ledger, make):
    """With the same seed every parameter and buffer has the ordinary start's bits, and so has what is drawn next."""
    ordinary, ordinary_next = started(make), torch.rand(3)
    model = deferred(engine, make, include_buffers=True)
    torch.manual_seed(SEED)
    assert engine.init_parameters(model) is model
    assert_close(values(model), values(ordinary), ledger["exact"], what="parameters and buffers")
    assert_close(torch.rand(3), ordinary_next, ledger["exact"], what="the next random numbers")


@contract("IW-0-01")
def test_what_has_storage_keeps_its_values(engine, ledger):
    """A module that was loaded before, and a loaded parameter beside a deferred one, are left alone."""
    model = deferred(engine, lambda: Network(WIDTH))
    model.second = started(lambda: nn.Linear(WIDTH, WIDTH))
    model.third.bias = nn.Parameter(torch.full((WIDTH,), 3.0))
    engine.init_parameters(model)
    expected = dict(started(lambda: nn.Linear(WIDTH, WIDTH)).named_parameters())
    assert_close(dict(model.second.named_parameters()), expected, ledger["exact"], what="the loaded module")
    assert_close(model.third.bias, torch.full((WIDTH,), 3.0), ledger["exact"], what="the loaded parameter")


@contract("IW-0-01")
def test_parameters_stay_the_same_objects(engine):
    """An optimizer that was made before materialization holds the parameters that the model has afterwards."""
    model = deferred(engine, lambda: Network(WIDTH))
    model.second.weight.requires_grad_(False)
    model.second.weight.tag = "frozen"
    before = list(model.parameters())
    engine.init_parameters(model)
    assert [id(one) for one in model.parameters()] == [id(one) for one in before]
    assert {one.device.type for one in before} == {"cpu"}
    assert (model.second.weight.requires_grad, model.second.weight.tag) == (False, "frozen")


@contract("IW-0-01")
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "fully_shard"])
@pytest.mark.parametrize("materialize", MATERIALIZE.values(), ids=MATERIALIZE)
def test_tied_parameters_stay_tied(engine, ledger, materialize, wrapped):
    """Modules that share a deferred parameter share the materialized one, so that one update reaches both."""
    with engine.simulated_world(rank=0, world_size=2):
        model = deferred(engine, lambda: Network(WIDTH))
        if wrapped:
            engine.fully_shard(model, mesh=engine.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
        materialize(engine, model, started(lambda: Network(WIDTH)))
        with torch.no_grad():
            model.first.weight.fill_(3.0)
        updated = own_part(model.third.weight)
        weights = {name: one.device.type for name, one in model.named_parameters() if name.endswith("weight")}
    assert_close(updated, torch.full_like(updated, 3.0), ledger["exact"], what="the other name after an update")
    assert weights == {"first.weight": "cpu", "second.weight": "cpu"}


@contract("IW-0-01")
def test_a_module_that_cannot_give_values_is_an_error(engine):
    """It is named, and nothing has storage yet."""
    model = deferred(engine, lambda: nn.Sequential(nn.Linear(2, 2), Mute()))
    with pytest.raises(TypeError, match=r"1 \(Mute\).*reset_parameters"):
        engine.init_parameters(model)
    assert all(one.is_meta for one in model.parameters())


@contract("IW-0-01")
@pytest.mark.parametrize(("module", "stage"), [(None, 0), (nn.Linear(2, 2), -1)], ids=["no_module", "negative_stage"])
def test_bad_arguments_are_errors(engine, module, stage):
    """Anything but a module, and a negative stage, are refused."""
    with pytest.raises(ValueError, match="module|stage_index"):
        engine.init_parameters(module, stage)


@contract("IW-0-01")
def test_stages_draw_different_numbers(engine, ledger):
    """Stages of a pipeline with the same seed do not start alike, and leave the random state alone."""
    torch.manual_seed(SEED)
    undisturbed = torch.rand(3)
    torch.manual_seed(SEED)
    stages = [engine.init_parameters(deferred(engine, lambda: Network(WIDTH)), stage) for stage in (1, 2)]
    assert_close(torch.rand(3), undisturbed, ledger["exact"], what="the next random numbers")
    first, second = (dict(stage.named_parameters()) for stage in stages)
    assert_differs(first, second, ledger["exact"], what="parameters of two stages")
