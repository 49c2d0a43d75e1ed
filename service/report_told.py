"""Parts of the report that are about what was told and done: incidents, jobs, losses, lemons, repairs, precision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from graynode.dashboards import charts
from graynode.dashboards.report.model import Column, Figure, Headline, Section
from graynode.dashboards.report.words import share, value
from graynode.detectors.exact_bounds import clopper_pearson, poisson_rate
from graynode.service import cost, lemons
from graynode.service import report_sql as ask
from graynode.service.report_week import Asked, Row

_EXACT: Final = "exact bounds (Clopper and Pearson), 95 %"
_MOST: Final = 10
_SHOWN: Final = 30
_EARLY: Final = ("told, and no job ended by it", "told before the first job ended by it")


def mattered(asked: Asked) -> Section:
    """The failures that ended a job or cost most, with what was told of each."""
    rows = asked.rows(ask.MATTERED)
    table = asked.table("mattered", "Failures that mattered", ask.MATTERED, (
        Column("began", "began", "UTC"), Column("node", "node"), Column("title", "what"), Column("severity", "told as"),
        Column("gpu_hours_lost", "lost", "GPU-h"), Column("hit_job_id", "job that it ended"),
        Column("seconds_to_detect", "noticed after", "s"), Column("seconds_to_repair", "over after", "s"),
        Column("outcome", "now"), Column("incident_id", "incident"),
    ), rows, "no failure began in this week")  # fmt: skip
    return Section("mattered", "What mattered", ["Those that ended a job first, then by GPU-hours lost."], [table])


def caught(asked: Asked) -> Section:
    """What was told before it hit a job."""
    rows = asked.rows(ask.CAUGHT)
    table = asked.table("caught", "Told before or after", ask.CAUGHT, (
        Column("what", "what"), Column("failures", "failures"), Column("job_there", "with a job on the node"),
        Column("no_job_there", "without one"),
    ), rows, "no failure began in this week")  # fmt: skip
    total = sum(r["failures"] for r in rows)
    early = sum(r["failures"] for r in rows if r["what"] in _EARLY)
    if total:
        asked.headlines.append(
            Headline("Caught before a job", f"{early} of {total}", "told before any job had ended by it")
        )
    unjudged = sum(r["failures"] - r["job_there"] - r["no_job_there"] for r in rows)
    if unjudged:
        asked.unknown.append(
            f"Whether a job ran there when {unjudged} of {total} failures began: no job is known here."
        )
    if total and not asked.rows(ask.JUDGED)[0]["ends"]:
        asked.unknown.append(
            "Whether a failure ended a job that the scheduler calls failed: no job's end was judged here."
        )
    says = [
        "A failure hit a job where the job's end was put down to infrastructure on that node from ten minutes before "
        "the first evidence to five after the last, or where the scheduler says that the node failed."
    ]
    return Section("caught", "Caught before it hit a job", says, [table])


def lost(asked: Asked) -> Section:
    """GPU-hours and money by cause."""
    rows = asked.rows(ask.LOST)
    prices = cost.known_prices(asked.queries, asked.config)
    for row in rows:
        price = prices.of(row["gpu_model"] or None, asked.week.since) if prices else None
        known = row["gpu_hours_lost"] is not None and price is not None
        row["money"] = row["gpu_hours_lost"] * price.fixed if known and price is not None else None
    money = (Column("money", "lost", prices.currency or "money", "GPU-hours × price, energy aside"),) if prices else ()
    table = asked.table("lost", "By cause and model", ask.LOST, (
        Column("cause", "cause"), Column("gpu_model", "model"), Column("failures", "failures"),
        Column("known", "with a known loss"), Column("gpu_hours_lost", "lost", "GPU-h"), *money,
    ), rows, "no failure began in this week")  # fmt: skip
    jobs = asked.rows(ask.JOBS_LOST)
    owed = asked.table("jobs_lost", "Jobs that infrastructure ended", ask.JOBS_LOST, (
        Column("account", "account"), Column("kind", "because of"), Column("jobs", "jobs"),
        Column("gpu_hours_at_most", "their work, at most", "GPU-h"),
    ), jobs, "no job's end was put down to infrastructure")  # fmt: skip
    _say_lost(asked, rows, jobs, bool(prices), prices.currency)
    says = [
        "Capacity: GPUs concerned × time until the end of the failure (so far, where it lasts) × how much slower they "
        "were, 1 where they gave nothing. Where the effect is not known, no loss is counted.",
        "Work of jobs: from their start, for where the last checkpoint was is not known: an upper bound, beside the "
        "capacity and not to be added to it.",
    ]
    worst = [{"name": f"{r['cause']} {r['gpu_model']}".strip(), "value": r["gpu_hours_lost"]} for r in rows[:12]]
    spec = charts.bars(worst, title="Capacity lost by cause", unit="GPU-hours")
    return Section("lost", "What it cost", says, [table, owed], [Figure(spec)] if rows else [])


def _say_lost(asked: Asked, rows: list[Row], jobs: list[Row], priced: bool, currency: str) -> None:
    known = [r["gpu_hours_lost"] for r in rows if r["gpu_hours_lost"] is not None]
    money = [r["money"] for r in rows if r["money"] is not None]
    told = f"{value(float(sum(known)))} GPU-hours" if known or not rows else "not known"
    if money:
        told += f", {value(float(sum(money)))} {currency}".rstrip()
    worst = [r["gpu_hours_at_most"] for r in jobs if r["gpu_hours_at_most"] is not None]
    beside = "by failures; nodes drained without one count under Availability"
    if jobs:
        beside += f". And work of {sum(r['jobs'] for r in jobs)} jobs, at most {value(float(sum(worst)))} GPU-hours"
    asked.headlines.append(Headline("Capacity lost", told, beside))
    missing = sum(r["failures"] - r["known"] for r in rows)
    if missing:
        of = sum(r["failures"] for r in rows)
        asked.unknown.append(
            f"What {missing} of {of} failures cost: how much slower the GPUs were, or how many there are, is not known."
        )
    if not priced:
        asked.unknown.append(
            "What a GPU-hour costs: no price is configured (docs/cost.md), so losses are told in GPU-hours."
        )


def sour(asked: Asked) -> Section:
    """Nodes likeliest to fail next, and those on probation."""
    found = lemons.read(asked.queries, asked.cluster, asked.week.until)
    counts = {row["node_id"]: row for row in asked.rows(ask.LEMONS)}
    ranked = {row["node_id"]: row for row in found.ranking.nodes.to_dicts()}
    chosen = [i for i, row in ranked.items() if row["rank"] <= _MOST or row["probation_until"] is not None]
    shown = [counts[i] | _rank(ranked[i]) for i in chosen if i in counts][:_SHOWN]
    table = asked.table("lemons", "Likeliest to fail next, and on probation", ask.LEMONS, (
        Column("node", "node"), Column("failures_28d", "failures in 28 days"), Column("failures_14w", "in 14 weeks"),
        Column("p_fault_7d", "fails within 7 days", "share", "graynode lemons (docs/lemons.md)"),
        Column("times_fleet", "times the fleet's rate", "", "graynode lemons"),
        Column("probation_until", "on probation until", "UTC", "graynode lemons"),
        Column("reason", "why", "", "graynode lemons"),
    ), shown, "no node had a failure in 90 days")  # fmt: skip
    held = sum(row["probation_until"] is not None for row in ranked.values())
    says = [f"{held} nodes are on probation: back for less than a week."]
    if not found.ranking.enough:
        says.append("Too little history for the order to mean much: it takes 28 days and 10 faults.")
    return Section("lemons", "Nodes to watch", says, [table])


def _rank(row: Row) -> Row:
    return {k: row[k] for k in ("rank", "p_fault_7d", "times_fleet", "probation_until", "reason")}


def repairs(asked: Asked) -> Section:
    """Repairs and returns that did not hold."""
    rows = asked.rows(ask.REPAIRS)
    for row in rows:
        for days in (7, 28):
            row |= _part(f"share_{days}d", row[f"again_{days}d"], row[f"old_{days}d"])
    table = asked.table("repairs", "Came back, 14 weeks", ask.REPAIRS, (
        Column("kind", "what"), Column("repairs", "times"), Column("old_7d", "7 days old"),
        Column("again_7d", "failed again within 7 days"), Column("share_7d", "share", "share", "failed / 7 days old"),
        Column("share_7d_high", "at most", "share", _EXACT), Column("old_28d", "28 days old"),
        Column("again_28d", "failed again within 28 days"),
        Column("share_28d", "share", "share", "failed / 28 days old"),
        Column("share_28d_high", "at most", "share", _EXACT),
    ), rows, "no repair and no return to service is known")  # fmt: skip
    back = asked.rows(ask.CAME_BACK)
    each = asked.table("came_back", "Repairs logged this week, and older ones that came back in it", ask.CAME_BACK, (
        Column("ts", "repaired", "UTC"), Column("node", "node"), Column("what", "what was done"), Column("who", "by"),
        Column("again", "failed again", "UTC"), Column("cause", "with"), Column("after_d", "after", "days"),
    ), back, "no repair was logged")  # fmt: skip
    if not any(row["kind"] == "logged repair" for row in rows):
        asked.unknown.append("What was repaired: nobody logged a repair in 14 weeks (graynode repair NODE --what …).")
    return Section("repairs", "Repairs that came back", (), [table, each])


def _part(name: str, hits: int, of: int) -> Row:
    if not of:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    low, high = clopper_pearson(hits, of)
    return {name: hits / of, f"{name}_low": low, f"{name}_high": high}


def precision(asked: Asked) -> Section:
    """How many alarms were right, by people's verdicts, and the budget of false alarms used."""
    rows = asked.rows(ask.PRECISION)
    for row in rows:
        row |= _part("precision", row["right_"], row["right_"] + row["wrong"])
    table = asked.table("precision", "Pages and tickets of 14 weeks, as people judged them", ask.PRECISION, (
        Column("cause", "cause"), Column("told", "told"), Column("right_", "right"), Column("wrong", "wrong"),
        Column("unsure", "unsure"), Column("unjudged", "not judged"),
        Column("precision", "right of judged", "share", "right / (right + wrong)"),
        Column("precision_low", "at least", "share", _EXACT), Column("precision_high", "at most", "share", _EXACT),
    ), rows, "nothing was told in 14 weeks")  # fmt: skip
    right, wrong, unjudged = (sum(r[k] for r in rows) for k in ("right_", "wrong", "unjudged"))
    total = _part("p", right, right + wrong)
    told = "not measured" if total["p"] is None else f"{share(total['p'])} of {right + wrong} judged"
    beside = "nobody has judged an alarm (graynode label)" if total["p"] is None else (
        f"{share(total['p_low'])} to {share(total['p_high'])}; {unjudged} not judged")  # fmt: skip
    asked.headlines.append(Headline("Alarms that were right", told, beside))
    if unjudged:
        asked.unknown.append(f"Whether {unjudged} of {sum(r['told'] for r in rows)} alarms of 14 weeks were right: "
                             "nobody has judged them (graynode label).")  # fmt: skip
    return Section("precision", "Were the alarms right", list(_budget_words(asked)), [table, _alarms(asked)])


