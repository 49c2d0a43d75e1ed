"""A fleet read without anything on its nodes: 1,250 exporters × 8 GPUs every 10 s on one core.

    python benchmarks/speed/dcgm_scrape.py                 # the whole way: page, rows, messages in a spool on this disk
    python benchmarks/speed/dcgm_scrape.py --targets 200   # a smaller fleet

Pages are dcgm-exporter's shipped default set, 25 metrics of 8 GPUs with kubelet labels, each node with UUIDs of its own
and energy that grows; a stand-in serves them from another process over kept connections. Measured is the agent with
the collector ``dcgm`` alone: CPU (user and system) from getrusage over whole intervals after a warm-up, lag from the
moment an attempt is due to the moment it begins. The line parser is also timed against ``prometheus_client.parser``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/kit"))
import exporter_standin as standin  # noqa: E402 (of the test kit)

INTERVAL_S = 10.0
WARM_UP_S = 25.0
GPUS = 8


def template() -> bytes:
    """A node's page, with marks where nodes and readings differ."""
    more = {"container": "main", "namespace": "research", "pod": "train-llm-@NODE@-worker-0", "pod_uid": ""}
    values = {**standin.DEFAULT, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "@ENERGY@"}
    return standin.page(GPUS, values, more=more).replace(b"GPU-00000000-", b"GPU-@NODE@-")


class Served(asyncio.Protocol):
    """One connection of the stand-in."""

    page = template()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self.transport, self.got = transport, b""

    def data_received(self, data: bytes) -> None:
        """Answer each request with its node's page of now."""
        self.got += data
        while b"\r\n\r\n" in self.got:
            head, _, self.got = self.got.partition(b"\r\n\r\n")
            node = b"%08x" % int(head.split(b"/")[1])
            energy = str(5_551_899_580 + time.monotonic_ns() // 1_000_000 * 300).encode()
            body = self.page.replace(b"@NODE@", node).replace(b"@ENERGY@", energy)
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))  # type: ignore[attr-defined]


