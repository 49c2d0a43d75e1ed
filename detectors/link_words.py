"""What the ``links`` detector says: its candidates, in words for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import numpy as np
import polars as pl

from graynode.detectors import findings
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import View, moment
from graynode.detectors.growth import Growth
from graynode.detectors.link_rates import Limit

_PORT: Final = "Clean and reseat both ends of the cable, then swap it; look at the switch port's own log"
_NVLINK: Final = "Drain the node and reset all its GPUs together; if it comes back, run the vendor's field diagnostic"


def _name(view: View, i: int) -> str:
    if "link" in view.who.columns:
        node = view.text("node")[i] or view.text("node_id")[i]
        return f"Link {view.text('link')[i]} of {node}"
    return view.gpu_name(i)


def _is_nvlink(view: View, i: int) -> bool:
    return "link" not in view.who.columns or view.text("link_kind_last")[i] == "nvlink"


def _about(view: View, i: int, cause: str) -> Candidate:
    """What all say of the link. A fault of an NVLink is the platform's whatever it looks like: it has no cable."""
    of_port, nvlink = "link" in view.who.columns, _is_nvlink(view, i)
    return {
        **view.identity(i),
        "subject": "link" if of_port else "gpu",
        "cause": "nvlink_fault" if nvlink else cause,
        "action": _NVLINK if nvlink else _PORT,
        "severity": "ticket",
    }


def outage(
    view: View, i: int, signal: str, longest: float, hour: float, limits: Mapping[str, float], since: datetime | None
) -> Candidate:
    """One contiguous outage."""
    limit = limits[signal]
    kills = "every NCCL job over it" if signal == "outage_30s" else "NCCL jobs before 2.23 over it"
    if limits["outage_7s"] == limits["outage_30s"]:  # a site's own timeout
        kills = f"every job whose collectives give up after {limit:g} s"
    if _is_nvlink(view, i):
        kills = "what ran over it"
    return {
        **_about(view, i, "link_down"),
        "signal": signal,
        "value": longest,
        "unit": "s",
        "score": longest,
        "threshold": limit,
        "since": since,
        "severity": "page" if signal == "outage_30s" and not _is_nvlink(view, i) else "ticket",
        "message": f"{_name(view, i)} was down {longest:.0f} s at once: long enough to end {kills}",
        "evidence": {"down_s_last_hour": hour, "link_kind": view.text("link_kind_last")[i]},
    }


def in_pieces(view: View, i: int, hour: float, longest: float, limit: float, since: datetime | None) -> Candidate:
    """Outages that are short each and long together."""
    return {
        **_about(view, i, "link_flap"),
        "signal": "down_in_pieces",
        "value": hour,
        "unit": "s in an hour",
        "score": hour,
        "threshold": limit,
        "since": since,
        "message": f"{_name(view, i)} was down {hour:.0f} s in the last hour, in pieces of at most {longest:.0f} s: no "
        "piece ends a job, but the port is going bad",
        "evidence": {"longest_s": longest},
    }


def flap(
    view: View, i: int, downs: float, score: float, hour: float, limit: float, since: datetime | None, *, slow: bool
) -> Candidate:
    """A link that goes down again and again; ``slow``: seldom enough that only its penalty tells."""
    often = "again and again, minutes apart" if slow else f"{downs:.0f} times in ten minutes"
    return {
        **_about(view, i, "link_flap"),
        "signal": "flap",
        "value": downs,
        "unit": "downs",
        "score": score,
        "threshold": limit,
        "since": since,
        "message": f"{_name(view, i)} went down {often} ({hour:.0f} s down in the last hour)",
        "evidence": {"down_s_last_hour": hour},
    }


def rate(
    view: View, i: int, now: float, expected: float, others: int, count: float, limit: float, since: datetime | None
) -> Candidate:
    """A link slower than it was, or than the same link of other nodes."""
    return {
        **_about(view, i, "link_degraded"),
        "signal": "rate",
        "value": now,
        "baseline": expected,
        "peers": others,
        "unit": "Gb/s",
        "effect": 1.0 - now / expected,
        "score": count,
        "threshold": limit,
        "since": since,
        "message": f"{_name(view, i)} runs at {now:.0f} Gb/s where it should at {expected:.0f}",
        "evidence": {"windows_in_a_row": count},
    }


