"""Switches of single fields, from the file to the collectors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from agent_fakes import machine

from graynode.collectors.context import JobContext
from graynode.collectors.health import Health
from graynode.service.agent_parts import Given, make_one
from graynode.service.config import ConfigError, load


def test_switches_reach_every_collector_that_has_fields(tmp_path: Path) -> None:
    """``[fields]`` is handed to nvml, infiniband and host alike."""
    file = tmp_path / "g.toml"
    file.write_text('[fields]\noff = ["host.load1", "link.symbol_*"]\nevery = { "gpu.pcie_replays" = 60 }\n')
    given = Given(load(file, env={}), machine(tmp_path), Health(lambda: 0.0), JobContext())
    made = make_one("host", given)
    assert made.switches.off >= {"host.load1", "link.symbol_errors"}
    assert made.switches.slower == {"gpu.pcie_replays": 60}
    assert make_one("nvml", given).collect is not None


def test_a_wrong_field_stops_the_start(tmp_path: Path) -> None:
    """The error names the key, what was written and the nearest field there is."""
    file = tmp_path / "g.toml"
    file.write_text('[fields]\noff = ["powr_w"]\n')
    with pytest.raises(ConfigError, match=r"fields.off: no field is called 'powr_w'; did you mean 'gpu.power_w'\?"):
        load(file, env={})
    file.write_text('[fields]\nevery = { power_w = "often" }\n')
    with pytest.raises(ConfigError, match=r"fields\.every"):
        load(file, env={})
    file.write_text('[fields]\noff = ["powr_w"]\n')
    told = subprocess.run(
        [str(Path(sys.executable).with_name("graynode")), "config", "check", "--config", str(file)],
        capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    assert told.returncode == 2
    assert "did you mean 'gpu.power_w'?" in told.stderr
