"""How long a panel waits: every route of ``graynode serve`` over 30 days of a large site.

Run as ``python benchmarks/speed/api_panels.py [--lake FOLDER] [--times 20] [--nodes 1250] [--days 30]``; the folder is
made first (``api_lake.py``) where it is not there. A server of its own is started on a free port and asked over one
kept connection, as a dashboard does: *first* is the first answer of that route after the start; then so many more, the
range moved on by a minute each time, so that no answer is the one before (p50, p95, most); *same* is the median of the
same question again with its ``If-None-Match`` (304). *CPU* is the server's own time for one answer, of all its threads:
on a busy machine it says more than the clock. What is over 200 ms at p95 is named at the end. ``--only WORD`` asks only
routes with that word in them.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl

sys.path.insert(0, str(Path(__file__).parent))

import api_lake
from api_site import Site

from graynode.pipeline.lake import Lake

LIMIT_MS: Final = 200.0
_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Panel:
    """A question; ``ranged``: from and to are added to it."""

    name: str
    path: str
    query: dict[str, Any] = field(default_factory=dict)
    ranged: bool = True
    days: float = 30.0


def panels(lake: Lake) -> list[Panel]:
    """What dashboards and pages ask, by things that are in this lake."""
    job = lake.read("job", columns=["job_id", "user", "node_id", "node", "ts"]).sort("ts").row(-1, named=True)
    told = lake.read("incident", columns=["incident_id", "node", "gpu_uuid", "ts"]).sort("ts").row(-1, named=True)
    node, gpu, incident = told["node"], told["gpu_uuid"], told["incident_id"]
    series = "/api/v1/series"
    hour = {"step": "1h"}
    return [
        Panel("fleet", "/api/v1/fleet"),
        Panel("fleet history", "/api/v1/fleet/history", hour),
        Panel("racks", "/api/v1/fleet/racks", ranged=False),
        Panel("nodes, 500 of them", "/api/v1/nodes", {"limit": 500}, ranged=False),
        Panel("nodes, all", "/api/v1/nodes", {"limit": 5000}, ranged=False),
        Panel("nodes, suspect", "/api/v1/nodes", {"state": "suspect"}, ranged=False),
        Panel("one node", f"/api/v1/nodes/{node}", ranged=False),
        Panel("GPUs of a node", "/api/v1/gpus", {"node": node}, ranged=False),
        Panel("GPUs, 5,000 of them", "/api/v1/gpus", {"limit": 5000}, ranged=False),
        Panel("one GPU", f"/api/v1/gpus/{gpu}", ranged=False),
        Panel("links of a node", "/api/v1/links", {"node": node}, ranged=False),
        Panel("events of a node", "/api/v1/events", {"node": node}),
        Panel("incidents, open", "/api/v1/incidents", {"state": "open"}, ranged=False),
        Panel("incidents, all", "/api/v1/incidents", {"state": "all"}),
        Panel("one incident", f"/api/v1/incidents/{incident}", ranged=False),
        Panel("its revisions", f"/api/v1/incidents/{incident}/revisions", ranged=False),
        Panel("its band", f"/api/v1/incidents/{incident}/band", ranged=False),
        Panel("findings", "/api/v1/findings"),
        Panel("actions", "/api/v1/actions"),
        Panel("series: power of the fleet", series, {"metric": "power_w", "entity": "fleet", **hour}),
        Panel("series: energy by partition", series,
              {"metric": "energy_mj", "entity": "fleet", "id": ["partition=train", "partition=batch"], **hour}),
        Panel("series: a metric that the fleet's hours lack", series,
              {"metric": "pcie_tx_bytes_per_s", "entity": "fleet", **hour}),
        Panel("series: a node's use", series, {"metric": "gpu_util_percent", "entity": "node", "id": node, **hour}),
        Panel("series: a node's CPUs", series, {"metric": "cpu_util_percent", "entity": "node", "id": node, **hour}),
        Panel("series: a GPU's clock", series, {"metric": "sm_clock_mhz", "entity": "gpu", "id": gpu, **hour}),
        Panel("series: a GPU's clock, 5 h in 30 s", series,
              {"metric": "sm_clock_mhz", "entity": "gpu", "id": gpu, "step": "30s"}, days=5 / 24),
        Panel("series: a link's bytes", series,
              {"metric": "rx_bytes", "entity": "link", "id": f"{node}/mlx5_0/1", **hour}),
        Panel("fields", "/api/v1/fields", ranged=False),
        Panel("jobs", "/api/v1/jobs"),
        Panel("one job", f"/api/v1/jobs/{job['job_id']}", ranged=False),
        Panel("one user", f"/api/v1/users/{job['user']}"),
        Panel("lemons", "/api/v1/lemons", ranged=False),
        Panel("cost by category", "/api/v1/cost", {"by": "category"}),
        Panel("cost by account", "/api/v1/cost", {"by": "account"}),
        Panel("capacity", "/api/v1/capacity", ranged=False),
        Panel("reliability by cause", "/api/v1/reliability", {"by": "cause"}),
        Panel("reliability by week", "/api/v1/reliability", {"by": "week"}),
        Panel("graynode's own parts", "/api/v1/health", ranged=False),
        Panel("metrics", "/metrics", ranged=False),
    ]  # fmt: skip


@dataclass
class Measured:
    """Milliseconds of one panel."""

    panel: Panel
    first: float = 0.0
    times: list[float] = field(default_factory=list)
    cpu: float = 0.0
    same: float | None = None
    size: int = 0
    status: int = 0

    def at(self, share: float) -> float:
        """A quantile by rank."""
        return sorted(self.times)[min(len(self.times) - 1, int(share * len(self.times)))]


class Server:
    """``graynode serve`` over that lake, in a process of its own, with a token."""

    def __init__(self, lake: Path, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        file = folder / "graynode.toml"
        file.write_text(
            f'cluster = "bench"\n[lake]\npath = "{lake}"\n[serve]\nlisten = "127.0.0.1:{self.port}"\n'
            f'tokens_file = "{folder}/tokens.json"\n'
        )
        graynode = [sys.executable, "-I", "-m", "graynode.service.cli"]
        made = subprocess.run(
            [*graynode, "token", "create", "--name", "bench", "--config", str(file)], capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        self.token = max((w for line in made.stdout.splitlines() for w in line.split()), key=len)
        self._log = (folder / "serve.log").open("w")
        self.process = subprocess.Popen([*graynode, "serve", "--config", str(file)], stderr=self._log, stdout=self._log)
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def ready(self, deadline_s: float = 300.0) -> float:
        """Wait for the first picture; gives the seconds that it took."""
        began = time.perf_counter()
        while time.perf_counter() - began < deadline_s:
            try:
                if self.ask("/readyz", {})[0] == 200:
                    return time.perf_counter() - began
            except OSError:
                self._connection.close()
            time.sleep(0.2)
        raise SystemExit(f"serve is not ready after {deadline_s:.0f} s")

    def ask(self, path: str, query: dict[str, Any], tag: str = "") -> tuple[int, bytes, str, float]:
        """Status (0: no answer within two minutes), body, ETag and milliseconds."""
        target = path + (f"?{urllib.parse.urlencode(query, doseq=True)}" if query else "")
        headers = {"Authorization": f"Bearer {self.token}", "Accept-Encoding": "gzip"}
        began = time.perf_counter()
        tagged = {"If-None-Match": tag} if tag else {}
        try:
            self._connection.request("GET", target, headers={**headers, **tagged})
            answer = self._connection.getresponse()
            status, body, told = answer.status, answer.read(), answer.headers.get("ETag", "")
        except TimeoutError:
            self._connection.close()
            status, body, told = 0, b"", ""
        return status, body, told, 1000 * (time.perf_counter() - began)

    def cpu_s(self) -> float:
        """Processor time of the server until now."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S

    def peak_mib(self) -> int:
        """The most memory that it had."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))

    def stop(self) -> None:
        """End it."""
        self._connection.close()
        self.process.terminate()
        self.process.wait(30)
        self._log.close()


def measure(server: Server, panel: Panel, end: datetime, times: int) -> Measured:
    """One panel: first, then ``times`` more with the range moved on, then the same again with its tag."""
    found = Measured(panel)

    def query(turn: int) -> dict[str, Any]:
        if not panel.ranged:
            return panel.query
        until = end - timedelta(minutes=turn)
        return {**panel.query, "from": (until - timedelta(days=panel.days)).isoformat(), "to": until.isoformat()}

    found.status, body, _, found.first = server.ask(panel.path, query(0))
    found.size = len(body)
    before = server.cpu_s()
    for turn in range(1, times + 1):
        status, _, tag, took = server.ask(panel.path, query(turn))
        found.status = max(found.status, status)
        found.times.append(took)
    found.cpu = 1000 * (server.cpu_s() - before) / times
    same = [server.ask(panel.path, query(times), tag) for _ in range(5)] if tag else []
    if same and all(answer[0] == 304 for answer in same):
        found.same = statistics.median(answer[3] for answer in same)
    return found


HEADER: Final = """| panel | status | KiB | first | p50 | p95 | most | CPU | same (304) |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def line(m: Measured) -> str:
    """A row of the table, milliseconds."""
    same = "·" if m.same is None else f"{m.same:.0f}"
    quantiles = f"{m.at(0.5):.0f} | {m.at(0.95):.0f} | {max(m.times):.0f}"
    return f"| {m.panel.name} | {m.status} | {m.size / 1024:.0f} | {m.first:.0f} | {quantiles} | {m.cpu:.0f} | {same} |"


