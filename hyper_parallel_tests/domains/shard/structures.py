"""Results that are more than one tensor."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn


class Named(NamedTuple):
    hidden: Any
    label: Any
    cache: Any = None


@dataclass
class Record:
    hidden: Any
    label: Any
    cache: Any = None


@dataclass(frozen=True)
class FrozenRecord:
    hidden: Any
    label: Any
    cache: Any = None


class AttributeDict(OrderedDict):
    """A dict whose entries are attributes too, as libraries of models return them."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        super().__setattr__(name, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("entries are set one by one")


def attribute_dict(hidden: Any, label: Any, cache: Any) -> AttributeDict:
    made = AttributeDict()
    made["hidden"], made["label"], made["cache"] = hidden, label, cache
    return made


STRUCTURES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "tuple": lambda *parts: parts,
    "list": lambda *parts: list(parts),
    "dict": lambda hidden, label, cache: {"hidden": hidden, "label": label, "cache": cache},
    "ordered_dict": lambda hidden, label, cache: OrderedDict(hidden=hidden, label=label, cache=cache),
    "attribute_dict": attribute_dict,
    "named_tuple": Named,
    "dataclass": Record,
    "frozen_dataclass": FrozenRecord,
}
BY_PLACE = ("tuple", "list")


class Returns(nn.Module):
    """Returns its input in a structure, with a word and None beside it."""

    def __init__(self, make: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, hidden: Any) -> Any:
        return self.make(hidden, "a word", None)


def parts(output: Any) -> list[Any]:
    """The three parts of such a result, in their order."""
    if isinstance(output, dict):
        return list(output.values())
    return list(output) if isinstance(output, (tuple, list)) else list(vars(output).values())
