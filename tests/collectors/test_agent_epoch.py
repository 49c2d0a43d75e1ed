from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graynode.collectors.epoch import StateUnusable, lock_state, next_epoch


def test_epoch_counts_starts(tmp_path: Path) -> None:
    """Each start has an epoch of its own, in a folder that need not exist."""
    assert [next_epoch(tmp_path / "state") for _ in range(3)] == [1, 2, 3]


def test_epoch_survives_a_death_while_writing(tmp_path: Path) -> None:
    """What a killed agent left half-written beside the count is of no importance."""
    next_epoch(tmp_path)
    (tmp_path / "agent_epoch.new").write_text("9")
    assert next_epoch(tmp_path) == 2


@pytest.mark.parametrize("text", ["", "-1", "x", "³", "1.5"])
def test_damaged_epoch_is_not_guessed(tmp_path: Path, text: str) -> None:
    """Starting again at 1 would make new batches look like old ones and lose them: say it and the way out."""
    (tmp_path / "agent_epoch").write_text(text, encoding="utf-8")
    with pytest.raises(StateUnusable, match=r"agent_epoch.*write a number"):
        next_epoch(tmp_path)


def test_state_folder_that_cannot_be_made_names_the_key(tmp_path: Path) -> None:
    """A file where a folder belongs: the key, the value and what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StateUnusable, match=r"agent\.state_dir = .*/file/state'.*GRAYNODE_AGENT__STATE_DIR"):
        lock_state(tmp_path / "file" / "state")


def test_second_agent_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    """Two agents on one state folder would send the same batch numbers; the second says who has it."""
    code = (
        "import sys,pathlib;from graynode.collectors.epoch import lock_state;"
        "held=lock_state(pathlib.Path(sys.argv[1]));print('held',flush=True);sys.stdin.read()"
    )
    first = subprocess.Popen(
        [sys.executable, "-I", "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(StateUnusable, match=f"in use by another agent .process {first.pid}.*--dry-run"):
            lock_state(tmp_path)
        first.kill()
    with lock_state(tmp_path):
        assert (tmp_path / "agent.lock").read_text() == f"{os.getpid()}\n"
