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
        except (OSError, ValueError):
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
