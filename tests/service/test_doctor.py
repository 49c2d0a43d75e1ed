"""The doctor: what it says of a node, its sources and their cost, and that it changes nothing."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import agent_fakes
import node_files
import pytest
from agent_fakes import Source

from graynode.collectors.base import NoSource, Round, Rows
from graynode.collectors.epoch import lock_state
from graynode.collectors.host_files import ClockState
from graynode.collectors.identity import Roots
from graynode.collectors.release import REQUEST
from graynode.service import doctor
from graynode.service import doctor_checks as checks
from graynode.service.config import Config, ConfigError, parse
from graynode.service.doctor_bus import broker_clock, bus_checks
from graynode.service.doctor_checks import Check
from graynode.service.doctor_cost import bytes_per_day
from graynode.service.doctor_print import as_object, for_person
from graynode.service.doctor_sources import Tried, harmless, try_sources

GRAYNODE = Path(sys.executable).with_name("graynode")


def _config(folder: Path, *collectors: str, **more: Any) -> Config:
    agent = {"state_dir": str(folder / "state"), "collectors": list(collectors), "metrics_listen": ""}
    at = {"bus": {"spool_dir": str(folder / "bus")}, "lake": {"path": str(folder / "lake")}}
    return parse({"agent": agent | more.pop("agent", {}), **at, **more}, "test")


def _try(folder: Path, **sources: Source | Exception) -> Tried:
    """These collectors, without the waiting between rounds."""

    def make(name: str, given: object) -> Source:
        found = sources[name]
        if isinstance(found, Exception):
            raise found
        return found

    config = _config(folder, *sources, agent={"deadline_s": 0.3})
    return try_sources(config, node_files.node(folder), make=make, pause=lambda seconds: None)  # type: ignore[arg-type]


def _one(found: Check, state: str, said: str, way_out: str = "") -> None:
    assert (found.state, said in found.said, way_out in found.way_out) == (state, True, True), found
    assert found.state != "mend" or found.way_out, "what is to mend has a way out"


# --- the command ---


def test_command_on_this_machine(tmp_path: Path) -> None:
    """A node without a GPU: every configured source has its line, code and text agree, nothing is left behind."""
    (tmp_path / "g.toml").write_text(
        f'[agent]\nstate_dir = "{tmp_path}/state"\ncollectors = ["nvml", "host"]\n[bus]\nspool_dir = "{tmp_path}/bus"\n'
        f'[lake]\npath = "{tmp_path}/lake"\n'
    )
    env = {"PATH": "/usr/bin:/bin"}
    before = sorted(tmp_path.rglob("*"))
    ended = subprocess.run(
        [str(GRAYNODE), "doctor", "--config", str(tmp_path / "g.toml"), "--json"],
        capture_output=True, text=True, timeout=90, env=env, check=False,
    )  # fmt: skip
    assert ended.returncode in (0, 1), ended.stderr
    told = json.loads(ended.stdout)
    assert ended.stderr == ""
    assert (told["to_mend"] > 0) == (ended.returncode == 1)
    by = {c["name"]: c for c in told["collectors"]}
    assert by["host"]["state"] == "works"
    assert {"load1", "cpu_util_percent", "mem_total_bytes"} <= set(by["host"]["fields_measured"]["host"])
    assert by["host"]["us_per_round"].keys() == {"1", "10", "60"}
    assert by["host"]["bytes_per_day"] > 100_000
    assert by["nvml"]["state"] in ("works", "absent")
    assert "driver_version" in told["null_fields"]["host"] or by["nvml"]["state"] == "works"
    assert sorted(tmp_path.rglob("*")) == before


def test_unknown_collector_is_a_wrong_configuration(tmp_path: Path) -> None:
    """Said with what there is, as the agent says it."""
    with pytest.raises(ConfigError, match="no collector 'nvmll'; there are nvml"):
        doctor.run(_config(tmp_path, "nvmll"))


def test_machine_that_nothing_identifies_is_told_and_looked_at(tmp_path: Path) -> None:
    """Without an identity an agent would not start: that is the first thing to mend, and the rest is still said."""
    roots = Roots(**{name: tmp_path / name for name in ("sys", "dev", "etc", "run", "var")})
    lines: list[str] = []
    assert doctor.run(_config(tmp_path), roots=roots, say=lines.append, pause=lambda seconds: None) == 1
    text = "\n".join(lines)
    assert "set agent.node_id" in text
    assert "to mend." in text


# --- sources ---


def test_sources_that_work_are_absent_fail_and_hang(tmp_path: Path) -> None:
    """Each for itself: one that hangs costs its deadline once, and the others are measured."""
    gate = threading.Event()

    def hang(round_: Round) -> Rows:
        gate.wait(20)
        return {}

    def fail(round_: Round) -> Rows:
        raise OSError("no such register")

    def none(round_: Round) -> Rows:
        raise NoSource("there is none")

    tried = _try(
        tmp_path, good=Source(name="good"), silent=Source(lambda r: {}, "silent"), hangs=Source(hang, "hangs"),
        fails=Source(fail, "fails"), gone=Source(none, "gone"), absent=NoSource("not built in"), broken=KeyError("x"),
    )  # fmt: skip
    gate.set()
    told = {t.name: (t.state, t.reason) for t in tried.trials}
    assert told == {
        "good": ("works", ""), "silent": ("silent", ""), "hangs": ("hangs", "a round did not come back within 0.3 s"),
        "fails": ("fails", "OSError: no such register"), "gone": ("absent", "there is none"),
        "absent": ("absent", "not built in"), "broken": ("fails", "KeyError: 'x'"),
    }  # fmt: skip
    good = tried.trials[0]
    assert good.rows["host"] == 24 + 7  # as long to warm up as the silent one is waited for
    assert all(good.cost_us(every) is not None for every in (1, 10, 60))
    lines = "\n".join(for_person(agent_fakes.machine(tmp_path), [], tried))
    assert "3 to mend." in lines
    assert "look at it alone: graynode agent --once --dry-run" in lines


def test_every_collector_is_closed_and_gets_each_class(tmp_path: Path) -> None:
    """Rounds of the three classes, five of the fast one, and nothing is left open."""
    source = Source(name="host")
    _try(tmp_path, host=source)
    assert source.closed == 1
    assert [max(r.due) for r in source.rounds[-7:]] == [60, 1, 1, 1, 1, 1, 10]
    assert source.rounds[0].elapsed_s is None
    assert all(r.elapsed_s is not None for r in source.rounds[1:])


def test_null_fields_have_their_reasons(tmp_path: Path) -> None:
    """What a ``quality`` row says of a field is its reason; of the rest it is said that nobody here gives it."""
    quality = [
        {"table_name": "host", "entity": "n", "field": "swap_used_bytes", "state": "not_permitted", "reason": "root's"}
    ]
    tried = _try(
        tmp_path, host=Source(lambda r: {"host": [{"load1": 0.0, "cpus": None}], "quality": [dict(quality[0])]}, "host")
    )
    assert "load1" not in tried.nulls["host"]
    assert tried.nulls["host"]["swap_used_bytes"] == "not_permitted: root's"
    assert tried.nulls["host"]["cpus"] == "none of the collectors here gives it"
    assert "gpu" not in tried.nulls
    told = as_object(agent_fakes.machine(tmp_path), [], tried)
    assert told["collectors"][0]["not_measured"][0]["reason"] == "root's"


def test_a_source_that_says_only_why_it_fails_is_to_mend(tmp_path: Path) -> None:
    """Rows of ``quality`` are no good news: a source that is read no more is not well, until it says that it is."""

    def say(state: str, entity: str = "n", field: str = "*") -> dict[str, str]:
        return {"table_name": "job", "entity": entity, "field": field, "state": state, "reason": f"{state} {entity}"}

    again = iter([{"quality": [say("error")]}, {"quality": [say("measured")]}])
    tried = _try(
        tmp_path,
        dead=Source(lambda r: {"quality": [say("error")]}, "dead"),
        half=Source(lambda r: {"host": [{"load1": 0.0}], "quality": [say("lost", "g1"), say("paused", "g2")]}, "half"),
        back=Source(lambda r: next(again, {}), "back"),
        part=Source(lambda r: {"quality": [say("error", field="swap_used_bytes")]}, "part"),
    )
    assert [t.failing for t in tried.trials] == [["error n"], ["lost g1"], [], []]
    node = agent_fakes.machine(tmp_path)
    text = list(for_person(node, [], tried))
    assert [line.split()[0] for line in text if line[2:6].strip() and line[8:9].isalpha()][:4] == [
        "MEND", "MEND", "well", "well",
    ]  # fmt: skip
    assert "2 to mend." in text
    assert as_object(node, [], tried)["collectors"][0]["failing"] == ["error n"]


def test_running_agent_keeps_what_is_its_own(tmp_path: Path) -> None:
    """The state folder is another one, the socket of ``steps`` too, named or not; a release of GPUs is kept."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / REQUEST).write_text('{"id": "1"}')
    other = tmp_path / "other"
    other.mkdir()
    for config in (_config(tmp_path, "steps"), _config(tmp_path, "host", steps={"socket": str(tmp_path / "sock")})):
        assert harmless(config, other).steps.socket == other / "steps.sock"
    assert (other / REQUEST).read_text() == '{"id": "1"}'
    assert harmless(_config(tmp_path / "none", "host"), other).steps.socket is None


