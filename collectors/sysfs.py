"""Small files of ``/sys`` and ``/proc``. Those read every second are kept open, read in place, opened again after an
error; none of them raises."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_SIZE: Final = 4096
"""A sysfs attribute is at most a page."""
_INT64_MAX: Final = 2**63 - 1


class SysFile:
    """One attribute. A file that is not there, cannot be read now or is empty is ``None``, never an error.

    Drivers answer EINVAL for a link that is down, "N/A (no PMA)" for counters that they lack, ENODEV on a file kept
    open over a device's removal.
    """

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._fd = -1

    def text(self) -> str | None:
        """The content without white space around it, ``None`` if there is none."""
        for again in (True, False):
            kept = self._fd >= 0
            try:
                if not kept:
                    self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                return os.pread(self._fd, _SIZE, 0).decode("utf-8", "replace").strip() or None
            except OSError:
                self.close()
                if not (kept and again):
                    return None
        return None

    def number(self) -> int | None:
        """The content as a whole number of 64 bits with sign, ``None`` if it is none."""
        text = self.text()
        try:
            value = int(text) if text else None
        except ValueError:
            return None
        return value if value is None or abs(value) <= _INT64_MAX else None

    def close(self) -> None:
        """Let go of the file; twice is as good as once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def names(folder: Path) -> list[str]:
    """What is in the folder, sorted; nothing if it is not there."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 (names are wanted, at 1 Hz)
    except OSError:
        return []


def whole_text(path: Path) -> str:
    """A file that may be longer than a page, such as ``/proc/stat``; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def text_of(path: Path) -> str | None:
    """An attribute read once."""
    file = SysFile(path)
    try:
        return file.text()
    finally:
        file.close()
