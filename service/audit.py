"""A weekly random audit of nodes of which nobody was told, and what it and the labels say of precision and misses.

Only what was told gets looked at by itself, so what was missed stays unknown unless somebody looks at nodes that were
not named. Which ones is decided by the week alone: everybody who asks gets the same nodes, and nobody picks them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.collectors.base import utc_now
from graynode.detectors.exact_bounds import clopper_pearson
from graynode.pipeline.lake import LakeError, LakeTooNew
from graynode.pipeline.queries import quoted
from graynode.service.config import Config, ConfigError
from graynode.service.labels import VERDICTS, checked_period
from graynode.service.people import ask
from graynode.service.times import past
from graynode.service.wiring import make_lake

_TOLD: Final = ("page", "ticket")
_WEEK: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Share:
    """A share with its exact 95 % interval; no value where nothing was judged."""

    value: float | None
    ci_low: float | None
    ci_high: float | None
    hits: int
    of: int


def share(hits: int, of: int) -> Share:
    """Clopper and Pearson's interval."""
    if not of:
        return Share(None, None, None, 0, 0)
    low, high = clopper_pearson(hits, of)
    return Share(hits / of, low, high, hits, of)


def audit(config: Config, week: str = "", n: int = 20, *, as_json: bool = False, now: datetime | None = None) -> int:
    """Print the nodes of a week to look at, and how to say what was found."""
    moment = now or utc_now()
    name = checked_week(week, moment)
    since = start_of(name)
    quiet, told = unalarmed(config, since, min(since + _WEEK, moment))
    if not quiet:
        raise ConfigError(
            f"week {name}: no node to look at: " + (f"all {told} were told of" if told else "the lake saw none then")
        )
    chosen = pick(quiet, name, n)
    judged = _verdicts(config, name)
    look = _worth_a_look(config, since, since + _WEEK)
    rows = [
        {"node_id": i, "node": quiet[i], "verdict": judged.get(i), "look": look.get(i, "nothing was scored")}
        for i in chosen
    ]
    if as_json:
        print(json.dumps({"week": name, "seen": len(quiet) + told, "told": told, "nodes": rows}, indent=2))
        return 0
    print(
        f"week {name}: {len(quiet)} of {len(quiet) + told} nodes had no page and no ticket; look at these {len(rows)},"
    )
    print("which the week has drawn: run a probe, read the kernel log, ask the last job's owner. Then say for each:")
    print(f"  graynode label NODE@{name} true|false|unsure --why '…'      (true: something was wrong with it)\n")
    for row in rows:
        verdict = f"  [{row['verdict']}]" if row["verdict"] else ""
        print(f"  {row['node'] or row['node_id']:<24} {row['look']}{verdict}")
    return 0


def pick(nodes: Iterable[str], week: str, n: int) -> list[str]:
    """``n`` of the nodes, drawn by the week: in order of a hash, so a node that joins changes no other's place."""
    drawn = sorted(nodes, key=lambda node: hashlib.sha256(f"{week}/{node}".encode()).hexdigest())
    return sorted(drawn[:n])


def unalarmed(config: Config, since: datetime, until: datetime) -> tuple[dict[str, str | None], int]:
    """Nodes seen then of which nobody was told, with their names; and how many were told of."""
    lake = make_lake(config)
    seen: dict[str, str | None] = {}
    try:
        for table in ("host_1h", "gpu_1h", "host_30s", "gpu_30s"):
            rows = lake.read(table, since, until, ["cluster", "node_id", "node"]).unique()
            ours = rows.filter((pl.col("cluster") == config.cluster) & pl.col("node_id").is_not_null())
            seen |= dict(ours.select("node_id", "node").iter_rows())
            if seen:
                break
    except (LakeError, LakeTooNew) as error:
        raise ConfigError(f"the lake {config.lake.path} cannot be asked: {error}") from error
    told = {
        row["node_id"]
        for row in ask(
            config,
            f"SELECT DISTINCT node_id FROM incident WHERE cluster = {quoted(config.cluster)} AND severity IN {_TOLD} "  # noqa: S608
            f"AND ts < {quoted(until.isoformat())} AND (ts >= {quoted(since.isoformat())} OR incident_id IN "
            f"(SELECT incident_id FROM incident_now WHERE coalesce(resolved_ts, {quoted(until.isoformat())}) >= "
            f"{quoted(since.isoformat())} AND opened_ts < {quoted(until.isoformat())}))",
        )
    }
    return {i: node for i, node in seen.items() if i not in told}, len(told & seen.keys())


def _verdicts(config: Config, period: str) -> dict[str, str]:
    where = f"cluster = {quoted(config.cluster)} AND period = {quoted(period)}"
    rows = ask(config, f"SELECT node_id, verdict FROM label_now WHERE {where}")  # noqa: S608 (quoted)
    return {row["node_id"]: row["verdict"] for row in rows}


def _worth_a_look(config: Config, since: datetime, until: datetime) -> dict[str, str]:
    """Of each node what came nearest to a threshold in the week."""
    rows = ask(
        config,
        "SELECT node_id, arg_max(detector || '.' || signal, maximum / threshold) AS signal, "  # noqa: S608 (quoted)
        "max(maximum / threshold) AS part FROM node_day WHERE detector <> '*' AND threshold > 0 "
        f"AND cluster = {quoted(config.cluster)} "
        f"AND ts >= {quoted(since.isoformat())} AND ts < {quoted(until.isoformat())} "
        "GROUP BY node_id",
    )
    return {row["node_id"]: f"{row['signal']} came to {row['part']:.0%} of its threshold" for row in rows}