def test_reasons_are_one_line_each(tmp_path: Path) -> None:
    """What a program said may have ends of line and colours; a terminal gets neither."""
    tried = _try(tmp_path, host=NoSource("first\nsecond\x1b[31m\tthird"))
    (line,) = [x for x in for_person(agent_fakes.machine(tmp_path), [], tried) if "host" in x and "absent" in x]
    assert line.endswith("absent: first second [31m third")


@pytest.mark.nvml
def test_gpus_through_the_real_binding(tmp_path: Path) -> None:
    """NVML's reader starts in the background and is waited for: its GPUs, their fields, the slowest call, the cost."""
    import nvml_rig
    import nvml_standin

    from graynode.collectors.nvml.collector import Nvml

    scenario = nvml_standin.h100(tmp_path / "scenario", gpus=2)
    scenario.write()
    machine = node_files.node(tmp_path, sys=nvml_standin.pci_tree(tmp_path / "sys", scenario))
    env = nvml_standin.build(nvml_rig.CACHE).env(scenario.path)
    tried = try_sources(
        _config(tmp_path, "nvml"), machine, make=lambda name, given: Nvml(machine, env=env, patience=nvml_rig.SOON)
    )
    (nvml,) = tried.trials
    assert nvml.state == "works"
    assert {"sm_clock_mhz", "power_w", "ecc_dbe_volatile"} <= nvml.fields["gpu"]
    assert nvml.call_max_ms is not None
    assert nvml.bytes_per_day > 1_000_000
    assert "sm_clock_mhz" not in tried.nulls["gpu"]
    lines = "\n".join(for_person(machine, [], tried))
    assert "slowest NVML call" in lines
    assert "Table gpu:" in lines


