"""The status page of a large fleet in a real browser: how long until the grid is there, and what it weighs.

    python benchmarks/speed/status_page.py --nodes 12500 --loads 5

The application of ``graynode serve`` over an empty lake and a made picture of the fleet (8 GPUs a node, 32 nodes a
rack, 3 % of the nodes and 0.5 % of the GPUs not well, seed 1), on loopback; Chromium without a window, 1440 × 900.
"Rendered" is the first frame after the document's load event, by the browser's own clock from the navigation's start;
server time ends with the last byte of the answer. CPU is that of the page's main thread: on a busy machine it says more
than the wall clock. Prints figures and asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import polars as pl
import uvicorn
from playwright.sync_api import BrowserContext, CDPSession, Page, sync_playwright

from graynode.service.api.app import create_app
from graynode.service.api.state import Served
from graynode.service.config import Config, load
from graynode.service.fleet_now import FleetNow
from graynode.service.fleet_now_frames import GPUS, NODES
from graynode.service.tokens import Tokens

_TOKEN: Final = "benchmark"  # noqa: S105 (a name)
_PATIENCE_MS: Final = 180_000
_PAINTED: Final = (
    """() => new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0)))"""
)
_SERVER: Final = """() => { const n = performance.getEntriesByType('navigation')[0];
  return [n.responseEnd - n.requestStart, n.encodedBodySize, n.decodedBodySize, n.domContentLoadedEventEnd]; }"""


class Picture:
    """A fleet that stays as it is until ``change`` makes one node suspect."""

    def __init__(self, nodes: int, seed: int) -> None:
        self._nodes, self._gpus = _frames(nodes, seed)
        self._version = 0

    def now(self) -> FleetNow:
        """The picture."""
        now = datetime.now(UTC)
        return FleetNow(now, now, str(self._version), self._nodes, self._gpus)

    def change(self) -> None:
        """Another node is suspect."""
        self._version += 1
        one = pl.col("node") == f"node{self._version:05}"
        self._nodes = self._nodes.with_columns(pl.when(one).then(pl.lit("suspect")).otherwise("state").alias("state"))


def _frames(count: int, seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    drawn = random.Random(seed)  # noqa: S311 (a made fleet)
    states = ("healthy", "suspect", "in_repair", "unknown", "quarantined", "probation")
    state = drawn.choices(states, (970, 10, 8, 4, 4, 4), k=count)
    ids = [f"id-{i:05}" for i in range(count)]
    nodes = {
        "cluster": ["bench"] * count, "node_id": ids, "node": [f"node{i:05}" for i in range(count)], "state": state,
        "gpu_model": ["NVIDIA H100 80GB HBM3"] * count, "gpus": [8] * count,
        "rack": [f"r{i // 32:03}" for i in range(count)], "open_incidents": [0] * count,
    }  # fmt: skip
    of = [i for i in range(count) for _ in range(8)]
    gpus = {
        "cluster": ["bench"] * len(of), "node_id": [ids[i] for i in of], "node": [nodes["node"][i] for i in of],
        "gpu_uuid": [f"GPU-{k:06}" for k in range(len(of))], "gpu_index": [k % 8 for k in range(len(of))],
        "state": drawn.choices(("healthy", "suspect", "lost", "unknown"), (995, 3, 1, 1), k=len(of)),
    }  # fmt: skip
    return _whole(nodes, NODES), _whole(gpus, GPUS)


def _whole(columns: dict[str, list[object]], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    frame = pl.DataFrame(columns)
    missing = [pl.lit(None).alias(name) for name in schema if name not in columns]
    return frame.with_columns(missing).select(pl.col(name).cast(kind) for name, kind in schema.items())


def _config(folder: Path) -> Config:
    (folder / "bus").mkdir()
    file = folder / "graynode.toml"
    file.write_text(
        f'cluster = "bench"\n[lake]\npath = "{folder}/lake"\n[bus]\nspool_dir = "{folder}/bus"\n'
        f'[serve]\ntokens_file = "{folder}/tokens.json"\n'
    )
    return load(file, env={})


def _serve(config: Config, picture: Picture) -> tuple[uvicorn.Server, threading.Thread, str]:
    server = uvicorn.Server(uvicorn.Config(create_app(Served.open(config, picture)), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    return server, thread, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


@dataclass(frozen=True, slots=True)
class Load:
    """One load of the page: milliseconds until rendered, of the server, of CPU; bytes over the wire and of HTML."""

    rendered: float
    server: float
    cpu: float
    wire: float
    html: float


def _load(context: BrowserContext, url: str) -> Load:
    """In a page of its own, so that its thread's time is this load's."""
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    tools = context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(url)
    rendered = float(page.evaluate(_PAINTED))
    server, wire, html, _ = page.evaluate(_SERVER)
    made = Load(rendered, server, 1000 * _cpu(tools), wire, html)
    page.close()
    return made


def _cpu(tools: CDPSession) -> float:
    """Seconds that the page's main thread has worked (thread time)."""
    told = tools.send("Performance.getMetrics")["metrics"]
    return float(next(m["value"] for m in told if m["name"] == "TaskDuration"))


def _changed(page: Page, picture: Picture) -> float:
    """Milliseconds from a changed picture to the changed square on the open page, the stream's look included."""
    before = page.locator(".cells a.s").count()
    begin = time.perf_counter()
    picture.change()
    page.wait_for_function("n => document.querySelectorAll('.cells a.s').length > n", arg=before, timeout=60_000)
    return (time.perf_counter() - begin) * 1000


def main() -> None:
    """Load the page so many times, and change it once."""
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    asked.add_argument("--nodes", type=int, default=12_500)
    asked.add_argument("--loads", type=int, default=5)
    asked.add_argument("--seed", type=int, default=1)
    told = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config, picture = _config(Path(folder)), Picture(told.nodes, told.seed)
        token = Tokens(config.serve.tokens_file).create(_TOKEN, "read", None, datetime.now(UTC))
        server, thread, url = _serve(config, picture)
        try:
            with sync_playwright() as play:
                browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
                page = browser.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True).new_page()
                page.set_default_timeout(_PATIENCE_MS)
                page.goto(f"{url}/#token={token}")
                page.wait_for_selector("body[data-signed-in]")
                loads = [_load(page.context, url) for _ in range(told.loads)]
                page.goto(url)
                cells = page.locator(".cells a").count()
                change = _changed(page, picture)
                browser.close()
        finally:
            server.should_exit = True
            thread.join()
    _say(told.nodes, cells, loads, change)


def _say(nodes: int, cells: int, loads: list[Load], change: float) -> None:
    libraries = ", ".join(f"{name} {version(name)}" for name in ("litestar", "polars", "playwright"))
    load = os.getloadavg()[0]
    print(f"{nodes:,} nodes, {8 * nodes:,} GPUs, {cells:,} cells; {os.cpu_count()} CPUs, load {load:.1f}")
    for name in ("rendered", "server", "cpu"):
        values = [getattr(one, name) for one in loads]
        print(
            f"{name:10} slowest {max(values):,.0f} ms, median {statistics.median(values):,.0f} ms of {len(loads)} loads"
        )
    print(f"page       {loads[-1].wire / 1024:,.0f} KiB over the wire, {loads[-1].html / 1024:,.0f} KiB of HTML")
    print(f"a change   {change:,.0f} ms from the picture to the square, the stream's look every 2 s included")
    print(f"Python {platform.python_version()}, {libraries}")


if __name__ == "__main__":
    main()
