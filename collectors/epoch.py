"""The agent's epoch: how many times it has started on this machine, kept on disk.

With the batch sequence it makes every batch unique, so that what is sent twice is stored once. It must never
go back, hence the careful writing; and one agent at a time may use a state folder, hence the lock.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from graynode.pipeline.lock_file import LockFile, Taken

_EPOCH: Final = "agent_epoch"
LOCK: Final = "agent.lock"
"""File of the state folder that the agent which runs over it holds locked; its content is the process id."""


class StateUnusable(Exception):
    """The agent's state folder cannot be used; the text says why and what to do."""


def lock_state(state_dir: Path) -> LockFile:
    """Hold the folder for this process until what is returned is closed. ``StateUnusable`` if another has it."""
    try:
        return LockFile(state_dir / LOCK)
    except Taken as taken:
        raise StateUnusable(
            f"{state_dir} is in use by another agent (process {taken.owner}); stop it, name another folder in "
            "agent.state_dir, or look without touching anything: --dry-run"
        ) from taken
    except OSError as error:
        raise StateUnusable(_unwritable(state_dir, error)) from error


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
