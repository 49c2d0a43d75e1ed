"""Links: outages that end a job, outages in pieces, flaps, growing errors, less speed or width than expected.

A collective dies of one contiguous outage that is longer than its timeout: about 7.5 s for NCCL 2.14–2.22 and about
30 s since 2.23; a site that has set another says so (``timeout``). The sum of outages in an hour is a second measure:
it tells a bad port that has not killed a job yet. A port that flaps more slowly than three times in ten minutes is
found by its penalty, as routers dampen routes. A link that was never seen active is nobody's fault: an empty cage is
down for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

import numpy as np

from graynode.detectors import accumulate, findings, growth, link_rates, link_words, memory, residual, ring
from graynode.detectors.base import Round, Scored, State
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import Bools, Floats, Ints, View, codes, epoch_s, gpus, links, moment
from graynode.detectors.growth import Prior
from graynode.detectors.link_rates import Limit
from graynode.detectors.thresholds import Thresholds, shipped

_ERRORS: Final = (
    "link_downed", "link_error_recovery", "symbol_errors", "rx_errors", "rx_remote_physical_errors", "tx_errors",
    "integrity_errors", "buffer_overruns", "rnr_nak_retry_errors", "ack_timeouts", "packet_sequence_errors",
)  # fmt: skip
_NVLINK_ERRORS: Final = (
    "nvlink_crc_flit_errors", "nvlink_crc_data_errors", "nvlink_replay_errors", "nvlink_recovery_errors",
    "nvlink5_malformed_packets", "nvlink5_rx_errors", "nvlink5_rx_general_errors", "nvlink5_integrity_errors",
    "nvlink5_recoveries_failed", "nvlink5_effective_errors",
)  # fmt: skip
_LINK_NUMBERS: Final = (
    "samples", "samples_expected", "rate_gbps_mean", "down_s_sum", "outage_s_max", "downs_sum",
    *dict.fromkeys((*(f"{e}_delta" for e in _ERRORS), *link_rates.columns(link_rates.PORTS))),
)  # fmt: skip
_GPU_NUMBERS: Final = (
    "samples", "samples_expected", "nvlink_links_active_last", "nvlink_links_inactive_last",
    *dict.fromkeys((*(f"{e}_delta" for e in _NVLINK_ERRORS), *link_rates.columns(link_rates.BOARDS))),
)  # fmt: skip
_PRIOR: Final = Prior(0.2, 20.0)
"""One error-hour in a hundred on average, very unequal over links; provisional until the fleet's own fit takes over."""
_FLAP_SLOTS: Final = 3
"""The running five minutes and the two before: ten to fifteen minutes."""
_OUTAGES: Final = ("outage_30s", "outage_7s", "down_in_pieces", "flap")
_RATE_BELOW: Final = 0.99
_ALIKE: Final = 0.9
_FEWEST_ALIKE: Final = 16
"""So many GPUs of a model, and nine in ten with the same number of NVLinks, say what the model should have."""
_FIRST_S: Final = 7.5
_REMEMBERED: Final = (
    "active", "rate_best", "rate.strikes", "rate.since", "out.since", "penalty", "penalty.at",
    "error_rate.strikes", "error_rate.since",
    *ring.columns("down"), *ring.columns("longest"), *ring.columns("downs"), *growth.columns(),
)  # fmt: skip


_BOARDS: Final = (
    "most_active", "nvlinks.strikes", "nvlinks.since", "error_rate.strikes", "error_rate.since", *growth.columns(),
)  # fmt: skip
_HALF_LIFE_S: Final = 900.0
_SUPPRESS: Final = 2.0
"""Route flap dampening (RFC 2439, the usual values): a flap adds one, half of it is gone after 15 minutes, and two are
too many. Three quick flaps are as bad, so the penalty is told on the flaps' scale, three for two."""


def timeout(seconds: float) -> dict[tuple[str, str, int], float]:
    """Threshold values for a site whose collectives give up after so many seconds, by detector, signal and window."""
    return {("links", "outage_30s", 0): seconds, ("links", "outage_7s", 0): seconds}


