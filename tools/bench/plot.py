"""The picture: bars by ranks and contender, whiskers from the lowest to the highest run, as plain SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape

from tools.bench.figures import QUANTITIES, Key, Spread
from tools.bench.results import short

_COLOURS = ("#2b6cb0", "#c05621", "#718096", "#2f855a")
_INK = "#1a202c"
_PANEL_WIDTH, _PANEL_HEIGHT = 380, 200
_COLUMNS = 2
_MARGIN, _LEGEND, _TITLE, _AXIS, _CAPTION = 40, 40, 40, 30, 30
_BAR, _GAP = 26, 6
# The contenders differ by a factor of thousands there.
_LOGARITHMIC = {"further_case_ms"}

Panel = Mapping[tuple[int, str], Spread]


def svg(summary: Mapping[Key, Spread], caption: str) -> str:
    """One panel a quantity; `caption` says where the figures are from."""
    quantities = [quantity for quantity in QUANTITIES if any(key.quantity == quantity for key in summary)]
    contenders = dict.fromkeys(key.contender for key in summary)
    colours = {name: _COLOURS[position % len(_COLOURS)] for position, name in enumerate(contenders)}
    row_height = _TITLE + _PANEL_HEIGHT + _AXIS
    width = _MARGIN + _COLUMNS * (_PANEL_WIDTH + _MARGIN)
    height = _LEGEND + math.ceil(len(quantities) / _COLUMNS) * row_height + _CAPTION
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"',
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_legend(colours),
    ]
    for position, quantity in enumerate(quantities):
        panel = {(key.ranks, key.contender): one for key, one in summary.items() if key.quantity == quantity}
        row, column = divmod(position, _COLUMNS)
        left, top = _MARGIN + column * (_PANEL_WIDTH + _MARGIN), _LEGEND + row * row_height + _TITLE
        parts += [f'<g transform="translate({left},{top})">', *_panel(quantity, panel, colours), "</g>"]
    parts += [_text(_MARGIN, height - 12, caption, 'text-anchor="start"'), "</svg>"]
    return "\n".join(parts) + "\n"


def _legend(colours: Mapping[str, str]) -> Iterator[str]:
    for position, (contender, colour) in enumerate(colours.items()):
        left = _MARGIN + position * 200
        yield f'<rect x="{left}" y="14" width="12" height="12" fill="{colour}"/>'
        yield _text(left + 18, 24, contender, 'text-anchor="start"')


def _panel(quantity: str, panel: Panel, colours: Mapping[str, str]) -> Iterator[str]:
    ends = [value for spread in panel.values() for value in (spread.low, spread.high)]
    scale = _Scale(ends, quantity in _LOGARITHMIC)
    title = QUANTITIES[quantity] + (" (logarithmic)" if scale.logarithmic else "")
    yield _text(0, -22, title, 'text-anchor="start" font-weight="bold"')
    yield f'<line x1="0" y1="{_PANEL_HEIGHT}" x2="{_PANEL_WIDTH}" y2="{_PANEL_HEIGHT}" stroke="{_INK}"/>'
    counts = sorted({ranks for ranks, _ in panel})
    for position, ranks in enumerate(counts):
        middle = _PANEL_WIDTH * (position + 0.5) / len(counts)
        yield _text(middle, _PANEL_HEIGHT + 16, f"{ranks} ranks")
        left = middle - len(colours) / 2 * (_BAR + _GAP)
        for order, (contender, colour) in enumerate(colours.items()):
            if (spread := panel.get((ranks, contender))) is not None:
                yield from _bar(left + order * (_BAR + _GAP), spread, scale, colour)


def _bar(left: float, spread: Spread, scale: _Scale, colour: str) -> Iterator[str]:
    top, middle = scale.y(spread.median), left + _BAR / 2
    low, high = scale.y(spread.low), scale.y(spread.high)
    size = f'width="{_BAR}" height="{_PANEL_HEIGHT - top:.1f}"'
    yield f'<rect x="{left:.1f}" y="{top:.1f}" {size} fill="{colour}"/>'
    yield f'<line x1="{middle:.1f}" y1="{low:.1f}" x2="{middle:.1f}" y2="{high:.1f}" stroke="{_INK}"/>'
    yield _text(middle, high - 4, short(spread.median))


class _Scale:
    """From a value to a height in the panel, downwards as SVG counts."""

    def __init__(self, values: list[float], logarithmic: bool) -> None:
        positive = [value for value in values if value > 0]
        self.logarithmic = logarithmic and bool(positive)
        self._high = max(positive, default=1.0)
        # A decade below the lowest, so that the lowest is still a bar.
        self._low = 10.0 ** (math.floor(math.log10(min(positive))) - 1) if self.logarithmic else 0.0

    def y(self, value: float) -> float:
        """Pixels from the panel's top."""
        if not self.logarithmic:
            share = value / self._high
        elif value <= self._low:
            share = 0.0
        else:
            share = math.log(value / self._low) / math.log(self._high / self._low)
        return _PANEL_HEIGHT * (1.0 - share)


def _text(x: float, y: float, text: str, style: str = 'text-anchor="middle"') -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{_INK}" {style}>{escape(text)}</text>'
