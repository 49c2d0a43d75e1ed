"""A GPU of the child: who it is, its readings and those of its MIG instances, and trying again when it is lost."""

# ruff: noqa: ANN401 (pynvml has no types)
from __future__ import annotations

import contextlib
from typing import Any, Final

import pynvml
from pynvml import NVMLError

from graynode.collectors.nvml.fields import CALLS, field_values
from graynode.collectors.nvml.gpu import GpuTrouble, Readings, Values, Watch
from graynode.collectors.nvml.mig import Parts
from graynode.collectors.nvml.nvlink_fields import LOOK_S
from graynode.collectors.nvml.nvlink_reading import Links, LinkSums
from graynode.collectors.nvml.place import domain_of, place_of
from graynode.collectors.nvml.wire import Gpu, Read, Setup, Unseen, mark

_FABRIC_COMPLETED: Final = 3
_SLOW: Final = 60
_RETRY: Final = 10
"""A GPU in trouble is tried again with this reading class."""


def found_devices(setup: Setup, count: int, driver: str, watch: Watch) -> tuple[list[Device], list[Unseen]]:
    """The GPUs to read, and those that NVML lists and gives no identity for; each costs itself only.

    A GPU is attached when its handle is asked for, so one that must not be touched is not asked for: by address
    where addresses are known, by index where it hung before its address was.
    """
    wanted: list[tuple[int, str]] = [(-1, bus) for bus in setup.only]
    if not wanted:
        wanted = [(index, "") for index in range(count) if index not in setup.skip_index]
    devices: list[Device] = []
    unseen: list[Unseen] = []
    for index, bus in wanted:
        watch.page[:] = mark(index if index >= 0 else len(devices) + len(unseen), "nvmlDeviceGetHandle")
        try:
            handle = _handle(index, bus)
            gpu = _identity(len(devices), index, handle)
        except NVMLError as error:
            watch.counts[error.value] += 1
            unseen.append(Unseen(index, bus, int(error.value)))
        else:
            devices.append(Device(gpu, handle, driver, setup, watch))
    return devices, unseen


def _handle(index: int, bus: str) -> Any:
    if bus:
        return pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def _identity(slot: int, index: int, handle: Any) -> Gpu:
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    return Gpu(
        slot,
        index,
        pynvml.nvmlDeviceGetUUID(handle),
        f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
        _text(pynvml.nvmlDeviceGetName, handle),
        _text(pynvml.nvmlDeviceGetSerial, handle),
        _text(pynvml.nvmlDeviceGetVbiosVersion, handle),
    )


def _text(function: Any, handle: Any) -> str:
    """A name that a GPU may lack (consumer boards have no serial) is empty, not an error."""
    try:
        return str(function(handle))
    except NVMLError:
        return ""


class Device:
    """One GPU, its instances and links included."""

    def __init__(self, gpu: Gpu, handle: Any, driver: str, setup: Setup, watch: Watch) -> None:
        self.gpu, self.handle = gpu, handle
        self._driver, self._setup, self._watch = driver, setup, watch
        self.new_handle = False
        """The handle has changed since somebody last looked: events are to be registered with it."""
        self._trouble: GpuTrouble | None = None
        self._mig: int | float = 0
        self._learn()

    def read(self, due: frozenset[int], *, watch_links: bool = False) -> Read:
        """The round's readings. A GPU in trouble is tried again, from its handle on, with the 10 s class."""
        if self._trouble is not None and _RETRY not in due:
            return self._in_trouble(self._trouble, 0.0)
        self._watch.max_s = 0.0
        try:
            if self._trouble is not None:
                self._return()
            read = self._read(due, watch_links=watch_links)
        except GpuTrouble as trouble:
            self._trouble = trouble
            return self._in_trouble(trouble, self._watch.max_s)
        self._trouble = None
        return read

    def finish(self, due: frozenset[int], read: Read) -> None:
        """Add the calls that take long by design, after every GPU's others."""
        if read.trouble:
            return
        try:
            read.values |= self._readings.read_sampled(due)
        except GpuTrouble as trouble:
            self._trouble = trouble
            read.trouble, read.where, read.values, read.parts = trouble.code, trouble.where, {}, []
            read.links = None
        read.errors |= self._readings.take_changed()

    def instances_changed(self) -> None:
        """The driver has said that its MIG instances are others now."""
        self._parts.changed = True

    def close(self) -> None:
        """Free what NVML allocated for it."""
        with contextlib.suppress(NVMLError):
            self._readings.close()
        self._parts.close()

    def _learn(self) -> None:
        setup, slot = self._setup, self.gpu.slot
        calls, batch = CALLS, field_values(self._driver)
        self._place: dict[str, str] | None = None
        self._readings = Readings(self.handle, slot, setup.every, self._watch, calls, batch)
        self._parts = Parts(self.handle, slot, setup.every, self._watch)
        self._links = LinkSums(Links(self.handle, slot, setup.links, self._watch), setup.every)

    def _return(self) -> None:
        """A GPU that was reset has a new handle and may support other calls."""
        self.close()
        try:
            self.handle = pynvml.nvmlDeviceGetHandleByPciBusId(self.gpu.bus.encode())
        except NVMLError as error:
            self._watch.failed(error, "nvmlDeviceGetHandleByPciBusId")
            raise GpuTrouble(int(error.value), "nvmlDeviceGetHandleByPciBusId") from error
        self.new_handle = True
        self._learn()

    def _read(self, due: frozenset[int], *, watch_links: bool) -> Read:
        values = self._readings.read(due)
        mode = values.get("mig_mode", self._mig)
        if mode != self._mig:  # instances come and go with the mode, and so does what the GPU itself supports
            self._mig = mode
            self.close()
            self._learn()
            values = self._readings.read(due)
        changed = self._readings.take_changed()
        if not values and changed:
            raise GpuTrouble(next(iter(changed.values())), "every call")
        read = Read(self.gpu.slot, 0, "", 0.0, values, changed)
        if watch_links or LOOK_S in due:
            self._read_links(read, due)
        if self._mig:
            read.parts = self._parts.read(due)
        read.facts = self._facts(values) if _SLOW in due else {}
        read.pids = self._readings.pids if "processes" in values else None
        read.max_ms = self._watch.max_s * 1e3
        return read

    def _read_links(self, read: Read, due: frozenset[int]) -> None:
        states = self._links.read(read.values, read.errors)
        if states is None or "state" not in self._setup.links:
            return
        read.links = self._links.links.read(states, due, read.values)
        read.link_errors = self._links.links.take_changed()

    def _in_trouble(self, trouble: GpuTrouble, max_s: float) -> Read:
        return Read(self.gpu.slot, trouble.code, trouble.where, max_s * 1e3, {}, {})

    def _facts(self, values: Values) -> dict[str, str]:
        """What changes rarely."""
        if self._place is None:
            self._place = place_of(self.handle)
        facts = dict(self._place)
        if values.get("fabric_state") == _FABRIC_COMPLETED:
            facts["domain"] = domain_of(self.handle)
        if self._mig:
            facts["mig_profile"] = self._parts.profiles
        return {name: value for name, value in facts.items() if value}
