"""Which optimizer each parameter of a model goes to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.optimizer.network import ADAMW, MATRICES, MUON, UNDECAYED, network
from hyper_parallel_tests.domains.optimizer.wrapping import each_wrapper
from hyper_parallel_tests.harness import contract


def owners(engine: Any, model: nn.Module, **options: Any) -> dict[str, list[str]]:
    """Names of the parameters of each optimizer, seen through its groups and not by what the engine tells of them."""
    chain = engine.get_hyper_optimizer(model, **({"muon": {}, "adamw": {}} | options))
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        owner: sorted(names[one] for group in optimizer.param_groups for one in group["params"])
        for owner, optimizer in chain.optimizers_dict.items()
    }


def trainable(model: nn.Module) -> list[str]:
    return sorted(name for name, one in model.named_parameters() if one.requires_grad)


@contract("OP-0-01")
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_network(engine, tied):
    """Hidden matrices go to Muon; embedding, head, norm and biases to AdamW; tied weights once; frozen ones nowhere."""
    model = network(tied=tied)
    found = owners(engine, model)
    assert found == {
        "adamw": sorted(set(trainable(model)) - set(MATRICES)),
        "muon": sorted(MATRICES),
    }
    assert ("output.weight" in found["adamw"]) is not tied


@contract("OP-0-01")
def test_names(engine):
    """The chain names each optimizer's parameters in the order of the model."""
    model = network()
    chain = engine.get_hyper_optimizer(model, muon=MUON, adamw=ADAMW)
    order = [name for name, one in model.named_parameters() if one.requires_grad]
    assert chain.param_names_by_optimizer["muon"] == [name for name in order if name in MATRICES]
    assert chain.param_names_by_optimizer["adamw"] == [name for name in order if name not in MATRICES]


class Norm2d(nn.Module):
    """A norm of somebody's own, whose scale is a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2, 3))


class Free(nn.Module):
    """A parameter that is no layer's weight."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.free = nn.Parameter(torch.ones(shape))


class Parts(nn.Module):
    """Modules under names of their own."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


KINDS = {
    "linear": (lambda: Parts(layer=nn.Linear(2, 3, bias=False)), "muon"),
    "column": (lambda: Parts(layer=nn.Linear(3, 1, bias=False)), "muon"),
    "free_matrix": (lambda: Parts(layer=Free(2, 3)), "muon"),
    "vector": (lambda: Parts(layer=Free(3)), "adamw"),
    "scalar": (lambda: Parts(layer=Free()), "adamw"),
    "experts": (lambda: Parts(layer=Free(2, 3, 4)), "adamw"),
    "convolution": (lambda: Parts(layer=nn.Conv2d(2, 3, 2, bias=False)), "adamw"),
    "embedding": (lambda: Parts(words=nn.Embedding(3, 2)), "adamw"),
    "lm_head": (lambda: Parts(inner=Parts(lm_head=nn.Linear(2, 3, bias=False))), "adamw"),
    "output": (lambda: Parts(output=nn.Linear(2, 3, bias=False)), "adamw"),
    "output_layer": (lambda: Parts(output_layer=nn.Linear(2, 3, bias=False)), "adamw"),
    "like_a_head": (lambda: Parts(output_gate=nn.Linear(2, 3, bias=False)), "muon"),
    "norm_over_two_dimensions": (lambda: Parts(layer=nn.LayerNorm((2, 3), bias=False)), "adamw"),
    "norm_of_ones_own": (lambda: Parts(layer=Norm2d()), "adamw"),
}


@contract("OP-0-01")
@pytest.mark.parametrize(("make", "owner"), KINDS.values(), ids=KINDS)
def test_kinds(engine, make, owner):
    """It goes by the module and its name, and by the number of dimensions."""
    model = make()
    assert owners(engine, model) == {owner: trainable(model)}


@contract("OP-0-01")
@pytest.mark.parametrize("first", ["hidden", "table"])
def test_shared_with_a_table(engine, first):
    """A weight that an embedding and a hidden layer share is AdamW's, whichever comes first."""
    hidden, table = nn.Linear(2, 3, bias=False), nn.Embedding(3, 2)
    hidden.weight = table.weight
    parts = {"hidden": hidden, "table": table}
    model = Parts(**(parts if first == "hidden" else dict(reversed(parts.items()))))
    assert owners(engine, model) == {"adamw": [f"{first}.weight"]}


