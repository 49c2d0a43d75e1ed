"""What of a GPU's window measures capability, and whether the window was one to judge it by."""

from __future__ import annotations

from typing import Final

import numpy as np

from graynode.detectors import residual
from graynode.detectors.frames import Bools, Floats, View, codes

THROTTLES: Final = ("hw_power_brake", "hw_thermal", "sw_thermal")
NUMBERS: Final = (
    "samples", "samples_expected", "sm_clock_mhz_mean", "power_w_mean", "gpu_idle_s", "gpu_util_percent_mean",
    "power_limit_enforced_w_last", "mig_mode_last",
    *(f"throttle_{t}_ns_delta" for t in THROTTLES), *(f"{t}_s" for t in THROTTLES),
)  # fmt: skip
_LOADED_PERCENT: Final = 50.0
_IDLE_SHARE: Final = 0.1


def measured(view: View, window_s: int) -> dict[str, Floats]:
    """Each signal in log units, more is worse, NaN where this window is none to judge by."""
    judged = loaded(view, window_s)
    worse = {
        "clock": -residual.log_of(view.x["sm_clock_mhz_mean"]),
        "throttle": np.log1p(throttled_share(view, window_s)),
        "power_at_clock": residual.log_of(view.x["power_w_mean"]) - residual.log_of(view.x["sm_clock_mhz_mean"]),
    }
    return {s: np.where(judged, x, np.nan) for s, x in worse.items()}


def loaded(view: View, window_s: int) -> Bools:
    """Windows with work on the GPU: a kernel resident half of the time, hardly idle, and half of the samples there."""
    return view.once(f"loaded/{window_s}", None, lambda: _loaded(view, window_s))


def _loaded(view: View, window_s: int) -> Bools:
    x = view.x
    idle = np.nan_to_num(x["gpu_idle_s"]) > _IDLE_SHARE * window_s
    util = x["gpu_util_percent_mean"]
    has_job = view.text("job_id_last").is_not_null().to_numpy()
    busy = np.where(np.isnan(util), has_job, util >= _LOADED_PERCENT)
    half = x["samples"] * 2 < x["samples_expected"]
    return np.asarray(busy & ~idle & ~half, dtype=np.bool_)


def throughout(view: View) -> Bools:
    """Of many windows of each GPU in order, those whose job had run through the window before as well.

    In the others another job may have had part of the window, or all of it but the last sample.
    """
    who, job = codes(view.keys), codes(view.text("job_id_last").fill_null(""))
    same = (who[1:] == who[:-1]) & (job[1:] == job[:-1])
    return np.asarray(np.r_[np.zeros(min(len(view), 1), dtype=np.bool_), same], dtype=np.bool_)


def throttled_share(view: View, window_s: int) -> Floats:
    """Share of the window in which heat or the power brake held clocks down; NaN where nothing says so.

    The software power cap is left out: a GPU at its power limit does what it should.
    """
    shares = []
    for t in THROTTLES:
        by_time = view.x[f"throttle_{t}_ns_delta"] / 1e9 / window_s
        by_bit = view.x[f"{t}_s"] / window_s
        shares.append(np.where(np.isnan(by_time), by_bit, by_time))
    known = ~np.all(np.isnan(shares), axis=0)
    return np.where(known, np.clip(np.nansum(shares, axis=0), 0.0, 1.0), np.nan)
