"""What the ``links`` detector says: its candidates, in words for a person."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import numpy as np

from graynode.detectors.findings import Candidate
from graynode.detectors.frames import View, moment
from graynode.detectors.growth import Growth

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
    view: View, i: int, signal: str, longest: float, hour: float, limit: float, since: datetime | None
) -> Candidate:
    """One contiguous outage."""
    kills = "every NCCL job over it" if signal == "outage_30s" else "NCCL jobs before 2.23 over it"
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


def flap(view: View, i: int, downs: float, hour: float, limit: float, since: datetime | None) -> Candidate:
    """A link that goes down again and again."""
    return {
        **_about(view, i, "link_flap"),
        "signal": "flap",
        "value": downs,
        "unit": "downs",
        "score": downs,
        "threshold": limit,
        "since": since,
        "message": f"{_name(view, i)} went down {downs:.0f} times in ten minutes ({hour:.0f} s down in the last hour)",
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


def errors(view: View, i: int, grown: Growth, now: float, score: float, limit: float, cause: str) -> Candidate:
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
        "evidence": {"errors_this_window": now},
    }
