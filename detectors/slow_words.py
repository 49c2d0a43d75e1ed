"""What is said of a GPU that has become slow: the finding's columns, in the words and units of a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.detectors import in_job
from graynode.detectors.accumulate import Run
from graynode.detectors.capability import THROTTLES, throttled_share
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import Floats, View, moment
from graynode.detectors.memory import Arrays
from graynode.detectors.residual import Residual

_WORDS: Final = {
    "clock": "its SM clock under load is {effect:.1%} lower",
    "throttle": "it is held below its clocks {effect:.1%} more of the time",
    "power_at_clock": "it takes {effect:.1%} more power at the same clock",
}
_PAGE_EFFECT: Final = 0.10
"""Published practice swaps a node at about 10 % sustained at the next checkpoint; less is a ticket."""
_UNITS: Final = {"clock": "MHz", "throttle": "share of time", "power_at_clock": "W/MHz"}
ACTIONS: Final = {
    "slow_gpu": "Run a GEMM benchmark on it between jobs; if it confirms, take the node out and open a vendor case",
    "thermal": "Check fans, airflow and inlet of this node; then run a probe",
    "power_brake": "Check power supplies and power capping of this node and rack; then run a probe",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One signal against one reference: ``signal`` as findings call it, ``of`` the measured one, own normals, run."""

    signal: str
    of: str
    residual: Residual
    base: Floats
    firm: Floats
    run: Run
    limit: float

    @property
    def in_job(self) -> bool:
        """Whether the reference is the job's own beginning."""
        return self.signal != self.of


def change(view: View, c: Change, throttle: Floats, i: int, window_s: int, memory: Arrays) -> Candidate:
    """The finding about row ``i``. ``throttle`` are the sums of throttling: whether anything held the clock down."""
    effect = float(np.expm1(c.run.mean[i]))
    cause, held = cause_of(view, throttle, i)
    firm = bool(c.firm[i] == 1.0) and not c.residual.wide[i]
    watched = c.of == "power_at_clock"
    severity = "digest" if watched else "page" if firm and effect >= _PAGE_EFFECT else "ticket"
    median = c.residual.median[i]
    return {
        **view.identity(i),
        "subject": "gpu",
        "cause": cause,
        "signal": c.signal,
        "value": _measured(view, c.of, window_s)[i],
        "unit": _UNITS[c.of],
        "baseline": _in_unit(c.of, median + c.base[i]),
        "peer_median": _in_unit(c.of, median),
        "peers": c.residual.peers[i],
        "effect": effect,
        "score": c.run.sum[i],
        "threshold": c.limit,
        "since": moment(float(c.run.since_s[i])),
        "severity": severity,
        "message": f"{view.gpu_name(i)}: {_WORDS[c.of].format(effect=effect)} than that of "
        f"{c.residual.peers[i]} {_others(view, c, i)}, compared with {_past(c, i, window_s, memory)}{held}",
        "action": ACTIONS[cause],
        "evidence": {
            "residual_now": c.residual.excess[i],
            "reference": _reference(c, i, window_s, memory),
            "baseline_days": memory[f"{c.of}.days"][i],
            "baseline_firm": firm,
            "wide_peers": bool(c.residual.wide[i]),
            "job_id": view.text("job_id_last")[i],
            "windows": memory[f"{c.signal}.windows"][i],
        },
    }


def _others(view: View, c: Change, i: int) -> str:
    if not c.residual.wide[i]:
        return "GPUs of its job and role"
    known = view.text("job_id_last")[i] is not None
    return "GPUs of its job, of other driver or VBIOS too," if known else "GPUs of its model on the node"


def _past(c: Change, i: int, window_s: int, memory: Arrays) -> str:
    return f"the job's {_beginning(c, i, window_s, memory)}" if c.in_job else "its own past"


def _reference(c: Change, i: int, window_s: int, memory: Arrays) -> str:
    return f"{_beginning(c, i, window_s, memory)} of the job" if c.in_job else "days −28 to −7"


def _beginning(c: Change, i: int, window_s: int, memory: Arrays) -> str:
    minutes = round(in_job.minutes(memory, c.of, i, window_s))
    return "first half hour" if minutes == 30 else f"first {minutes} minutes"


def cause_of(view: View, throttle: Floats, i: int) -> tuple[str, str]:
    """What holds the clock of row ``i`` down, and the words for it; a slow GPU where nothing does."""
    if not throttle[i] > 0:
        return "slow_gpu", ""
    seconds = {
        t: np.nan_to_num(view.x[f"{t}_s"][i]) + np.nan_to_num(view.x[f"throttle_{t}_ns_delta"][i]) / 1e9
        for t in THROTTLES
    }
    most = max(THROTTLES, key=lambda t: seconds[t])
    if seconds[most] <= 0:
        return "slow_gpu", ""
    return ("power_brake", "; the power brake holds it") if most == "hw_power_brake" else ("thermal", "; heat holds it")


def _measured(view: View, signal: str, window_s: int) -> Floats:
    if signal == "clock":
        return view.x["sm_clock_mhz_mean"]
    if signal == "throttle":
        return throttled_share(view, window_s)
    return view.x["power_w_mean"] / np.where(view.x["sm_clock_mhz_mean"] > 0, view.x["sm_clock_mhz_mean"], np.nan)


def _in_unit(signal: str, log_median: float) -> float:
    if signal == "throttle":
        return float(np.expm1(log_median))
    return float(np.exp(-log_median if signal == "clock" else log_median))
