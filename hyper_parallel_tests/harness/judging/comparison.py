"""Compares one tensor or number with what it should be, and says where and by how much they part."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

__all__ = ["Comparison", "VacuousComparison", "compare", "compare_numbers", "decade", "full"]


# A tolerance beyond this share of the largest expected value would pass nearly anything, so it is not worth naming.
_ROUNDING = 1e-2


class VacuousComparison(ValueError):
    """The comparison could not have failed, so it proves nothing."""


@dataclass(frozen=True)
class Comparison:
    """Outcome of one comparison.

    Attributes:
        problem: empty where the tensors agree, else what is wrong in a few words.
        difference: largest absolute difference.
        ratio: largest difference over tolerance; infinite where nothing is allowed or a value is not finite.
        passing: smallest absolute tolerance that would let it pass, None where none would.
        magnitude: largest expected magnitude.
        index: the worst element, None where there is none.
        got, expected: its values.
        outside: number of elements out of tolerance.
        scale: candidate over baseline where that is the same all over the tensor, else None.
    """

    problem: str = ""
    difference: float = 0.0
    ratio: float = 0.0
    passing: float | None = 0.0
    magnitude: float = 0.0
    index: tuple[int, ...] | None = None
    got: float = 0.0
    expected: float = 0.0
    outside: int = 0
    scale: float | None = None

    def describe(self) -> str:
        """One line on the worst element, and one on the tolerance that would hide it, where that could be rounding."""
        if self.index is None:
            return self.problem
        where = f"worst element {list(self.index)}: " if self.index else ""
        text = f"{where}got {self.got:.9g}, expected {self.expected:.9g}, difference {self.difference:.3g}"
        if math.isfinite(self.ratio):
            text += f" = {self.ratio:.3g} x the tolerance"
        if self.scale is not None:
            text += f"; every element is {self.scale:.4g} x the expected one"
        if self.passing is not None and self.passing <= _ROUNDING * self.magnitude:
            text += f"\nit would pass at {decade(self.passing):.0e}, which is no remedy: find the cause"
        return text


def full(value: torch.Tensor) -> torch.Tensor:
    """A detached copy on the CPU; what has `full_tensor()` is gathered, so all ranks call this together."""
    gather = getattr(value, "full_tensor", None)
    whole = gather() if gather is not None else value
    return whole.detach().cpu().clone()


def decade(value: float) -> float:
    """The smallest power of ten that is at least `value` (> 0)."""
    exponent = math.ceil(math.log10(value) - 1e-9) if value > 0 else -300
    return 10.0**exponent


def compare_numbers(got: float, expected: float, tolerance: float) -> Comparison:
    """Compare two numbers, absolutely."""
    return compare(torch.tensor(got, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64), tolerance)


def compare(got: torch.Tensor, expected: torch.Tensor, tolerance: float, relative: float = 0.0) -> Comparison:
    """Compare two plain tensors element by element.

    Args:
        got, expected: CPU tensors of any shape and dtype. Integers and booleans must be equal.
        tolerance: absolute, of each element.
        relative: share of the expected element's magnitude, added to it.
    """
    if got.shape != expected.shape:
        return _hopeless(f"shape {list(got.shape)}, expected {list(expected.shape)}")
    if got.dtype != expected.dtype:
        return _hopeless(f"dtype {got.dtype}, expected {expected.dtype}")
    if got.is_complex():
        got, expected = torch.view_as_real(got), torch.view_as_real(expected)
    if not got.is_floating_point():
        tolerance = relative = 0.0
    broken = _not_finite(got, expected)
    if broken is not None:
        return broken
    if torch.equal(got, expected):
        return Comparison()
    # As they are: two large integers may be one double.
    unequal = None if tolerance or relative else got != expected
    got, expected = got.double(), expected.double()
    difference = (got - expected).abs()
    allowed = tolerance + relative * expected.abs() if relative else torch.tensor(tolerance, dtype=torch.float64)
    outside = difference > allowed if unequal is None else unequal
    if not outside.any():
        worst = float(difference.max()) if difference.numel() else 0.0
        return Comparison(difference=worst, ratio=_ratio(difference, allowed))
    # Where nothing is allowed the largest difference is the worst, else the largest in tolerances.
    badness = torch.where(allowed > 0, difference / allowed, difference)
    index = _unravel(int(torch.where(outside, badness, -1.0).argmax()), got.shape)
    return Comparison(
        problem=f"{int(outside.sum())} of {got.numel()} elements out of tolerance",
        difference=float(difference[index]),
        ratio=_ratio(difference, allowed),
        passing=float((difference - relative * expected.abs()).max()),
        magnitude=float(expected.abs().max()),
        index=index,
        got=float(got[index]),
        expected=float(expected[index]),
        outside=int(outside.sum()),
        scale=_common_scale(got, expected),
    )


def _hopeless(problem: str) -> Comparison:
    return Comparison(problem=problem, difference=math.inf, ratio=math.inf, passing=None)


def _not_finite(got: torch.Tensor, expected: torch.Tensor) -> Comparison | None:
    """A comparison that fails where either side holds NaN or Inf, whatever the other one holds."""
    bad = ~(torch.isfinite(got) & torch.isfinite(expected))
    if not bad.any():
        return None
    index = _unravel(int(bad.int().argmax()), got.shape)
    sides = {"candidate": got, "baseline": expected}
    guilty = " and the ".join(name for name, side in sides.items() if not torch.isfinite(side).all())
    return Comparison(
        problem=f"{int(bad.sum())} of {got.numel()} elements are NaN or Inf in the {guilty}",
        difference=math.inf,
        ratio=math.inf,
        passing=None,
        index=index,
        got=float(got[index]),
        expected=float(expected[index]),
        outside=int(bad.sum()),
    )


def _ratio(difference: torch.Tensor, allowed: torch.Tensor) -> float:
    if not allowed.ndim:
        largest = difference.max()
        return float(largest / allowed) if largest > 0 else 0.0
    exceeded = difference > 0
    return float((difference[exceeded] / allowed[exceeded]).max()) if exceeded.any() else 0.0


def _common_scale(got: torch.Tensor, expected: torch.Tensor) -> float | None:
    """The factor between two tensors where it is the same everywhere: a wrong divisor looks so."""
    largest = expected.abs().max()
    counted = expected.abs() > 1e-3 * largest
    if largest == 0 or int(counted.sum()) < 4:
        return None
    ratios = got[counted] / expected[counted]
    middle = float(ratios.median())
    spread = float((ratios - middle).abs().max())
    return middle if spread <= 1e-2 * abs(middle) and abs(middle - 1) > 2 * spread else None


def _unravel(flat: int, shape: torch.Size) -> tuple[int, ...]:
    return tuple(int(one) for one in torch.unravel_index(torch.tensor(flat), shape)) if shape else ()
