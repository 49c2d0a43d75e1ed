"""Thresholds of the fleet track from healthy training fleets; ``python -m graynode.benchmarks.detection.fleet_train``.

Run once and committed as ``limits/fleet.json`` before test seeds are drawn. No fault is looked at: a threshold is what
healthy node-days seldom reach. Writes the cells to the file named, one after the other, so that a stopped run goes on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from graynode.benchmarks.detection.fleet_core import Size
from graynode.benchmarks.detection.fleet_sweep import BASE, CELLS, HARSH, generator, node_days
from graynode.benchmarks.detection.noise import Array, Noise

TARGET: Final = 5e-6
"""False findings per node-day of one reference. At 1e-5 for both, 37,500 healthy node-days hold at most the two that
the budget allows with probability 0.993, and a week's unluckier noise still passes."""
MARGIN: Final = 1.1
USABLE: Final = 1.6
"""S that a 5 % slowdown reaches in about half an hour. A reference that healthy GPUs take that far tells nothing."""
DAYS: Final = 30
DAYS_OF_SWEEP: Final = 3
"""Days of 1,250 nodes: of the two cells whose figures are certified, and of the others."""
_TAIL: Final = 0.01
SEED: Final = 1


def main() -> None:
    """Every cell that the file lacks."""
    path = Path(sys.argv[1])
    text: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else _header()
    for i, noise in enumerate(sorted(CELLS, key=lambda n: n not in (BASE, HARSH))):
        if noise.name not in text["cells"]:
            text["cells"][noise.name] = _cell(noise, i)
            path.write_text(json.dumps(text, indent=1) + "\n", "utf-8")
            print(noise.name, text["cells"][noise.name], flush=True)


def threshold(maxima: Array) -> float | None:
    """What healthy node-days exceed at a rate of ``TARGET``, and a tenth more; ``None`` where that is of no use.

    The tail beyond the 0.99 quantile is taken as exponential, which the maximum of a CUSUM over noise is (its Brownian
    limit); where offsets drive it the tail is longer, so the largest maximum seen is a lower bound.
    """
    start = float(np.quantile(maxima, 1.0 - _TAIL))
    beyond = float((maxima[maxima > start] - start).mean()) if (maxima > start).any() else 0.0
    wanted = MARGIN * max(start + beyond * float(np.log(_TAIL / TARGET)), float(maxima.max()))
    return None if wanted > USABLE else float(np.ceil(wanted * 1000.0) / 1000.0)


def _cell(noise: Noise, number: int) -> dict[str, float | None]:
    count = DAYS if noise in (BASE, HARSH) else DAYS_OF_SWEEP
    days = node_days(noise, Size(), count, generator(SEED, number, training=True))
    return {
        "node_days": len(days),
        "across": threshold(days.across),
        "in_job": threshold(days.in_job),
        "largest_across": round(float(days.across.max()), 4),
        "largest_in_job": round(float(days.in_job.max()), 4),
    }


def _header() -> dict[str, Any]:
    return {
        "source": "graynode.benchmarks.detection.fleet_train, simulated healthy node-days alone",
        "training_seed": SEED,
        "rule": f"exponential tail beyond the 0.99 quantile of node-day maxima to {TARGET:g} per node-day and "
        f"reference, or the largest maximum, times {MARGIN}; null (of no use) above {USABLE}",
        "cells": {},
    }


if __name__ == "__main__":
    main()