def _alarms(asked: Asked) -> Any:  # noqa: ANN401 (a table)
    rows = asked.facts["alarms"]
    for row in rows:
        days = row["node_days"]
        row["false_rate"] = row["wrong"] / days if days else None
        row["false_most"] = poisson_rate(row["wrong"] + row["undecided"], days, one_sided=True)[1] if days else None
    return asked.table("alarms", "Alarms of this week and the budget of false ones", ask.ALARMS, (
        Column("severity", "told as"), Column("told", "told"), Column("wrong", "judged wrong"),
        Column("undecided", "not decided"), Column("node_days", "node-days"),
        Column("false_rate", "false, known", "per node-day", "judged wrong / node-days"),
        Column("false_most", "at most", "per node-day", "all undecided wrong too; one-sided Poisson bound, 95 %"),
    ), rows, "nothing was told in this week")  # fmt: skip


def _budget_words(asked: Asked) -> Iterable[str]:
    asked.facts["alarms"] = rows = asked.rows(ask.ALARMS)
    budget, days = asked.config.detect.budget_per_node_day, asked.node_days(0)
    if not days:
        return
    allowed = budget * days
    wrong, open_ = (sum(r[k] for r in rows) for k in ("wrong", "undecided"))
    told = sum(r["told"] for r in rows)
    used = f"; not decided: {open_}, so between {wrong} and {wrong + open_} of it are used" if open_ else ""
    yield (
        f"Budget: {budget:g} false alarms per node-day, {value(allowed)} in this week. "
        f"Told: {told}; judged wrong: {wrong}{used}."
    )