def say_misses(found: list[Measured]) -> None:
    """What is over the limit, the slowest first."""
    late = [m for m in found if m.at(0.95) > LIMIT_MS]
    print(f"\n{len(found) - len(late)} of {len(found)} panels under {LIMIT_MS:.0f} ms at p95")
    for m in sorted(late, key=lambda m: -m.at(0.95)):
        print(f"  misses: {m.panel.name}: p95 {m.at(0.95):.0f} ms, {m.cpu:.0f} ms of CPU")


def main() -> None:
    """Make the lake if need be, start the server, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lake", type=Path, default=Path(tempfile.gettempdir(), "graynode-api-lake"))
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    if not (given.lake / "site.json").exists():
        end = datetime.now().astimezone().replace(second=0, microsecond=0)
        api_lake.make(given.lake, Site(given.nodes, given.days, end))
    lake = Lake(str(given.lake))
    site = json.loads((given.lake / "site.json").read_text())
    gpus = lake.read("inventory", columns=["kind"]).filter(pl.col("kind") == "gpu").height
    print(f"{site['nodes']} nodes, {gpus:,} GPUs, {site['days']} days; {platform.processor() or platform.machine()}, "
          f"{os.cpu_count()} CPUs, Python {platform.python_version()}; load {os.getloadavg()[0]:.1f}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        server = Server(given.lake, Path(folder))
        try:
            print(f"ready after {server.ready():.1f} s")
            chosen = [p for p in panels(lake) if given.only in f"{p.name} {p.path}"]
            print(HEADER, flush=True)
            found: list[Measured] = []
            for panel in chosen:
                found.append(measure(server, panel, datetime.fromisoformat(site["end"]), given.times))
                print(line(found[-1]), flush=True)
            say_misses(found)
            print(f"memory of the server at most {server.peak_mib()} MiB; load {os.getloadavg()[0]:.1f}")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
