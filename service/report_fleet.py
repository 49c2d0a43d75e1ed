"""Parts of the report that are about machines: availability, failures, MTBF and MTTR, blind time, mix, forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any, Final

from graynode.dashboards import charts
from graynode.dashboards.report.model import Column, Figure, Headline, Section
from graynode.dashboards.report.words import between, share, span, value
from graynode.service import report_math as reckon
from graynode.service import report_sql as ask
from graynode.service.report_published import BY_CAUSE, FLEETS
from graynode.service.report_week import Asked, Row

_AHEAD_D: Final = 30.0
_FEW: Final = 10
"""Below so many failures an interval spans a factor of three: too few to compare with."""
_RATE: Final = "failures / node-days × 1,000"
_EXACT: Final = "exact Poisson bounds (Garwood), 95 %"


def availability(asked: Asked) -> Section:
    """GPU-hours usable of owned; blind hours make the bounds. Node-hours where no GPU is known."""
    rows = asked.rows(ask.GPU_HOURS)
    for row in rows:
        row["low"] = row["usable_h"] / row["owned_h"] if row["owned_h"] else None
        row["high"] = (row["usable_h"] + row["blind_h"]) / row["owned_h"] if row["owned_h"] else None
    gpus = asked.table("gpu_hours", "GPU-hours by model", ask.GPU_HOURS, (
        Column("gpu_model", "model"), Column("gpus", "GPUs"), Column("owned_h", "owned", "GPU-h"),
        Column("usable_h", "usable", "GPU-h"), Column("out_h", "out of service", "GPU-h"),
        Column("blind_h", "not seen", "GPU-h"), Column("low", "available at least", "share", "usable / owned"),
        Column("high", "at most", "share", "(usable + not seen) / owned"),
    ), rows, "no GPU is known in this week")  # fmt: skip
    nodes = _node_hours(asked)
    owned, usable, blind = (sum(r[k] for r in rows) for k in ("owned_h", "usable_h", "blind_h"))
    says, of, watched = [], f"{value(owned)} GPU-hours", True
    if not owned:
        row = dict(asked.period(0))
        extra = (asked.scale - 1) * (row.get("owned_d") or 0.0)
        owned, usable = (24 * ((row.get(k) or 0.0) + extra) for k in ("owned_d", "usable_d"))
        blind, of = 24 * (row.get("blind_d") or 0.0), f"{value(owned)} node-hours"
        watched = row.get("blind_d") is not None
    if owned:
        low, high = usable / owned, (usable + blind) / owned
        told = share(low) if blind < owned * 5e-5 else f"{share(low)} to {share(high)}"
        beside = f"of {of} owned; the bounds are the time nobody saw" if watched else f"of {of} owned, by records alone"
        stretch = _stretch(asked) if rows else ""
        asked.headlines.append(Headline("Available", told, beside + stretch))
        says.append(
            f"{told} of {of} could be used{stretch}. Time that nobody saw counts as lost in the lower bound only."
        )
    return Section("availability", "Availability", says, [gpus, nodes], [Figure(_by_day(asked))] if rows else [])


def _stretch(asked: Asked) -> str:
    """What of the week the GPU-hours cover, where that is not all of it: whole hours that were rolled up."""
    told = asked.rows(ask.GPU_STRETCH)[0]
    since, until = (told[name].astimezone(UTC) if told[name] else None for name in ("since", "until"))
    if since is None or until is None or (asked.week.whole and since <= asked.week.since and until >= asked.week.until):
        return ""
    until = min(until, asked.week.until)
    hours = (until - since).total_seconds() / 3600
    return f"; from {since:%a %-d %b %H:%M} to {until:%a %-d %b %H:%M} UTC, {hours:g} of 168 hours"


def _by_day(asked: Asked) -> Mapping[str, Any]:
    rows = []
    for row in asked.rows(ask.GPU_DAYS):
        if row["owned_h"]:
            low, high = (100 * x / row["owned_h"] for x in (row["usable_h"], row["usable_h"] + row["blind_h"]))
            rows.append({"ts": row["day"], "value": low, "low": low, "high": high, "series": "usable"})
    return charts.lines(rows, title="Usable GPU-hours by day", unit="% of owned", zero=False)


def _node_hours(asked: Asked) -> Any:  # noqa: ANN401 (a table)
    rows = [dict(asked.period(n)) for n in range(3) if asked.period(n)]
    return asked.table("node_time", "Node-days", ask.NODE_TIME, (
        Column("period", "period"), Column("nodes", "nodes"), Column("owned_d", "owned", "node-days"),
        Column("usable_d", "usable", "node-days"), Column("out_d", "out of service", "node-days"),
        Column("planned_d", "of it planned", "node-days"), Column("blind_d", "not seen", "node-days"),
    ), rows, "no machine is known")  # fmt: skip


def failures(asked: Asked) -> Section:
    """Failures per 1,000 node-days by cause, beside the past and what others have published."""
    rows = [row for row in asked.rows(ask.CAUSES) if row["node_days"]]
    for row in rows:
        row["failures"] = row["failures"] or 0
        told = reckon.per_1000(row["failures"], row["node_days"] * asked.scale)
        row |= {"rate": told.value, "low": told.low, "high": told.high, "published": BY_CAUSE.get(row["cause"])}
    table = asked.table("causes", "By cause", ask.CAUSES, (
        Column("period", "period"), Column("cause", "cause"), Column("failures", "failures"),
        Column("rate", "rate", "per 1,000 node-days", _RATE), Column("low", "at least", "", _EXACT),
        Column("high", "at most", "", _EXACT),
        Column("published", "InfiniteHBD trace", "per 1,000 node-days", "published, where its classes can be matched"),
    ), rows, "no node-day is known")  # fmt: skip
    totals = _totals(asked, rows)
    if totals:
        now = totals[0]
        beside = "; ".join(f"{t['name']} {value(t['value'])}" for t in totals[1:]) or "nothing before it is known"
        shown = f"{now['n']} ({value(now['value'])} per 1,000 node-days, {between(now['low'], now['high'])})"
        asked.headlines.append(Headline("Failures of nodes", shown, beside))
    published = [{"name": name, "value": rate} for name, rate, _, _ in FLEETS]
    spec = charts.bars([*totals, *published], title="Failures beside the past and others", unit="per 1,000 node-days")
    says = [
        "A failure is a stretch in which a machine, a GPU or a link of it was broken, by whatever says so; planned "
        "maintenance is none (docs/report.md).",
        "Published fleets: " + "; ".join(f"{n} {r:.2f} ({what}; {source})" for n, r, what, source in FLEETS) + ".",
    ]
    if totals and totals[0]["n"] < _FEW:
        says.append(f"{totals[0]['n']} failures in a week are too few to call it better or worse than before.")
    return Section("failures", "Failures", says, [table], [Figure(spec)])


def _totals(asked: Asked, rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for n, name in enumerate(("this week", "week before", "13 weeks before")):
        days, count = asked.node_days(n), sum(r["failures"] for r in rows if r["n"] == n)
        if days:
            told = reckon.per_1000(count, days)
            found.append({"name": name, "value": told.value, "low": told.low, "high": told.high, "n": count})
    return found


def times(asked: Asked) -> Section:
    """MTBF with its exact interval; time to detect and to repair with those that still run."""
    rows, each = asked.rows(ask.LENGTHS), asked.rows(ask.EACH)
    found: dict[int, tuple[reckon.Lengths, reckon.Lengths]] = {}
    for row in rows:
        mine = [e for e in each if e["n"] == row["n"]]
        found[row["n"]] = detect, repair = _detecting(mine), _repairing(mine)
        mtbf = reckon.between(row["failures"], asked.node_days(row["n"]))
        row |= {"mtbf": mtbf.value, "low": mtbf.low, "high": mtbf.high}
        row |= {"detect_50": detect.quantile(0.5), "detect_90": detect.quantile(0.9)}
        row |= {"repair_50": repair.quantile(0.5), "repair_90": repair.quantile(0.9)}
    km = "Kaplan and Meier, what still runs counted as far as seen"
    table = asked.table("times", "MTBF, time to detect, time to repair", ask.LENGTHS, (
        Column("period", "period"), Column("failures", "failures"), Column("told", "detected"),
        Column("open", "still open"), Column("mtbf", "MTBF of a node", "days", "node-days / failures"),
        Column("low", "at least", "days", _EXACT), Column("high", "at most", "days", _EXACT),
        Column("detect_50", "time to detect, median", "s", "of those detected"),
        Column("detect_90", "90 %", "s", "of those detected"),
        Column("repair_50", "time to repair, median", "s", km), Column("repair_90", "90 %", "s", km),
    ), rows)  # fmt: skip
    return Section("times", "How often, how soon noticed, how long", _time_words(asked, rows, found), [table],
                   [Figure(spec) for spec in _time_charts(each)])  # fmt: skip


def _detecting(rows: Sequence[Row]) -> reckon.Lengths:
    told = [r["seconds_to_detect"] for r in rows if r["seconds_to_detect"] is not None]
    return reckon.lengths(told, [True] * len(told))


def _repairing(rows: Sequence[Row]) -> reckon.Lengths:
    there = [r for r in rows if r["outcome"] != "unknown"]
    over = [r["outcome"] == "over" for r in there]
    return reckon.lengths(
        [r["seconds_to_repair"] if o else r["so_far_s"] for r, o in zip(there, over, strict=True)], over
    )


def _time_words(
    asked: Asked, rows: Sequence[Row], found: Mapping[int, tuple[reckon.Lengths, reckon.Lengths]]
) -> list[str]:
    if not rows or not asked.node_days(0):
        return []
    row, nodes = rows[0], asked.period(0)["nodes"] * asked.scale
    fleet = reckon.between(row["failures"], asked.node_days(0) / nodes)
    told = f"one failure every {span(86_400 * fleet.value)}" if fleet.value else "no failure"
    node = between(row["low"], row["high"])
    asked.headlines.append(Headline("Between failures", told, f"in the fleet; of one node {node} days (95 %)"))
    detect, repair = found[0]
    median_d, median_r = detect.quantile(0.5), repair.quantile(0.5)
    asked.headlines.append(Headline(
        "Noticed, repaired", f"{value(median_d, 's')}, {value(median_r, 's')}",
        f"medians; {detect.cases} of {row['failures']} were told by us, {row['open']} are still open",
    ))  # fmt: skip
    if row["failures"] > row["told"]:
        asked.unknown.append(
            f"How soon {row['failures'] - row['told']} of {row['failures']} failures could have been noticed: "
            "only others told of them."
        )
    if row["open"]:
        asked.unknown.append(f"{row['open']} failures were not over at the end: how long they last is not known yet.")
    return ["A repair is counted from the first evidence to the last witness's end or the logged repair: it holds the "
            "time to notice, the wait and the work."]  # fmt: skip


def _time_charts(each: Sequence[Row]) -> list[Mapping[str, Any]]:
    specs: list[Mapping[str, Any]] = []
    for name, of, title in (
        ("repair", _repairing(each), "Time to repair, 14 weeks"),
        ("detect", _detecting(each), "Time to detect, 14 weeks"),
    ):
        if of.over:
            unit, size = ("hours", 3600.0) if name == "repair" else ("minutes", 60.0)
            marks = {w: q / size for w, p in (("median", 0.5), ("90 %", 0.9)) if (q := of.quantile(p)) is not None}
            kept = list(zip(of.t, of.share, strict=True))[:: max(1, len(of.t) // 500)]
            steps = [{"value": t / size, "share": s} for t, s in kept]
            specs.append(charts.distribution(steps, title=title, unit=unit, quantiles=marks))
    return specs


def blind(asked: Asked) -> Section:
    """Time in which a machine was not heard, or its GPUs not read."""
    rows = asked.rows(ask.BLIND)
    table = asked.table("blind", "Nodes that were longest not seen", ask.BLIND, (
        Column("node", "node"), Column("blind_h", "not seen", "h"), Column("planned_h", "planned", "h"),
        Column("spells", "times"), Column("longest_h", "longest", "h"),
    ), rows, "every machine was seen all the time, or none is watched")  # fmt: skip
    row, says = asked.period(0), []
    if row and row["unwatched"]:
        asked.unknown.append(
            f"What {row['unwatched']} of {row['nodes']} machines measure: they send no telemetry, so only what "
            "records and schedulers say of them is known."
        )
    if row and row["blind_d"] is not None:
        part = row["blind_d"] / row["owned_d"]
        says.append(
            f"{share(part)} of the node-days were not seen. Failures in that time are not counted, nor are its days."
        )
        if part > 0.005:
            asked.unknown.append(f"What happened in the {share(part)} of node time that nobody saw.")
    return Section("blind", "What was not seen", says, [table])


def mix(asked: Asked) -> Section:
    """Drivers and firmware, and the nodes of each that failed within 14 weeks."""
    rows = asked.rows(ask.MIX)
    table = asked.table("mix", "Models, drivers, firmware", ask.MIX, (
        Column("gpu_model", "model"), Column("driver_version", "driver"), Column("vbios_version", "VBIOS"),
        Column("nodes", "nodes"), Column("gpus", "GPUs"), Column("nodes_failed", "nodes with a failure in 14 weeks"),
    ), rows, "no inventory of GPUs is known")  # fmt: skip
    return Section("mix", "Firmware and drivers", (), [table])


def ahead(asked: Asked) -> Section:
    """Failures to be expected in the next 30 days, and spares for 95 and 99 %."""
    rows = asked.rows(ask.WEEKS)
    table = asked.table("weeks", "Weeks that it rests on", ask.WEEKS, (
        Column("week", "week of"), Column("node_days", "node-days"), Column("failures", "failures"),
    ), rows, "no week is known")  # fmt: skip
    now = asked.period(0)
    nodes = (now.get("nodes") or 0) * asked.scale
    typical = _mean_repair_d(asked)
    exposure = sum(r["node_days"] for r in rows) * asked.scale
    told = reckon.forecast([r["failures"] for r in rows], [r["node_days"] * asked.scale for r in rows],
                           nodes * _AHEAD_D, nodes, typical) if nodes else None  # fmt: skip
    if told is None:
        return Section("ahead", "The next 30 days", ["Nothing can be foretold: no node-day is known."], [table])
    says = [
        f"Expected: {value(told.mean)} failures; 95 %: at most {told.failures_95}; 99 %: at most {told.failures_99}. "
        "So many parts cover a month without a delivery.",
        "Gamma prior (Jeffreys) and Poisson weeks: the number ahead is negative binomial with mean m = h·(Y + φ/2)/E "
        f"and variance φ·m·(1 + m/(Y + φ/2)): Y = {told.failures_seen} failures in E = {value(exposure)} node-days, "
        f"h = {value(nodes * _AHEAD_D)} ahead, φ = {told.dispersion:.2f} (1: weeks scatter as chance has them).",
    ]
    if told.down_mean is not None and typical is not None:
        says.insert(1, f"Out at the same time: {value(told.down_mean)} nodes on average, 95 %: {told.down_95}, 99 %: "
                       f"{told.down_99} (mean time to repair {span(86_400 * typical)}): so many spare nodes keep the "
                       "fleet whole.")  # fmt: skip
    if told.weeks < reckon.LEAST_WEEKS or told.failures_seen < _FEW:
        asked.unknown.append(
            f"The forecast rests on {told.failures_seen} failures in {told.weeks} weeks: too little to plan on."
        )
    spare = f", spare nodes {told.down_95} / {told.down_99}" if told.down_95 is not None else ""
    asked.headlines.append(Headline("Next 30 days", f"{value(told.mean)} failures",
                                    f"95 / 99 %: at most {told.failures_95} / {told.failures_99}{spare}"))  # fmt: skip
    return Section("ahead", "The next 30 days", says, [table], [Figure(_week_chart(rows))])


def _mean_repair_d(asked: Asked) -> float | None:
    """Mean length of failures over 14 weeks, days: the area above Kaplan and Meier's curve up to its last step."""
    of = _repairing(asked.rows(ask.EACH))
    if not of.over:
        return None
    area, before, last = 0.0, 0.0, 0.0
    for t, s in zip(of.t, of.share, strict=True):
        area, before, last = area + (t - last) * (1.0 - before), s, t
    return area / 86_400


def _week_chart(rows: Sequence[Row]) -> Mapping[str, Any]:
    found = []
    for row in rows:
        told = reckon.per_1000(row["failures"], row["node_days"])
        found.append({"ts": row["week"], "value": told.value, "series": "failures"})
    return charts.lines(found, title="Failures by week", unit="per 1,000 node-days")