class Links:
    """The detector: ports from table ``link``, NVLink sums from table ``gpu``."""

    name: ClassVar[str] = "links"
    version: ClassVar[int] = 2
    leaves_out_d: ClassVar[int] = 7
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "link": (*(f"{e}_delta" for e in _ERRORS), "link_kind_last"),
        "gpu": tuple(f"{e}_delta" for e in _NVLINK_ERRORS),
    }

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or shipped()

    def score(self, round_: Round, state: State) -> Scored:
        """Score the window's links."""
        now_s = epoch_s(round_.start)
        view = links(round_.link, _LINK_NUMBERS)
        ports = memory.recall(state.get("link"), view.keys, _REMEMBERED)
        found = [*self._outages(view, ports, round_.window_s), *self._rates(view, ports, round_.window_s)]
        found += self._errors(view, ports, _port_errors(view), round_.window_s, "link_errors")
        found += self._error_rates(view, ports, link_rates.PORTS, round_.window_s, "link_errors")
        boards = gpus(round_.gpu, _GPU_NUMBERS)
        nvlinks = memory.recall(state.get("gpu"), boards.keys, _BOARDS)
        found += self._errors(boards, nvlinks, _total(boards, _NVLINK_ERRORS), round_.window_s, "nvlink_fault")
        found += self._error_rates(boards, nvlinks, link_rates.BOARDS, round_.window_s, "nvlink_fault")
        found += self._nvlinks(boards, nvlinks, round_.window_s)
        found = link_words.among_its_ports(found, view)
        after = {
            "link": memory.remember(state.get("link"), view.keys, ports, now_s),
            "gpu": memory.remember(state.get("gpu"), boards.keys, nvlinks, now_s),
        }
        return Scored(findings.collect(self, round_, found), after)

    def learn(self, history: Round, state: State) -> State:
        """Error-hours of past windows."""
        ports, boards = links(history.link, _LINK_NUMBERS), gpus(history.gpu, _GPU_NUMBERS)
        hours, learnt = history.window_s / 3600.0, dict(state)
        for name, view, columns, errors in (
            ("link", ports, _REMEMBERED, _port_errors(ports)),
            ("gpu", boards, _BOARDS, _total(boards, _NVLINK_ERRORS)),
        ):
            frame = growth.learn(state.get(name), view, columns, _grew(errors), np.full(len(view), hours), {})
            if frame is not None:
                learnt[name] = frame
        return learnt

    def _outages(self, view: View, ports: memory.Arrays, window_s: int) -> Iterator[Candidate]:
        x = view.x
        limits = {s: self._thresholds.value(self.name, s, window_s) for s in _OUTAGES}
        is_active = (view.text("state_last") == "active").fill_null(value=False).to_numpy()
        known = (ports["active"] == 1.0) | is_active | (x["downs_sum"] > 0)
        ports["active"] = np.where(known, 1.0, 0.0)
        outage = np.where(known, x["outage_s_max"], np.nan)
        down = ring.put(ports, "down", np.where(known, x["down_s_sum"], np.nan), view.t_s).sum(axis=1)
        longest = ring.put(ports, "longest", outage, view.t_s, largest=True).max(axis=1, initial=0.0)
        downs = ring.put(ports, "downs", np.where(known, x["downs_sum"], np.nan), view.t_s)[:, -_FLAP_SLOTS:].sum(
            axis=1
        )
        penalty = _penalty(ports, np.where(known, x["downs_sum"], np.nan), view.t_s) * limits["flap"] / _SUPPRESS
        began = np.where(down > 0, np.where(np.isnan(ports["out.since"]), view.t_s, ports["out.since"]), np.nan)
        ports["out.since"] = began
        for i in np.flatnonzero(outage >= limits["outage_7s"] / 2):
            signal = "outage_30s" if outage[i] >= limits["outage_30s"] else "outage_7s"
            yield link_words.outage(view, int(i), signal, float(outage[i]), float(down[i]), limits, moment(began[i]))
        now_down = x["down_s_sum"] > 0
        in_pieces = now_down & (longest < _FIRST_S) & (down >= limits["down_in_pieces"] / 2)
        for i in np.flatnonzero(in_pieces):
            yield link_words.in_pieces(
                view, int(i), float(down[i]), float(longest[i]), limits["down_in_pieces"], moment(began[i])
            )
        flaps = np.maximum(downs, np.minimum(penalty, limits["flap"]))
        for i in np.flatnonzero((x["downs_sum"] > 0) & (flaps >= limits["flap"] / 2)):
            slow = penalty[i] > downs[i]
            yield link_words.flap(
                view,
                int(i),
                float(downs[i]),
                float(flaps[i]),
                float(down[i]),
                limits["flap"],
                moment(began[i]),
                slow=slow,
            )

    def _rates(self, view: View, ports: memory.Arrays, window_s: int) -> Iterator[Candidate]:
        limit = self._thresholds.value(self.name, "rate", window_s)
        active = (view.text("state_last") == "active").fill_null(value=False).to_numpy()
        rate = np.where(active & ~(view.x["down_s_sum"] > 0), view.x["rate_gbps_mean"], np.nan)
        same = codes(view.text("link"), view.text("link_kind_last").fill_null(""))
        median, others = residual.leave_one_out_median(rate, same)
        best = np.fmax(ports["rate_best"], rate)
        ports["rate_best"] = best
        alike = (others >= residual.MIN_PEERS) & _agree(rate, median, same)
        expected = np.where(alike, np.fmax(median, best), best)
        bad, known = rate < _RATE_BELOW * expected, ~np.isnan(rate)
        count, since = accumulate.strike(ports, "rate", bad, known, view.t_s)
        for i in np.flatnonzero((count >= limit / 2) & bad):
            yield link_words.rate(
                view,
                int(i),
                float(rate[i]),
                float(expected[i]),
                int(others[i]),
                float(count[i]),
                limit,
                moment(since[i]),
            )

    def _nvlinks(self, view: View, boards: memory.Arrays, window_s: int) -> Iterator[Candidate]:
        limit = self._thresholds.value(self.name, "nvlinks", window_s)
        active = view.x["nvlink_links_active_last"]
        most = np.fmax(boards["most_active"], active)
        boards["most_active"] = most
        most = np.fmax(most, np.where(most > 0, _usual(view, most), np.nan))  # none at all: no bridge, nothing to lose
        bad = (active < most) & (view.x["nvlink_links_inactive_last"] > 0)
        count, since = accumulate.strike(boards, "nvlinks", bad, ~np.isnan(active), view.t_s)
        for i in np.flatnonzero((count >= limit / 2) & bad):
            yield link_words.nvlinks(
                view, int(i), float(active[i]), float(most[i]), float(count[i]), limit, moment(since[i])
            )

    def _errors(
        self, view: View, remembered: memory.Arrays, errors: Floats, window_s: int, cause: str
    ) -> Iterator[Candidate]:
        limit = self._thresholds.value(self.name, "errors", window_s)
        hours = np.full(len(view), window_s / 3600.0)
        grown = growth.advance(remembered, _grew(errors), hours, view.t_s, _PRIOR, _kinds(view))
        score = np.minimum(-np.log10(np.maximum(grown.p, 1e-300)), 300.0)
        for i in np.flatnonzero((errors > 0) & (score >= limit / 2)):
            which = [e for e in (_ERRORS if cause == "link_errors" else _NVLINK_ERRORS) if view.x[f"{e}_delta"][i] > 0]
            yield link_words.errors(view, int(i), grown, float(errors[i]), float(score[i]), limit, cause, which)

    def _error_rates(
        self, view: View, remembered: memory.Arrays, limits: Sequence[Limit], window_s: int, cause: str
    ) -> Iterator[Candidate]:
        """Errors at a rate that no link should have, in several windows in a row."""
        limit = self._thresholds.value(self.name, "rate", window_s)
        times, which = link_rates.worst(view, limits, window_s)
        times = np.where(_is_nvlink(view), np.nan, times)
        bad = times >= 1.0
        count, since = accumulate.strike(remembered, "error_rate", bad, ~np.isnan(times), view.t_s)
        for i in np.flatnonzero((count >= limit / 2) & bad):
            kind = limits[which[i]]
            yield link_words.error_rate(
                view, int(i), kind, float(times[i]) * kind.limit, float(count[i]), limit, moment(since[i]), cause
            )

    def recent(self, history: Round, state: State) -> State:
        """The last day's error-hours, which a start without stored state would not know of."""
        ports, boards = links(history.link, _LINK_NUMBERS), gpus(history.gpu, _GPU_NUMBERS)
        learnt = dict(state)
        for name, view, columns, errors in (
            ("link", ports, _REMEMBERED, _port_errors(ports)),
            ("gpu", boards, _BOARDS, _total(boards, _NVLINK_ERRORS)),
        ):
            hours = np.full(len(view), history.window_s / 3600.0)
            frame = growth.recent(state.get(name), view, columns, _grew(errors), hours)
            if frame is not None:
                learnt[name] = frame
        return learnt


