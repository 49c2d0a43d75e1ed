from __future__ import annotations

import http.client
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import nvml_rig
import nvml_standin
import pytest
from agent_fakes import until
from agent_process import MAIN, AgentProcess, kmsg_line
from prometheus_client.parser import text_string_to_metric_families

from graynode.collectors.health import children as process_children
from graynode.pipeline.schema import EVENTS, SAMPLES

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def _kinds(agent: AgentProcess) -> list[str]:
    return [row["kind"] for row in agent.rows("event")]


def test_this_machine_and_a_kernel_line_into_the_spool(tmp_path: Path) -> None:
    """The real agent over this machine's /proc and a kernel log: one host row a second on a fixed grid, the Xid with
    its raw line within seconds though the batch is a minute, and on SIGTERM everything is flushed."""
    with AgentProcess(tmp_path, {"batch_s": 60}) as agent:
        agent.start()
        agent.until(lambda: _kinds(agent) == ["agent_start"])
        agent.kmsg.write_text(kmsg_line(7, XID))
        written = time.monotonic()
        agent.until(lambda: "xid" in _kinds(agent))
        assert time.monotonic() - written < 10
        time.sleep(2)
        assert agent.rows("host") == []
        assert agent.stop() == 0
        assert _kinds(agent) == ["agent_start", "xid", "agent_stop"]
        hosts = agent.rows("host")
        xid = agent.rows("event")[1]
    assert (xid["code"], xid["node_id"], xid["cluster"]) == (79, "machine-1", "test")
    assert xid["raw"].endswith(XID)
    gaps = [b["ts"] - a["ts"] for a, b in pairwise(hosts)]
    assert len(gaps) >= 2
    assert all(timedelta(seconds=0.5) < gap < timedelta(seconds=1.5) for gap in gaps)
    assert abs(hosts[-1]["ts"] - datetime.now(UTC)) < timedelta(minutes=1)
    assert all(row["boot_id"] == xid["boot_id"] for row in hosts)
    assert hosts[0]["samples_expected"] == 2
    assert "cpu_util_percent" in hosts[1]
    assert hosts[0]["agent_rss_bytes"] > 20 << 20


def test_restart_has_a_new_epoch_and_tells_nothing_twice(tmp_path: Path) -> None:
    """The second life goes on in the same spool with epoch 2; the Xid that the first one told is not told again."""
    with AgentProcess(tmp_path) as agent:
        agent.kmsg.write_text(kmsg_line(7, XID))
        for _ in range(2):
            assert agent.call("--once").returncode == 0
    assert _kinds(agent) == ["agent_start", "xid", "agent_stop", "agent_start", "agent_stop"]
    assert {m.headers["epoch"] for m in agent.messages()} == {"1", "2"}


def test_killed_agent_goes_on_without_doubling_a_number(tmp_path: Path) -> None:
    """Kill -9 at any moment: the spool opens, no (epoch, sequence) is met twice, and an Xid written while the agent
    was dead is found."""
    with AgentProcess(tmp_path, {"batch_s": 0.1}) as agent:
        for life in range(2):
            agent.start()
            agent.until(lambda life=life: len(agent.rows("host")) > 3 * (life + 1))
            assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
            with agent.kmsg.open("a") as log:
                log.write(kmsg_line(10 + life, XID))
        assert agent.call("--once").returncode == 0
    numbers = [(m.headers["epoch"], m.headers["seq"]) for m in agent.messages()]
    assert len(numbers) == len(set(numbers))
    assert {epoch for epoch, _ in numbers} == {"1", "2", "3"}
    ids = {e["event_id"] for e in agent.rows("event") if e["kind"] == "xid"}
    assert len(ids) == 2


