"""Is a GPU well, hung, lost, or are we blind? NVML's word alone loses no GPU: a second witness must agree.

The witnesses are the PCI bus as sysfs shows it, and the kernel log. 500 nodes that lose NVML in one minute are one
driver or container event, and no GPU of theirs is sick.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from graynode.collectors.nvml.fields import RESET_REQUIRED, words
from graynode.collectors.nvml.plausible import Plausible
from graynode.collectors.nvml.rows import Teller
from graynode.collectors.nvml.wire import Gpu, Unseen
from graynode.collectors.pci import is_nvidia_gpu
from graynode.collectors.sysfs import names

State = Literal["well", "blind", "reset", "hung", "lost"]
_HEARD_ROUNDS: Final = 60
"""Rounds in which NVML still reads a GPU that the kernel log called lost, before that is no news any more."""
_ALL_ONES: Final = b"\xff\xff\xff\xff"


def pci_gpus(sys: Path) -> list[str]:
    """PCI addresses of the NVIDIA display controllers that sysfs lists."""
    devices = sys / "bus/pci/devices"
    return [name for name in names(devices) if is_nvidia_gpu(devices / name)]


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


@dataclass(slots=True, eq=False)
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
    link_fields: dict[str, int] = field(default_factory=dict)
    """The same of its links, by NVML code."""
    parts: dict[int, str] = field(default_factory=dict)
    """Its MIG instances and their profiles, as told."""
    part_fields: dict[tuple[int, str], str] = field(default_factory=dict)
    mig: int = 0
    inventory: str = ""

    @property
    def entity(self) -> str:
        """What names it in rows: its UUID, or its address as long as that is all there is."""
        return self.gpu.uuid or self.gpu.bus


@dataclass(slots=True, eq=False)
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
        self._kernel: dict[str, tuple[str, int]] = {}
        self._turns: list[_Turn] = []

    def kernel_says(self, bus: str, line: str) -> None:
        """The kernel log said that this GPU is lost."""
        self._kernel[bus] = (line, _HEARD_ROUNDS)

    def well(self, known: Known) -> None:
        """NVML has read it."""
        if self._kernel:
            self._forget(known)
        if known.state != "well":
            self._turn(known, "well", {"was": known.said})
        known.said = ""

    def unwell(self, known: Known, code: int, said: str, *, hung: bool = False) -> None:
        """NVML could not read it. A GPU that was lost stays lost until it is read again."""
        if known.state == "lost":
            return
        gone, pci = pci_says(self._sys, known.gpu.bus)
        kernel, _ = self._kernel.get(known.gpu.bus, ("", 0))
        state: State = "hung" if hung else "reset" if code == RESET_REQUIRED else "blind"
        if gone or kernel:
            state = "lost"
        if state != known.state or known.said != said:
            known.said = said
            self._turn(known, state, {"nvml": said, "pci": pci, "kernel_log": kernel or "nothing"})

    def identified(self, gpu: Gpu) -> Known:
        """The record of a GPU that a child has identified. One known by address only becomes this; another GPU that
        was at its address is no longer here."""
        nameless = self.gpus.pop(gpu.bus, None)
        for key in [k for k, known in self.gpus.items() if known.gpu.bus == gpu.bus and k != gpu.uuid]:
            del self.gpus[key]
        known = self.gpus.setdefault(gpu.uuid, nameless or Known(gpu))
        if gpu.index < 0:  # found by its address; it keeps the index under which it was listed
            gpu.index = known.gpu.index
        known.gpu = gpu
        return known

    def place(
        self, unseen: Sequence[Unseen], listed: Collection[str], hung: Collection[str]
    ) -> list[tuple[Known, Unseen]]:
        """Which GPUs those are that NVML lists and gives no handle for.

        By address or former index; else by what PCI has beyond those listed, where the numbers agree (a container
        may see more of the bus than is its own).
        """
        free = [bus for bus in pci_gpus(self._sys) if bus not in listed and bus not in hung]
        placed: list[tuple[Known, Unseen]] = []
        for one in unseen:
            known = next((k for k in self.gpus.values() if _same(k, one) and k.gpu.bus not in listed), None)
            if known is None and (one.bus or len(free) == len(unseen)):
                bus = one.bus or free[len(placed)]
                known = self.gpus.setdefault(bus, Known(Gpu(-1, one.index, "", bus, "", "", "")))
            if known is not None:
                placed.append((known, one))
        return placed

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
                details = {"gpus": ",".join(t.known.gpu.bus for t in group), **group[0].attributes}
                teller.event(kind, f"{message}: {group[0].known.said or 'all of them'}", details=details)
            else:
                for turn in group:
                    _event(teller, kind, turn)
        for turn in turns:
            if turn not in blind and turn not in back:
                _event(teller, _KIND[turn.known.state], turn)
            state, reason = _quality(turn.known)
            teller.quality(turn.known.entity, "*", state, reason)

    def _forget(self, known: Known) -> None:
        """What the kernel log said is no witness any more: the GPU came back, or was read for long since."""
        line, left = self._kernel.get(known.gpu.bus, ("", 0))
        if known.state != "well" or left <= 1:
            self._kernel.pop(known.gpu.bus, None)
        else:
            self._kernel[known.gpu.bus] = (line, left - 1)

    def _turn(self, known: Known, state: State, attributes: dict[str, str]) -> None:
        if state != known.state:
            self._turns.append(_Turn(known, known.state, attributes))
        known.state = state


_KIND: Final = {
    "well": "gpu_returned", "blind": "nvml_blind", "reset": "gpu_reset_required", "hung": "gpu_hung",
    "lost": "gpu_lost",
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
    details = {**turn.attributes, "before": turn.before}
    teller.event(kind, _MESSAGES[kind], gpu_uuid=gpu.uuid or None, pci_bus_id=gpu.bus or None, details=details)


def _quality(known: Known) -> tuple[str, str]:
    if known.state == "well":
        return "measured", ""
    return ("lost" if known.state == "lost" else "error"), known.said


def _same(known: Known, unseen: Unseen) -> bool:
    return known.gpu.bus == unseen.bus if unseen.bus else known.gpu.index == unseen.index


def said(code: int, where: str) -> str:
    """What NVML said, and which call."""
    return f"{where}: {words(code)}" if where else words(code)
