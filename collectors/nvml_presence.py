"""Is a GPU well, hung, lost, or are we blind? NVML's word alone loses no GPU: a second witness must agree.

The witnesses are the PCI bus as sysfs shows it, and the kernel log. 500 nodes that lose NVML in one minute are one
driver or container event, and no GPU of theirs is sick.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from graynode.collectors.nvml_fields import RESET_REQUIRED, words
from graynode.collectors.nvml_plausible import Plausible
from graynode.collectors.nvml_rows import Teller
from graynode.collectors.nvml_wire import Gpu

State = Literal["well", "blind", "reset", "hung", "lost"]
_NVIDIA: Final = "0x10de"
_DISPLAY: Final = "0x03"
_ALL_ONES: Final = b"\xff\xff\xff\xff"


def pci_gpus(sys: Path) -> list[str]:
    """PCI addresses of the NVIDIA display controllers that sysfs lists."""
    found = []
    for device in sorted((sys / "bus/pci/devices").glob("*")):
        if _read(device / "vendor") == _NVIDIA and _read(device / "class").startswith(_DISPLAY):
            found.append(device.name)
    return found


def pci_says(sys: Path, bus: str) -> tuple[bool | None, str]:
    """(gone, words): whether the bus has lost the GPU; ``None`` where sysfs cannot tell."""
    devices = sys / "bus/pci/devices"
    if not devices.is_dir():
        return None, "sysfs shows no PCI bus here"
    if not (devices / bus).exists():
        return True, f"{bus} is not on the PCI bus"
    try:
        with (devices / bus / "config").open("rb") as config:
            head = config.read(4)
    except OSError as error:
        return None, f"{bus} is listed, its configuration space cannot be read: {error.strerror}"
    if head == _ALL_ONES:
        return True, f"{bus} answers all ones: it has fallen off the PCI bus"
    return False, f"{bus} answers on the PCI bus"


@dataclass(slots=True)
class Known:
    """A GPU of this node. ``uuid`` is empty for one that NVML lists and never identified."""

    gpu: Gpu
    state: State = "well"
    said: str = ""
    told: bool = False
    fields: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Fields that have no value now: quality state and NVML code."""
    plausible: Plausible = field(default_factory=Plausible)
    facts: dict[str, str] = field(default_factory=dict)
    inventory: str = ""

    @property
    def entity(self) -> str:
        """What names it in rows: its UUID, or its address as long as that is all there is."""
        return self.gpu.uuid or self.gpu.bus


@dataclass(slots=True)
class _Turn:
    """A change of one GPU's state, to be told."""

    known: Known
    before: State
    attributes: dict[str, str]


class Presence:
    """The GPUs of this node and what became of them. ``sys`` is where sysfs is."""

    def __init__(self, sys: Path) -> None:
        self._sys = sys
        self.gpus: dict[str, Known] = {}
        self._kernel: dict[str, str] = {}
        self._turns: list[_Turn] = []

    def kernel_says(self, bus: str, line: str) -> None:
        """The kernel log said that this GPU is lost."""
        self._kernel[bus] = line

    def well(self, known: Known) -> None:
        """NVML has read it."""
        if known.state != "well":
            self._kernel.pop(known.gpu.bus, None)
            self._turn(known, "well", {"was": known.said})
        known.said = ""

    def unwell(self, known: Known, code: int, said: str, *, hung: bool = False) -> None:
        """NVML could not read it. A GPU that was lost stays lost until it is read again."""
        if known.state == "lost":
            return
        gone, pci = pci_says(self._sys, known.gpu.bus)
        kernel = self._kernel.get(known.gpu.bus)
        state: State = "hung" if hung else "reset" if code == RESET_REQUIRED else "blind"
        if gone or kernel:
            state = "lost"
        if state != known.state or known.said != said:
            known.said = said
            self._turn(known, state, {"nvml": said, "pci": pci, "kernel_log": kernel or "nothing"})

    def missing(self, listed: Iterable[str], hung: Iterable[str]) -> list[Known]:
        """GPUs known here that are neither listed nor left out because they hang."""
        seen = {*listed, *hung}
        return [k for k in self.gpus.values() if k.gpu.bus not in seen]

    def tell(self, teller: Teller) -> None:
        """Events and quality rows for what has changed since the last time. If all are blind, that is one event."""
        turns, self._turns = self._turns, []
        blind = [t for t in turns if t.known.state == "blind" and t.before == "well"]
        back = [t for t in turns if t.known.state == "well" and t.before == "blind"]
        for group, kind, message in (
            (blind, "nvml_blind", "NVML reads no GPU"),
            (back, "nvml_back", "NVML reads the GPUs again"),
        ):
            if len(group) > 1 and len(group) == len(self.gpus):
                buses = ",".join(t.known.gpu.bus for t in group)
                teller.event(
                    kind, f"{message}: {group[0].known.said or 'all of them'}", gpus=buses, **group[0].attributes
                )
            else:
                for turn in group:
                    _event(teller, kind, turn)
        for turn in turns:
            if turn not in blind and turn not in back:
                _event(teller, _KIND[turn.known.state], turn)
            state, reason = _quality(turn.known)
            teller.quality(turn.known.entity, "*", state, reason)

    def _turn(self, known: Known, state: State, attributes: dict[str, str]) -> None:
        if state != known.state:
            self._turns.append(_Turn(known, known.state, attributes))
        known.state = state


_KIND: Final = {
    "well": "gpu_returned", "blind": "nvml_blind", "reset": "gpu_reset_required", "hung": "gpu_hung", "lost": "gpu_lost",
}  # fmt: skip
_MESSAGES: Final = {
    "nvml_blind": "NVML does not read this GPU and no other witness says that it is lost",
    "nvml_back": "NVML reads this GPU again",
    "gpu_returned": "the GPU is back",
    "gpu_reset_required": "the driver wants this GPU reset before it can be read",
    "gpu_hung": "a call to this GPU does not return; NVML was left and starts without it",
    "gpu_lost": "the GPU is lost: NVML and a second witness agree",
}


def _event(teller: Teller, kind: str, turn: _Turn) -> None:
    gpu = turn.known.gpu
    attributes = {**turn.attributes, "before": turn.before}
    teller.event(kind, _MESSAGES[kind], gpu_uuid=gpu.uuid or None, pci_bus_id=gpu.bus or None, **attributes)


def _quality(known: Known) -> tuple[str, str]:
    if known.state == "well":
        return "measured", ""
    return ("lost" if known.state == "lost" else "error"), known.said


def said(code: int, where: str) -> str:
    """What NVML said, and which call."""
    return f"{where}: {words(code)}" if where else words(code)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
