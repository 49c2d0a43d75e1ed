"""What a collector must not forget between two lives of the agent: one small JSON file, replaced whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class StateFile:
    """A JSON object in ``state_dir``. A file that cannot be read or is no JSON object counts as none.

    A save that fails (disk full, read-only) must not cost the rows of the round: it is kept in ``trouble`` as
    one line with the path and the reason, until a save succeeds.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: str | None = None
        self._saved: str | None = None

    def load(self) -> dict[str, Any]:
        """The object last saved, ``{}`` without one."""
        try:
            loaded = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return loaded if isinstance(loaded, dict) else {}

    def save(self, content: dict[str, Any]) -> None:
        """Replace the file by ``content``; the same content twice is written once."""
        text = json.dumps(content, separators=(",", ":"))
        if text == self._saved:
            return
        beside = self.path.with_name(self.path.name + ".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(text, encoding="utf-8")
            os.replace(beside, self.path)  # noqa: PTH105 (the atomic rename is the point)
        except OSError as error:
            self.trouble = f"{self.path}: cannot be written: {error.strerror}; a restart will read again"
            return
        self.trouble, self._saved = None, text


class LastSeen:
    """One short line, written in place every second: when a source was last looked at.

    Replacing a file costs half a millisecond, writing into one some microseconds. A line that was cut is no line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def read(self) -> str:
        """What was last written, empty if nothing was."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return ""
        return text.partition("\n")[0] if "\n" in text else ""

    def write(self, line: str) -> None:
        """Keep this line instead. A disk that refuses is no matter: the state file beside says so."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._fd, f"{line}\n".encode(), 0)
        except OSError:
            self.close()

    def close(self) -> None:
        """Let go of the file; twice is as good as once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
