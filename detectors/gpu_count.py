"""Fewer GPUs than the node has: lost where two witnesses agree, else the monitoring is blind.

NVML is one witness, the PCI bus or the kernel log the other (a GPU that fell off the bus may stay in sysfs). NVML
alone loses sight of healthy GPUs: a container cut off from its devices, a driver upgrade. What the node should have
is what its inventory says or, failing that, the most it has shown.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from graynode.detectors import rule_table as table
from graynode.detectors.base import Round
from graynode.detectors.frames import Bools, Floats, View, hosts, moment
from graynode.detectors.memory import Arrays, recall, remember
from graynode.detectors.rule_table import Rule

_NUMBERS: Final = ("gpus_expected_max", "gpus_read_max", "uptime_s_last", "nvml_up_last")
_COLUMNS: Final = (
    "most", "short_since", "off_bus", "gpus_missing.n", "gpus_missing.since", "gpus_missing.told",
    "gpus_unread.n", "gpus_unread.since", "gpus_unread.told", "gpus_short.n", "gpus_short.since", "gpus_short.told",
)  # fmt: skip
_LOST_KINDS: Final = ("gpu_off_bus", "gpu_lost")
_OFF_BUS: Final = 79
_SOURCE: Final = "graynode rules: NVML, and the PCI bus or the kernel log, as two witnesses"
MISSING: Final = Rule(
    "gpus_missing", "gpus_read_max", "gpu_lost", "page", "platform",
    "GPUs are lost, NVML and a second witness agree",
    "Take the node out of scheduling and restart it; a GPU off the bus does not come back by itself.",
    "If it is missing again after the restart, reseat it or ask the vendor.", _SOURCE, table.LOST_WINDOWS, unit="GPUs",
)  # fmt: skip
UNREAD: Final = Rule(
    "gpus_unread", "gpus_read_max", "monitoring_blind", "ticket", "platform",
    "GPUs are on the PCI bus but NVML does not show them",
    "Find out why NVML does not show them: driver state, container devices; nothing is known of their health.",
    "Run nvidia-smi on the node itself and read the kernel log for NVRM lines.", _SOURCE, table.BLIND_WINDOWS,
    unit="GPUs",
)  # fmt: skip
SHORT: Final = Rule(
    "gpus_short", "gpus_read_max", "host_fault", "ticket", "platform",
    "it has fewer GPUs than nearly all others of its kind, and never had more",
    "Look whether a GPU is missing on the PCI bus; if the node is built so, say so in the inventory (expected).",
    "Count the GPUs in the BMC's inventory and reseat the one that is missing.",
    "graynode rules: 90 % of at least five nodes with the same product name", table.BLIND_WINDOWS, unit="GPUs",
)  # fmt: skip
_ALIKE: Final = 0.9
_FEWEST_ALIKE: Final = 5


def score(round_: Round, memory: pl.DataFrame | None) -> tuple[list[dict[str, Any]], pl.DataFrame]:
    """Findings about counts, and the memory of what each node has shown."""
    view = hosts(round_.host, _NUMBERS)
    kept = recall(memory, view.keys, _COLUMNS)
    read, pci = view.x["gpus_read_max"], view.x["gpus_expected_max"]
    most = _most(view, kept, _expected(round_.inventory, view.keys))
    settled = ~(view.x["uptime_s_last"] < table.BOOT_GRACE_S)
    judged = settled & ~np.isnan(read) & (view.x["nvml_up_last"] != 0)
    short = judged & (read < most)
    missing = short & ((pci < most) | _witnessed(view, kept, round_.events, judged & ~short))
    unread = short & ~missing
    found = _told(view, kept, MISSING, missing, judged & ~missing, round_.window_s)
    found += _told(view, kept, UNREAD, unread, judged & ~unread, round_.window_s)
    kind = _of_its_kind(round_.host, view, kept["most"])
    fewer = judged & (kept["most"] < kind) & (read <= kept["most"])
    found += _told(view, kept, SHORT, fewer, judged & ~(kept["most"] < kind), round_.window_s, kind)
    return found, remember(memory, view.keys, kept, round_.start.timestamp())


def _witnessed(view: View, kept: Arrays, events: pl.DataFrame, well: Bools) -> Bools:
    """Where the kernel log, or NVML with a witness of its own, has called a GPU lost since all were there."""
    said = view.keys.alias("node_id").to_frame()
    if events.height and {"node_id", "kind", "ts"} <= set(events.columns):
        code = pl.col("code") if "code" in events.columns else pl.lit(None)
        lost = pl.col("kind").is_in(_LOST_KINDS) | ((pl.col("kind") == "xid") & (code == _OFF_BUS))
        times = events.filter(lost).group_by("node_id").agg((pl.col("ts").dt.epoch("us").max() / 1e6).alias("s"))
        said = said.join(times, on="node_id", how="left", maintain_order="left")
    times_s = (
        said.get_column("s").cast(pl.Float64)
        if "s" in said.columns
        else pl.Series([None] * len(view), dtype=pl.Float64)
    )
    latest = np.fmax(kept["off_bus"], times_s.fill_null(float("nan")).to_numpy())
    kept["off_bus"] = np.where(well & (view.t_s > latest), np.nan, latest)
    return ~np.isnan(kept["off_bus"])


def _expected(inventory: pl.DataFrame, keys: pl.Series) -> Floats:
    if not {"node_id", "kind", "expected"} <= set(inventory.columns):
        return np.full(len(keys), np.nan)
    gpus = inventory.lazy().select("node_id", "kind", pl.col("expected").cast(pl.Float64))
    said = gpus.filter(pl.col("kind") == "gpu").group_by("node_id").agg(pl.col("expected").max())
    nodes = keys.alias("node_id").to_frame().lazy().join(said, on="node_id", how="left", maintain_order="left")
    return nodes.select(pl.col("expected").fill_null(float("nan"))).collect().get_column("expected").to_numpy()


def _most(view: View, kept: Arrays, expected: Floats) -> Floats:
    """What the node should have; a smaller count that both witnesses show for a week becomes it."""
    read, pci = view.x["gpus_read_max"], view.x["gpus_expected_max"]
    most = np.fmax(np.fmax(kept["most"], expected), np.fmax(read, pci))
    short = (read < most) & (pci < most)
    since = np.where(short, np.where(np.isnan(kept["short_since"]), view.t_s, kept["short_since"]), np.nan)
    accepted = short & (view.t_s - since >= table.FORGET_COUNT_S) & np.isnan(expected)
    most = np.where(accepted, np.fmax(read, pci), most)
    kept["short_since"] = np.where(np.isnan(read), kept["short_since"], since)
    kept["most"] = most
    return most


def _of_its_kind(host: pl.DataFrame, view: View, most: Floats) -> Floats:
    """How many GPUs nearly all nodes of the same product have; NaN where they differ or are few."""
    if not {"node_id", "product_name_last"} <= set(host.columns):
        return np.full(len(view), np.nan)
    names = host.group_by("node_id").agg(pl.col("product_name_last").max())
    here = pl.DataFrame([view.keys.alias("node_id"), pl.Series("most", most)]).join(
        names, on="node_id", how="left", maintain_order="left"
    )
    named = here.filter(
        pl.col("product_name_last").is_not_null() & (pl.col("most") > 0)
    )  # NaN is greater: left out below
    counts = named.filter(pl.col("most").is_not_nan()).group_by("product_name_last", "most").agg(pl.len().alias("n"))
    share = pl.col("n") / pl.col("n").sum().over("product_name_last")
    usual = counts.filter((share >= _ALIKE) & (pl.col("n") >= _FEWEST_ALIKE)).select("product_name_last", usual="most")
    found = here.join(usual, on="product_name_last", how="left", maintain_order="left")
    return found.get_column("usual").fill_null(float("nan")).to_numpy()


def _told(
    view: View, kept: Arrays, rule: Rule, bad: Bools, well: Bools, window_s: int, should: Floats | None = None
) -> list[dict[str, Any]]:
    count, since, told = (kept[f"{rule.signal}.{what}"] for what in ("n", "since", "told"))
    count[bad] = np.nan_to_num(count[bad]) + 1
    count[well] = 0
    since[bad & np.isnan(since)] = view.t_s[bad & np.isnan(since)]
    need = 1 if window_s >= table.LONG_WINDOW_S else rule.hits
    due = bad & (count >= need) & (np.isnan(told) | (view.t_s - told >= table.AGAIN_S))
    over = well & ~np.isnan(told)
    has = kept["most"] if should is None else should
    found = [_finding(view, int(i), rule, has[i], since[i]) for i in np.flatnonzero(due)]
    for i in np.flatnonzero(over):
        ended = _finding(view, int(i), rule, has[i], since[i])
        message = f"over: {ended['message']}"
        found.append(ended | {"hold": False, "clears": [rule.signal], "severity": "digest", "message": message})
    told[due] = view.t_s[due]
    since[well] = told[well] = np.nan
    return found


def _finding(view: View, i: int, rule: Rule, most: float, since_s: float) -> dict[str, Any]:
    read, pci = view.x["gpus_read_max"][i], view.x["gpus_expected_max"][i]
    whose = "others of its kind have" if rule is SHORT else "the node has"
    on_bus = "unknown" if np.isnan(pci) else f"{pci:.0f}"
    return {
        **view.identity(i),
        "subject": "node",
        "cause": rule.cause,
        "severity": rule.severity,
        "signal": rule.signal,
        "value": float(read),
        "baseline": float(most),
        "unit": rule.unit,
        "since": moment(since_s),
        "message": f"{rule.words}: NVML reads {read:.0f}, the PCI bus shows {on_bus}, {whose} {most:.0f}",
        "action": rule.action,
        "owner": rule.owner,
        "next_step": rule.next_step,
        "action_source": rule.source,
        "hold": True,
    }
