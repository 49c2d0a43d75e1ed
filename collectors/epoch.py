"""The agent's epoch: how many times it has started on this machine, kept on disk.

With the batch sequence it makes every batch unique, so that what is sent twice is stored once. It must never
go back, hence the careful writing; and one agent at a time may use a state folder, hence the lock.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO, Final

_EPOCH: Final = "agent_epoch"
_LOCK: Final = "agent.lock"


class StateUnusable(Exception):
    """The agent's state folder cannot be used; the text says why and what to do."""


def lock_state(state_dir: Path) -> IO[str]:
    """Hold the folder for this process until the returned file is closed. ``StateUnusable`` if another has it."""
    path = state_dir / _LOCK
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        held = path.open("a+", encoding="ascii")
    except OSError as error:
        raise StateUnusable(_unwritable(state_dir, error)) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held.seek(0)
        owner = held.read().strip() or "unknown"
        held.close()
        raise StateUnusable(
            f"{state_dir} is in use by another agent (process {owner}); stop it, name another folder in "
            "agent.state_dir, or look without touching anything: --dry-run"
        ) from error
    held.truncate(0)
    held.write(f"{os.getpid()}\n")
    held.flush()
    return held


def next_epoch(state_dir: Path) -> int:
    """One more than the last epoch, durable before it is returned. ``StateUnusable`` if it cannot be kept.

    A damaged file would make old and new batches look alike, so the count is never guessed.
    """
    path = state_dir / _EPOCH
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="ascii", errors="replace").strip() if path.exists() else "0"
        if not text.isascii() or not text.isdigit():
            raise StateUnusable(
                f"{path} holds {text[:40]!r} where a count belongs; write a number there that is above every epoch "
                "this machine has used (the largest agent_epoch of its agent_start events)"
            )
        _write_durably(path, f"{int(text) + 1}\n")
    except OSError as error:
        raise StateUnusable(_unwritable(state_dir, error)) from error
    return int(text) + 1


def _write_durably(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    with new.open("w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _unwritable(state_dir: Path, error: OSError) -> str:
    return (
        f"agent.state_dir = {str(state_dir)!r} cannot be written: {error.strerror}; run as a user who may, or name "
        "another folder (agent.state_dir in the file, GRAYNODE_AGENT__STATE_DIR in the environment)"
    )
