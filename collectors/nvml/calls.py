"""Binding the table of calls to pynvml, in the child; and the few readings that are more than one call."""

# ruff: noqa: ANN401 (pynvml has no types)
from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any, Final, cast

import pynvml
from pynvml import NVMLError

from graynode.collectors.nvml.fields import Call, How
from graynode.collectors.nvml.nvlink_fields import MAX_LINKS
from graynode.collectors.nvml.wire import NOT_AVAILABLE

_BLANK_32, _BLANK_64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_VALUE: Final = struct.Struct("<IIqqIIQ")
"""nvmlFieldValue_t: field, scope, time stamp, latency, value type, return code, value."""
_UNSIGNED_32, _UNSIGNED_64 = 1, (2, 3)
_FIELD_TYPES: Final = {0: "<d", _UNSIGNED_32: "<I", 4: "<q", 5: "<i", 6: "<H"}
_C2C_COUNT, _C2C_STATUS, _C2C_BANDWIDTH = 170, 171, 172
NO_SUCH_LINK: Final = (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED)
"""What NVML answers for a link number beyond the GPU's last."""
_BER_MANTISSA, _BER_EXPONENT = 8, 0xFF


def converted(value: Any, how: How) -> int | float:
    """The contract's unit."""
    if how == "milli":
        return float(value) / 1000
    if how == "kib":
        return int(value) * 1024
    if how == "mb_gbit":
        return float(value) * 8 / 1000
    if how == "ber":
        # four bits of mantissa above eight of a negative decimal exponent; no arithmetic on the packed value
        return float((value >> _BER_MANTISSA & 0xF) * 10.0 ** -(value & _BER_EXPONENT))
    return cast("int | float", value)


def field_values(handle: Any, ids: list[tuple[int, int]]) -> list[tuple[int, int | float]]:
    """(code, value) of each (field id, scope), in their order; one call. A blank is code ``NOT_AVAILABLE``."""
    got = pynvml.nvmlDeviceGetFieldValues(handle, ids)
    return [_typed(kind, code, value) for _, _, _, _, kind, code, value in _VALUE.iter_unpack(bytes(got))]


def _typed(kind: int, code: int, raw: int) -> tuple[int, int | float]:
    """What the eight bytes mean, by their own type: a 32-bit blank is a legal value of a 64-bit counter."""
    if code:
        return code, 0
    if kind in _UNSIGNED_64:
        return (NOT_AVAILABLE if raw == _BLANK_64 else 0), raw
    form = _FIELD_TYPES.get(kind)
    if form is None:
        return NOT_AVAILABLE, 0
    value: int | float = struct.unpack_from(form, raw.to_bytes(8, "little"))[0]
    return (NOT_AVAILABLE if kind == _UNSIGNED_32 and value == _BLANK_32 else 0), value


def bind(call: Call, function: Callable[..., Any]) -> Callable[[Any], tuple[int | float | None, ...]]:
    """A function of one device's handle that gives the call's fields in order; raises ``NVMLError``.

    ``None`` stands for NVML's own blank: all bits of an unsigned result set, 32 or 64 by the call. ``function`` is
    ``function_of(call.function)``.
    """
    args, how, blank = call.args, call.how, _BLANK_64 if call.wide else _BLANK_32

    def value(got: Any) -> int | float | None:
        return None if got == blank else converted(got, how)

    if not call.pick:
        return lambda handle: (value(function(handle, *args)),)
    pick: Callable[[Any], Any] = (
        attrgetter(*call.pick) if isinstance(call.pick[0], str) else itemgetter(*call.pick)  # type: ignore[arg-type]  # all names, or all places
    )
    if len(call.fields) == 1:
        return lambda handle: (value(pick(function(handle, *args))),)
    return lambda handle: tuple(map(value, pick(function(handle, *args))))


def _absent(*_: Any) -> Any:
    """Another version of pynvml may lack a name: the same to us as a library that lacks it."""
    raise NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def _memory_v2(handle: Any) -> Any:
    return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)


