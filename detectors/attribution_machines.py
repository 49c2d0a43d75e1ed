"""What a job's machines themselves show around its end: restarts, silence, clocks, and whose GPU a clue is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

import polars as pl

from graynode.detectors.attribution_clues import CONTEXT, INFRASTRUCTURE, KIND_OF_CAUSE, Clue
from graynode.detectors.attribution_job import Placement

_SILENT: Final = timedelta(minutes=2)
"""Four windows less than the job's other machines: longer than any commit or late batch."""


def of_machines(
    placed: Placement, hosts: pl.DataFrame, gpus: pl.DataFrame, window: tuple[datetime, datetime]
) -> list[Clue]:
    """Restarts of machines while the job ran, and machines that fell silent before its end while others spoke."""
    spoke = _spoken(placed, hosts, gpus)
    if not spoke:
        return []
    end = placed.end or window[1]
    latest = max(rows[-1][0] for rows in spoke.values())
    clues: list[Clue] = []
    for node_id, rows in sorted(spoke.items()):
        name = placed.machines.get(node_id)
        clues += _restarts(node_id, name, rows, end)
        last = rows[-1][0]
        if min(latest, end) - last >= _SILENT:
            said = f"nothing was heard of {name or node_id} after {last:%H:%M:%S} UTC, while others spoke"
            clues.append(_clue(last, CONTEXT, "node_silent", 1, said, node_id, name))
    return clues


def of_incidents(incidents: pl.DataFrame, window: tuple[datetime, datetime]) -> list[Clue]:
    """Incidents of its machines that were open in the window, as context: what was known of them, and by which id."""
    needed = {"incident_id", "revision", "node_id", "since", "title", "cause", "resolved_ts"}
    if incidents.is_empty() or not needed <= set(incidents.columns):
        return []
    latest = incidents.sort("incident_id", "revision").unique("incident_id", keep="last", maintain_order=True)
    clues = []
    for row in latest.drop_nulls(["node_id", "since"]).iter_rows(named=True):
        if row["since"] > window[1] or (row["resolved_ts"] is not None and row["resolved_ts"] < window[0]):
            continue
        known = "" if row["since"] >= window[0] else f", known since {row['since']:%Y-%m-%d %H:%M} UTC"
        at = max(row["since"], window[0])
        said = f"incident {str(row['incident_id'])[:8]}: {row['title']}{known}"
        clues.append(
            Clue(at, CONTEXT, KIND_OF_CAUSE.get(row["cause"], "other"), "incident", 1, "incidents", said, at,
                 node_id=row["node_id"], node=row.get("node"), gpu_uuid=row.get("gpu_uuid"), link=row.get("link"))
        )  # fmt: skip
    return clues


def heard(placed: Placement, hosts: pl.DataFrame, gpus: pl.DataFrame) -> set[str]:
    """Machines of the job that have windows at all."""
    return set(_spoken(placed, hosts, gpus))


def on_the_job(clues: Iterable[Clue], placed: Placement, gpus: pl.DataFrame) -> list[Clue]:
    """Clues without those of programs on GPUs that the job did not have; a neighbour's broken GPU is context."""
    known = _addresses(gpus)
    kept = []
    for clue in clues:
        clue = _named(clue, known, placed)
        ours = placed.gpus.get(clue.node_id or "")
        if ours and clue.gpu_uuid and clue.gpu_uuid not in ours:
            if clue.side != INFRASTRUCTURE:
                continue
            clue = replace(clue, side=CONTEXT, weight=1, message=f"{clue.message} (a GPU that the job did not have)")
        kept.append(clue)
    return kept


def located(clues: Iterable[Clue], gpus: pl.DataFrame, job_id: str) -> list[Clue]:
    """Lines of a rank on the machine and GPU where that rank ran, where the windows tell; a line's own ``node_id`` is
    only the machine that read the file.
    """
    needed = {"node_id", "gpu_uuid", "job_rank_last", "job_id_last"}
    if gpus.is_empty() or not needed <= set(gpus.columns):
        return list(clues)
    mine = gpus.filter(pl.col("job_id_last") == job_id).select("job_rank_last", "node_id", "gpu_uuid").drop_nulls()
    places = {rank: (node_id, gpu) for rank, node_id, gpu in mine.unique().sort("node_id", "gpu_uuid").iter_rows()}
    found = []
    for clue in clues:
        node_id, gpu = places.get(clue.rank, (None, None)) if clue.count == 1 else (None, None)
        found.append(replace(clue, node_id=node_id, gpu_uuid=gpu) if node_id else clue)
    return found


