"""Policies as users write them: which layers they make regions of, and what is no policy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.activation_checkpoint.setting import WIDTH, given, gradients, noting
from hyper_parallel_tests.harness import assert_differs, assert_equal, contract

LAYERS = [str(number) for number in range(6)]
POLICIES = {
    "none": ({"mode": "none"}, []),
    "full": ({"mode": "full"}, LAYERS),
    "every": ({"selective_ac_option": "1"}, LAYERS),
    "every_second": ({"selective_ac_option": "2"}, ["1", "3", "5"]),
    "every_fourth": ({"selective_ac_option": "4"}, ["3"]),
    "last": ({"selective_ac_option": "6"}, ["5"]),
    "beyond_last": ({"selective_ac_option": "7"}, []),
    "number": ({"selective_ac_option": 3}, ["2", "5"]),
    "operators": ({"selective_ac_option": "op", "op_sac_save_list": ["aten.addmm.default"]}, LAYERS),
    "full_reentrant": ({"mode": "full", "use_reentrant": True}, LAYERS),
}
BAD = {
    "mode": ({"mode": "some"}, "mode is 'some'; it must be one of none, full, selective"),
    "no_mode": ({"mode": None}, "mode is None"),
    "zero": ({"selective_ac_option": "0"}, "selective_ac_option is '0'; it must be a number of layers from 1, or op"),
    "negative": ({"selective_ac_option": "-1"}, "selective_ac_option is '-1'"),
    "fraction": ({"selective_ac_option": "2.5"}, "selective_ac_option is '2.5'"),
    "word": ({"selective_ac_option": "ops"}, "selective_ac_option is 'ops'"),
    "bad_option_of_full": ({"mode": "full", "selective_ac_option": "x"}, "selective_ac_option is 'x'"),
    "no_operators": ({"selective_ac_option": "op"}, "op_sac_save_list is .*at least one operator"),
    "no_overload": ({"op_sac_save_list": ["aten.mm"]}, "'aten.mm'.*choose from aten.mm.default"),
    "no_namespace": ({"op_sac_save_list": ["mm"]}, "'mm'.*write it like aten.mm.default"),
    "no_such_operator": ({"op_sac_save_list": ["aten.mmm.default"]}, "'aten.mmm.default'"),
    "no_text": ({"op_sac_save_list": [torch.ops.aten.mm.default]}, "op_sac_save_list is .*it must be a list of names"),
    "one_text": ({"op_sac_save_list": "aten.mm.default"}, "op_sac_save_list is 'aten.mm.default'; it must be a list"),
    "no_such_overload": ({"op_sac_save_list": ["aten.mm.last"]}, "'aten.mm.last'.*aten.mm.default"),
    "check": ({"determinism_check": "values"}, "determinism_check is 'values'; it must be one of default, none"),
    "reentrant_operators": (
        {"selective_ac_option": "op", "op_sac_save_list": ["aten.mm.default"], "use_reentrant": True},
        "use_reentrant is True",
    ),
}


def regions(layers, calls) -> list[str]:
    """Names of the layers that ran again in backward, in the order of the network."""
    output = layers(given())
    calls.clear()
    output.sum().backward()
    return sorted(calls)


@contract("AC-0-01")
@pytest.mark.parametrize(("fields", "expected"), POLICIES.values(), ids=POLICIES)
def test_layers_of_a_policy_are_regions(engine, fields, expected):
    """Exactly the layers that the policy names run again in backward."""
    layers, calls = noting(LAYERS)
    engine.apply_ac(layers, engine.ActivationCheckpointConfig(**fields))
    assert regions(layers, calls) == expected


@contract("AC-0-01")
def test_each_model_is_counted_from_its_first_layer(engine):
    """A model whose layers the frequency does not divide leaves nothing for the next one's count."""
    config = engine.ActivationCheckpointConfig(selective_ac_option="2")
    for _ in range(2):
        layers, calls = noting(LAYERS[:3])
        engine.apply_ac(layers, config)
        assert regions(layers, calls) == ["1"]


@contract("AC-0-01")
def test_layers_of_a_list_and_of_a_dict(engine):
    """A list and a dict of layers are counted in their order, as a sequence of them is."""
    config = engine.ActivationCheckpointConfig(selective_ac_option="2")
    for make in (nn.ModuleList, lambda layers: nn.ModuleDict({f"layer_{one.name}": one for one in layers})):
        layers, calls = noting(LAYERS[:4])
        container = make(list(layers))
        engine.apply_ac(container, config)
        children = [child for _, child in container.named_children()]
        assert regions(nn.Sequential(*children), calls) == ["1", "3"]


@contract("AC-0-01")
@pytest.mark.parametrize("policy", ["every_second", "operators", "full_reentrant"])
def test_names_stay(engine, policy):
    """A layer's parameters and all state dicts have the names that they have without regions, and load into either."""
    plain, _ = noting(LAYERS)
    layers, _ = noting(LAYERS)
    engine.apply_ac(layers, engine.ActivationCheckpointConfig(**POLICIES[policy][0]))
    for ours, theirs in zip(layers, plain, strict=True):
        assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    assert list(layers.state_dict()) == list(plain.state_dict())
    doubled = {name: 2 * one for name, one in plain.state_dict().items()}
    layers.load_state_dict(doubled)
    plain.load_state_dict(layers.state_dict())
    assert_equal(plain.state_dict(), doubled, what="state dict")


