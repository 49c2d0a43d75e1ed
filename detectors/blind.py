"""The monitoring itself decays: silent nodes, lost samples, vanished fields and slow NVML calls. Some of it precedes
the loss of a GPU; all of it means that nothing else here can be trusted. GPUs that NVML does not show are ``rules``'.

Many nodes at once are one cause (``findings`` names the rack, the driver, the job or the cluster instead). A source
that fails while another reads the GPUs well is no blindness: a dead dcgm-exporter beside NVML goes to the digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

import numpy as np
import polars as pl

from graynode.detectors import accumulate, baseline, findings, memory, residual
from graynode.detectors.accumulate import Run
from graynode.detectors.base import Round, Scored, State
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import View, epoch_s, gpus, hosts, moment
from graynode.detectors.stuck import stuck
from graynode.detectors.thresholds import Thresholds, shipped
from graynode.pipeline.schema import PLANNED

_FIELDS: Final = ("sm_clock_mhz_mean", "power_w_mean", "temp_c_mean", "gpu_util_percent_mean")
"""Fields that every GPU has in every round of the 1 s class: one that was there and is not is news."""
_HOST: Final = ("samples", "samples_expected", "samples_expected_sum", "samples_taken_sum", "nvml_call_max_ms_mean")
_LATENCY: Final = ("latency",)
_TAU: Final = float(np.log(2.0))
_TAKEN: Final = 0.8
_REASONS: Final = 5
_FORGET_SILENT_S: Final = 86_400.0
_ACTION: Final = "Look at the agent and the driver of this node; until it answers, no other verdict about it holds"


class Blind:
    """The detector."""

    name: ClassVar[str] = "blind"
    version: ClassVar[int] = 2
    leaves_out_d: ClassVar[int] = 0
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {"host": _HOST}

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or shipped()

    def score(self, round_: Round, state: State) -> Scored:
        """Score what the window lacks."""
        now_s = epoch_s(round_.start)
        nodes, silent = self._silent(round_, state.get("nodes"), now_s)
        view = hosts(round_.host, _HOST)
        boards = gpus(round_.gpu, (*_FIELDS, "samples", "samples_expected"))
        names = (
            *baseline.columns(_LATENCY), *Run.columns("latency"), "samples.strikes", "samples.since",
            "gpus.seen", "gpus.strikes", "gpus.since",
        )  # fmt: skip
        remembered = memory.recall(state.get("host"), view.keys, names)
        history = baseline.roll(remembered, state.get("history"), view.keys, _LATENCY, now_s)
        found = [
            *silent,
            *self._lacking(view, remembered, round_, boards),
            *self._without_gpus(view, remembered, round_, boards),
            *self._slow_calls(view, remembered, round_.window_s),
        ]
        fields = memory.recall(
            state.get("gpu"), boards.keys, [f"{f}.{p}" for f in _FIELDS for p in ("seen", "strikes", "since")]
        )
        found += self._vanished(boards, fields, round_.window_s)
        standing, still = stuck(round_.quality, state.get("stuck"), now_s)
        found += still
        after: dict[str, pl.DataFrame] = {
            "nodes": nodes,
            "host": memory.remember(state.get("host"), view.keys, remembered, now_s),
            "gpu": memory.remember(state.get("gpu"), boards.keys, fields, now_s),
            "stuck": standing,
        }
        if history is not None:
            after["history"] = history
        return Scored(findings.collect(self, round_, found), after)

    def learn(self, history: Round, state: State) -> State:
        """Daily medians of the call latency."""
        view = hosts(history.host, _HOST)
        if not len(view):
            return state
        days = baseline.daily_medians(
            view.keys, view.t_s, {"latency": residual.log_of(view.x["nvml_call_max_ms_mean"])}
        )
        newest = float(np.floor(view.t_s.max() / baseline.DAY_S))
        return {**state, "history": baseline.join(state.get("history"), days, newest)}

    def _silent(self, round_: Round, known: pl.DataFrame | None, now_s: float) -> tuple[pl.DataFrame, list[Candidate]]:
        limit = self._thresholds.value(self.name, "silent", round_.window_s)
        here = _present(round_).with_columns(seen=pl.lit(now_s), strikes=pl.lit(0.0))
        if known is None:
            return here, []
        absent = (
            known.lazy()
            .join(here.lazy(), on="node_id", how="anti")
            .filter(pl.col("seen") >= now_s - _FORGET_SILENT_S)
            .with_columns(strikes=pl.col("strikes") + 1.0)
            .collect()
        )
        told = absent.filter(pl.col("strikes") >= limit / 2)
        nodes = pl.concat([here, absent]).sort("node_id") if absent.height else here
        return nodes, [_gone(row, limit) for row in told.iter_rows(named=True)]

    def _lacking(self, view: View, remembered: memory.Arrays, round_: Round, boards: View) -> Iterator[Candidate]:
        x = view.x
        due = np.where(x["samples_expected_sum"] > 0, x["samples_expected_sum"], np.nan)
        expected = np.where(x["samples_expected"] > 0, x["samples_expected"], np.nan)
        taken = np.fmin(x["samples_taken_sum"] / due, x["samples"] / expected)
        limit = self._thresholds.value(self.name, "samples", round_.window_s)
        bad = taken < _TAKEN
        count, since = accumulate.strike(remembered, "samples", bad, ~np.isnan(taken), view.t_s)
        lacking = np.flatnonzero((count >= limit / 2) & bad)
        read = _share_by_node(boards) if len(lacking) else {}
        for i in lacking:
            said = f"only {taken[i]:.0%} of the samples that were due arrived"
            c = _node(view, int(i), "samples", said, taken[i], count[i], limit, since[i])
            gpus_read = read.get(str(view.text("node_id")[int(i)]), 0.0)
            yield _one_source(c, gpus_read, round_.quality) if gpus_read >= _TAKEN else c

    def _without_gpus(self, view: View, remembered: memory.Arrays, round_: Round, boards: View) -> Iterator[Candidate]:
        """Nodes that still speak and whose GPUs all no longer do, unless somebody wanted that."""
        limit = self._thresholds.value(self.name, "fields", round_.window_s)
        here = view.keys.is_in(boards.text("node_id").unique().to_list()).to_numpy()
        seen = here | (remembered["gpus.seen"] == 1.0)
        remembered["gpus.seen"] = np.where(seen, 1.0, np.nan)
        planned = view.keys.is_in(_planned(round_.quality)).to_numpy()
        count, since = accumulate.strike(remembered, "gpus", ~here & seen & ~planned, seen, view.t_s)
        for i in np.flatnonzero((count >= limit / 2) & ~here & ~planned):
            said = "none of its GPUs is read any more, though the node itself is"
            c = _node(view, int(i), "no_gpu_rows", said, count[i], count[i], limit, since[i])
            yield {**c, "unit": "windows"}

    def _slow_calls(self, view: View, remembered: memory.Arrays, window_s: int) -> Iterator[Candidate]:
        limit = self._thresholds.value(self.name, "call_latency", window_s)
        latency = view.x["nvml_call_max_ms_mean"]
        base = remembered["latency.base"]
        run = accumulate.advance(remembered, "latency", residual.log_of(latency) - base, view.t_s, _TAU, limit)
        baseline.learn(remembered, "latency", residual.log_of(latency), run.sum < limit / 2, 3 * _TAU)
        for i in np.flatnonzero((run.sum >= limit / 2) & ~np.isnan(latency)):
            said = f"its slowest NVML call takes {latency[i]:.0f} ms, {np.exp(run.mean[i]):.1f} times its own past"
            c = _node(view, int(i), "call_latency", said, latency[i], run.sum[i], limit, run.since_s[i])
            yield {**c, "unit": "ms", "baseline": np.exp(base[i]), "effect": np.expm1(run.mean[i])}

    def _vanished(self, view: View, remembered: memory.Arrays, window_s: int) -> Iterator[Candidate]:
        limit = self._thresholds.value(self.name, "fields", window_s)
        gone: dict[int, list[str]] = {}
        score: dict[int, tuple[float, float]] = {}
        for f in _FIELDS:
            here = ~np.isnan(view.x[f])
            seen = (remembered[f"{f}.seen"] == 1.0) | here
            remembered[f"{f}.seen"] = np.where(seen, 1.0, np.nan)
            count, since = accumulate.strike(remembered, f, ~here & seen, seen, view.t_s)
            for i in np.flatnonzero((count >= limit / 2) & ~here):
                gone.setdefault(int(i), []).append(f.removesuffix("_mean"))
                score[int(i)] = max(score.get(int(i), (0.0, 0.0)), (float(count[i]), -float(since[i])))
        for row, names in gone.items():
            yield {
                **view.identity(row),
                "subject": "gpu",
                "cause": "monitoring_blind",
                "signal": "fields",
                "unit": "fields",
                "value": float(len(names)),
                "score": score[row][0],
                "threshold": limit,
                "since": moment(-score[row][1]),
                "severity": "ticket",
                "message": f"{view.gpu_name(row)} no longer gives {', '.join(names)}",
                "action": _ACTION,
                "evidence": {"fields": names},
            }


def _share_by_node(boards: View) -> dict[str, float]:
    """Of each node's GPU samples that were due, the share that arrived."""
    due = np.nan_to_num(boards.x["samples_expected"])
    frame = pl.DataFrame({"node": boards.text("node_id"), "got": np.nan_to_num(boards.x["samples"]), "due": due})
    sums = frame.group_by("node").agg(pl.col("got").sum(), pl.col("due").sum()).filter(pl.col("due") > 0)
    return dict(sums.select("node", pl.col("got") / pl.col("due")).iter_rows())