@contract("OP-0-01")
@each_wrapper
def test_wrapped(engine, wrap):
    """What a layer is goes by its name and its kind without its wrappers, and so do patterns."""
    model = network()
    bare = owners(engine, model)
    for name in ("embedding", "up", "norm", "output"):
        setattr(model, name, wrap(engine, getattr(model, name)))
    chain = engine.get_hyper_optimizer(wrap(engine, model), muon={}, adamw={"param_patterns": [r"^up\.weight$"]})
    found = {owner: sorted(names) for owner, names in chain.param_names_by_optimizer.items()}
    assert found == {
        "adamw": sorted([*bare["adamw"], "up.weight"]),
        "muon": [name for name in bare["muon"] if name != "up.weight"],
    }


@contract("OP-0-01")
def test_no_muon(engine):
    """Without Muon everything is AdamW's."""
    model = network()
    assert owners(engine, model, muon=None) == {"adamw": trainable(model)}


@contract("OP-0-01")
def test_nothing_left_over(engine):
    """Without AdamW what is no hidden matrix is an error that names it; frozen, it is none."""
    model = network()
    with pytest.raises(ValueError, match=r"embedding\.weight, up\.bias"):
        engine.get_hyper_optimizer(model, muon={})
    for name, one in model.named_parameters():
        one.requires_grad_(name in MATRICES)
    assert owners(engine, model, adamw=None) == {"muon": sorted(MATRICES)}


@contract("OP-0-01")
def test_patterns(engine):
    """Patterns are stronger than the rule, and meet any name of a shared weight."""
    model = network(tied=True)
    found = owners(
        engine, model, muon={"param_patterns": [r"^output\."]}, adamw={"param_patterns": [r"^up\.", r"gate"]}
    )
    assert found["muon"] == ["down.weight", "embedding.weight", "unused.weight"]
    assert sorted(found["muon"] + found["adamw"]) == trainable(model)


@contract("OP-0-01")
def test_patterns_that_contradict(engine):
    """A parameter of both patterns, and a vector for Muon, are errors that name it."""
    model = network()
    with pytest.raises(ValueError, match=r"up\.weight"):
        engine.get_hyper_optimizer(model, muon={"param_patterns": ["up"]}, adamw={"param_patterns": [r"\.weight"]})
    with pytest.raises(ValueError, match=r"norm\.bias"):
        engine.get_hyper_optimizer(model, muon={"param_patterns": [r"norm\.bias"]}, adamw={})


@contract("OP-0-01")
@pytest.mark.parametrize("owner", ["muon", "adamw"])
def test_patterns_are_a_list(engine, owner):
    """One text would be taken for its letters: an error that tells it."""
    with pytest.raises(TypeError, match="'up'.*list"):
        engine.get_hyper_optimizer(network(), **({"muon": {}, "adamw": {}} | {owner: {"param_patterns": "up"}}))


@contract("OP-0-01")
def test_decay(engine):
    """AdamW decays tables, heads and norms, and no other vector."""
    model = network()
    chain = engine.get_hyper_optimizer(model, muon=MUON, adamw=ADAMW)
    names = {parameter: name for name, parameter in model.named_parameters()}
    decay = {
        names[one]: group["weight_decay"]
        for group in chain.optimizers_dict["adamw"].param_groups
        for one in group["params"]
    }
    assert decay == {name: 0.0 if name in UNDECAYED else ADAMW["weight_decay"] for name in decay}


@contract("OP-0-01")
def test_muon_takes_matrices(engine):
    """A vector is an error with its shape."""
    with pytest.raises(ValueError, match=r"\(3,\)"):
        engine.Muon([nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3))])
