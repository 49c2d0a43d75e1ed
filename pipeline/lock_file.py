"""One process at a time: a lock file that says who holds it. The kernel frees it at any death."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_TRIES: Final = 5
_PAUSE_S: Final = 0.05
"""Who asks for the owner (``owner_of``) holds the file for some microseconds, which must keep nobody out."""


class Taken(Exception):
    """Another process holds the lock. ``owner`` is its id, or ``unknown``."""

    def __init__(self, path: Path, owner: str) -> None:
        super().__init__(f"{path} is held by process {owner}")
        self.owner = owner


class LockFile:
    """Held from the moment it is made until it is closed. ``Taken``; ``OSError`` where the file cannot be opened.

    The folder is made where there is none. A full disk leaves the lock without its owner's id, never without effect.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(self._fd)
        except BlockingIOError as error:
            owner = _owner(self._fd)
            self.close()
            raise Taken(path, owner) from error
        except BaseException:
            self.close()
            raise
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def close(self) -> None:
        """Let go; twice is as good as once."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def owner_of(path: Path) -> str | None:
    """Who holds the lock file, ``unknown`` where it does not say; ``None`` where nobody does.

    ``FileNotFoundError`` where there never was one, ``PermissionError`` where it may not be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(fd)
    finally:
        os.close(fd)
    return None


def _lock(fd: int) -> None:
    for left in range(_TRIES - 1, -1, -1):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _owner(fd: int) -> str:
    return os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
