"""Collects the comparisons of one kind, and puts them into the words of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch.distributed as dist
from torch import Tensor

from hyper_parallel_tests.harness.judging.comparison import Comparison, compare
from hyper_parallel_tests.harness.judging.shards import Shards
from hyper_parallel_tests.harness.judging.tolerances import Tolerance

__all__ = ["Findings", "compare_named", "on_rank"]

_SHOWN = 5


@dataclass(frozen=True)
class Findings:
    """Outcomes of one of the independent assertions.

    Attributes:
        name: loss, norm or tensors.
        outcomes: (what was compared, how it came out), in the order in which they are to be read.
    """

    name: str
    outcomes: list[tuple[str, Comparison]]

    @property
    def bad(self) -> list[tuple[str, Comparison]]:
        """What failed, in order."""
        return [(what, outcome) for what, outcome in self.outcomes if outcome.problem]

    def line(self) -> str:
        """One line: agrees or DIFFERS, and how much of it."""
        if self.bad:
            return f"  {self.name:8}DIFFERS  {len(self.bad)} of {len(self.outcomes)} compared"
        what, worst = max(self.outcomes, key=lambda pair: (pair[1].ratio, pair[1].difference))
        largest = f"largest difference {worst.difference:.3g} ({what})"
        return f"  {self.name:8}agrees   {len(self.outcomes)} compared, {largest}"

    def first(self) -> str:
        """The first failure at length, and the names of the next ones."""
        what, outcome = self.bad[0]
        text = f"first out of tolerance: {what}: {outcome.problem}"
        if outcome.index is not None:
            text += "\n" + _indent(outcome.describe())
        others = [f"{what} ({outcome.problem})" for what, outcome in self.bad[1 : 1 + _SHOWN]]
        if others:
            left = len(self.bad) - 1 - len(others)
            text += "\nalso: " + "; ".join(others) + (f"; and {left} more" if left else "")
        return text


def compare_named(
    got: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    tolerance: Tolerance,
    shards: Mapping[str, Shards],
) -> Iterator[tuple[str, Comparison]]:
    """Compare tensors of the same name in the order of `expected`; a name on one side only fails."""
    for name, wanted in expected.items():
        if name not in got:
            yield name, _lonely("the candidate has none, the baseline does")
            continue
        outcome = compare(got[name], wanted, tolerance.tensor, tolerance.relative)
        if outcome.index is not None and name in shards:
            holder = shards[name].describe(outcome.index, tuple(wanted.shape))
            outcome = replace(outcome, problem=f"{outcome.problem}, the worst {holder}")
        yield name, outcome
    for name in got.keys() - expected.keys():
        yield name, _lonely("the candidate has one, the baseline does not")


def on_rank() -> str:
    """` on rank 1 of 4`, or nothing where there are no ranks."""
    if dist.is_available() and dist.is_initialized():
        return f" on rank {dist.get_rank()} of {dist.get_world_size()}"
    return ""


def _lonely(problem: str) -> Comparison:
    return Comparison(problem=problem, difference=float("inf"), ratio=float("inf"), passing=None)


def _indent(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())
