"""``graynode serve`` in a thread over one small simulated lake, for tests that look at it with a browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from playwright.sync_api import Page
from roles import to_toml

from graynode.collectors.simulated import faults
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.pipeline.codec import decode
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.pipeline.spool import SpoolBus
from graynode.service import serve, simulate
from graynode.service.config import load
from graynode.service.tokens import Tokens

CLUSTER = "simulated"
HOSTILE = "<img src=x onerror=alert(1)>\"'&"
OPEN_ID = "aaaa0000-0000-4000-8000-000000000001"
OVER_ID = "bbbb0000-0000-4000-8000-000000000002"
CHROMIUM = "/usr/bin/chromium"
Visit = Callable[..., Page]
"""``visit(serving, scope, path, expected)``, see the fixture."""


@dataclass
class Serving:
    """``graynode serve`` in a thread of this process: its address and tokens; ``stop`` and ``start`` make a restart."""

    folder: Path
    lake: Lake
    tokens: dict[str, str] = field(default_factory=dict)
    port: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        settings = {
            "cluster": CLUSTER, "bus": {"spool_dir": str(self.folder / "bus")}, "lake": {"path": self.lake.path},
            "serve": {
                "tokens_file": str(self.folder / "tokens.json"), "listen": f"127.0.0.1:{self.port}", "refresh_s": 1.0,
                "deadline_s": 60.0,
            },
        }  # fmt: skip
        file = self.folder / "graynode.toml"
        file.write_text(to_toml(settings))
        config = load(file, env={})
        tokens = Tokens(config.serve.tokens_file)
        for scope in ("read", "act") if not self.tokens else ():
            self.tokens[scope] = tokens.create(scope, scope, None, datetime.now(UTC))
        listening, self._stop = threading.Event(), threading.Event()

        def ready(port: int) -> None:
            self.port = port
            listening.set()

        self._thread = threading.Thread(target=serve.run, args=(config, self._stop), kwargs={"ready": ready})
        self._thread.start()
        assert listening.wait(60)

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)

    def said(self, table: str) -> list[dict[str, Any]]:
        """Rows on the people's topic, as they were sent."""
        rows: list[dict[str, Any]] = []
        bus = SpoolBus(self.folder / "bus", 1 << 30)
        with closing(bus.consumer(["graynode.people"], f"test-{table}", dict.fromkeys)) as consumer:
            while received := consumer.poll(0.0):
                for one in received:
                    if one.message.headers["table"] == table:
                        rows += decode(one.message).to_pylist()
        return rows


def write_rows(lake: Lake, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    frame = pl.DataFrame([{"cluster": CLUSTER, **row} for row in rows], infer_schema_length=None)
    lake.write(table, conform(table, frame))


def incident(id_: str, at: datetime, of: Mapping[str, Any], **columns: Any) -> dict[str, Any]:
    entry = {
        "signal": "clock", "detector": "slow", "message": f"clock is low {HOSTILE}", "value": 1600.0, "unit": "MHz",
        "baseline": 1755.0, "peer_median": 1750.0, "peers": 23, "effect": 0.088, "score": 9.0, "threshold": 5.0,
        "since": at.isoformat(), "last": at.isoformat(), "count": 2, "raw": HOSTILE, "disagree": {"GPUd": "ignore"},
    }  # fmt: skip
    return {
        "ts": at, "incident_id": id_, "revision": 0, "state": "open", "subject": "gpu", "cause": "slow_gpu",
        "severity": "page", "title": f"Slow GPU on {of['node']}", "since": at, "opened_ts": at, "updated_ts": at,
        "evidence": json.dumps([entry]), "finding_ids": "[]", "count": 2, "owner": "platform", "action": "Drain it.",
        "next_step": "Run the field diagnostic.", "due_ts": at + timedelta(hours=1), **of, **columns,
    }  # fmt: skip


def small_lake(folder: Path) -> Lake:
    """Four nodes of eight GPUs, one of them with a hostile name; an incident that is open, and one that is over."""
    now = datetime.now(UTC).replace(microsecond=0)
    lake = Lake(str(folder))
    simulate.write(
        Fleet(Spec(now, nodes=4, seed=1, days=0.1, cluster=CLUSTER), faults.parse("", "plan", now)),
        lake,
        lambda _: None,
    )
    gpu = lake.read("gpu_30s", now - timedelta(hours=1), now, ["node_id", "node", "gpu_uuid"])
    first = gpu.unique().sort("node", "gpu_uuid").row(0, named=True)
    odd = gpu["node_id"].unique().sort()[-1]
    for table in ("gpu_30s", "host_30s"):
        newest = lake.read(table, now - timedelta(minutes=5), now + timedelta(minutes=1)).filter(
            pl.col("node_id") == odd
        )
        uuid = [(pl.lit("x") + pl.col("gpu_uuid")).alias("gpu_uuid")] if table == "gpu_30s" else []
        lake.write(table, newest.with_columns(pl.lit("odd-id").alias("node_id"), pl.lit(HOSTILE).alias("node"), *uuid))
    of_odd = {"node_id": "odd-id", "node": HOSTILE}
    begin = now - timedelta(minutes=40)
    write_rows(lake, "incident", [
        incident(OPEN_ID, begin, first),
        incident(OVER_ID, begin, of_odd, state="resolved", title=HOSTILE, resolved_ts=now, severity="ticket"),
    ])  # fmt: skip
    write_rows(lake, "job", [{
        "ts": now, "job_id": "ns/job/odd", "node_id": first["node_id"], "node": first["node"], "user": HOSTILE,
        "state": "failed", "queued_ts": begin, "allocated_ts": begin, "end_ts": now, "nodes": 1, "gpus": 8,
            "exit_code": 1,
    }])  # fmt: skip
    return lake
