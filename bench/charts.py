"""Charts as HTML and SVG that need nothing but the page's style: bars with intervals, lines or points on two axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

HUES = 8  # colours that page.css has
# A bar's own units; it is stretched to the width that the page has.
_BAR_WIDTH, _BAR_HEIGHT = 1000.0, 20.0
_WIDTH, _HEIGHT = 720.0, 340.0
# A disc, a square, a triangle, a diamond.
_FORMS = (
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0Z",
    "M-4 -4H4V4H-4Z",
    "M0 -5L5 4H-5Z",
    "M0 -5.5L5.5 0L0 5.5L-5.5 0Z",
)
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 18.0, 14.0, 46.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        label: Who.
        detail: How.
        value: Its length.
        low: Lower end of its whisker; None = no whisker.
        high: Upper end.
        hue: Its colour, from 0.
    """

    label: str
    detail: str
    value: float
    low: float | None = None
    high: float | None = None
    hue: int = 0


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars from 0.

    Attributes:
        caption: What they show, with the unit.
        bars: From top to bottom.
        mark: A value that a dashed line stands at.
    """

    caption: str
    bars: tuple[Bar, ...]
    mark: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together.

    Attributes:
        label: For the legend.
        points: ``(x, y)`` each.
        joined: Whether a line goes through them.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    joined: bool = True


@dataclass(frozen=True, slots=True)
class Plot:
    """Points on two axes.

    Attributes:
        caption: What they show.
        x: The horizontal axis, with its unit.
        y: The vertical one.
        series: Each in a colour of its own.
        log_x: Whether the horizontal axis is logarithmic.
        log_y: Whether the vertical one is.
        from_zero: Whether the vertical one begins at 0, however far from it the points are.
    """

    caption: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = False


Chart = Bars | Plot


def render_chart(chart: Chart) -> str:
    """A chart as a ``figure``; nothing where it has no point."""
    if isinstance(chart, Bars):
        return _bars(chart) if chart.bars else ""
    shown = [series for series in chart.series if series.points]
    return _plot(chart, shown) if shown else ""


def _bars(chart: Bars) -> str:
    full = max(max(bar.value, bar.high or 0.0) for bar in chart.bars) or 1.0
    bars = "\n".join(_bar(bar, full, chart.mark) for bar in chart.bars)
    return f'<figure>\n<ol class="chart">\n{bars}\n</ol>\n<figcaption>{escape(chart.caption)}</figcaption>\n</figure>'


def _bar(bar: Bar, full: float, mark: float | None) -> str:
    def place(value: float) -> float:
        return round(_BAR_WIDTH * 0.995 * value / full, 1)  # a whisker at the very edge would be cut in half

    middle = _BAR_HEIGHT / 2
    shown = f"{bar.value:,.0f}" if bar.value >= 100 else f"{bar.value:.3g}"
    dashes = f'<path class="base" d="M{place(mark)} 0V{_BAR_HEIGHT}"/>' if mark else ""
    whisker = ""
    if bar.low is not None and bar.high is not None:
        low, high = place(bar.low), place(bar.high)
        whisker = f'<path class="whisker" d="M{low} {middle}H{high}M{low} 5V15M{high} 5V15"/>'
    return (
        f'<li class="hue{bar.hue % HUES}"><span class="label"><b>{escape(bar.label)}</b> {escape(bar.detail)}</span>'
        f'<svg viewBox="0 0 {_BAR_WIDTH:.0f} {_BAR_HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(bar.label)}, {escape(bar.detail)}: {shown}">'
        f'<rect width="{place(bar.value)}" height="{_BAR_HEIGHT:.0f}"/>{dashes}{whisker}'
        f'</svg><span class="value">{shown}</span></li>'
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """Values to places: ``low`` to ``start``, ``high`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def place(self, value: float) -> float:
        low, high, at = (math.log10(each) if self.log else each for each in (self.low, self.high, value))
        return round(self.start + (self.end - self.start) * (at - low) / (high - low), 1)

    def ticks(self) -> Iterator[float]:
        if self.log:
            yield from (mark for mark in _marks(self.low, self.high) if self.low <= mark <= self.high)
            return
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / 2))
        step *= next(factor for factor in (0.5, 1, 2, 5) if (self.high - self.low) / (factor * step) <= 6)
        first = math.ceil(self.low / step - 1e-9)
        yield from (number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1))


def _marks(low: float, high: float) -> list[float]:
    """Powers of ten around a logarithmic axis, and 2 and 5 times these where it has few."""
    steps = (1, 2, 5) if high <= 100 * low else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    return [float(f"{step}e{power}") for power in powers for step in steps]


def _axis(values: Sequence[float], start: float, end: float, *, log: bool) -> _Axis:
    low, high = min(values), max(values)
    if log:
        marks = _marks(low, high)
        first = max(mark for mark in marks if mark <= low)
        return _Axis(first, min(mark for mark in marks if mark >= high and mark > first), start, end, log=True)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    # An axis that begins near 0 begins at 0.
    return _Axis(0.0 if 0 <= low < 0.5 * high else low - room, high + room, start, end, log=False)


def _plot(chart: Plot, shown: Sequence[Series]) -> str:
    points = [point for series in shown for point in series.points]
    across = _axis([x for x, _ in points], _LEFT, _WIDTH - _RIGHT, log=chart.log_x)
    lowest = [0.0] if chart.from_zero else []
    upwards = _axis([*lowest, *(y for _, y in points)], _HEIGHT - _BOTTOM, _TOP, log=chart.log_y)
    names = ", ".join(series.label for series in shown)
    legend = "".join(
        f'<li class="hue{number % HUES}"><svg viewBox="-6 -6 12 12">{_mark(number)}</svg>{escape(series.label)}</li>'
        for number, series in enumerate(shown)
    )
    drawn = "\n".join(_series(series, number, across, upwards, chart) for number, series in enumerate(shown))
    return (
        f'<figure class="plot">\n<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img" '
        f'aria-label="{escape(chart.caption)}: {escape(names)}">\n{_grid(across, upwards)}\n'
        f'<text class="axis" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}">{escape(chart.x)}</text>\n'
        f'<text class="axis" transform="translate(14 {(_HEIGHT - _BOTTOM + _TOP) / 2}) rotate(-90)">{escape(chart.y)}'
        f'</text>\n{drawn}\n</svg>\n<ul class="legend">{legend}</ul>\n'
        f"<figcaption>{escape(chart.caption)}</figcaption>\n</figure>"
    )


def _grid(across: _Axis, upwards: _Axis) -> str:
    bottom, top = upwards.start, upwards.end
    lines = [
        f'<path class="grid" d="M{across.place(tick)} {top}V{bottom}"/>'
        f'<text class="tick" x="{across.place(tick)}" y="{bottom + 16}">{_short(tick)}</text>'
        for tick in across.ticks()
    ]
    lines += [
        f'<path class="grid" d="M{across.start} {upwards.place(tick)}H{across.end}"/>'
        f'<text class="tick side" x="{across.start - 6}" y="{upwards.place(tick) + 4}">{_short(tick)}</text>'
        for tick in upwards.ticks()
    ]
    return "\n".join(lines)


def _series(series: Series, hue: int, across: _Axis, upwards: _Axis, chart: Plot) -> str:
    places = [f"{across.place(x)} {upwards.place(y)}" for x, y in series.points]
    line = f'<path class="line" d="M{"L".join(places)}"/>' if series.joined else ""
    dots = "".join(
        f'<g transform="translate({across.place(x)} {upwards.place(y)})"><title>{escape(series.label)}: '
        f"{escape(chart.x)} {x:.4g}, {escape(chart.y)} {y:.5g}</title>{_mark(hue)}</g>"
        for x, y in series.points
    )
    return f'<g class="hue{hue % HUES}">{line}{dots}</g>'


def _mark(number: int) -> str:
    """A point around the origin: where the colours have all been used, the next form begins."""
    return f'<path class="mark" d="{_FORMS[number // HUES % len(_FORMS)]}"/>'


def _short(value: float) -> str:
    """A tick's number, thousands and millions by their letter."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:.4g}"