def _agree(rate: Floats, median: Floats, same: Ints) -> Bools:
    """Where nine in ten of the other nodes' equal ports run at their median: a fleet of two speeds expects neither."""
    known = ~np.isnan(rate) & (same >= 0)
    near = known & (np.abs(rate - median) <= (1.0 - _RATE_BELOW) * median)
    size = int(same.max(initial=-1)) + 1
    of = np.bincount(same[known], minlength=size)
    agree = np.bincount(same[near], minlength=size)
    place = np.maximum(same, 0)
    if not size:
        return np.zeros(len(rate), dtype=np.bool_)
    return np.asarray(agree[place] - near >= _ALIKE * (of[place] - known), dtype=np.bool_)


def _usual(view: View, most: Floats) -> Floats:
    """How many NVLinks nearly all GPUs of the model have; NaN where they differ, or are few."""
    models, found = codes(view.text("gpu_model_last")), np.full(len(view), np.nan)
    for model in np.unique(models[models >= 0]):
        of = (models == model) & ~np.isnan(most)
        counts, times = np.unique(most[of], return_counts=True)
        if of.sum() >= _FEWEST_ALIKE and times.max() >= _ALIKE * of.sum():
            found[models == model] = counts[times.argmax()]
    return found


def _penalty(ports: memory.Arrays, downs: Floats, now_s: Floats) -> Floats:
    """Flaps with their age: each counts one and half of it is gone after a quarter of an hour; kept in place."""
    passed = np.maximum(np.nan_to_num(now_s - ports["penalty.at"]), 0.0)
    now = np.nan_to_num(ports["penalty"]) * 0.5 ** (passed / _HALF_LIFE_S) + np.nan_to_num(downs)
    ports["penalty"], ports["penalty.at"] = now, now_s.copy()
    return now


