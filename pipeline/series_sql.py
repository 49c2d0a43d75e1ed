"""SQL of ``graynode.pipeline.series``: one statement over the files of the time that is asked for."""

# ruff: noqa: S608 (columns are the contract's own; ids are quoted)
from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from graynode.pipeline.queries import quoted
from graynode.pipeline.schema import FLEET_AMOUNTS, Field, window_field_names

CHOSEN: Final = ("partition", "rack", "gpu_model", "job_id", "cluster")
"""Columns of the fleet's hours by which a part of it is chosen."""
_WINDOW_COLUMN: Final = {"gpu_model": "gpu_model_last", "job_id": "job_id_last", "cluster": "cluster"}


def fleet_sql(source: str, metric: str, ids: Sequence[str], since: datetime, until: datetime, step_s: int) -> str:
    """From ``fleet_1h``: amounts add up, means are weighted by the GPU-hours behind them."""
    if metric in FLEET_AMOUNTS:
        values = f"sum({FLEET_AMOUNTS[metric]})::DOUBLE AS value, NULL::DOUBLE AS low, NULL::DOUBLE AS high"
    else:
        mean, weight = f"{metric}_mean", f"{metric}_gpu_hours"
        values = (
            f"sum({mean} * {weight}) / nullif(sum({weight}) FILTER ({mean} IS NOT NULL), 0) AS value, "
            f"min({metric}_min)::DOUBLE AS low, max({metric}_max)::DOUBLE AS high"
        )
    parts = [_part(id_) for id_ in ids] or [("'fleet'", "true")]
    return _all(
        [
            f"SELECT {_bucket(step_s)} AS ts, {name} AS id, {values} FROM {source} "
            f"WHERE {_span(since, until)} AND {chosen} GROUP BY ALL HAVING value IS NOT NULL"
            for name, chosen in parts
        ]
    )


def _part(id_: str) -> tuple[str, str]:
    column, _, value = id_.partition("=")
    return quoted(id_), f'"{column}" = {quoted(value)}'


def rows_sql(
    source: str, raw: str, column: Field, window_s: int, entity: str, ids: Sequence[str],
    since: datetime, until: datetime, step_s: int,
) -> str:  # fmt: skip
    """From windows, or from samples (``window_s`` 0)."""
    name, where = _who(entity, ids, raw)
    whole = " AND mig_instance IS NULL" if raw == "gpu" else ""
    rows = f"FROM {source} WHERE {_span(since, until)} AND {where}{whole}"
    if window_s:
        values = _of_windows(column)
    else:
        values, rows = _of_samples(column, raw, rows)
    return _all(
        [f"SELECT {_bucket(step_s)} AS ts, {name} AS id, {values} {rows} GROUP BY ALL HAVING value IS NOT NULL"]
    )


def _of_windows(f: Field) -> str:
    names = window_field_names(f)
    if f.kind in ("counter", "amount") and not names[0].endswith("_last"):
        return f'sum("{names[0]}")::DOUBLE AS value, NULL::DOUBLE AS low, NULL::DOUBLE AS high'
    if names[0].endswith("_mean"):
        mean, low, high = (f'"{n}"' for n in names)
        weighted = f"sum({mean}::DOUBLE * samples) / nullif(sum(samples) FILTER ({mean} IS NOT NULL), 0)"
        return f"{weighted} AS value, min({low})::DOUBLE AS low, max({high})::DOUBLE AS high"
    last = f'"{names[0]}"::DOUBLE'
    return f"avg({last}) AS value, min({last}) AS low, max({last}) AS high"


def _of_samples(f: Field, raw: str, rows: str) -> tuple[str, str]:
    if f.kind != "counter":
        value = f'"{f.name}"::DOUBLE'
        how = "sum" if f.kind == "amount" else "avg"
        ends = "NULL::DOUBLE" if f.kind == "amount" else value
        return f"{how}({value}) AS value, min({ends}) AS low, max({ends}) AS high", rows
    who = {"gpu": "gpu_uuid", "link": "link", "host": "node_id"}[raw]
    # A counter that falls has begun anew: what it counted before is unknown, as in the windows
    steps = (
        f'FROM (SELECT *, "{f.name}" - lag("{f.name}") OVER (PARTITION BY cluster, node_id, "{who}", boot_id, '
        f'driver_load ORDER BY ts) AS _step {rows} AND "{f.name}" IS NOT NULL)'
    )
    return "sum(_step) FILTER (_step >= 0)::DOUBLE AS value, NULL::DOUBLE AS low, NULL::DOUBLE AS high", steps


def _who(entity: str, ids: Sequence[str], raw: str) -> tuple[str, str]:
    """The series' name, and the rows that belong to one."""
    listed = ", ".join(map(quoted, ids))
    if entity == "fleet":
        if not ids:
            return "'fleet'", "true"
        cases = [(quoted(i), _window_part(i, raw)) for i in ids]
        named = " ".join(f"WHEN {chosen} THEN {name}" for name, chosen in cases)
        return f"CASE {named} END", f"({' OR '.join(chosen for _, chosen in cases)})"
    if entity == "gpu":
        return "gpu_uuid", f"gpu_uuid IN ({listed})"
    if entity == "node":
        return (
            f"CASE WHEN node_id IN ({listed}) THEN node_id ELSE node END",
            f"(node_id IN ({listed}) OR node IN ({listed}))",
        )
    by_id, by_name = "node_id || '/' || link", "node || '/' || link"
    nodes = ", ".join(quoted(i.partition("/")[0]) for i in ids)
    links = ", ".join(quoted(i.partition("/")[2]) for i in ids)
    here = f"(node_id IN ({nodes}) OR node IN ({nodes})) AND link IN ({links})"
    return (
        f"CASE WHEN {by_id} IN ({listed}) THEN {by_id} ELSE {by_name} END",
        f"{here} AND ({by_id} IN ({listed}) OR {by_name} IN ({listed}))",
    )


def _window_part(id_: str, raw: str) -> str:
    column, _, value = id_.partition("=")
    there = _WINDOW_COLUMN.get(column) if raw == "gpu" or column == "cluster" else None
    return f"{there} = {quoted(value)}" if there else "false"


def _bucket(step_s: int) -> str:
    return f"to_timestamp((epoch(ts)::BIGINT // {step_s}) * {step_s})"


def _span(since: datetime, until: datetime) -> str:
    return f"ts >= TIMESTAMPTZ '{since.isoformat()}' AND ts < TIMESTAMPTZ '{until.isoformat()}'"


def _all(parts: Sequence[str]) -> str:
    return " UNION ALL ".join(f"({part})" for part in parts) + " ORDER BY id, ts"