def at_bus_time(clues: Iterable[Clue], hosts: pl.DataFrame) -> list[Clue]:
    """Clues at their time by the bus's clock where the machine's skew is known; ``ts`` stays the machine's own."""
    skews = _skews(hosts)
    return [
        replace(c, at=c.at - timedelta(seconds=skews[c.node_id]), clock_s=skews[c.node_id]) if c.node_id in skews else c
        for c in clues
    ]


def _skews(hosts: pl.DataFrame) -> dict[str | None, float]:
    if hosts.is_empty() or not {"node_id", "clock_skew_s_mean"} <= set(hosts.columns):
        return {}
    known = hosts.select("node_id", pl.col("clock_skew_s_mean").cast(pl.Float64)).drop_nulls()
    known = known.filter(pl.col("clock_skew_s_mean").is_finite())
    return dict(known.group_by("node_id").agg(pl.col("clock_skew_s_mean").median()).sort("node_id").iter_rows())


def _spoken(placed: Placement, hosts: pl.DataFrame, gpus: pl.DataFrame) -> dict[str, list[tuple[datetime, str | None]]]:
    """Per machine its windows' starts with the boot, in order of time."""
    found: dict[str, set[tuple[datetime, str]]] = {}
    for frame in (hosts, gpus):
        if frame.is_empty() or not {"ts", "node_id", "boot_id"} <= set(frame.columns):
            continue
        ours = frame.filter(pl.col("node_id").is_in(list(placed.machines)))
        for ts, node_id, boot in ours.select("ts", "node_id", "boot_id").unique().iter_rows():
            if ts is not None:
                found.setdefault(node_id, set()).add((ts.astimezone(UTC), boot or ""))
    return {n: [(ts, boot or None) for ts, boot in sorted(rows)] for n, rows in found.items()}


def _restarts(node_id: str, name: str | None, rows: list[tuple[datetime, str | None]], end: datetime) -> Iterable[Clue]:
    """Where the boot changes: the machine went between its last word before and its first after."""
    for (before, old), (after, new) in pairwise(rows):
        if old and new and old != new and before <= end:
            said = f"{name or node_id} restarted: last heard {before:%H:%M:%S}, back {after:%H:%M:%S} UTC"
            yield _clue(before, INFRASTRUCTURE, "machine_restarted", 3, said, node_id, name)


def _clue(at: datetime, side: str, detail: str, weight: int, message: str, node_id: str, name: str | None) -> Clue:
    return Clue(
        at=at, ts=at, side=side, kind="node", detail=detail, weight=weight, source="windows", message=message,
        node_id=node_id, node=name, cause="host_fault" if side == INFRASTRUCTURE else None,
        severity="ticket" if side == INFRASTRUCTURE else None, owner="platform",
    )  # fmt: skip


def _addresses(gpus: pl.DataFrame) -> Mapping[tuple[str, str], str]:
    """PCI address to GPU by machine, both ways, from the windows."""
    if gpus.is_empty() or not {"node_id", "gpu_uuid", "pci_bus_id_last"} <= set(gpus.columns):
        return {}
    pairs = gpus.select("node_id", "gpu_uuid", "pci_bus_id_last").drop_nulls().unique()
    found: dict[tuple[str, str], str] = {}
    for node_id, uuid, pci in pairs.iter_rows():
        found[node_id, _short(pci)], found[node_id, uuid] = uuid, pci
    return found


def _named(clue: Clue, known: Mapping[tuple[str, str], str], placed: Placement) -> Clue:
    """The clue with both names of its GPU, and with the name by which the job knows its machine."""
    node_id, node = clue.node_id or "", clue.node or placed.machines.get(clue.node_id or "")
    uuid, pci = clue.gpu_uuid, clue.pci_bus_id
    if uuid is None and pci is not None:
        uuid = known.get((node_id, _short(pci)))
    if pci is None and uuid is not None:
        pci = known.get((node_id, uuid))
    return replace(clue, gpu_uuid=uuid, pci_bus_id=pci, node=node)


def _short(pci: str) -> str:
    """A PCI address without its function: the kernel's Xid lines leave it out."""
    return pci.lower().partition(".")[0]
