"""The PCIe link of a GPU: fewer lanes always, a lower generation under load, and replays beyond the table.

Width does not change with power state, generation does (it drops when idle), so width is judged in every window
and generation under load only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from graynode.detectors import accumulate, capability, findings, memory, residual
from graynode.detectors.base import Round, Scored, State
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import Bools, Floats, View, epoch_s, gpus, moment
from graynode.detectors.thresholds import Thresholds, shipped

_NUMBERS: Final = (
    *capability.NUMBERS, "pcie_width_last", "pcie_width_max_last", "pcie_gen_last", "pcie_gen_max_last",
    "pcie_replays_delta",
)  # fmt: skip
_REPLAYS_PER_MIN_LANE: Final = np.array([np.nan, 0.15, 0.3, 0.48, 0.96, 1.92, 3.84])
"""DCGM's limit per minute and lane for generations 1 to 6 (``dcgm_health``: ceil(rate × lanes))."""
_SIGNALS: Final = ("width", "generation", "replays")


class Pcie:
    """The detector."""

    name: ClassVar[str] = "pcie"
    version: ClassVar[int] = 1

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or shipped()

    def score(self, round_: Round, state: State) -> Scored:
        """Score the window's PCIe links: windows in a row that are below what the link should be."""
        view = gpus(round_.gpu, _NUMBERS)
        names = [f"{s}.{part}" for s in _SIGNALS for part in ("strikes", "since")]
        remembered = memory.recall(state.get("gpu"), view.keys, (*names, "width_max", "gen_max"))
        candidates = list(self._all(round_, view, remembered))
        after = memory.remember(state.get("gpu"), view.keys, remembered, epoch_s(round_.start))
        return Scored(findings.collect(self, round_, candidates), {"gpu": after})

    def _all(self, round_: Round, view: View, remembered: memory.Arrays) -> Iterator[Candidate]:
        width, gen = view.x["pcie_width_last"], view.x["pcie_gen_last"]
        width_max = _expected(view, remembered, "width_max", "pcie_width_max_last", width)
        loaded = capability.loaded(view, round_.window_s)
        busy_gen = np.where(loaded, gen, np.nan)
        gen_max = _expected(view, remembered, "gen_max", "pcie_gen_max_last", busy_gen)
        known = ~np.isnan(width) & ~np.isnan(width_max)
        yield from self._told(round_, view, remembered, "width", width < width_max, known, width, width_max)
        known = ~np.isnan(busy_gen) & ~np.isnan(gen_max)
        yield from self._told(round_, view, remembered, "generation", gen < gen_max, known, gen, gen_max)
        rate = view.x["pcie_replays_delta"] * 60.0 / round_.window_s
        most = replay_limit(gen, width)
        known = ~np.isnan(rate) & ~np.isnan(most)
        yield from self._told(round_, view, remembered, "replays", rate > most, known, rate, most)

    def _told(
        self,
        round_: Round,
        view: View,
        remembered: memory.Arrays,
        signal: str,
        bad: Bools,
        known: Bools,
        value: Floats,
        expected: Floats,
    ) -> Iterator[Candidate]:
        limit = self._thresholds.value(self.name, signal, round_.window_s)
        count, since = accumulate.strike(remembered, signal, bad, known, view.t_s)
        for i in np.flatnonzero((count >= limit / 2) & bad & known):
            yield _candidate(view, int(i), signal, value[i], expected[i], count[i], limit, since[i])


def replay_limit(gen: Floats, width: Floats) -> Floats:
    """Replays a minute above which a link is bad; NaN for an unknown generation or width."""
    index = np.where((gen >= 1) & (gen < len(_REPLAYS_PER_MIN_LANE)), gen, 0).astype(np.int64)
    return np.ceil(_REPLAYS_PER_MIN_LANE[index] * width)


def _expected(view: View, remembered: memory.Arrays, name: str, column: str, now: Floats) -> Floats:
    """What the link should be: the most that GPU and slot can, but no more than any GPU of its model has here.

    A slot wired with eight lanes reports sixteen for the GPU in some servers; where no GPU of a model has more than
    eight, eight is what was bought.
    """
    said = view.x[column]
    remembered[name] = np.where(np.isnan(said), remembered[name], said)
    best, others = residual.leave_one_out_median(now, residual.models(view))
    usual = np.where(others >= residual.MIN_PEERS, np.maximum(best, now), np.inf)
    return np.where(np.isnan(usual), remembered[name], np.minimum(remembered[name], usual))


_SAID: Final = {
    "width": "PCIe runs on {0:.0f} of {1:.0f} lanes",
    "generation": "PCIe runs at generation {0:.0f} of {1:.0f} under load",
    "replays": "{0:.0f} PCIe replays a minute, more than {1:.0f}",
}


def _candidate(
    view: View, i: int, signal: str, value: float, expected: float, count: float, limit: float, since: float
) -> Candidate:
    return {
        **view.identity(i), "subject": "gpu", "signal": signal, "severity": "ticket",
        "cause": "pcie_errors" if signal == "replays" else "pcie_degraded", "value": value, "baseline": expected,
        "unit": {"width": "lanes", "generation": "generation", "replays": "per minute"}[signal],
        "effect": value / max(expected, 1.0) - 1.0 if signal == "replays" else 1.0 - value / expected,
        "score": count, "threshold": limit, "since": moment(since),
        "message": f"{view.gpu_name(i)}: {_SAID[signal].format(value, expected)}",
        "action": "Drain the node, power it off and on; if it stays, have GPU and riser reseated",
        "evidence": {"windows_in_a_row": count, "pci_bus_id": view.text("pci_bus_id_last")[i]},
    }  # fmt: skip
