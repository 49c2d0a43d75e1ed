"""A GPU of the child: who it is, its readings and those of its MIG instances, and trying again when it is lost."""

# ruff: noqa: ANN401 (pynvml has no types)
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pynvml
from pynvml import NVMLError

from graynode.collectors.nvml_calls import fabric_v1, fabric_v2
from graynode.collectors.nvml_fields import CALLS, MIG_CALLS, field_values
from graynode.collectors.nvml_gpu import GpuTrouble, Readings, Watch
from graynode.collectors.nvml_wire import Gpu, Part, Read, Setup, Unseen, mark

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
            devices.append(Device(gpu, handle, driver, setup.every, watch))
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
    """One GPU, its instances included."""

    def __init__(self, gpu: Gpu, handle: Any, driver: str, every: Mapping[str, int], watch: Watch) -> None:
        self.gpu, self.handle = gpu, handle
        self._driver, self._every, self._watch = driver, every, watch
        self.new_handle = False
        """The handle has changed since somebody last looked: events are to be registered with it."""
        self._trouble: GpuTrouble | None = None
        self._mig: int | float = 0
        self._parts: dict[int, Readings] = {}
        self._readings = self._learn()

    def read(self, due: frozenset[int]) -> Read:
        """The round's readings. A GPU in trouble is tried again, from its handle on, with the 10 s class."""
        if self._trouble is not None and _RETRY not in due:
            return self._in_trouble(self._trouble, 0.0)
        self._watch.max_s = 0.0
        try:
            if self._trouble is not None:
                self._return()
            read = self._read(due)
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
        read.errors |= self._readings.take_changed()

    def close(self) -> None:
        """Free what NVML allocated for it."""
        for readings in (self._readings, *self._parts.values()):
            try:
                readings.close()
            except NVMLError:
                continue
        self._parts = {}

    def _learn(self) -> Readings:
        return Readings(self.handle, self.gpu.slot, self._every, self._watch, CALLS, field_values(self._driver))

    def _return(self) -> None:
        """A GPU that was reset has a new handle and may support other calls."""
        self.close()
        try:
            self.handle = pynvml.nvmlDeviceGetHandleByPciBusId(self.gpu.bus.encode())
        except NVMLError as error:
            self._watch.failed(error, "nvmlDeviceGetHandleByPciBusId")
            raise GpuTrouble(int(error.value), "nvmlDeviceGetHandleByPciBusId") from error
        self.new_handle = True
        self._readings = self._learn()

    def _read(self, due: frozenset[int]) -> Read:
        values = self._readings.read(due)
        mode = values.get("mig_mode", self._mig)
        if mode != self._mig:  # instances come and go with the mode, and so does what the GPU itself supports
            self._mig = mode
            self._readings.close()
            self._readings = self._learn()
            values = self._readings.read(due)
        changed = self._readings.take_changed()
        if not values and changed:
            raise GpuTrouble(next(iter(changed.values())), "every call")
        facts = self._facts(values) if _SLOW in due else {}
        parts = [Part(gi, readings.read(due)) for gi, readings in self._parts.items()]
        return Read(self.gpu.slot, 0, "", self._watch.max_s * 1e3, values, changed, parts, facts)

    def _in_trouble(self, trouble: GpuTrouble, max_s: float) -> Read:
        return Read(self.gpu.slot, trouble.code, trouble.where, max_s * 1e3, {}, {})

    # --- what changes rarely ---------------------------------------------------------------------------------

    def _facts(self, values: Mapping[str, int | float]) -> dict[str, str]:
        facts = {}
        if values.get("fabric_state") == _FABRIC_COMPLETED:
            facts["domain"] = self._domain()
        if self._mig:
            facts["mig_profile"] = self._find_parts()
        else:
            self._close_parts()
        return {name: value for name, value in facts.items() if value}

    def _domain(self) -> str:
        for read in (fabric_v2, fabric_v1):
            try:
                info = read(self.handle)
            except NVMLError:
                continue
            cluster = bytes(info.clusterUuid).hex()
            return f"{cluster}.{info.cliqueId}" if cluster.strip("0") else ""
        return ""

    def _find_parts(self) -> str:
        """Readings for each GPU instance; the profiles in order of their ids, such as ``3g.40gb,4g.40gb``."""
        handles: dict[int, Any] = {}
        for index in range(_mig_devices(self.handle)):
            try:
                handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, index)
                handles.setdefault(int(pynvml.nvmlDeviceGetGpuInstanceId(handle)), handle)
            except NVMLError:
                continue
        if handles.keys() != self._parts.keys():
            self._close_parts()
            self._parts = {
                gi: Readings(h, self.gpu.slot, self._every, self._watch, MIG_CALLS, parent=self.handle, gi=gi)
                for gi, h in sorted(handles.items())
            }
        names = (_text(pynvml.nvmlDeviceGetName, h) for _, h in sorted(handles.items()))
        return ",".join(name.rpartition(" MIG ")[2] for name in names)

    def _close_parts(self) -> None:
        for readings in self._parts.values():
            readings.close()
        self._parts = {}


def _mig_devices(handle: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except NVMLError:
        return 0
