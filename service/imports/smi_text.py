"""``nvidia-smi -q``: indented text. A line ``name : value`` is a value, a line without a colon begins a group."""

from __future__ import annotations

import re
from typing import Final

from graynode.service.imports.smi_capture import MOST_VALUES, Capture
from graynode.service.imports.smi_ledger import Ledger
from graynode.service.imports.smi_record import Device

BEGIN: Final = re.compile(r"^=+NVSMI LOG=+\s*$")
_GPU: Final = re.compile(r"^GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]\s*$")
_LINE: Final = re.compile(r"^( *)(\S.*?)(?: +: ?(.*)| *:)$|^( *)(\S.*?) *$")
_PART: Final = "mig device"
_DEEPEST: Final = 32


def ends(line: str) -> bool:
    """Whether a line is none of a log: not indented, no value and no GPU, so that what follows a log is not lost."""
    return bool(line.strip()) and not line[0].isspace() and " :" not in line and _GPU.match(line) is None


class TextReader:
    """One log. ``line`` by line; ``capture`` is what has been read."""

    def __init__(self, ledger: Ledger, most: int = MOST_VALUES) -> None:
        self._ledger = ledger
        self._stack: list[tuple[int, str]] = []
        self._device: Device | None = None
        self._part: Device | None = None
        self._left = self._most = most
        self.capture = Capture("text", "-q")

    def line(self, text: str) -> None:
        """Read a line of the log; an empty one says nothing."""
        if not text.strip():
            return
        if _GPU.match(text):
            self._device, self._part, self._stack = Device(), None, []
            self.capture.devices.append(self._device)
            return
        found = _LINE.match(text.replace("\t", "    "))
        self._left -= 1
        if found is None or self._left < 0:
            self._ledger.refuse("a line that is no value of -q" if found is None else f"beyond {self._most:,} in a log")
            return
        indent = len(found[1] if found[2] is not None else found[4])
        self._enter(indent, (found[2] if found[2] is not None else found[5]).strip().lower())
        if found[2] is not None:
            self._value((found[3] or "").strip())

    def _enter(self, indent: int, name: str) -> None:
        while self._stack and self._stack[-1][0] >= indent:
            self._stack.pop()
        if len(self._stack) < _DEEPEST:
            self._stack.append((indent, name[:100]))
        if self._device is None:
            return
        if name == _PART:
            self._part = Device()
            self._device.parts.append(self._part)
        elif self._part is not None and all(held != _PART for _, held in self._stack):
            self._part = None

    def _value(self, text: str) -> None:
        names = [name for _, name in self._stack]
        if self._part is not None:
            self._part.readings.append(("/".join(names[names.index(_PART) + 1 :]), text))
        elif self._device is not None:
            self._device.readings.append(("/".join(names), text))
        else:
            self.capture.shared.append(("/".join(names), text))