def test_dry_run_prints_rows_and_leaves_no_trace(tmp_path: Path) -> None:
    """Into a pipe: JSON lines with their table; no spool, no state, no epoch; and it may run beside the agent."""
    with AgentProcess(tmp_path) as agent:
        agent.kmsg.write_text(kmsg_line(7, XID))
        agent.start()
        agent.until(lambda: "xid" in _kinds(agent))
        before = sorted(p.name for p in (tmp_path / "state").iterdir())
        done = agent.call("--once", "--dry-run")
        assert sorted(p.name for p in (tmp_path / "state").iterdir()) == before
        assert agent.stop() == 0
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert {row["table"] for row in rows} >= {"host", "event"}
    assert [row["kind"] for row in rows if row["table"] == "event"] == ["agent_start", "xid", "agent_stop"]
    assert all(datetime.fromisoformat(row["ts"]).tzinfo for row in rows)
    assert {m.headers["epoch"] for m in agent.messages()} == {"1"}


def test_dry_run_ends_when_its_reader_does(tmp_path: Path) -> None:
    """``graynode agent --dry-run | head -1``: no traceback, and it does not go on into nowhere."""
    with AgentProcess(tmp_path, {"batch_s": 0.1}) as agent:
        line = f"{shlex.join(agent.command('--dry-run'))} | head -1"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["table"] == "event"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_agent_path_loads_only_the_base_install(tmp_path: Path) -> None:
    """With the spool the running agent has none of the server's libraries in memory, nor the command line's, nor
    Kafka's client: it is a guest on its node."""
    with AgentProcess(tmp_path, {"collectors": ["nvml", "kernel_log", "infiniband", "host"]}) as agent:
        code = (
            f"import sys\nsys.argv = ['agent', '--once', '--config', {str(agent.config)!r}]\n"
            f"from {MAIN} import main\ncode = main()\n"
            "print('LOADED', *sorted({n.partition('.')[0] for n, m in sys.modules.items() if m is not None}))\n"
            "sys.exit(code)"
        )
        done = subprocess.run(
            [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
    loaded = set(done.stdout.rpartition("LOADED ")[2].split())
    unwanted = {
        "polars", "duckdb", "sklearn", "scipy", "numpy", "deltalake", "typer", "click", "rich", "kafka", "httpx",
        "standardwebhooks", "pandas",
    }  # fmt: skip
    assert loaded & unwanted == set()
    assert {"graynode", "pyarrow", "msgspec"} <= loaded
    assert agent.rows("host")


@pytest.mark.parametrize(
    ("agent", "sections", "said"),
    [
        ({"colectors": ["host"]}, {}, r"unknown key agent\.colectors.*did you mean collectors"),
        ({"collectors": ["host", "nvmll"]}, {}, r"agent\.collectors = \['host', 'nvmll'\]: no 'nvmll'; known: .*nvml"),
        ({"metrics_listen": "127.0.0.1:99999"}, {}, r"agent\.metrics_listen = '127\.0\.0\.1:99999': cannot listen"),
        ({"metrics_listen": "here"}, {}, r"agent\.metrics_listen = 'here': cannot listen"),
        ({"state_dir": "{folder}/kmsg/state"}, {}, r"agent\.state_dir = .*kmsg/state'.*GRAYNODE_AGENT__STATE_DIR"),
        ({}, {"bus": {"spool_dir": "{folder}/kmsg/bus"}}, r"kmsg/bus: cannot be made.*name a folder"),
        ({"collectors": ["simulated"]}, {"simulated": {"faults": "{folder}/none.toml"}}, r"none\.toml: cannot be read"),
        ({}, {"bus": {"kind": "kafka", "kafka": {"security": "SSL", "ca_file": "{folder}/no.pem"}}}, r"no\.pem"),
    ],
    ids=lambda v: "",
)
def test_wrong_settings_stop_the_start_in_one_line(
    tmp_path: Path, agent: dict[str, Any], sections: dict[str, Any], said: str
) -> None:
    """What is wrong, where, and the way out; exit code 2; never a traceback."""
    placed = json.loads(json.dumps([agent, sections]).replace("{folder}", str(tmp_path)))
    with AgentProcess(tmp_path, placed[0], **placed[1]) as process:
        done = process.call()
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2
    assert last.startswith("graynode: ")
    assert re.search(said, last), last
    assert "Traceback" not in done.stderr


def test_second_agent_on_the_same_state_is_refused(tmp_path: Path) -> None:
    """Both would send the same batch numbers: the second says who has the folder, and the first goes on."""
    with AgentProcess(tmp_path) as agent:
        pid = agent.start()
        agent.until(lambda: _kinds(agent) == ["agent_start"])
        done = agent.call("--once")
        assert done.returncode == 2
        assert f"in use by another agent (process {pid})" in done.stderr
        assert agent.stop() == 0


def test_metrics_page_tells_rounds_rows_errors_and_what_waits(tmp_path: Path) -> None:
    """The agent's own page parses, and has every count that an operator would look for."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with AgentProcess(tmp_path, {"metrics_listen": f"127.0.0.1:{port}", "collectors": ["kernel_log", "host"]}) as agent:
        agent.start()
        agent.until(lambda: len(agent.rows("host")) > 3)
        page = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        page.request("GET", "/metrics")
        text = page.getresponse().read().decode()
        page.close()
        assert agent.stop() == 0
    values = {(s.name, *s.labels.values()): s.value for f in text_string_to_metric_families(text) for s in f.samples}
    assert values["graynode_agent_rounds_total",] >= 4
    assert values["graynode_agent_collections_taken_total", "host"] >= 4
    assert values["graynode_agent_rows_total", "host"] >= 4
    assert values["graynode_agent_collection_errors_total", "host"] == 0
    assert values["graynode_agent_collections_missed_total", "kernel_log"] == 0
    assert values["graynode_agent_collection_seconds_total", "host"] > 0
    assert values["graynode_agent_source_present", "host"] == 1
    assert values["graynode_agent_messages_total",] >= 1
    assert values["graynode_agent_messages_dropped_total", "samples_full"] == 0
    assert values["graynode_agent_spool_bytes",] > 0
    assert values["graynode_agent_held_bytes",] == 0
    assert "GET /metrics" not in agent.log


@pytest.mark.nvml
def test_gpus_through_the_real_binding_and_no_child_is_left(tmp_path: Path) -> None:
    """pynvml over the stand-in library: a row a second for each GPU with the driver load, the host row says that NVML
    answers, a kernel line is NVML's second witness; and the reading child ends with the agent, however that ends."""
    scenario = nvml_standin.h100(tmp_path / "scenario", gpus=2)
    scenario.write()
    with AgentProcess(tmp_path, {"collectors": ["nvml", "kernel_log", "host"]}) as agent:
        agent.env = nvml_standin.build(nvml_rig.CACHE).env(scenario.path)
        for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
            seen = len(agent.rows("gpu"))
            pid = agent.start()
            agent.until(lambda seen=seen: len(agent.rows("gpu")) >= seen + 4)
            children = process_children(Path("/proc"), pid)
            assert len(children) == 1
            assert agent.stop(number) == code
            assert until(lambda children=children: not Path(f"/proc/{children[0]}").exists())
        gpus, hosts = agent.rows("gpu"), agent.rows("host")
    assert len({row["gpu_uuid"] for row in gpus}) == 2
    assert all(row["driver_load"] == gpus[0]["driver_load"] and row["power_w"] > 0 for row in gpus)
    assert {row["driver_load"] for row in hosts if "driver_load" in row} == {gpus[0]["driver_load"]}
    assert any(row.get("nvml_up") == 1 and row.get("nvml_call_max_ms") is not None for row in hosts)
    assert len({(row["ts"], row["gpu_uuid"]) for row in gpus}) == len(gpus)


def test_samples_and_events_are_numbered_in_order(tmp_path: Path) -> None:
    """In each topic the sequence of this machine grows: the reader can drop what it has seen."""
    with AgentProcess(tmp_path, {"batch_s": 0.2}) as agent:
        agent.start()
        agent.until(lambda: len(agent.rows("host")) > 4)
        assert agent.stop() == 0
        for topic in (SAMPLES, EVENTS):
            numbers = [int(m.headers["seq"]) for m in agent.messages([topic])]
            assert numbers == sorted(set(numbers))
            assert len(numbers) >= 2