def _one_source(c: Candidate, read: float, quality: pl.DataFrame) -> Candidate:
    """Not blind: another source reads the GPUs well."""
    reasons: list[str] = []
    if {"node_id", "field", "state", "reason", "ts"} <= set(quality.columns):
        whole = quality.filter((pl.col("node_id") == c["node_id"]) & (pl.col("field") == "*"))
        latest = whole.sort("ts").unique("entity", keep="last") if "entity" in whole.columns else whole
        failing = latest.filter(pl.col("state").is_in(["stale", "error"]) & pl.col("reason").is_not_null())
        reasons = sorted(set(failing.get_column("reason").to_list()))[:_REASONS]
    why = f" ({reasons[0]})" if reasons else ""
    return {
        **c,
        "signal": "source",
        "severity": "digest",
        "message": f"{c['message']}, but {read:.0%} of its GPU samples did: one source fails{why}",
        "action": "Repair the source when there is time; the GPUs are watched by another",
        "evidence": {"gpu_samples_share": read, "reasons": reasons},
    }


def _planned(quality: pl.DataFrame) -> list[str]:
    """Nodes on which somebody has taken the GPUs from monitoring, and not given them back."""
    names = ["node_id", "table_name", "entity", "field"]
    if not {*names, "ts", "state", "reason"} <= set(quality.columns) or quality.is_empty():
        return []
    latest = quality.lazy().sort("ts").unique(names, keep="last")
    wanted = pl.col("reason").str.starts_with(PLANNED) & (pl.col("state") != "measured")
    return latest.filter(wanted).select(pl.col("node_id").unique().sort()).collect().get_column("node_id").to_list()


