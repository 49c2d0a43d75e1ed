"""Who holds a lock file, and that asking keeps nobody out."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from graynode.pipeline.lock_file import LockFile, Taken, owner_of


def test_owner_while_held_and_afterwards(tmp_path: Path) -> None:
    """The holder's process id, then nobody; a file that never was is no answer."""
    path = tmp_path / "lock"
    with pytest.raises(FileNotFoundError):
        owner_of(path)
    with LockFile(path):
        assert owner_of(path) == str(os.getpid())
        with pytest.raises(Taken, match=str(os.getpid())):
            LockFile(path)
    assert owner_of(path) is None


def test_a_look_keeps_nobody_out(tmp_path: Path) -> None:
    """One that starts while somebody looks waits the moment that the look takes."""
    path = tmp_path / "lock"
    path.touch()
    with path.open() as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        end = threading.Timer(0.08, fcntl.flock, (look.fileno(), fcntl.LOCK_UN))
        end.start()
        with LockFile(path):
            pass
        end.join()
