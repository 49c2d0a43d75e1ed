"""The agent's budget: 8 GPUs at 1 Hz must cost at most 1 % of one core and 110 MiB.

    python benchmarks/speed/agent.py --seconds 60          # the budget: batches to a spool on this disk
    python benchmarks/speed/agent.py --seconds 60 --kafka  # the same with a real broker behind the spool (no limit)

Run it on a quiet machine: pages that other Python processes share make PSS look smaller than on a node.

The whole agent runs as it does on a node: NVML by the real pynvml over the stand-in library, the InfiniBand tree of
an H100 node, a kernel log that grows by a line a second, this machine's /proc.
CPU is user and system time of the agent and its children from /proc/<pid>/stat, over whole 10 s periods after a
warm-up; memory is PSS of the process tree from smaps_rollup, the largest of readings every 5 s.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_CPU_PERCENT = 1.0
LIMIT_PSS_MIB = 110.0
WARM_UP_S = 15.0
XID = "NVRM: Xid (PCI:0000:9b:00): 63, pid=1234, name=python3, Row Remapper: New row (0x{:x}) marked for remapping"


@dataclass(frozen=True)
class Reading:
    """CPU seconds so far and PSS now, of a process tree."""

    cpu_s: float
    pss_mib: float
    processes: int


def tree(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in (task / "children").read_text().split():
            found += tree(int(child))
    return found


def read(pid: int) -> Reading:
    """A reading of the tree below ``pid``; programs that have ended are in their parents' CPU seconds."""
    pids = tree(pid)
    ticks, kib = 0, 0
    for one in pids:
        with contextlib.suppress(OSError):  # a program that ends while it is looked at
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
            kib += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return Reading(ticks / os.sysconf("SC_CLK_TCK"), kib / 1024, len(pids))


def child(folder: Path) -> int:
    """The agent's own entry, with other roots for the files of an H100 node."""
    from graynode.service import agent_main

    agent_main.stay_small()
    from graynode.collectors.identity import Roots
    from graynode.service import agent
    from graynode.service.config import load
    from graynode.service.process import set_up_logs, stop_on_signals

    set_up_logs("agent")
    roots = Roots(sys=folder / "sys")
    return agent.run(load(folder / "graynode.toml", env={}), False, False, stop_on_signals(), roots=roots)


def prepare(folder: Path, collectors: list[str], bootstrap: str = "") -> None:
    """Configuration and files of the node."""
    for kind in ("infiniband", "net"):
        (folder / "sys/class").mkdir(parents=True, exist_ok=True)
        source = ROOT / "tests/fixtures/gpud/infiniband-h100" if kind == "infiniband" else Path("/sys/class/net")
        (folder / "sys/class" / kind).symlink_to(source)
    (folder / "kmsg").write_text("")
    (folder / "graynode.toml").write_text(
        'cluster = "bench"\n[agent]\nnode_id = "bench-1"\nmetrics_listen = "127.0.0.1:0"\n'
        f'state_dir = "{folder}/state"\ncollectors = {json.dumps(collectors)}\nkmsg = "{folder}/kmsg"\n'
        f'[bus]\nspool_dir = "{folder}/bus"\n'
        + (f'kind = "kafka"\n[bus.kafka]\nbootstrap = "{bootstrap}"\n' if bootstrap else "")
    )


def grow_log(path: Path, stop: threading.Event) -> None:
    """A kernel line a second; every tenth one is an Xid."""
    number = 0
    while not stop.wait(1.0):
        number += 1
        text = XID.format(number) if number % 10 == 0 else "usb 1-1: new high-speed USB device"
        with path.open("a") as file:
            file.write(f"4,{number},{time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000},-;{text}\n")


def environment(folder: Path) -> dict[str, str]:
    """The stand-in driver library in front of any real one, eight H100 that work."""
    sys.path.insert(0, str(ROOT / "tests/kit"))
    import nvml_standin

    scenario = nvml_standin.h100(folder / "scenario", gpus=8)
    scenario.write()
    env: dict[str, str] = nvml_standin.build(ROOT / ".cache").env(scenario.path)
    return env


