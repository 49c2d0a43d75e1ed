"""``nvidia-smi -q -x``: XML of every schema, read by expat as it comes, with nothing fetched and nothing expanded.

Real files name a DTD that lies nowhere; it is not looked for. A document that declares entities of its own is refused
whole: nvidia-smi never does, and entities are how a few lines become gigabytes.
"""

from __future__ import annotations

import re
from typing import Final
from xml.parsers import expat

from graynode.service.imports.smi_capture import MOST_VALUES, Capture
from graynode.service.imports.smi_ledger import Ledger, Reading
from graynode.service.imports.smi_record import Device

_DEEPEST: Final = 32
_LONGEST_TEXT: Final = 64 << 10
_STALL: Final = 4 << 20
"""Characters without a tag or text: expat holds an unfinished tag in memory and reads it anew at every call."""
_DTD: Final = re.compile(r"nvsmi_device_(v\d+)\.dtd")
_ROOT: Final = "nvidia_smi_log"
_PART: Final = "mig_device"


class Hostile(Exception):
    """The document is no nvidia-smi's; the text is the reason that is counted."""


class XmlReader:
    """One document. ``feed`` it; ``capture`` is what was whole when it ended, well or not."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.EntityDeclHandler = self._entity
        self._parser.SkippedEntityHandler = self._skipped
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._data
        self._stack: list[str] = []
        self._leaf = False
        self._texts: list[str] = []
        self._length = self._since_event = self._values = 0
        self._device: Device | None = None
        self._part: Device | None = None
        self.capture = Capture("xml", "without DTD")
        self.whole = False
        """The document has ended well."""
        self.over = False
        """It has ended, or nothing more of it is read."""

    def feed(self, text: str) -> None:
        """Read on. What is wrong with the document is counted, and ends it."""
        if self.over:
            return
        self._since_event += len(text)
        try:
            self._parser.Parse(text, False)
            self._must_go_on()
        except expat.ExpatError as error:
            self._stop(f"not XML from here on: {expat.ErrorString(error.code)}")
        except Hostile as error:
            self._stop(str(error))

    def _must_go_on(self) -> None:
        if self._since_event > _STALL:
            raise Hostile(f"{_STALL >> 20} million characters without a tag")

    def close(self) -> None:
        """The file is at its end."""
        if not self.over:
            self._stop("cut: the file ends inside the document")

    # --- expat's calls ---------------------------------------------------------------------------------------

    def _doctype(self, _name: str, system: str | None, _public: str | None, _internal: bool) -> None:
        found = _DTD.search(system or "")
        self.capture.schema = f"schema {found[1]}" if found else "another DTD"

    def _entity(self, name: str, *_: object) -> None:
        raise Hostile(f"declares an entity ({name[:20]!r}): nvidia-smi never does")

    def _skipped(self, name: str, _is_parameter: bool) -> None:
        raise Hostile(f"uses an entity ({name[:20]!r}) that is declared nowhere")

    def _start(self, tag: str, _attributes: dict[str, str]) -> None:
        self._since_event = 0
        if len(self._stack) >= _DEEPEST:
            raise Hostile(f"deeper than {_DEEPEST} elements")
        if not self._stack and tag != _ROOT:
            raise Hostile(f"its root is {tag[:40]!r}, not {_ROOT}")
        self._stack.append(tag)
        self._leaf, self._texts, self._length = True, [], 0
        if self._stack == [_ROOT, "gpu"]:
            self._device = Device()
        elif tag == _PART and self._device is not None and self._part is None:
            self._part = Device()

    def _data(self, text: str) -> None:
        self._since_event = 0
        self._length += len(text)
        if self._length > _LONGEST_TEXT:
            raise Hostile(f"a value longer than {_LONGEST_TEXT >> 10} thousand characters")
        self._texts.append(text)

    def _end(self, tag: str) -> None:
        self._since_event = 0
        if self._leaf:
            self._value("".join(self._texts).strip())
        self._leaf = False
        self._stack.pop()
        if tag == _PART and self._part is not None and self._device is not None:
            self._device.parts.append(self._part)
            self._part = None
        elif self._stack == [_ROOT] and tag == "gpu" and self._device is not None:
            self.capture.devices.append(self._device)
            self._device = None
        self.over = self.whole = not self._stack

    def _value(self, text: str) -> None:
        self._values += 1
        if self._values > MOST_VALUES:
            raise Hostile(f"more than {MOST_VALUES:,} values in one document")
        into, names = self._where()
        into.append(("/".join(names), text))

    def _where(self) -> tuple[list[Reading], list[str]]:
        """The list that the value at hand belongs to, and its name below it."""
        if self._part is not None:
            return self._part.readings, self._stack[self._stack.index(_PART) + 1 :]
        if self._device is not None:
            return self._device.readings, self._stack[2:]
        return self.capture.shared, self._stack[1:]

    def _stop(self, reason: str) -> None:
        self.over = True
        unfinished = 0 if self._device is None else self._device.count()
        unfinished += 0 if self._part is None else self._part.count()
        of = "of a GPU whose part of the document is not whole" if unfinished else "XML"
        self._ledger.refuse(f"{of}: {reason}", max(unfinished, 1))
        self._device = self._part = None