def _kinds(view: View) -> Ints:
    """Which links share a law of errors: equal kinds, or NVLinks of equal GPU models (their generation)."""
    column = "link_kind_last" if "link_kind_last" in view.who.columns else "gpu_model_last"
    return codes(view.text(column).fill_null(""))


def _grew(errors: Floats) -> Floats:
    return np.where(np.isnan(errors), np.nan, errors > 0)


def _port_errors(view: View) -> Floats:
    """Growth of a port's errors. Those of NVLinks are told from the sums in table ``gpu``, once."""
    return np.where(_is_nvlink(view), np.nan, _total(view, _ERRORS))


def _is_nvlink(view: View) -> Bools:
    """Ports of table ``link`` that are NVLinks; none in table ``gpu``."""
    if "link_kind_last" not in view.who.columns:
        return np.zeros(len(view), dtype=np.bool_)
    return np.asarray((view.text("link_kind_last") == "nvlink").fill_null(value=False).to_numpy(), dtype=np.bool_)


def _total(view: View, counters: tuple[str, ...]) -> Floats:
    """Sum of the counters' growth; NaN where none is known."""
    growths = np.column_stack([view.x[f"{c}_delta"] for c in counters])
    known = ~np.all(np.isnan(growths), axis=1)
    return np.where(known, np.nansum(growths, axis=1), np.nan)