# --- cost ---


def test_bytes_a_day_follow_the_cadence(tmp_path: Path) -> None:
    """Rows alike in all classes cost what the batches cost; a batch of ten seconds has fewer headers than two of five;
    what comes every 10 s and every 60 s is counted as often."""
    machine = node_files.node(tmp_path)
    row = ("host", {"load1": 1.0})
    alike = {1: [row] * 5, 10: [row], 60: [row]}
    five, ten = (bytes_per_day(batch_s, machine, [alike]) for batch_s in (5.0, 10.0))
    assert ten < 0.6 * five
    slow = [("host", {"load1": 1.0, "kernel": "k" * 40 + os.urandom(400).hex()})]
    minute = bytes_per_day(5.0, machine, [{**alike, 60: slow}]) - five
    assert 1440 * 300 < minute < 1440 * 1500
    assert bytes_per_day(5.0, machine, [{**alike, 10: slow}]) - five > 4 * minute
    assert bytes_per_day(5.0, machine, []) == 0


def test_changes_are_not_samples(tmp_path: Path) -> None:
    """Events and inventory come when they come: no figure a day is made of them."""
    tried = _try(tmp_path, host=Source(lambda r: {"event": [{"kind": "x", "event_id": "1"}]}, "host"))
    assert (tried.trials[0].state, tried.bytes_per_day) == ("works", 0)


# --- the node ---


def test_whose_rights_the_look_has() -> None:
    """Root sees what the agent's own user may not: said, with the way to look as the agent does."""
    _one(checks.user(0, None), "well", "rights of root")
    _one(checks.user(990, 990), "well", "rights of 990")
    _one(checks.user(0, 990), "note", "may differ for it", "systemd-run --pipe -p User=graynode")


