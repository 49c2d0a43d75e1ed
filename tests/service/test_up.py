"""``graynode up`` as a newcomer runs it: set up, found, told, ended with Ctrl-C, taken up again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graynode.pipeline.lake import Lake
from graynode.pipeline.queries import Queries

GRAYNODE = Path(sys.executable).with_name("graynode")
FAULTS = """
[[fault]]
kind = "pcie_width"
start = "-20h"
size = 8

[[fault]]
kind = "gpu_lost"
start = "-30m"
"""


def start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    command = [str(GRAYNODE), "up", "--data", str(tmp_path / "data"), *words]
    env = {**os.environ, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def read_until(process: subprocess.Popen[str], word: str, timeout_s: float = 200) -> str:
    assert process.stdout is not None
    said, end = "", time.monotonic() + timeout_s
    while word not in said:
        line = process.stdout.readline()
        said += line
        assert line, f"it ended: {said}"
        assert time.monotonic() < end, said
    return said


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``graynode up`` over this test's folder; ends what still runs."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        started.append(start(tmp_path, *words))
        return started[-1]

    yield begin
    for process in started:
        with process:
            process.kill()


@pytest.mark.early
@pytest.mark.timeout(420)
def test_main_job_from_nothing_to_a_lake_that_stays(tmp_path: Path, up: Callable[..., subprocess.Popen[str]]) -> None:
    """Faults of a simulated fleet arrive through the webhook with lines to type; Ctrl-C leaves a lake that opens; the
    folder can be held once and taken up again."""
    (tmp_path / "faults.toml").write_text(FAULTS)
    process = up("--nodes", "6", "--days", "2", "--faults", str(tmp_path / "faults.toml"))
    said = read_until(process, "Watching")
    for cause in ("pcie_degraded", "gpu_lost"):  # on a busy machine it watches before it has caught up
        said += "" if cause in said else read_until(process, cause)
    assert "graynode explain" in said.replace("\n", "")
    assert "graynode sql" in said.replace("\n", "")
    second = up()
    assert second.stdout is not None
    assert "in use by another graynode up" in second.stdout.read()
    assert second.wait(30) == 2
    process.send_signal(signal.SIGINT)
    assert "The lake stays in" in read_until(process, "Ended")
    assert process.wait(60) == 0
    process = up("--once")
    assert "is taken up" in (again := read_until(process, "Ended"))
    assert "pcie_degraded" in again  # still open, though nobody tells it anew
    assert process.wait(60) == 0
    queries = Queries(Lake(str(tmp_path / "data" / "lake")))
    told = {(row["node"], row["cause"]) for row in queries.rows("SELECT node, cause FROM incident_now")}
    truth = [json.loads(line) for line in (tmp_path / "data" / "truth.jsonl").read_text().splitlines()]
    where = {fault["kind"]: fault["node"] for fault in truth}
    assert {(where["pcie_width"], "pcie_degraded"), (where["gpu_lost"], "gpu_lost")} <= told
    assert queries.rows("SELECT count(*) n FROM host WHERE node NOT LIKE 'sim-%'")[0]["n"] > 0
    queries.close()


def test_folder_that_cannot_be_written(tmp_path: Path, up: Callable[..., subprocess.Popen[str]]) -> None:
    """A data folder below a file is refused in one line with the way out."""
    (tmp_path / "data").write_text("")
    process = up()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "--data" in said
    assert "Traceback" not in said
