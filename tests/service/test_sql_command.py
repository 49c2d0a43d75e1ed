"""``graynode sql`` as a person and a script start it."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from graynode.pipeline.lake import Lake

T = datetime(2026, 11, 2, 12, tzinfo=UTC)
COMMAND = [sys.executable, "-m", "graynode.service.cli", "sql"]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with three host rows, one of which knows no load."""
    rows = [{"ts": T + timedelta(seconds=i), "cluster": "c", "node_id": f"n{i}", "load1": load}
            for i, load in enumerate((0.5, None, 2.0))]  # fmt: skip
    Lake(str(tmp_path / "lake")).write("host", pl.DataFrame(rows))
    return tmp_path / "lake"


def sql(lake: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run to its end."""
    command = [*COMMAND, "--lake", str(lake), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


QUESTION = "SELECT ts, node_id, load1 FROM host ORDER BY ts"


@pytest.mark.parametrize("form", ["table", "csv", "json", "parquet"])
def test_an_answer_in_every_form(lake: Path, tmp_path: Path, form: str) -> None:
    """The same rows, null as null, into a file and, but for Parquet, to the terminal."""
    file = tmp_path / "answer"
    done = sql(lake, "-c", QUESTION, "--format", form, "--output", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    if form == "parquet":
        assert pq.read_table(file)["load1"].to_pylist() == [0.5, None, 2.0]
    elif form == "csv":
        with file.open(newline="") as lines:
            assert [row["load1"] for row in csv.DictReader(lines)] == ["0.5", "", "2.0"]
    elif form == "json":
        assert [json.loads(line)["load1"] for line in file.read_text().splitlines()] == [0.5, None, 2.0]
    else:
        assert "(3 rows)" in file.read_text()
    if form != "parquet":
        assert sql(lake, "-c", QUESTION, "--format", form).stdout.split() == file.read_text().split()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-c", "SELECT nothing FROM host"), "nothing"),
        (("-c", "SELEC 1"), "SELEC"),
        (("-c", "DELETE FROM host"), "read-only"),
        (("-c", "SELECT 1; SELECT 2"), "one statement at a time"),
        (("-c", "SELECT * FROM read_csv('/etc/passwd')"), "/etc/passwd"),
        (("-c", "COPY host TO '/tmp/stolen'"), "read-only"),
        (("-c", "SELECT 1", "--format", "parquet"), "--output FILE"),
        (("-c", "SELECT 1", "--format", "csv", "--output", "/nowhere/x.csv"), "/nowhere/x.csv: cannot be written"),
        (("-c", "SELECT 1", "--format", "parquet", "--output", "/nowhere/x"), "/nowhere/x: cannot be written"),
    ],
)
def test_a_wrong_question(lake: Path, words: tuple[str, ...], said: str) -> None:
    """It says what is wrong and ends with 1; nothing is changed, nothing else is read."""
    done = sql(lake, *words)
    assert done.returncode == 1
    assert done.stderr.startswith("graynode sql: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert Lake(str(lake)).read("host").height == 3


@contextmanager
def terminal(lake: Path, home: Path) -> Iterator[int]:
    """The prompt at a terminal of its own; its file descriptor."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "HOME": str(home), "TERM": "xterm"}
    with subprocess.Popen(
        [*COMMAND, "--lake", str(lake)], stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    ) as process:
        os.close(theirs)
        try:
            yield ours
            assert process.wait(20) == 0
        finally:
            process.kill()
            os.close(ours)


def heard(descriptor: int, *texts: str, timeout_s: float = 30) -> str:
    """All that was written, colours aside, as soon as these texts are there one after the other.

    It answers the terminal's question where the cursor is.
    """
    wanted, seen, end = ".*".join(re.escape(text) for text in texts), "", time.monotonic() + timeout_s
    while not re.search(wanted, plain := re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen), re.DOTALL):
        assert time.monotonic() < end, plain
        if select.select([descriptor], [], [], 0.2)[0]:
            piece = os.read(descriptor, 4096).decode(errors="replace")
            if "\x1b[6n" in piece:
                os.write(descriptor, b"\x1b[1;1R")
            seen += piece
    return plain


def test_the_prompt(lake: Path, tmp_path: Path) -> None:
    """Statements over lines until a semicolon, answers, errors that do not end it, Tab, Ctrl-D; and the next time what
    was asked is still known."""
    with terminal(lake, tmp_path) as keys:
        heard(keys, "graynode>")
        os.write(keys, b"SELECT count(*) AS hosts\r")
        heard(keys, "...>")
        os.write(keys, b"FROM host;\r")
        heard(keys, "hosts", "3", "rows)", "graynode>")
        os.write(keys, b"SELECT nothing FROM host;\r")
        heard(keys, "not found", "graynode>")
        os.write(keys, b"SELECT ts FROM gpu_3\t")
        heard(keys, "gpu_3", "0s")  # drawn whole or only what completion has added
        os.write(keys, b";\r")
        heard(keys, "(0 rows)", "graynode>")
        os.write(keys, b"\x04")
    assert "FROM host;" in (tmp_path / ".graynode_history").read_text()
    with terminal(lake, tmp_path) as keys:
        heard(keys, "graynode>")
        os.write(keys, b"\x1b[A")
        heard(keys, "gpu_30s;")
        os.write(keys, b"\x03")
        heard(keys, "graynode>")
        os.write(keys, b".quit\r")