def test_state_folder(tmp_path: Path) -> None:
    """Not there, well, open to anybody, no folder, or where nobody can make it."""
    _one(checks.state_dir(tmp_path / "new"), "note", "is not there yet")
    folder = tmp_path / "state"
    folder.mkdir(mode=0o750)
    _one(checks.state_dir(folder), "well", "mode 0750")
    folder.chmod(0o777)
    _one(checks.state_dir(folder), "mend", "anybody may put files there", "chmod o-w")
    file = tmp_path / "file"
    file.touch(0o600)
    _one(checks.state_dir(file), "mend", "is no folder", "agent.state_dir")
    _one(checks.state_dir(Path("/proc/graynode/state")), "mend" if os.geteuid() else "note", "is not there")


def test_agent_that_runs_is_seen_without_taking_its_lock(tmp_path: Path) -> None:
    """It stays the holder, and one that starts at this moment is not kept out."""
    _one(checks.running_agent(tmp_path), "note", "no agent has used")
    with lock_state(tmp_path):
        _one(checks.running_agent(tmp_path), "well", f"runs already (process {os.getpid()})")
    _one(checks.running_agent(tmp_path), "note", "does not run", "systemctl start")


@pytest.mark.parametrize(("mode", "state"), [(0o600, "well"), (0o640, "note"), (0o644, "mend"), (0o666, "mend")])
def test_secrets(tmp_path: Path, mode: int, state: str) -> None:
    """A secret that anybody may read is none."""
    hook = tmp_path / "hook"
    hook.write_text("whsec_x")
    hook.chmod(mode)
    webhooks = {"oncall": {"url": "https://example.org", "secret_file": str(hook)}}
    kafka = {"password_file": str(tmp_path / "missing")}
    config = parse({"respond": {"webhooks": webhooks}, "bus": {"kind": "kafka", "kafka": kafka}}, "test")
    password, found = checks.secrets(config)
    _one(password, "mend", "bus.kafka.password_file", "put the file there")
    _one(found, state, f"mode {mode:04o}", "chmod 0600" if state == "mend" else "")
    assert stat.S_IMODE(hook.stat().st_mode) == mode


def test_kernel_log(tmp_path: Path) -> None:
    """There, or not: without it no Xid is seen."""
    log = tmp_path / "kmsg"
    config = _config(tmp_path, agent={"kmsg": str(log)})
    _one(checks.kernel_log(config, tmp_path), "mend", "No such file", "mount /dev/kmsg")
    log.touch()
    _one(checks.kernel_log(config, tmp_path), "well", "can be read; kernel.dmesg_restrict = unknown")