def serve(targets: int) -> int:
    """The stand-in's process: prints its port, ends with its input."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, targets + 256), hard), hard))

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Served, "127.0.0.1", 0, backlog=4096)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)

    asyncio.run(run())
    return 0


def scrape(folder: Path, port: int, targets: int, seconds: float) -> dict[str, Any]:
    """The agent's process: the real agent, its one collector and a spool; what it cost."""
    from graynode.service import agent_main

    agent_main.stay_small()
    from graynode.collectors.agent import Agent, Settings
    from graynode.collectors.base import Machine
    from graynode.collectors.dcgm.collector import Dcgm
    from graynode.pipeline.spool import SpoolBus

    machine = Machine("bench", "scraper", "scraper-1", "configured", "boot-1", folder / "state")
    fleet = [f"http://127.0.0.1:{port}/{n}/metrics" for n in range(targets)]
    dcgm = Dcgm(machine, fleet=fleet, interval_s=INTERVAL_S)
    bus = SpoolBus(folder / "bus", 2 << 30)
    agent = Agent(machine, [dcgm], bus.producer(), 1, settings=Settings(batch_s=5.0))
    stop = threading.Event()
    running = threading.Thread(target=agent.run, args=(stop,))
    running.start()
    time.sleep(WARM_UP_S)
    before, pages = resource.getrusage(resource.RUSAGE_SELF), dcgm.scraper.pages
    sent, sent_bytes = agent.outbox.sent.messages, agent.outbox.sent.bytes
    dcgm.scraper.lags_s.clear()
    began = time.monotonic()
    time.sleep(seconds)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    lags = sorted(dcgm.scraper.lags_s)
    done: dict[str, Any] = {
        "wall_s": wall, "pages": dcgm.scraper.pages - pages, "messages": agent.outbox.sent.messages - sent,
        "bytes": agent.outbox.sent.bytes - sent_bytes, "dropped": agent.outbox.sent.dropped + dcgm.scraper.shed,
        "user_s": after.ru_utime - before.ru_utime, "system_s": after.ru_stime - before.ru_stime,
        "lag_p50_ms": 1e3 * lags[len(lags) // 2], "lag_p99_ms": 1e3 * lags[len(lags) * 99 // 100],
        "lag_max_ms": 1e3 * lags[-1], "rss_mib": rss_mib(), "threads": threading.active_count(),
        "read": dcgm.values.read, "stored": dcgm.values.stored, "bad": dcgm.values.bad_lines,
        "misfits": len(agent.misfits.counts), "up": sum(node.gpus == GPUS for node in dcgm.scraper.nodes.values()),
    }  # fmt: skip
    stop.set()
    running.join(20)
    return done


def rss_mib() -> float:
    """Resident memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def parts(repeats: int) -> dict[str, float]:
    """CPU milliseconds of each step alone, per page; the reference parser beside ours."""
    from prometheus_client.parser import text_string_to_metric_families

    from graynode.collectors.base import utc_now
    from graynode.collectors.dcgm.fields import column
    from graynode.collectors.dcgm.http import Fetched
    from graynode.collectors.dcgm.node import Node
    from graynode.collectors.dcgm.page import PageReader
    from graynode.collectors.dcgm.rows import PageRows
    from graynode.collectors.dcgm.targets import fleet_target
    from graynode.pipeline.codec import Origin, encode

    def page(step: int) -> bytes:
        return Served.page.replace(b"@NODE@", b"%08x" % 7).replace(b"@ENERGY@", str(10**9 + step).encode())

    pages = [page(step) for step in range(repeats)]
    reader: PageReader[Any, Any] = PageReader(column, dict)
    node = Node(fleet_target("n1:9400"), "bench", "m", PageRows(), INTERVAL_S)
    now = utc_now()
    reader.read(pages[0])
    node.take(Fetched(pages[0]), now, 0.0, 0.01)
    found: dict[str, float] = {}
    rows: list[dict[str, list[Any]]] = []

    def timed(name: str, count: int, work: Any) -> None:  # noqa: ANN401 (any step)
        began = time.process_time()
        for step in range(count):
            work(step)
        found[name] = 1e3 * (time.process_time() - began) / count

    timed(
        "prometheus_client.parser",
        max(3, repeats // 40),
        lambda n: list(text_string_to_metric_families(pages[n].decode())),
    )
    timed("parse", repeats, lambda n: reader.read(pages[n]))
    timed("parse and rows", repeats, lambda n: rows.append(node.take(Fetched(pages[n]), now, float(n), 0.01)))
    origin = Origin("bench", "n", 1)
    full = [{t: [{**row, "cluster": "bench"} for row in some] for t, some in r.items()} for r in rows]
    timed("encode", repeats, lambda n: [encode(t, some, origin, n, now) for t, some in full[n].items()])
    return found


def report(given: argparse.Namespace, done: dict[str, Any], alone: dict[str, float]) -> None:
    """Print what was measured."""
    cpu_s, pages = done["user_s"] + done["system_s"], done["pages"]
    size = len(Served.page.replace(b"@NODE@", b"0" * 8).replace(b"@ENERGY@", b"0" * 10))
    kib = done["bytes"] / max(1, done["messages"]) / 1024
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    libraries = ("graynode", "pyarrow", "prometheus-client", "structlog")
    print(f"machine   {model}, {os.cpu_count()} CPUs, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}")
    print(f"versions  Python {platform.python_version()}, " + ", ".join(f"{n} {version(n)}" for n in libraries))
    print(f"command   {shlex.join(['python', *sys.argv])}")
    print(f"fleet     {given.targets} targets, {done['up']} up, {GPUS} GPUs each, page of {size / 1024:.1f} KiB")
    print(f"pages     {pages} in {done['wall_s']:.0f} s")
    print(f"messages  {done['messages']} of {kib:.1f} KiB, {done['dropped']} dropped")
    print(f"values    {done['read']} read, {done['stored']} stored, {done['bad']} bad lines, {done['misfits']} misfits")
    print(f"CPU       {1e3 * cpu_s / pages:.2f} ms a page ({done['user_s']:.1f} s user, {done['system_s']:.1f} system)")
    print(f"rate      {pages / cpu_s:.0f} pages a second on one core")
    print(f"core      {100 * cpu_s / done['wall_s']:.1f} % of one core at {INTERVAL_S:.0f} s")
    print(
        f"lag       p50 {done['lag_p50_ms']:.1f} ms, p99 {done['lag_p99_ms']:.1f} ms, most {done['lag_max_ms']:.1f} ms"
    )
    print(f"memory    {done['rss_mib']:.0f} MiB resident, {done['threads']} threads")
    print("alone     " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in alone.items()) + " a page")
    print(f"parser    {alone['prometheus_client.parser'] / alone['parse']:.0f} times the reference parser's speed")


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=1250)
    parser.add_argument("--seconds", type=float, default=40.0, help="whole intervals are best")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child and given.child[0] == "serve":
        return serve(given.targets)
    if given.child:
        folder, port = given.child
        print(json.dumps(scrape(Path(folder), int(port), given.targets, given.seconds)))
        return 0
    alone = parts(400)
    command = [
        sys.executable,
        "-I",
        __file__,
        "--targets",
        str(given.targets),
        "--seconds",
        str(given.seconds),
        "--child",
    ]
    with (
        tempfile.TemporaryDirectory(prefix="graynode-bench-") as folder,
        subprocess.Popen([*command, "serve", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdin is not None and server.stdout is not None  # noqa: S101, PT018 (for the type checker)
        port = server.stdout.readline().strip()
        ran = subprocess.run([*command, folder, port], stdout=subprocess.PIPE, check=True, text=True)
        server.stdin.close()
    report(given, json.loads(ran.stdout.splitlines()[-1]), alone)
    return 0


if __name__ == "__main__":
    sys.exit(main())