class Processes:
    """How many compute processes there are; ``pids`` are those of the last answer, ``None`` before there was one."""

    def __init__(self) -> None:
        self.pids: list[int] | None = None

    def __call__(self, handle: Any, version: int) -> int:
        """Their number."""
        self.pids = None
        running = getattr(pynvml, f"nvmlDeviceGetComputeRunningProcesses_v{version}", _absent)(handle)
        self.pids = sorted({int(process.pid) for process in running})
        return len(running)


def _count_retired_pages(handle: Any, cause: int) -> int:
    return len(pynvml.nvmlDeviceGetRetiredPages(handle, cause))


def _sram_exceeded(handle: Any) -> int:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return int(status.bThresholdExceeded)


def fabric_v2(handle: Any) -> Any:
    """Fabric registration with its health mask."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info


def fabric_v1(handle: Any) -> Any:
    """Fabric registration as older drivers give it."""
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return info


class _PerLink:
    """One value a link, of the links that there are: found at the first call by asking until the links end."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, read: Callable[[int], int]) -> list[int]:
        """The values. NOT_SUPPORTED where there is no link; other errors as they come."""
        found: list[int] = []
        for link in range(self._count or MAX_LINKS):
            try:
                found.append(read(link))
            except NVMLError as error:
                if self._count or error.value not in NO_SUCH_LINK:
                    raise
                break
        if not found:
            raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._count = len(found)
        return found


def _nvlink_error_sum() -> Callable[[Any, int], int]:
    per_link = _PerLink()

    def read(handle: Any, counter: int) -> int:
        return sum(per_link(lambda link: int(pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter))))

    return read


def _nvlink_field_sum() -> Callable[[Any, int], int]:
    """The sum over links, for drivers that answer a link at a time only."""
    links: list[int] = []

    def read(handle: Any, field: int) -> int:
        if not links:
            if field_values(handle, [(field, 0)])[0][0]:
                raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            answers = field_values(handle, [(field, link) for link in range(MAX_LINKS)])
            links.extend(link for link, (code, _) in enumerate(answers) if code == 0)
        answers = field_values(handle, [(field, link) for link in links])
        failed = next((code for code, _ in answers if code), 0)
        if failed:  # a sum that lacks a link would look like a reset
            raise NVMLError(failed if failed > 0 else pynvml.NVML_ERROR_NO_DATA)
        return sum(int(value) for _, value in answers)

    return read


def _c2c(handle: Any) -> tuple[int, int, int]:
    """(links, links that are up, MB/s of one link)."""
    code, count = field_values(handle, [(_C2C_COUNT, 0)])[0]
    if code or not 0 < count <= 64:
        raise NVMLError(code if code > 0 else pynvml.NVML_ERROR_NOT_SUPPORTED)
    scopes = range(int(count))
    status = field_values(handle, [(_C2C_STATUS, link) for link in scopes] + [(_C2C_BANDWIDTH, 0)])
    *states, (bandwidth_code, bandwidth) = status
    return int(count), sum(c == 0 and v == 1 for c, v in states), int(bandwidth) if not bandwidth_code else _BLANK_32


_OWN: Final[dict[str, Callable[..., Any]]] = {
    "@memory_v2": _memory_v2,
    "@count_retired_pages": _count_retired_pages,
    "@sram_exceeded": _sram_exceeded,
    "@fabric_v2": fabric_v2,
    "@fabric_v1": fabric_v1,
    "@c2c": _c2c,
}
_OWN_PER_GPU: Final[dict[str, Callable[[], Callable[..., Any]]]] = {
    "@processes": Processes,
    "@nvlink_error_sum": _nvlink_error_sum,
    "@nvlink_field_sum": _nvlink_field_sum,
}
"""Made anew for each GPU, because they remember something about it."""


def function_of(name: str) -> Callable[..., Any]:
    """What a call's name stands for, for one device."""
    if name in _OWN_PER_GPU:
        return _OWN_PER_GPU[name]()
    return _OWN.get(name) or getattr(pynvml, name, None) or _absent