def measure(pid: int, seconds: float) -> tuple[float, list[Reading]]:
    """CPU per cent of one core over ``seconds``, and the readings."""
    time.sleep(WARM_UP_S)
    readings = [read(pid)]
    began = time.monotonic()
    while time.monotonic() < began + seconds - 1:
        time.sleep(5)
        readings.append(read(pid))
    wall = time.monotonic() - began
    return 100 * (readings[-1].cpu_s - readings[0].cpu_s) / wall, readings


def rows_per_second(spool: Path, seconds: float) -> dict[str, float]:
    """What arrived in the spool, so that nobody measures an agent that does nothing."""
    from graynode.pipeline.schema import EVENTS, SAMPLES
    from graynode.pipeline.spool import SpoolBus

    consumer = SpoolBus(spool, 1 << 30).consumer([SAMPLES, EVENTS], "bench")
    counts: dict[str, float] = {}
    while received := consumer.poll(0.2):
        for one in received:
            table = one.message.headers["table"]
            counts[table] = counts.get(table, 0) + int(one.message.headers["rows"]) / seconds
    consumer.close()
    return counts


def cpu_model() -> str:
    """This machine's processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def report(percent: float, readings: list[Reading], counts: dict[str, float], seconds: float) -> bool:
    """Print the result; true if it is within the budget."""
    pss = max(r.pss_mib for r in readings)
    print(f"machine   {cpu_model()}, {os.cpu_count()} CPUs, Linux {platform.release()}")
    libraries = ("graynode", "pyarrow", "nvidia-ml-py", "msgspec", "structlog", "prometheus-client")
    print(f"versions  Python {platform.python_version()}, " + ", ".join(f"{n} {version(n)}" for n in libraries))
    print(f"command   {shlex.join(['python', *sys.argv])}")
    print("rows/s    " + ", ".join(f"{table} {count:.2f}" for table, count in sorted(counts.items())))
    fine = percent <= LIMIT_CPU_PERCENT and pss <= LIMIT_PSS_MIB
    print(f"CPU       {percent:.2f} % of one core over {seconds:.0f} s (limit {LIMIT_CPU_PERCENT:.0f})")
    print(f"PSS       {pss:.1f} MiB, {readings[-1].processes} processes (limit {LIMIT_PSS_MIB:.0f})")
    print("result    " + ("within the budget" if fine else "OVER THE BUDGET"))
    return fine


def main() -> int:
    """Run and print; 1 if the budget is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--collectors", default="nvml,kernel_log,infiniband,ethtool,services,slurm,kubernetes,host")
    parser.add_argument("--kafka", action="store_true", help="a real broker behind the spool")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(given.child)
    with tempfile.TemporaryDirectory(prefix="graynode-bench-") as name, contextlib.ExitStack() as stack:
        fine = run(Path(name), given.collectors.split(","), given.seconds, stack, kafka=given.kafka)
    return 0 if fine or given.kafka else 1


def run(folder: Path, collectors: list[str], seconds: float, stack: contextlib.ExitStack, *, kafka: bool) -> bool:
    """One measurement in ``folder``."""
    prepare(folder, collectors, broker(folder, stack) if kafka else "")
    env = environment(folder) if "nvml" in collectors else None
    began = time.monotonic()
    command = [sys.executable, "-I", __file__, "--child", str(folder)]
    agent = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    stop = threading.Event()
    threading.Thread(target=grow_log, args=(folder / "kmsg", stop), daemon=True).start()
    try:
        percent, readings = measure(agent.pid, seconds)
    finally:
        stop.set()
        agent.send_signal(signal.SIGTERM)
        agent.wait(20)
    counts = rows_per_second(folder / ("state/spool" if kafka else "bus"), time.monotonic() - began)
    return report(percent, readings, counts, seconds)


def broker(folder: Path, stack: contextlib.ExitStack) -> str:
    """A real broker for this run; its address."""
    sys.path.insert(0, str(ROOT / "tests/kit"))
    import kafka_broker

    made = kafka_broker.Broker(kafka_broker.jars(), folder / "kafka")
    made.create()
    stack.callback(made.stop)
    address: str = made.address()
    return address


if __name__ == "__main__":
    sys.exit(main())