class Changing(nn.Module):
    """A layer that draws, and that multiplies by ones of other shapes after its first run."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.drawn.append(torch.rand(4))
        shape = (WIDTH,) if len(self.drawn) == 1 else (1, WIDTH)
        return inputs * torch.ones(shape)


def one_region(engine, layer: nn.Module, **fields) -> nn.Module:
    layers = nn.ModuleList([layer])
    engine.apply_ac(layers, engine.ActivationCheckpointConfig(mode="full", **fields))
    return layers[0]


@contract("AC-0-01")
@pytest.mark.parametrize(("early_stop", "runs"), [(True, 1), (False, 2)], ids=["early", "whole"])
def test_early_stop_as_written(engine, early_stop, runs):
    """Regions end early, or not, as the configuration says."""
    (layer,), _ = noting(["region"])
    ends: list[str] = []
    layer.register_forward_hook(lambda *_: ends.append("end"))
    one_region(engine, layer, early_stop=early_stop)(given()).sum().backward()
    assert len(ends) == runs


@contract("AC-0-01")
@pytest.mark.parametrize("keep", [True, False])
def test_random_state_as_written(engine, ledger, keep):
    """Regions draw the same numbers again, or others, as the configuration says."""
    layer = Changing()
    one_region(engine, layer, preserve_rng_state=keep, determinism_check="none")(given()).sum().backward()
    first, second = layer.drawn
    if keep:
        assert_equal(second, first, what="drawn numbers")
    else:
        assert_differs(second, first, ledger["exact"], what="drawn numbers")


@contract("AC-0-01")
def test_check_as_written(engine):
    """Regions compare shapes, or do not, as the configuration says."""
    output = one_region(engine, Changing(), determinism_check="default")(given())
    with pytest.raises(RuntimeError, match="different metadata"):
        output.sum().backward()
    one_region(engine, Changing(), determinism_check="none")(given()).sum().backward()


@contract("AC-0-01")
@pytest.mark.parametrize("reentrant", [True, False])
def test_kind_as_written(engine, reentrant):
    """Regions are reentrant, which have gradients under backward alone, or not, as the configuration says."""
    (layer,), _ = noting(["region"])
    inputs = given()
    output = one_region(engine, layer, use_reentrant=reentrant)(inputs).sum()
    if reentrant:
        with pytest.raises(RuntimeError, match="use_reentrant=True"):
            torch.autograd.grad(output, inputs)
    else:
        (gradient,) = torch.autograd.grad(output, inputs)
        assert_equal(gradient, gradients(layer, given())["input 0"], what="gradient")


@contract("AC-0-01")
@pytest.mark.parametrize("reentrant", [True, False])
def test_attributes_and_items(engine, reentrant):
    """What users reach in a layer they reach in the region too, in the same objects."""
    layers, _ = noting(LAYERS[:2])
    region = engine.checkpoint_wrapper(layers, use_reentrant=reentrant)
    assert region[1] is layers[1]
    region = engine.checkpoint_wrapper(layers[0], use_reentrant=reentrant)
    assert getattr(region, "linear", "hidden") is layers[0].linear
    assert getattr(region, "nothing", "hidden") == "hidden"


@contract("AC-0-01")
@pytest.mark.parametrize("layers", [nn.Linear(2, 2), noting(["region"])[0][0]], ids=["leaf", "layer"])
def test_no_layers(engine, layers):
    """What is no container of layers is refused by its type, and not left as it is or taken apart."""
    with pytest.raises(TypeError, match=type(layers).__name__):
        engine.apply_ac(layers, engine.ActivationCheckpointConfig(mode="full"))


@contract("AC-0-01")
@pytest.mark.parametrize(("fields", "message"), BAD.values(), ids=BAD)
def test_no_policy(engine, fields, message):
    """What is no policy is refused when it is written, by field, value and what may stand there."""
    with pytest.raises(ValueError, match=message):
        engine.ActivationCheckpointConfig(**fields)


@contract("AC-0-01")
def test_second_policy_is_refused(engine):
    """Layers that are regions already are not made regions of regions, and no layer is changed."""
    layers, calls = noting(LAYERS)
    engine.apply_ac(layers, engine.ActivationCheckpointConfig(selective_ac_option="3"))
    with pytest.raises(ValueError, match="layer '2' is wrapped already"):
        engine.apply_ac(layers, engine.ActivationCheckpointConfig(mode="full"))
    assert regions(layers, calls) == ["2", "5"]


@contract("AC-0-01")
@pytest.mark.parametrize(
    ("listed", "error", "message"),
    [
        ([torch.ops.aten.mm], ValueError, "OpOverload.*aten.mm.default"),
        (["aten.mm.default"], ValueError, "aten.mm.default"),
        ([torch.mm], ValueError, "OpOverload"),
        ("aten.mm.default", TypeError, "function or a list"),
        (None, TypeError, "function or a list"),
    ],
    ids=["no_overload", "name", "function", "name_alone", "nothing"],
)
def test_no_list_of_operators(engine, listed, error, message):
    """What is neither a policy nor a list of operators with their overloads is refused, by name."""
    with pytest.raises(error, match=message):
        engine.create_selective_checkpoint_contexts(listed)