def test_what_is_not_permitted(tmp_path: Path) -> None:
    """As a user without rights: kernel log, state folder, devices and secrets say so, each with its way out."""
    if os.geteuid():
        pytest.skip("needs root, to become nobody")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in ("kmsg", "nvidiactl", "nvidia0", "secret"):
        (tmp_path / name).touch(0o600)
    node_files.write(tmp_path / "proc/sys/kernel/dmesg_restrict", "1\n")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o755)
    code = f"""
import os, sys
from pathlib import Path
from graynode.service import doctor_checks as checks
from graynode.service.config import parse
at = Path({str(tmp_path)!r})
config = parse({{"agent": {{"kmsg": str(at / "kmsg")}}}}, "test")
os.setgid(65534); os.setuid(65534)
folders = [checks.state_dir(at / name) for name in ("closed", "closed/deeper", "new")]
first = [checks.kernel_log(config, at / "proc"), checks.nvidia_devices(at, at / "proc")]
for c in (*first, *folders, checks.secret("key", at / "secret")):
    print(c.state, "|", c.said, "|", c.way_out)
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    lines = done.stdout.splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["mend"] * 6, done.stderr
    expected = ("CAP_SYSLOG", "nvidiactl, nvidia0", "cannot write there", "run this as", "install -d", "may not read")
    for line, words in zip(lines, expected, strict=True):
        assert words in line
    assert "kernel.dmesg_restrict = 1" in lines[0]


def test_gpu_devices(tmp_path: Path) -> None:
    """No driver is no fault; a driver without devices is a container that was not given them."""
    _one(checks.nvidia_devices(tmp_path, tmp_path), "note", "no NVIDIA driver")
    node_files.write(tmp_path / "driver/nvidia/version", "NVRM version: x\n")
    _one(checks.nvidia_devices(tmp_path, tmp_path), "mend", "has none of its devices", "--gpus all")
    for name in ("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm"):
        (tmp_path / name).touch()
    _one(checks.nvidia_devices(tmp_path, tmp_path), "well", "2 GPUs")


@pytest.mark.parametrize(
    ("clock", "state", "said"),
    [
        (None, "note", "does not tell"),
        (ClockState(synced=False, offset_s=0.0), "mend", "not synchronised"),
        (ClockState(synced=True, offset_s=-2.5), "mend", "-2.500 s off"),
        (ClockState(synced=True, offset_s=1e-5), "well", "synchronised"),
    ],
)
def test_clock(clock: ClockState | None, state: str, said: str) -> None:
    """As the kernel says."""
    _one(checks.clock_check(lambda: clock), state, said)


def test_room_on_the_disk(tmp_path: Path) -> None:
    """A spool that may grow beyond the disk is said before it does; a lake elsewhere is not ours to measure."""
    spool, lake = checks.room(_config(tmp_path, bus={"spool_dir": str(tmp_path / "a/b"), "spool_max_bytes": 1 << 60}))
    _one(spool, "mend", "lets it grow by", "lower bus.spool_max_bytes")
    assert lake.about == "lake"
    settings = {"bus": {"spool_dir": str(tmp_path), "spool_max_bytes": 1}, "lake": {"path": "s3://bucket/lake"}}
    (only,) = checks.room(parse(settings, "test"))
    _one(only, "well", "free")


# --- the bus ---


def test_spool_needs_no_broker(tmp_path: Path) -> None:
    """Nothing is asked of anybody."""
    (found,) = bus_checks(_config(tmp_path))
    _one(found, "well", "no broker is needed")


def _kafka(bootstrap: str) -> Config:
    return parse({"bus": {"kind": "kafka", "kafka": {"bootstrap": bootstrap, "connect_timeout_s": 5}}}, "test")


def test_broker_that_is_away_or_no_broker(tmp_path: Path) -> None:
    """Refused, or answering otherwise: the reason that a person can act on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (found,) = bus_checks(_kafka(f"127.0.0.1:{port}"))
    _one(found, "mend", "connection refused", "start the broker")
    (found,) = bus_checks(_kafka("nonsense"))
    _one(found, "mend", "is not host:port", "correct bus.kafka")


@pytest.mark.kafka
def test_real_broker_is_asked_and_left_as_it_is(new_broker: Any) -> None:
    """Without topics that is said and none is made; with them they are writable, and their clock is the broker's."""
    from graynode.pipeline.kafka import KafkaBus
    from graynode.service.wiring import kafka_settings

    config = _kafka(new_broker().address())
    bus = KafkaBus(kafka_settings(config))
    found = {c.about: c for c in bus_checks(config)}
    _one(found["broker"], "well", "lets us in (PLAINTEXT)")
    with bus._admin("list") as admin:
        assert not {topic for topic in admin.list_topics() if topic.startswith("graynode")}
    _one(found["topics"], "mend", "graynode.samples", "DESCRIBE and WRITE")
    bus.create_topics(1, 1)
    topics = [c for c in bus_checks(config) if c.about == "topics"]
    assert [c.state for c in topics] == ["well"]
    assert "graynode.events" in topics[0].said


@pytest.mark.parametrize(
    ("newest", "state", "said"),
    [(None, "note", "unknown"), (1020.0, "mend", "at least 20.0 s behind"), (1000.5, "well", "at least 0.500 s behind"),
     (995.0, "well", "ahead by no more than that")],
)  # fmt: skip
def test_brokers_clock(newest: float | None, state: str, said: str) -> None:
    """From the newest stamp alone: a bound, and called one."""
    _one(broker_clock(newest, 1000.0), state, said)


def test_all_checks_of_this_machine_come_to_an_end(tmp_path: Path) -> None:
    """None of them raises, whatever this machine is; each has a word, and what is to mend has a way out."""
    found = list(checks.node_checks(_config(tmp_path)))
    assert {c.about for c in found} >= {
        "versions",
        "agent",
        "state folder",
        "kernel log",
        "GPU devices",
        "clock",
        "spool",
    }
    assert all(c.said and (c.state != "mend" or c.way_out) for c in found)
