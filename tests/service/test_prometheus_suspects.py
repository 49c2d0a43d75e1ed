"""What an import says at its end: who is to be looked at first, and what could not be judged."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import small_fleet
from fleet_series import gpu_series

from graynode.service.config import Config
from graynode.service.config_tables import LakeSection
from graynode.service.prometheus.command import Options, run

DAYS, STEP_S = 3, 1800
SLOW = '[[fault]]\nkind = "slow_gpu"\nnode = 2\ngpu = 3\nstart = "-22h"\nduration = "10d"\nsize = 0.12\n'
GROWING = '[[fault]]\nkind = "ecc_growth"\nnode = 1\ngpu = 1\nstart = "-22h"\nduration = "1d"\nsize = 300\n'


def told(
    new_server: Callable[..., Any], folder: Path, plan: str, capsys: pytest.CaptureFixture[str], jobs: bool
) -> str:
    fleet = small_fleet.fleet(plan, nodes=4)
    start = small_fleet.NOW - timedelta(days=DAYS)
    server = new_server("VictoriaMetrics", gpu_series(fleet, start, small_fleet.NOW, STEP_S, jobs=jobs))
    config = Config(cluster="prod", lake=LakeSection(path=str(folder / "lake")))
    asked = Options(url=server.url, since=f"{DAYS}d", step_s=float(STEP_S), rate=1000.0)
    assert run(config, asked, now=small_fleet.NOW) == 0
    server.stop()
    return capsys.readouterr().out


def places(said: str) -> list[str]:
    return re.findall(r"^ *\d+\. (.*)$", said, re.MULTILINE)


@pytest.mark.parametrize("jobs", [pytest.param(True, marks=pytest.mark.long), False])
def test_the_two_that_are_ill_come_first(
    new_metrics_server: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: bool
) -> None:
    """A slow GPU and one whose memory errors grow are the first two of 32, with reason, own value and peers', whether
    series name the jobs or not; what the exporter did not give is said with the metric that would."""
    said = told(new_metrics_server, tmp_path, SLOW + GROWING, capsys, jobs)
    first = places(said)[:2]
    assert sorted(first) == ["GPU 1 (0000:3b:00.0) on sim-001", "GPU 3 (0000:5d:00.0) on sim-002"]
    assert re.search(r"SM clock under load is? ?\d+\.\d% (lower|below)", said)
    assert re.search(r"corrected memory errors in \d+ of the last \d+ hours", said) or "before, in" in said
    assert "pending row remaps: no DCGM_FI_DEV_ROW_REMAP_PENDING" in said
    assert ("jobs: no series names one" in said) is not jobs


def test_of_a_healthy_fleet_nobody_is_named(new_metrics_server: Callable[..., Any], tmp_path: Path) -> None:
    """``graynode import --format prometheus --url …`` is all that it takes, and says that nobody stands out; the list
    goes to stdout. A file beside the server is one thing too many, and said so."""
    fleet = small_fleet.fleet("", nodes=4)
    start = small_fleet.NOW - timedelta(days=DAYS)
    server = new_metrics_server("VictoriaMetrics", gpu_series(fleet, start, small_fleet.NOW, STEP_S))
    command = [sys.executable, "-I", "-m", "graynode.service.cli", "import", "--format", "prometheus", "--step", "30m"]
    command += ["--url", server.url + "/", "--since", start.isoformat(), "--until", small_fleet.NOW.isoformat()]
    command += ["--lake", str(tmp_path / "lake"), "--rate", "500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rows stored in gpu_1h" in done.stdout
    assert f"Of 32 GPUs over {32 * 24 * DAYS:,} GPU-hours, none stands out" in done.stdout
    assert places(done.stdout) == []
    wrong = subprocess.run([*command, "a-file"], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert wrong.returncode == 2
    assert "reads a server" in wrong.stderr
    assert "Traceback" not in wrong.stderr