def nvlinks(
    view: View, i: int, active: float, most: float, count: float, limit: float, since: datetime | None
) -> Candidate:
    """NVLinks that were active before and are not now."""
    return {
        **_about(view, i, "nvlink_fault"),
        "signal": "nvlinks",
        "value": active,
        "baseline": most,
        "unit": "links",
        "effect": 1.0 - active / most,
        "score": count,
        "threshold": limit,
        "since": since,
        "message": f"{_name(view, i)}: {active:.0f} of {most:.0f} NVLinks are active",
        "evidence": {"windows_in_a_row": count},
    }


def errors(
    view: View, i: int, grown: Growth, now: float, score: float, limit: float, cause: str, which: Sequence[str]
) -> Candidate:
    """Error counters that grow in more hours than the link's and the fleet's past explain."""
    past = grown.history_h[i]
    expected = grown.history[i] / past * grown.exposure_h[i] if past > 0 else np.nan
    return {
        **_about(view, i, cause),
        "signal": "errors",
        "value": grown.count[i],
        "baseline": expected,
        "unit": "error-hours",
        "score": score,
        "threshold": limit,
        "p_value": grown.p[i],
        "since": moment(float(grown.since_s[i])),
        "message": f"{_name(view, i)}: errors in {grown.count[i]:.0f} clock hours while watched for "
        f"{grown.exposure_h[i]:.1f} h; before, in {grown.history[i]:.0f} of {past:.0f} h",
        "evidence": {"errors_this_window": now, "counters": list(which), "error_hours_in_a_run": grown.cluster[i]},
    }


def error_rate(
    view: View, i: int, kind: Limit, now: float, count: float, limit: float, since: datetime | None, cause: str
) -> Candidate:
    """Errors at a rate that no link should have."""
    unit = f" {kind.unit}" if kind.is_counter else ""
    return {
        **_about(view, i, cause),
        "signal": "error_rate",
        "value": now,
        "baseline": kind.limit,
        "unit": kind.unit,
        "score": count,
        "threshold": limit,
        "since": since,
        "message": f"{_name(view, i)}: {kind.words} at {now:.3g}{unit}, where {kind.limit:.3g} is the limit",
        "evidence": {"counter": kind.column, "limit_from": kind.source, "windows_in_a_row": count},
    }


def among_its_ports(found: Sequence[Candidate], view: View) -> list[Candidate]:
    """The findings, those of one bad port of several with how many of the node's ports are well: one bad port is a
    cable, all of them at once are the node or its switch."""
    of_ports = [c for c in found if c.get("link") and c["cause"] != "nvlink_fault"]
    told = {(c["node_id"], c["link"]) for c in of_ports if findings.is_told(c)}
    if not told:
        return list(found)
    wired = view.who.filter(pl.col("link_kind_last").fill_null("") != "nvlink") if len(view) else view.who
    ports = dict(wired.group_by("node_id").agg(pl.col("link").n_unique()).iter_rows())
    bad: dict[str, int] = {}
    for node, _ in told:
        bad[node] = bad.get(node, 0) + 1
    return [_with_neighbours(c, ports.get(c["node_id"], 0), bad) if (c["node_id"], c.get("link")) in told else c
            for c in found]  # fmt: skip


def _with_neighbours(c: Candidate, ports: int, bad: Mapping[str, int]) -> Candidate:
    ill = bad[c["node_id"]]
    if ports < 2 or ill > ports:
        return c
    well = ports - ill
    said = (
        f"all {ports} ports of the node are concerned" if not well else f"{well} of the node's {ports} ports are well"
    )
    evidence = {**c.get("evidence", {}), "ports_of_node": ports, "ports_concerned": ill}
    return {**c, "message": f"{c['message']}; {said}", "evidence": evidence}
