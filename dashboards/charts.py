"""Charts as Vega-Lite specifications: rows in, a dict out; ``graynode.dashboards.render`` makes pictures of them.

Rows are dicts; a null is left out and never drawn as zero. Times are aware datetimes or ISO texts and are shown in UTC.
Every specification carries ``title`` and a ``description`` made of its numbers: the alternative text of the picture.
Texts come from machines: they are data of the specification, never parts of an expression.

==================  ===================================================================================================
``incident_chart``  evidence of an incident (entries as in column ``evidence``): value, own normal and peers, in percent
``band_chart``      one signal over time: ``ts``, ``value``, ``baseline``, ``low``, ``median``, ``high`` (the peers')
``bars``            numbers by name, with an interval where there is one: ``name``, ``value``, ``low``, ``high``
``lines``           series over time: ``ts``, ``value``, ``series``, and ``low``, ``high`` where there is an interval
``distribution``    share of cases up to a length of time: ``value``, ``share``; quantiles are marked
==================  ===================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import altair as alt

from graynode.dashboards.chart_theme import BAND_OPACITY, DASHES, THEMES, Theme, ThemeName, config
from graynode.dashboards.pieces import clean

Row = Mapping[str, Any]
Spec = dict[str, Any]

WIDTH: Final = 620
MOST_ENTRIES: Final = 12
"""Lines of evidence in one picture; more are not read."""
_LABEL: Final = 60
_PERCENT: Final = "percent of normal (own, else the peers')"
_UTC: Final = alt.Scale(type="utc")
_DAYS_SHOWN_S: Final = 3 * 86_400
"""A longer span is labelled by days, a shorter one by the time of day too."""


def incident_chart(evidence: Sequence[Row], *, title: str = "", theme: ThemeName = "light", width: int = WIDTH) -> Spec:
    """What was seen against what. Where nothing has a number: when it was seen, a line an entry."""
    measured = list(_against(evidence))
    if not measured:
        return _times_seen(evidence, title or "When it was seen", theme, width)
    points = [{"entry": name, "what": w, "percent": value} for name, told in measured for w, value in told.items()]
    look = THEMES[theme]
    kinds = ["measured", "own normal", "peers' median"]
    chart = alt.Chart(_data(points)).encode(
        y=alt.Y("entry:N", title=None, sort=None),
        x=alt.X("percent:Q", title=_PERCENT, scale=alt.Scale(zero=False, padding=12)),
    )
    spans = chart.mark_line(color=look.muted, strokeWidth=1).encode(detail="entry:N")
    marks = chart.mark_point(size=110, filled=True, opacity=1).encode(
        color=_by_kind(kinds, (look.value, look.baseline, look.band)),
        shape=alt.Shape(
            "what:N", title=None, scale=alt.Scale(domain=kinds, range=["diamond", "triangle-up", "circle"])
        ),
    )
    said = "; ".join(_entry_words(name, told) for name, told in measured)
    return _done(spans + marks, title or "What was seen, against normal", said, look, width, 26 * len(measured) + 30)


def _entry_words(name: str, told: Mapping[str, float]) -> str:
    return f"{name}: " + ", ".join(f"{what} {value:.4g} %" for what, value in told.items())


def _against(evidence: Sequence[Row]) -> Iterable[tuple[str, dict[str, float]]]:
    """Of each entry that has a number and something to hold it against: all in percent of the normal."""
    for entry in evidence[:MOST_ENTRIES]:
        value, own, peers = (_number(entry.get(k)) for k in ("value", "baseline", "peer_median"))
        normal = own or peers
        if value is None or not normal:
            continue
        told = {"measured": value, "own normal": own, "peers' median": peers}
        where = clean(entry.get("link") or entry.get("pci_bus_id") or entry.get("gpu_uuid"))
        name = f"{clean(entry.get('signal')) or '?'} {where}".strip()
        yield name[:_LABEL], {what: 100 * x / normal for what, x in told.items() if x is not None}


def _times_seen(evidence: Sequence[Row], title: str, theme: ThemeName, width: int) -> Spec:
    look, rows = THEMES[theme], []
    for entry in evidence[:MOST_ENTRIES]:
        since, last = _time(entry.get("since")), _time(entry.get("last") or entry.get("since"))
        if since is not None:
            name = clean(entry.get("signal") or entry.get("message")) or "?"
            times = int(_number(entry.get("count")) or 1)
            rows.append({"entry": name[:_LABEL], "since": since, "last": last, "times": times, "said": f"{times} ×"})
    if not rows:
        return _nothing(title, "no evidence was kept", look, width)
    chart = alt.Chart(_data(rows)).encode(
        y=alt.Y("entry:N", title=None, sort=None),
        x=_when([str(r[k]) for r in rows for k in ("since", "last") if r[k]], "since"),
    )
    layers = (
        chart.mark_rule(color=look.value, strokeWidth=3).encode(x2="last:T")
        + chart.mark_point(color=look.value, filled=True, size=90, shape="diamond", opacity=1)
        + chart.mark_text(color=look.ink, dy=-11).encode(text="said:N")
    )
    said = "; ".join(f"{r['entry']}: {r['said']} from {r['since']} to {r['last']}" for r in rows)
    return _done(layers, title, said, look, width, 34 * len(rows) + 20)


def band_chart(
    rows: Sequence[Row], *, title: str, unit: str = "", onset: datetime | None = None, theme: ThemeName = "light",
    width: int = WIDTH, height: int = 220,
) -> Spec:  # fmt: skip
    """A signal over time, the entity's own normal, the peers' band. ``onset`` marks where the evidence begins."""
    look = THEMES[theme]
    kept = [{**_numbers(r, ("value", "baseline", "low", "median", "high")), "ts": _time(r.get("ts"))} for r in rows]
    time = _when([r["ts"] for r in kept])
    base = alt.Chart(_data(kept)).encode(x=time)
    names = {"value": "measured", "baseline": "own normal", "median": "peers' median"}
    has_band = any(r.get("low") is not None for r in kept)
    there = [name for name in names if any(r.get(name) is not None for r in kept)]
    if not there:
        return _nothing(title, "nothing was measured in this time", look, width)
    kinds = [names[n] for n in there]
    colour = _by_kind(kinds, [getattr(look, {"median": "band"}.get(n, n)) for n in there])
    told = alt.Legend(title="the grey area is the peers' band" if has_band else None, symbolType="stroke")
    dashes = [DASHES[list(names).index(n)] for n in there]
    colour = colour.legend(told)
    dash = alt.StrokeDash("what:N", scale=alt.Scale(domain=kinds, range=dashes), legend=told)
    axis = alt.Axis(title=unit or None, titleAngle=0, titleAlign="left", titleY=-8, titleX=0)
    layers: list[alt.Chart] = []
    if has_band:
        band = base.mark_area(color=look.band, opacity=BAND_OPACITY)
        layers.append(band.encode(y=alt.Y("low:Q", axis=axis, scale=alt.Scale(zero=False)), y2="high:Q"))
    long = [
        {"ts": r["ts"], "what": names[name], "y": r[name]}
        for name in there for r in kept if r.get(name) is not None
    ]  # fmt: skip
    drawn = alt.Chart(_data(long)).mark_line(strokeWidth=2, clip=True)
    y = alt.Y("y:Q", axis=axis, scale=alt.Scale(zero=False))
    layers.append(drawn.encode(x=time, y=y, color=colour, strokeDash=dash))
    if onset is not None:
        mark = alt.Chart(_data([{"ts": _time(onset)}])).mark_rule(color=look.alarm, strokeDash=[3, 3])
        layers.append(mark.encode(x="ts:T"))
    return _done(alt.layer(*layers), title, _band_words(kept, names, unit, onset), look, width, height)


def _band_words(rows: Sequence[Row], names: Mapping[str, str], unit: str, onset: datetime | None) -> str:
    parts = []
    for name, said in names.items():
        values = [r[name] for r in rows if r.get(name) is not None]
        if values:
            parts.append(f"{said} {words_of(values[-1])}{f' {unit}' if unit else ''}")
    bounds = [(r["low"], r["high"]) for r in rows if r.get("low") is not None and r.get("high") is not None]
    if bounds:
        parts.append(f"the peers' band from {words_of(bounds[-1][0])} to {words_of(bounds[-1][1])}")
    begun = f"; the evidence begins {_time(onset)}" if onset is not None else ""
    return "at the end: " + ", ".join(parts) + begun


def bars(rows: Sequence[Row], *, title: str, unit: str, theme: ThemeName = "light", width: int = WIDTH) -> Spec:
    """Horizontal bars in the order given, the number at each; ``low`` and ``high`` as a line. ``group`` pairs bars."""
    look = THEMES[theme]
    kept = [
        {**_numbers(r, ("value", "low", "high")), "name": clean(r.get("name"))[:_LABEL], "group": clean(r.get("group"))}
        for r in rows if _number(r.get("value")) is not None
    ]  # fmt: skip
    for row in kept:
        row["said"] = words_of(row["value"]) + (f"  {row['group']}" if row["group"] else "")
        row["end"] = max(row["value"], row.get("high") or row["value"])
    if not kept:
        return _nothing(title, "nothing to show", look, width)
    groups = list(dict.fromkeys(r["group"] for r in kept))
    base = alt.Chart(_data(kept)).encode(y=alt.Y("name:N", title=None, sort=None))
    if len(groups) > 1:
        base = base.encode(yOffset=alt.YOffset("group:N", sort=groups))
    filled = base.mark_bar(stroke=look.ink, strokeWidth=0.5).encode(
        x=alt.X("value:Q", title=unit), color=_by_kind(groups, look.series, "group", legend=False)
    )
    spans = base.mark_rule(color=look.ink, strokeWidth=1.5).encode(x="low:Q", x2="high:Q")
    told = base.mark_text(align="left", dx=6, color=look.ink).encode(x="end:Q", text="said:N")
    words = "; ".join(f"{r['name']} {r['group']} {words_of(r['value'])}".replace("  ", " ") for r in kept)
    return _done(filled + spans + told, title, f"{words} ({unit})", look, width, 20 * len(kept) + 20)


def lines(
    rows: Sequence[Row], *, title: str, unit: str, theme: ThemeName = "light", width: int = WIDTH, height: int = 200,
    zero: bool = True,
) -> Spec:  # fmt: skip
    """Series over time, told apart by dash and name; a band between ``low`` and ``high`` where there is one."""
    look = THEMES[theme]
    kept = [
        {**_numbers(r, ("value", "low", "high")), "ts": _time(r.get("ts")), "series": clean(r.get("series"))[:_LABEL]}
        for r in rows
    ]
    if not any("value" in r for r in kept):
        return _nothing(title, "nothing to show", look, width)
    names = list(dict.fromkeys(r["series"] for r in kept))
    scale = alt.Scale(zero=zero)
    base = alt.Chart(_data(kept)).encode(x=_when([r["ts"] for r in kept]))
    colour = _by_kind(names, look.series, "series", legend=len(names) > 1)
    if len(names) > 1:
        colour = colour.legend(alt.Legend(title=None, symbolType="stroke", symbolOpacity=1))
    dash = alt.StrokeDash(
        "series:N", scale=alt.Scale(domain=names, range=_cycle(DASHES, len(names))),
        legend=alt.Legend(title=None, symbolType="stroke", symbolOpacity=1) if len(names) > 1 else None,
    )  # fmt: skip
    layers = []
    if any("low" in r for r in kept):
        band = base.mark_area(opacity=BAND_OPACITY)
        layers.append(band.encode(y=alt.Y("low:Q", title=unit, scale=scale, stack=None), y2="high:Q", color=colour))
    y = alt.Y("value:Q", title=unit, scale=scale)
    layers.append(base.mark_line(strokeWidth=2, point=True).encode(y=y, color=colour, strokeDash=dash))
    return _done(alt.layer(*layers), title, _line_words(kept, names, unit), look, width, height)


def _line_words(rows: Sequence[Row], names: Sequence[str], unit: str) -> str:
    parts = []
    for name in names:
        values = [r["value"] for r in rows if r["series"] == name and "value" in r]
        if values:
            spread = f"from {words_of(min(values))} to {words_of(max(values))}, at the end {words_of(values[-1])}"
            parts.append(f"{name + ': ' if name else ''}{spread}")
    return f"{'; '.join(parts)} ({unit})"


def distribution(
    rows: Sequence[Row], *, title: str, unit: str, quantiles: Mapping[str, float] | None = None,
    theme: ThemeName = "light", width: int = WIDTH, height: int = 180, log: bool = True,
) -> Spec:  # fmt: skip
    """Steps of the share of cases that had ended by ``value``; ``quantiles`` are marked with their names."""
    look = THEMES[theme]
    kept = [_numbers(r, ("value", "share")) for r in rows]
    kept = [r for r in kept if "value" in r and "share" in r and (r["value"] > 0 or not log)]
    if not kept:
        return _nothing(title, "nothing to show", look, width)
    axis = alt.X("value:Q", title=unit, scale=alt.Scale(type="log" if log else "linear", nice=False))
    share = alt.Y("share:Q", title="share of cases", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    steps = alt.Chart(_data(kept)).mark_line(interpolate="step-after", color=look.value, strokeWidth=2)
    layers = [steps.encode(x=axis, y=share)]
    marks = [
        {"value": v, "said": f"{name}: {words_of(v)}"} for name, v in (quantiles or {}).items() if v > 0 or not log
    ]
    if marks:
        base = alt.Chart(_data(marks)).encode(x="value:Q")
        layers.append(base.mark_rule(color=look.baseline, strokeDash=[5, 3]))
        named = base.mark_text(align="left", dx=4, dy=6, baseline="top", color=look.ink)
        layers.append(named.encode(text="said:N", y=alt.value(0)))
    words = ", ".join(str(m["said"]) for m in marks) or f"{len(kept)} steps"
    return _done(alt.layer(*layers), title, f"{words} ({unit})", look, width, height)


def _nothing(title: str, words: str, look: Theme, width: int) -> Spec:
    """The words alone: axes without a number would say that something was measured."""
    mark = alt.Chart(_data([{"said": words}])).mark_text(color=look.muted, fontSize=12)
    return _done(mark.encode(text="said:N"), title, words, look, width, 40)


def _data(rows: Sequence[Row]) -> alt.Data:
    return alt.Data(values=list(rows))  # type: ignore[no-untyped-call]  # altair's generated classes


def _by_kind(kinds: Sequence[str], colours: Sequence[str], field: str = "what", *, legend: bool = True) -> alt.Color:
    scale = alt.Scale(domain=list(kinds), range=_cycle(colours, len(kinds)))
    return alt.Color(f"{field}:N", scale=scale, legend=alt.Legend(title=None) if legend else None)


def _cycle(things: Sequence[Any], n: int) -> list[Any]:
    return [things[i % len(things)] for i in range(n)]


def _done(
    chart: alt.Chart | alt.LayerChart | alt.FacetChart, title: str, words: str, look: Theme, width: int, height: int
) -> Spec:
    """Sizes, colours, title and alternative text."""
    named = clean(title)
    spec: Spec = chart.properties(width=width, height=height).to_dict()
    return spec | {"title": named, "description": f"{named}: {words}", "config": config(look)}


def words_of(value: float) -> str:
    """A number as a person writes it: three digits that count, no power of ten below a billion."""
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{digits}f}" if digits <= 6 else f"{value:.2e}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def _when(times: Sequence[str | None], field: str = "ts") -> alt.X:
    """The axis of times, labelled by the span that it has to show, 24 hours a day."""
    told = sorted(t for t in times if t)
    span = 0.0
    if told:
        first, last = (datetime.fromisoformat(t) for t in (told[0], told[-1]))
        span = (last - first).total_seconds()
    shown = "%d %b" if span > _DAYS_SHOWN_S else "%d %b %H:%M"
    axis = alt.Axis(format=shown, labelOverlap=True, tickCount=5, labelFlush=False)
    return alt.X(f"{field}:T", title="time (UTC)", scale=_UTC, axis=axis)


def _numbers(row: Row, names: Iterable[str]) -> dict[str, Any]:
    """Those of a row that are finite numbers."""
    return {name: number for name in names if (number := _number(row.get(name))) is not None}


def _number(value: Any) -> float | None:  # noqa: ANN401 (JSON)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _time(value: Any) -> str | None:  # noqa: ANN401 (JSON)
    """ISO 8601 in UTC, to the second; none for what is no time."""
    try:
        told = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return told.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(told, datetime) else None
