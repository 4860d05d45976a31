"""Draws curves over steps as an SVG that any browser shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

__all__ = ["draw"]

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 50, 50

# The first curve is drawn first, so it is the broad one, and those that lie on it stay visible.
_STROKES = (
    ("#c0c4cc", 6, ""),
    ("#c0392b", 1.6, ""),
    ("#2471a3", 1.6, "6 3"),
    ("#1e8449", 1.6, "2 3"),
)


def draw(
    path: Path, title: str, curves: Mapping[str, Sequence[float]], *, x: str = "step", y: str = "loss", every: int = 1
) -> None:
    """Write an SVG with axes, a legend and a line for each curve.

    Args:
        path: the file, which is replaced.
        title: stands above.
        curves: label -> a value a point, the broad background curve first; at most four. A value that is not finite
            leaves a gap.
        x, y: names of the axes.
        every: steps from one point to the next.

    Raises:
        ValueError: more curves than there are strokes.
    """
    if len(curves) > len(_STROKES):
        raise ValueError(f"at most {len(_STROKES)} curves can be told apart, found {len(curves)}")
    plot = _Plot(curves, every)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_WIDTH / 2, 22, title, size=15),
        *plot.axes(x, y),
    ]
    for (label, values), (color, width, dashes), place in zip(
        curves.items(), _STROKES, range(len(curves)), strict=False
    ):
        stroke = f'fill="none" stroke="{color}" stroke-width="{width}" stroke-dasharray="{dashes}"'
        lines += [f'<polyline points="{points}" {stroke}/>' for points in plot.pieces(values)]
        lines += _legend(label, place, stroke)
    path.write_text("\n".join([*lines, "</svg>", ""]), encoding="utf-8")


class _Plot:
    """Where points of the curves lie on the page."""

    def __init__(self, curves: Mapping[str, Sequence[float]], every: int) -> None:
        finite = [one for values in curves.values() for one in values if math.isfinite(one)] or [0.0]
        self._every = every
        self._last = max([len(values) for values in curves.values()] + [2]) - 1
        self._ticks = _round_ticks(min(finite), max(finite))

    def axes(self, x: str, y: str) -> Iterator[str]:
        """A frame, lines across at round values, steps below."""
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        for value in self._ticks:
            height = self._y(value)
            yield f'<line x1="{_LEFT}" y1="{height:.1f}" x2="{right}" y2="{height:.1f}" stroke="#e5e7eb"/>'
            yield _text(_LEFT - 8, height + 4, f"{value:g}", anchor="end")
        for quarter in range(5):
            place = self._last * quarter / 4
            yield _text(self._x(place), bottom + 18, f"{place * self._every:.0f}")
        yield f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#374151"/>'
        yield _text((_LEFT + right) / 2, _HEIGHT - 10, x)
        middle = (_TOP + bottom) / 2
        yield f'<g transform="rotate(-90 18 {middle})">{_text(18, middle, y)}</g>'

    def pieces(self, values: Sequence[float]) -> Iterator[str]:
        """The points of each stretch without a gap; one alone is drawn as a short line."""
        piece: list[str] = []
        for place, value in enumerate([*values, math.nan]):
            if math.isfinite(value):
                piece.append(f"{self._x(place):.1f},{self._y(value):.1f}")
            elif piece:
                yield " ".join(piece if len(piece) > 1 else piece * 2)
                piece = []

    def _x(self, place: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * place / self._last

    def _y(self, value: float) -> float:
        low, high = self._ticks[0], self._ticks[-1]
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)


def _round_ticks(low: float, high: float) -> list[float]:
    """Four to ten values a round distance apart, from below `low` to above `high`."""
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    distance = next(power * one for one in (1, 2, 5, 10) if span / (power * one) <= 6)
    first, last = math.floor(low / distance), math.ceil(high / distance)
    return [place * distance for place in range(first, max(last, first + 1) + 1)]


def _legend(label: str, place: int, stroke: str) -> list[str]:
    left = _LEFT + 14 + 165 * place
    return [
        f'<polyline points="{left},40 {left + 24},40" {stroke}/>',
        _text(left + 30, 44, label, anchor="start"),
    ]


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#111827">{escape(text)}</text>'
    )
