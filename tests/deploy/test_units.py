"""The systemd units: they verify, they give little away, and what they name is really there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import command_line
import pytest

from graynode.service.config import DEFAULT_PATH, Config
from graynode.service.init_steps import USER

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("graynode-*.service"))
ALL = sorted(DEPLOY.rglob("graynode-*.service"))
ROLES = ("agent", "pipeline", "detect", "respond", "serve")
EXPOSED = {"graynode-agent": 3.5, "graynode-report": 3.0}
"""Largest exposure that systemd-analyze may reckon, of ten; others: 2. The agent reads the kernel log and devices."""


def settings(unit: Path) -> dict[str, list[str]]:
    """Values by key, in order."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if re.match(r"[A-Za-z]+=", line):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.fixture(scope="module")
def systemd_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder with systemd's own units, ours, and the programs that ours start."""
    if shutil.which("systemd-analyze") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("systemd-analyze not found", pytrace=False)
        pytest.skip("systemd-analyze not found: apt-get install -y --no-install-recommends systemd")
    root = tmp_path_factory.mktemp("root")
    shutil.copytree("/usr/lib/systemd/system", root / "usr/lib/systemd/system", symlinks=True)
    (root / "etc/systemd/system").mkdir(parents=True)
    for unit in [*ALL, *DEPLOY.rglob("*.timer")]:
        shutil.copy(unit, root / "etc/systemd/system")
    (root / "opt/graynode/bin").mkdir(parents=True)
    for name in ("graynode", "python"):
        program = root / "opt/graynode/bin" / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    return root


def test_every_role_has_a_unit() -> None:
    """One each, called after its role."""
    assert {f"graynode-{role}" for role in ROLES} <= {unit.stem for unit in UNITS}


@pytest.mark.parametrize("unit", ALL, ids=lambda unit: unit.stem)
def test_unit_verifies(systemd_root: Path, unit: Path) -> None:
    """systemd itself has nothing to say against it."""
    ended = subprocess.run(
        ["systemd-analyze", f"--root={systemd_root}", "verify", unit.name],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    ours = [line for line in (ended.stdout + ended.stderr).splitlines() if "graynode" in line]
    assert ours == []


@pytest.mark.parametrize("unit", ALL, ids=lambda unit: unit.stem)
def test_unit_gives_little_away(systemd_root: Path, unit: Path) -> None:
    """systemd's own reckoning of what the unit could do to the machine stays low."""
    ended = subprocess.run(
        ["systemd-analyze", f"--root={systemd_root}", "security", "--offline=true", "--no-pager", unit.name],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", ended.stdout)
    assert level is not None, ended.stdout + ended.stderr
    assert float(level[1]) <= EXPOSED.get(unit.stem, 2.0)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_starts_what_there_is(unit: Path) -> None:
    """The command parses with the real command line; file, user and folders are the configuration's defaults."""
    (start,) = settings(unit)["ExecStart"]
    words = start.split()
    if words[0].endswith("/python"):
        assert words[1:3] == ["-m", "graynode.service.agent_main"]
        words = ["graynode", "agent", *words[3:]]
    assert command_line.problem(words[1:]) == ""
    if "--config" in words:
        assert words[words.index("--config") + 1] == str(DEFAULT_PATH)
    assert settings(unit)["User"] == settings(unit)["Group"] == [USER]
    for state in settings(unit).get("StateDirectory", []):
        assert str(Config().agent.state_dir) == f"/var/lib/{state}"


@pytest.mark.parametrize("unit", [u for u in UNITS if u.stem != "graynode-agent"], ids=lambda unit: unit.stem)
def test_server_roles_have_no_rights(unit: Path) -> None:
    """No capability, no new one, a file system that is read-only but for its own, bounded memory."""
    said = settings(unit)
    assert said["CapabilityBoundingSet"] == said["AmbientCapabilities"] == [""]
    assert (said["NoNewPrivileges"], said["ProtectSystem"], said["PrivateDevices"]) == (["yes"], ["strict"], ["yes"])
    assert said["MemoryMax"]


def test_the_agent_has_just_two_capabilities() -> None:
    """Those that docs/agent.md gives a reason for, and a bound on memory, tasks and weight."""
    said = settings(DEPLOY / "graynode-agent.service")
    assert said["CapabilityBoundingSet"] == said["AmbientCapabilities"] == ["CAP_SYSLOG CAP_DAC_READ_SEARCH"]
    assert (said["MemoryMax"], said["TasksMax"], said["CPUWeight"]) == (["256M"], ["64"], ["20"])
    assert said["Restart"] == ["always"]


@pytest.mark.parametrize("unit", [u for u in UNITS if u.stem.removeprefix("graynode-") in ROLES], ids=lambda u: u.stem)
def test_roles_come_back(unit: Path) -> None:
    """They start again whatever they died of, and never give up."""
    said = settings(unit)
    assert (said["Restart"], said["StartLimitIntervalSec"], said["KillMode"]) == (["always"], ["0"], ["mixed"])
