"""What a row of the operator matrix says, and which placings of its inputs follow from it.

Each dimension of an input is a letter, and the same letter is the same size in all inputs of a row:

    Operator("matmul", torch.matmul, (normal("ik"), normal("kj")))

A placing gives each input a placement on one mesh dimension: `S0` (sharded on dimension 0), `R` (replicated), `P`
(parts whose sum is the tensor), `Pavg`, `Pmax`, `Pmin`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Case",
    "Input",
    "Operator",
    "Placing",
    "cases",
    "grid_cases",
    "index",
    "integer",
    "log_probability",
    "mask",
    "normal",
    "positive",
    "probability",
    "wide_cases",
]

Placing = tuple[str, ...]
"""One placement an input, all on the same mesh dimension."""

SIZES = ("even", "uneven", "empty")
"""How a sharded dimension can divide over the ranks."""

UNEVEN = ("uneven",)


@dataclass(frozen=True)
class Input:
    """One tensor that an operator takes.

    Attributes:
        dims: a letter a dimension.
        values: what it is filled with, a name in `samples`.
        of: for indices, the letter of the dimension that they point into.
        constant: whether the operator has no gradient for it although it is of floating point.
    """

    dims: str
    values: str
    of: str = ""
    constant: bool = False

    @property
    def is_float(self) -> bool:
        return self.values not in ("index", "index_or_ignored", "integer", "mask")


def _filled(values: str) -> Callable[..., Input]:
    def make(dims: str = "", *, constant: bool = False) -> Input:
        return Input(dims, values, constant=constant)

    return make


normal = _filled("normal")
positive = _filled("positive")
probability = _filled("probability")
log_probability = _filled("log_probability")
mask = _filled("mask")
integer = _filled("integer")


def index(dims: str, of: str, *, ignored: bool = False) -> Input:
    """Indices into dimension `of`; some are -100 if `ignored`."""
    return Input(dims, "index_or_ignored" if ignored else "index", of)


@dataclass(frozen=True)
class Operator:
    """One row of the matrix.

    Attributes:
        name: in ids of cases, without commas, blanks and brackets.
        call: the operator; of plain tensors it gives what its distributed self is held to.
        inputs: its sample inputs. Gradients are compared of each one of floating point that is not constant.
        cross: whether all combinations of placements are run, instead of those that `placings` chooses.
        placed: the placings, instead of those that follow from the inputs.
        on_four: whether it stands for its kind on four ranks, in a row and on a mesh of 2 x 2.
        sizes: of `SIZES` those that its placings by a letter may have.
        tolerance: the row of the ledger that results and gradients are held to.
    """

    name: str
    call: Callable[..., Any]
    inputs: tuple[Input, ...]
    cross: bool = False
    placed: tuple[str, ...] = ()
    on_four: bool = False
    sizes: tuple[str, ...] = SIZES
    tolerance: str = "dtensor_operators_fp64"

    @property
    def letters(self) -> str:
        return "".join(dict.fromkeys("".join(one.dims for one in self.inputs)))

    @property
    def sources(self) -> list[int]:
        """Positions of the inputs that have a gradient."""
        return [number for number, one in enumerate(self.inputs) if one.is_float and not one.constant]

    def placings(self) -> list[Placing]:
        """How the inputs are placed on one mesh dimension.

        By a letter: whatever has this dimension is sharded on it. One by one: a single input is sharded, each on
        another of its dimensions, or partial, and the others are replicated.
        """
        if self.placed:
            return [tuple(text.split("_")) for text in self.placed]
        if self.cross:
            return list(itertools.product(*(["R", *shards, *partial] for shards, partial in self._alone())))
        replicated = ("R",) * len(self.inputs)
        single = [
            (*replicated[:position], placement, *replicated[position + 1 :])
            for position, (shards, partial) in enumerate(self._alone())
            for placement in (*shards[position % max(len(shards), 1) :][:1], *partial)
        ]
        return list(dict.fromkeys([*self.aligned(), *single]))

    def _alone(self) -> list[tuple[list[str], list[str]]]:
        """For each input how it can be sharded, and whether it can be partial."""
        return [([f"S{dim}" for dim in range(len(one.dims))], ["P"] * one.is_float) for one in self.inputs]

    def aligned(self) -> list[Placing]:
        """For each letter the placing that shards it in all inputs."""
        return [
            tuple(f"S{one.dims.index(letter)}" if letter in one.dims else "R" for one in self.inputs)
            for letter in self.letters
        ]

    def sharded_letters(self, placings: Iterable[Placing]) -> set[str]:
        """Letters of the dimensions that are sharded in any input."""
        return {
            one.dims[int(placement[1:])]
            for placing in placings
            for one, placement in zip(self.inputs, placing, strict=True)
            if placement.startswith("S")
        }


@dataclass(frozen=True)
class Case:
    """One operator with one placing for each mesh dimension.

    Attributes:
        operator: the row.
        placings: one a mesh dimension, outermost first.
        sizes: `even`, `uneven` or `empty`: how sharded dimensions divide over the ranks.
    """

    operator: Operator
    placings: tuple[Placing, ...]
    sizes: str

    def __str__(self) -> str:
        return f"{self.operator.name}-{self.placements}-{self.sizes}"

    @property
    def placements(self) -> str:
        """The inputs' placements, joined by `_`; those on another mesh dimension after a `.`."""
        return ".".join("_".join(placing) for placing in self.placings)


def cases(table: Iterable[Operator], first: Iterable[str] = SIZES, further: Iterable[str] = UNEVEN) -> list[Case]:
    """Every row in each of its placings on a mesh of one dimension.

    Args:
        table: the rows.
        first: the sizes for the placing by the first letter.
        further: the sizes for the placings by the other letters. All other placings that shard are uneven.
    """
    return [
        Case(one, (placing,), sizes)
        for one in table
        for placing in one.placings()
        for sizes in _sizes(one, (placing,), _asked(one, placing, first, further))
    ]


def _asked(operator: Operator, placing: Placing, first: Iterable[str], further: Iterable[str]) -> list[str]:
    if placing not in operator.aligned():
        return ["uneven"]
    return [sizes for sizes in (first if placing in operator.aligned()[:1] else further) if sizes in operator.sizes]


def wide_cases(table: Iterable[Operator]) -> list[Case]:
    """Every row in its placings by a letter, with empty shards, for more ranks than two: there these are uneven too."""
    return [Case(one, (placing,), "empty") for one in table for placing in one.placings() if placing in one.aligned()]


def grid_cases(table: Iterable[Operator]) -> list[Case]:
    """Every row on a mesh of two dimensions: pairs of its placings by a letter and partial, and one letter twice."""
    found = []
    for one in table:
        partial = [placing for placing in one.placings() if "P" in placing and set(placing) <= {"P", "R"}]
        twice = one.aligned()[:1] * 2
        for pair in [*itertools.combinations([*one.aligned(), *partial[:1]], 2), tuple(twice)]:
            found += [Case(one, pair, sizes) for sizes in _sizes(one, pair, UNEVEN)]
    return found


def _sizes(operator: Operator, placings: tuple[Placing, ...], sizes: Iterable[str]) -> tuple[str, ...]:
    return tuple(sizes) if operator.sharded_letters(placings) else ("even",)
