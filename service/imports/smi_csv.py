"""``nvidia-smi --query-gpu … --format=csv``: with or without units, with a header or with the query given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from graynode.service.imports.smi_capture import MOST_DEVICES, Capture
from graynode.service.imports.smi_fields import entries
from graynode.service.imports.smi_ledger import Ledger
from graynode.service.imports.smi_record import Device
from graynode.service.imports.smi_unused import unused

_UNIT: Final = re.compile(r" \[[^\]]{1,12}\]$")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.]{1,100}")
_OTHER_QUERIES: Final = {
    "pid": "--query-compute-apps or --query-accounted-apps: the contract counts processes only",
    "retired_pages.address": "--query-retired-pages: the contract has their number only, which --query-gpu gives",
}


def names_of(line: str) -> list[str] | None:
    """The query's names, lower case and without units, where the line is a header; else ``None``.

    At least two names, all of them words, and most of them known.
    """
    if not line[:1].isalpha():  # a row begins with a number, mostly its time
        return None
    cells = [_UNIT.sub("", cell.strip()) for cell in line.split(",")]
    if len(cells) < 2 or not all(_NAME.fullmatch(cell) for cell in cells):
        return None
    names = [canonical(cell) for cell in cells]
    known = sum(name in entries("csv") or name in _OTHER_QUERIES or unused("csv", name) is not None for name in names)
    return names if known * 2 > len(names) else None


def canonical(name: str) -> str:
    """The name as ``entries`` has it: drivers before 535 said throttle reasons for event reasons."""
    return name.strip().lower().replace("clocks_throttle_reasons", "clocks_event_reasons")


class CsvReader:
    """The rows under one header. Rows are one capture until a GPU comes again."""

    def __init__(self, names: Sequence[str], ledger: Ledger) -> None:
        self._names = names
        self._ledger = ledger
        self._who = next((i for i, n in enumerate(names) if n in ("uuid", "gpu_uuid", "index", "pci.bus_id")), None)
        self._seen: set[str] = set()
        self._capture = Capture("csv", "--query-gpu")
        self.refusal = next((why for name, why in _OTHER_QUERIES.items() if name in names), None)
        """Why these rows are another query's, which is not taken."""

    def row(self, line: str, *, cut: bool = False) -> Capture | None:
        """Read one row; gives the capture before, where this row begins another. ``cut``: the file ends in it."""
        cells = split_cells(line, len(self._names))
        if self.refusal is not None:
            self._ledger.refuse(self.refusal, len(cells))
            return None
        if len(cells) != len(self._names):
            reason = "the file ends in it" if cut else "not as many values as names in the header"
            self._ledger.refuse(f"of a row of --query-gpu: {reason}", len(cells))
            return None
        readings = list(zip(self._names, cells, strict=True))
        if cut:
            readings.pop()
            self._ledger.refuse("the last value of a file that ends without a line end: it may be cut")
        whole = None
        key = line if self._who is None else cells[self._who]
        if key in self._seen or len(self._capture.devices) >= MOST_DEVICES:
            whole = self.rest()
        self._seen.add(key)
        self._capture.devices.append(Device(readings))
        return whole

    def rest(self) -> Capture | None:
        """The rows since the last capture, as one."""
        held, self._capture, self._seen = self._capture, Capture("csv", "--query-gpu"), set()
        return held if held.devices else None


def split_cells(line: str, count: int) -> list[str]:
    """The values of a row: nvidia-smi writes comma and blank between them, and quotes nothing.

    A name of a product may have a comma without a blank, so the blank counts where that gives as many as the header.
    """
    spaced = line.split(", ")
    return [cell.strip() for cell in (spaced if len(spaced) == count else line.split(","))]