def checked_week(text: str, now: datetime) -> str:
    """An ISO week that has begun; empty: the last whole one."""
    if not text:
        year, week, _ = (now - _WEEK).isocalendar()
        return f"{year}-W{week:02}"
    try:
        told = checked_period(text)
    except ConfigError:
        told = ""
    if "W" not in told or told < "1971":  # weeks before it are compared with: the calendar must have them
        raise ConfigError(f"--week {text}: an ISO week such as 2026-W48")
    if start_of(told) > now:
        raise ConfigError(f"--week {text}: is still to come")
    return told


def start_of(week: str) -> datetime:
    """Monday 0:00 UTC of an ISO week."""
    year, _, number = week.partition("-W")
    return datetime.combine(date.fromisocalendar(int(year), int(number), 1), datetime.min.time(), UTC)


def summary_asked(config: Config, since: str = "", *, as_json: bool = False) -> int:
    """The same as the command line gives it."""
    return summary(config, past("--since", since) if since else None, as_json=as_json)


def summary(config: Config, since: datetime | None = None, *, as_json: bool = False) -> int:
    """Measured precision by cause, and the missed rate from the audits, each with its exact interval."""
    found = measured(config, since)
    if as_json:
        print(json.dumps(found, indent=2, default=asdict))
        return 0
    total = found["precision"]
    print("of the incidents that were told (pages and tickets):")
    for cause, row in found["by_cause"].items():
        print(f"  {cause:<20} {_said(row['precision']):<44} {row['unsure']} unsure, {row['unlabelled']} not judged")
    print(f"  {'all':<20} {_said(total):<44} {found['unsure']} unsure, {found['unlabelled']} not judged")
    if found["unlabelled"]:
        print("  judged were those that somebody chose; the interval holds for the rest as far as they are alike")
    print("of the nodes of which nobody was told (graynode audit):")
    if not found["audits"]:
        print("  no audit has a verdict yet, so what was missed is not known: graynode audit")
        return 0
    for row in found["audits"]:
        missed = _expected(row)
        print(
            f"  {row['week']}: {_said(row['missed'], 'sick')}, {row['unsure']} unsure; {row['unalarmed']} nodes{missed}"
        )
    print(f"  all: {_said(found['missed'], 'sick')} a node and week")
    return 0


def measured(config: Config, since: datetime | None = None) -> dict[str, Any]:
    """What ``summary`` says, as figures."""
    when = f"AND opened_ts >= {quoted(since.isoformat())}" if since else ""
    told = ask(
        config,
        "SELECT cause, coalesce(verdict, 'none') AS verdict, count(*) AS n FROM "  # noqa: S608 (quoted)
        "(SELECT incident_id, arg_max(cause, revision) AS cause, min(opened_ts) AS opened_ts FROM incident "
        f"WHERE cluster = {quoted(config.cluster)} AND severity IN {_TOLD} GROUP BY incident_id) "
        "LEFT JOIN (SELECT incident_id, verdict FROM label_now WHERE incident_id IS NOT NULL) USING (incident_id) "
        f"WHERE true {when} GROUP BY ALL ORDER BY cause",
    )
    by_cause = {}
    for cause in dict.fromkeys(row["cause"] for row in told):
        counts = {row["verdict"]: row["n"] for row in told if row["cause"] == cause}
        by_cause[cause] = _judged(counts)
    totals: dict[str, int] = {}
    for row in told:
        totals[row["verdict"]] = totals.get(row["verdict"], 0) + row["n"]
    audits = _audits(config, since)
    sick, looked = sum(a["missed"].hits for a in audits), sum(a["missed"].of for a in audits)
    return {**_judged(totals), "by_cause": by_cause, "audits": audits, "missed": share(sick, looked)}


def _judged(counts: dict[str, int]) -> dict[str, Any]:
    right, wrong = counts.get("true", 0), counts.get("false", 0)
    unsure, none = counts.get("unsure", 0), counts.get("none", 0)
    return {"precision": share(right, right + wrong), "unsure": unsure, "unlabelled": none}


def _audits(config: Config, since: datetime | None) -> list[dict[str, Any]]:
    rows = ask(
        config,
        "SELECT period AS week, verdict, list(node_id) AS nodes FROM label_now WHERE incident_id IS NULL "  # noqa: S608
        f"AND cluster = {quoted(config.cluster)} AND period LIKE '%-W%' GROUP BY ALL ORDER BY period",
    )
    weeks: dict[str, dict[str, Sequence[str]]] = {}
    for row in rows:
        if since is None or start_of(row["week"]) + _WEEK > since:
            weeks.setdefault(row["week"], {})[row["verdict"]] = row["nodes"]
    found = []
    for week, verdicts in weeks.items():
        begin = start_of(week)
        quiet, _ = unalarmed(config, begin, begin + _WEEK)
        counts = {v: len([i for i in verdicts.get(v, ()) if i in quiet]) for v in VERDICTS}
        missed = share(counts["true"], counts["true"] + counts["false"])
        found.append({"week": week, "missed": missed, "unsure": counts["unsure"], "unalarmed": len(quiet)})
    return found


def _said(of: Share, word: str = "true") -> str:
    if of.value is None or of.ci_low is None or of.ci_high is None:
        return "none judged"
    return f"{of.hits} of {of.of} {word}: {of.value:.1%} ({of.ci_low:.1%} to {of.ci_high:.1%})"


def _expected(row: dict[str, Any]) -> str:
    of: Share = row["missed"]
    if of.ci_low is None or of.ci_high is None:
        return ""
    low, high = (round(bound * row["unalarmed"]) for bound in (of.ci_low, of.ci_high))
    return f", so {low} to {high} sick ones among them"
