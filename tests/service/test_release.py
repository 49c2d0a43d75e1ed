"""``graynode agent release``: the command, the agent that runs, and the file between them."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nvml_rig
import nvml_standin
import pytest
from agent_process import AgentProcess

from graynode.collectors.epoch import lock_state
from graynode.collectors.health import children
from graynode.detectors.event_rules import from_events
from graynode.detectors.incidents import Incidents
from graynode.service import release
from graynode.service.config import ConfigError, load
from graynode.service.release import duration

GRAYNODE = Path(sys.executable).with_name("graynode")


def graynode(*words: str, **keywords: Any) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    return subprocess.run(
        [str(GRAYNODE), *words], capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"}, **keywords
    )


@pytest.mark.nvml
def test_release_and_resume_of_a_running_agent(tmp_path: Path) -> None:
    """The command answers with the end, the agent's child is gone from then on and over a restart of the agent, and
    no incident comes of it; ``resume`` brings it back at once."""
    scenario = nvml_standin.h100(tmp_path / "scenario", gpus=2).write()
    with AgentProcess(tmp_path, {"collectors": ["nvml", "host"]}) as agent:
        device = tmp_path / "nvidia0"
        device.touch()
        agent.env = nvml_standin.build(nvml_rig.CACHE).env(scenario.path) | {"NVML_STANDIN_DEVICE": str(device)}
        pid = agent.start()
        agent.until(lambda: agent.rows("gpu"))
        assert set(holders(device)) == set(children(Path("/proc"), pid))
        assert holders(device)

        told = graynode("agent", "release", "--for", "30m", "--reason", "new driver", "--config", str(agent.config))
        assert told.returncode == 0, told.stderr
        assert "NVML is let go of until" in told.stdout
        assert holders(device) == []
        scenario.set("gone", 1, 1).write()  # taken away while nobody looks

        assert agent.stop() == 0
        pid = agent.start()
        agent.until(lambda: _kinds(agent).count("nvml_released") == 2)
        assert holders(device) == []

        scenario.set("gone", 0, 1).write()
        told = graynode("agent", "--config", str(agent.config), "resume")
        assert (told.returncode, told.stdout) == (0, "graynode: NVML is read again\n")
        gpus = len(agent.rows("gpu"))
        agent.until(lambda: len(agent.rows("gpu")) > gpus)
        assert holders(device)
        assert agent.stop() == 0
        kinds = _kinds(agent)
        assert kinds.count("nvml_resumed") == 1
        assert not {"gpu_lost", "nvml_blind", "gpu_hung"} & set(kinds)
        findings = from_events([{"raw": None, "code": None, "message": None, **e} for e in agent.rows("event")])
        assert Incidents("test").add(findings, datetime.now(UTC)) == []
        planned = [q for q in agent.rows("quality") if q["field"] == "*" and q["state"] == "paused"]
        assert all(q["reason"].startswith("planned: ") and "new driver" in q["reason"] for q in planned)
        assert {q["entity"] for q in planned} >= {scenario.uuid(0), scenario.uuid(1)}


def holders(device: Path) -> list[int]:
    """Processes that have the file open: what ``fuser`` shows, and what a driver refuses a reset for."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.readlink() == device:
                found.append(int(link.parts[2]))
    return found


def _kinds(agent: AgentProcess) -> list[str]:
    return [row["kind"] for row in agent.rows("event")]


def _config(folder: Path, collectors: str = '["nvml", "host"]') -> Path:
    file = folder / "graynode.toml"
    file.write_text(f'[agent]\nstate_dir = "{folder}/state"\ncollectors = {collectors}\n')
    return file


def test_no_agent_is_running(tmp_path: Path) -> None:
    """Without an agent, before it ever ran and after it has ended, that is said with code 3; no request is left."""
    config = _config(tmp_path)
    for _ in range(2):
        told = graynode("agent", "release", "--for", "1m", "--config", str(config))
        assert told.returncode == 3
        assert "no agent is running here" in told.stderr
        (tmp_path / "state").mkdir(exist_ok=True)
        (tmp_path / "state/agent.lock").write_text("999999\n")
    assert sorted(p.name for p in (tmp_path / "state").iterdir()) == ["agent.lock"]


def test_an_agent_that_does_not_answer(tmp_path: Path) -> None:
    """An agent that is stuck is named after the wait; the request is withdrawn, so that it blinds no node later."""
    config = load(_config(tmp_path), env={})
    with lock_state(tmp_path / "state"):
        assert release.release(config, "1m", wait_s=0.3) == 1
        assert not (tmp_path / "state/nvml_release.json").exists()
        without = load(_config(tmp_path, '["host"]'), env={})
        assert release.resume(without, wait_s=0.3) == 3


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_no_permission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever may not write the agent's folder may not blind it: said with the way out, and code 2."""
    config = load(_config(tmp_path), env={})
    with lock_state(tmp_path / "state"):
        (tmp_path / "state").chmod(0o755)
        os.seteuid(65534)
        try:
            code = release.release(config, "1m", wait_s=0.3)
        finally:
            os.seteuid(0)
    assert code == 2
    assert "no permission; run as root or as the agent's user" in capsys.readouterr().err
    assert not (tmp_path / "state/nvml_release.json").exists()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernel names no file for a write that finds no room: then the folder is named, and code 1: not done."""
    config = load(_config(tmp_path), env={})

    def full(path: Path, content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(release, "write", full)
    with lock_state(tmp_path / "state"):
        assert release.release(config, "1m", wait_s=0.3) == 1
    said = capsys.readouterr().err
    assert said == f"graynode: {tmp_path}/state: No space left on device; nothing was asked of the agent\n"


def test_coming_back_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no request can be written the one in force is taken away, which is what the agent looks at."""
    config = load(_config(tmp_path), env={})

    def full(path: Path, content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(release, "write", full)
    with lock_state(tmp_path / "state"):
        request = tmp_path / "state/nvml_release.json"
        request.write_text("{}")
        assert release.resume(config, wait_s=0.3) == 0
    assert not request.exists()
    assert capsys.readouterr().out == (
        f"graynode: {tmp_path}/state is full: the release is withdrawn, and the agent reads NVML again\n"
    )


def test_durations() -> None:
    """Hours, minutes and seconds, up to a day; anything else is said with what would do."""
    assert duration("30m") == timedelta(minutes=30)
    assert duration("1h30m") == timedelta(minutes=90)
    for wrong in ("30", "m", "0s", "25h", "-5m", "1d", "30 m", "9" * 5000 + "h", ""):
        with pytest.raises(ConfigError, match="--for"):
            duration(wrong)