def _present(round_: Round) -> pl.DataFrame:
    schema = dict.fromkeys(("node_id", "cluster", "node", "boot_id"), pl.String)
    parts = [
        f.lazy().select((pl.col(c) if c in f.columns else pl.lit(None)).cast(pl.String).alias(c) for c in schema)
        for f in (round_.host, round_.gpu, round_.link)
        if "node_id" in f.columns
    ]
    rows = pl.concat([p.unique() for p in parts]) if parts else pl.LazyFrame(schema=schema)
    first = rows.drop_nulls("node_id").sort(*schema, nulls_last=True)
    return first.unique("node_id", keep="first", maintain_order=True).collect()


def _gone(row: dict[str, object], limit: float) -> Candidate:
    seen = float(row["seen"])  # type: ignore[arg-type]
    return {
        **{k: row[k] for k in ("cluster", "node_id", "node", "boot_id")},
        "subject": "node",
        "cause": "monitoring_blind",
        "signal": "silent",
        "value": row["strikes"],
        "unit": "windows",
        "score": row["strikes"],
        "threshold": limit,
        "since": moment(seen),
        "severity": "ticket",
        "message": f"Node {row['node'] or row['node_id']} is silent: last heard of at {moment(seen):%H:%M:%S} UTC",
        "action": "See whether the node, its network or only the agent is down; it is unknown, not healthy",
        "evidence": {},
    }


def _node(
    view: View, i: int, signal: str, said: str, value: float, count: float, limit: float, since: float
) -> Candidate:
    return {
        **view.identity(i),
        "subject": "node",
        "cause": "monitoring_blind",
        "signal": signal,
        "value": value,
        "score": count,
        "threshold": limit,
        "since": moment(float(since)),
        "severity": "ticket",
        "message": f"Node {view.text('node')[i] or view.text('node_id')[i]}: {said}",
        "action": _ACTION,
        "evidence": {},
    }
