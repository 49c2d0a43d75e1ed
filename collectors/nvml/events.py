"""The NVML event set, in the child: Xids and the driver's other alarms, looked at once a round without waiting."""

# ruff: noqa: ANN401 (pynvml has no types)
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import pynvml
from pynvml import NVMLError

from graynode.collectors.nvml.device import Device
from graynode.collectors.nvml.gpu import Watch
from graynode.collectors.nvml.wire import Happening

# nvmlEventType bits of nvml.h. Left out: performance state and clock changes (0x4, 0x10), which are no news, and
# single corrected errors (0x1), which the counters tell without a flood.
WANTED: Final = 0x2 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000
MIG_CHANGE: Final = 0x100
_AT_MOST: Final = 64
"""Events taken in one round; the rest stay in the set for the next."""


class EventSet:
    """Events of all devices. Handles are kept by address: that of a lost GPU resolves nowhere any more."""

    def __init__(self, devices: Sequence[Device], watch: Watch) -> None:
        self._watch = watch
        self._slots = {_address(d.handle): d.gpu.slot for d in devices}
        self._set: Any = None
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except NVMLError as error:
            watch.counts[int(error.value)] += 1
            return
        for device in devices:
            self._register(device.handle)

    def follow(self, device: Device) -> None:
        """The device has another handle since it came back; its old one is still known."""
        if self._set is not None:
            self._slots[_address(device.handle)] = device.gpu.slot
            self._register(device.handle)

    def take(self) -> list[Happening]:
        """What has happened since the last time."""
        found: list[Happening] = []
        while self._set is not None and len(found) < _AT_MOST:
            try:
                data = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:  # GPU_IS_LOST too: the GPU's own reading will say so
                    self._watch.counts[int(error.value)] += 1
                break
            slot = self._slots.get(_address(data.device), -1)
            found.append(
                Happening(
                    slot,
                    data.eventType,
                    data.eventData,
                    _instance(data.gpuInstanceId),
                    _instance(data.computeInstanceId),
                )
            )
        return found

    def close(self) -> None:
        """Free the set."""
        events, self._set = self._set, None
        if events is not None:
            try:
                pynvml.nvmlEventSetFree(events)
            except NVMLError:
                return

    def _register(self, handle: Any) -> None:
        """What the GPU supports of what is wanted; one without events costs itself only."""
        try:
            types = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & WANTED
            if types:
                pynvml.nvmlDeviceRegisterEvents(handle, types, self._set)
        except NVMLError as error:
            self._watch.counts[int(error.value)] += 1


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _instance(number: int) -> int:
    """−1 for "any": all bits set."""
    return -1 if number == 0xFFFFFFFF else number
