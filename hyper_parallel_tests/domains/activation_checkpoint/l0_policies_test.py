"""Policies as users write them: which layers they make regions of, and what is no policy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.activation_checkpoint.setting import given, noting
from hyper_parallel_tests.harness import assert_equal, contract

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
