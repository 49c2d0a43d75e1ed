"""Small pictures drawn by the server as inline SVG: sparklines, a value among its peers, spans of time.

They carry classes and no colours, so that the style sheet gives light, dark and print; each has a text of its own for
who cannot see it. Widths are in the picture's own units; the style sheet scales it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from markupsafe import Markup, escape

Number = float | int | None


def spark(values: Sequence[Number], text: str, low: Number = None, high: Number = None) -> Markup:
    """A line over equal steps of time, 96 × 20; gaps where a value is none. ``low`` and ``high`` fix the scale."""
    there = [float(v) for v in values if v is not None]
    if not there:
        return Markup('<span class="none">no data</span>')
    bottom = min(there) if low is None else float(low)
    top = max(there) if high is None else float(high)
    spread = (top - bottom) or 1.0
    step = 92 / max(len(values) - 1, 1)
    points = [
        None if v is None else (2 + i * step, 18 - 16 * (min(max(float(v), bottom), top) - bottom) / spread)
        for i, v in enumerate(values)
    ]
    return _picture("spark", 96, 20, text, f'<path class="line" d="{_path(points)}"/>')


def strip(value: Number, low: Number, middle: Number, high: Number, text: str) -> Markup:
    """A value (dot) beside the band and the median (tick) of its peers, 96 × 14; empty without value or peers."""
    known = [float(v) for v in (value, low, middle, high) if v is not None]
    if value is None or low is None or high is None or middle is None:
        return Markup("")
    bottom, top = min(known), max(known)
    margin = 0.15 * ((top - bottom) or abs(top) or 1.0)
    bottom, top = bottom - margin, top + margin

    def x(v: float) -> float:
        return 3 + 90 * (v - bottom) / (top - bottom)

    outside = " out" if not low <= value <= high else ""
    width = max(x(float(high)) - x(float(low)), 1.5)
    inner = (
        f'<rect class="band" x="{x(float(low)):.1f}" y="3" width="{width:.1f}" height="8" rx="2"/>'
        f'<path class="tick" d="M{x(float(middle)):.1f} 2v10"/>'
        f'<circle class="dot{outside}" cx="{x(float(value)):.1f}" cy="7" r="3.2"/>'
    )
    return _picture("strip", 96, 14, text, inner)


def bar(value: Number, most: Number, text: str) -> Markup:
    """A bar of ``value`` out of ``most``, 96 × 8; empty where either is none."""
    if value is None or not most:
        return Markup("")
    width = 96 * min(max(float(value) / float(most), 0.0), 1.0)
    inner = (
        f'<rect class="rest" width="96" height="8" rx="2"/><rect class="full" width="{width:.1f}" height="8" rx="2"/>'
    )
    return _picture("bar", 96, 8, text, inner)


def stacked(parts: Iterable[tuple[str, Number]], text: str) -> Markup:
    """Parts of one whole (class and amount) side by side, 600 × 18; empty where all is nothing."""
    told = [(name, float(amount)) for name, amount in parts if amount]
    whole = sum(amount for _, amount in told)
    if whole <= 0:
        return Markup("")
    x, inner = 0.0, ""
    for name, amount in told:
        width = 600 * amount / whole
        inner += f'<rect class="c-{escape(name)}" x="{x:.2f}" width="{width:.2f}" height="18"/>'
        x += width
    return _picture("stacked", 600, 18, text, inner)


def timeline(
    spans: Iterable[tuple[str, datetime | None, datetime | None]],
    marks: Iterable[tuple[str, datetime | None]],
    since: datetime,
    until: datetime,
    text: str,
) -> Markup:
    """Spans (class, from, to; none is open to the edge) and marks (class, when) between two times, 600 × 28."""
    whole = (until - since).total_seconds() or 1.0

    def x(moment: datetime) -> float:
        return 600 * min(max((moment - since).total_seconds() / whole, 0.0), 1.0)

    inner = '<rect class="rest" y="8" width="600" height="12" rx="2"/>'
    for name, begin, end in spans:
        left, right = x(begin or since), x(end or until)
        inner += (
            f'<rect class="t-{escape(name)}" x="{left:.1f}" y="8" width="{max(right - left, 1.5):.1f}" height="12"/>'
        )
    for name, moment in marks:
        if moment is not None and since <= moment <= until:
            inner += f'<path class="m-{escape(name)}" d="M{x(moment):.1f} 2v24"/>'
    return _picture("timeline", 600, 28, text, inner)


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """Pieces of a line: a new one after every gap; a point alone is a short dash."""
    parts: list[str] = []
    before = False
    for i, point in enumerate(points):
        if point is None:
            before = False
            continue
        parts.append(f"{'L' if before else 'M'}{point[0]:.1f} {point[1]:.1f}")
        if not before and (i + 1 == len(points) or points[i + 1] is None):
            parts.append("h1")
        before = True
    return "".join(parts)


def _picture(kind: str, width: int, height: int, text: str, inner: str) -> Markup:
    """The picture and its words. ``inner`` is made of numbers and escaped class names only."""
    stretch = ' preserveAspectRatio="none"' if kind in ("timeline", "stacked") else ""
    head = f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img"{stretch}>'
    return Markup(f"{head}<title>{escape(text)}</title>{inner}</svg>")  # noqa: S704 (text escaped, the rest is ours)
