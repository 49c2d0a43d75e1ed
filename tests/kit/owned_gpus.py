"""Lakes of a few GPUs for questions about GPU-hours: who owned what, which job had it, what it did, who took it out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lake_files import LakeFiles

from graynode.pipeline.queries import Queries, quoted

T = datetime(2026, 11, 2, tzinfo=UTC)
H100 = "NVIDIA H100 80GB HBM3"
LIMIT_W = 700.0


def at(hours: float) -> datetime:
    """So many hours after ``T``."""
    return T + timedelta(hours=hours)


class Owned:
    """Rows are gathered and written at the first question."""

    def __init__(self, folder: Path, lake: LakeFiles | None = None, queries: Queries | None = None) -> None:
        self.lake = lake or LakeFiles(folder)
        self.queries = queries or Queries(self.lake)
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self._asked: dict[tuple[float, float], list[dict[str, Any]]] = {}

    def put(self, table: str, hours: float, node: str, **more: Any) -> None:
        """One row of a table."""
        row = {"ts": at(hours), "cluster": "c", "node_id": f"m-{node}", "node": node, **more}
        self.rows.setdefault(table, []).append(row)

    def gpu(self, gpu: str, node: str = "n1", since: float = 0.0, model: str = H100, **more: Any) -> None:
        """A GPU in the inventory from then on."""
        said = {"kind": "gpu", "entity": gpu, "model": model, "slot": gpu, **more}
        self.put("inventory", since, node, **said)

    def hour(self, gpu: str, hour: int, node: str = "n1", *, sm: float | None = 0.0, **more: Any) -> None:
        """An hour's window: idle, unless it says otherwise. The machine was heard then."""
        busy = (sm or 0.0) > 0
        row: dict[str, Any] = {
            "gpu_uuid": gpu, "gpu_model_last": H100, "samples": 3600, "samples_expected": 3600,
            "sm_active_ratio_mean": sm, "tensor_active_ratio_mean": None if sm is None else sm / 2,
            "gpu_util_percent_mean": 99.0 if busy else 0.0, "power_w_mean": 100.0 + 550.0 * (sm or 0.0),
            "power_limit_enforced_w_last": LIMIT_W, "mem_used_bytes_mean": int(6e10 if busy else 6e8),
            "processes_mean": 1.0 if busy else 0.0,
        }  # fmt: skip
        self.put("gpu_1h", hour, node, **(row | more))
        self.put("host_1h", hour, node, samples=3600, samples_expected=3600)

    def hours(self, gpu: str, first: int, last: int, node: str = "n1", **more: Any) -> None:
        """The hours from ``first`` to before ``last``."""
        for hour in range(first, last):
            self.hour(gpu, hour, node, **more)

    def job(
        self, job_id: str, on: Sequence[str], start: float, end: float | None = None, node: str = "n1", **more: Any
    ) -> None:
        """A job on these GPUs of a node, as a node's agent tells it; ``end`` of None: it runs."""
        each = {"job_id": job_id, "user": "ada", "account": "physics", "partition": "train", "work": "training",
                "requeues": 0, "nodes": 1, "gpus": len(on), "gpu_uuids": json.dumps(list(on)),
                "queued_ts": at(start - 1), "allocated_ts": at(start)} | more  # fmt: skip
        self.put("job", start, node, state="running", **each)
        if end is not None:
            self.put("job", end, node, **({"state": "completed", "end_ts": at(end)} | each))

    def write(self) -> None:
        """What was gathered goes into the lake."""
        for table, rows in self.rows.items():
            self.lake.put(table, rows)
        self.rows = {}

    def split(self, since: float, until: float, **of: Any) -> dict[str, float]:
        """Hours by category of the stretch, those of a GPU, node or job where asked; to the microsecond."""
        sums: dict[str, float] = {}
        for row in self.told(since, until):
            if all(row[name] == value for name, value in of.items()):
                sums[row["category"]] = sums.get(row["category"], 0.0) + row["hours"]
        return {category: round(hours, 6) for category, hours in sums.items()}

    def told(self, since: float, until: float) -> list[dict[str, Any]]:
        """The rows themselves, in order; asked once of a stretch for as long as nothing is put."""
        if self.rows:
            self._asked.clear()
            self.write()
        if (since, until) not in self._asked:
            sql = f"FROM gpu_hours({_moment(since)}, {_moment(until)}) ORDER BY gpu_uuid, ts, category, job_id"
            self._asked[since, until] = self.queries.rows(sql)
        return self._asked[since, until]


def _moment(hours: float) -> str:
    return f"TIMESTAMPTZ {quoted(at(hours).isoformat())}"
