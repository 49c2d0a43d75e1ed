"""Binding the table of calls to pynvml, in the child; and the few readings that are more than one call."""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any, Final

import pynvml
from pynvml import NVMLError

from graynode.collectors.nvml_fields import Call, How
from graynode.collectors.nvml_wire import NOT_AVAILABLE

MAX_LINKS: Final = 36
_BLANK_32, _BLANK_64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_VALUE: Final = struct.Struct("<IIqqIIQ")
"""nvmlFieldValue_t: field, scope, time stamp, latency, value type, return code, value."""
_UNSIGNED_32, _UNSIGNED_64 = 1, (2, 3)
_FIELD_TYPES: Final = {0: "<d", _UNSIGNED_32: "<I", 4: "<q", 5: "<i", 6: "<H"}
_LINK_COUNT, _C2C_COUNT, _C2C_STATUS, _C2C_BANDWIDTH = 91, 170, 171, 172
_BER_MANTISSA, _BER_EXPONENT = 8, 0xFF


def converted(value: Any, how: How) -> int | float:  # noqa: ANN401 (what ctypes gives)
    """The contract's unit."""
    if how == "milli":
        return float(value) / 1000
    if how == "kib":
        return int(value) * 1024
    if how == "ber":
        # four bits of mantissa above eight of a negative decimal exponent; no arithmetic on the packed value
        return float(value >> _BER_MANTISSA & 0xF) * 10.0 ** -(value & _BER_EXPONENT)
    return value  # type: ignore[no-any-return]


def field_values(handle: Any, ids: list[tuple[int, int]]) -> list[tuple[int, int | float]]:  # noqa: ANN401
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


def bind(call: Call) -> Callable[[Any], tuple[int | float | None, ...]]:
    """A function of a device handle that gives the call's fields in order; raises ``NVMLError``.

    ``None`` stands for NVML's own blank: all bits of an unsigned result set, 32 or 64 by the call.
    """
    function = _OWN.get(call.function) or getattr(pynvml, call.function, None) or _absent
    args, how, blank = call.args, call.how, _BLANK_64 if call.wide else _BLANK_32

    def value(got: Any) -> int | float | None:  # noqa: ANN401
        return None if got == blank else converted(got, how)

    if not call.pick:
        return lambda handle: (value(function(handle, *args)),)
    pick: Callable[[Any], Any] = (
        attrgetter(*call.pick) if isinstance(call.pick[0], str) else itemgetter(*call.pick)  # type: ignore[arg-type]
    )
    if len(call.fields) == 1:
        return lambda handle: (value(pick(function(handle, *args))),)
    return lambda handle: tuple(map(value, pick(function(handle, *args))))


def _absent(*_: Any) -> Any:  # noqa: ANN401
    """Another version of pynvml may lack a name: the same to us as a library that lacks it."""
    raise NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def _memory_v2(handle: Any) -> Any:  # noqa: ANN401
    return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)


def _count_processes(handle: Any, version: int) -> int:  # noqa: ANN401
    return len(getattr(pynvml, f"nvmlDeviceGetComputeRunningProcesses_v{version}", _absent)(handle))


def _count_retired_pages(handle: Any, cause: int) -> int:  # noqa: ANN401
    return len(pynvml.nvmlDeviceGetRetiredPages(handle, cause))


def _sram_exceeded(handle: Any) -> int:  # noqa: ANN401
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, status)
    return int(status.bThresholdExceeded)


def fabric_v2(handle: Any) -> Any:  # noqa: ANN401
    """Fabric registration with its health mask."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(info))
    return info


def fabric_v1(handle: Any) -> Any:  # noqa: ANN401
    """Fabric registration as older drivers give it."""
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(handle, pynvml.byref(info))
    return info


def _links(handle: Any) -> range:  # noqa: ANN401
    code, count = field_values(handle, [(_LINK_COUNT, 0)])[0]
    return range(int(count)) if code == 0 and count <= MAX_LINKS else range(MAX_LINKS)


def _per_link(handle: Any, read: Callable[[int], int]) -> list[int]:  # noqa: ANN401
    """One value a link until the links end; raises what the first link says where there are none."""
    found: list[int] = []
    for link in _links(handle):
        try:
            found.append(read(link))
        except NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED):
                if found:
                    return found
                raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED) from error
            raise
    if not found:
        raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return found


def _nvlink_states(handle: Any) -> tuple[int, int, int]:  # noqa: ANN401
    """(active, inactive, asleep). State 3, active with traffic disabled, carries nothing and is in none of them."""
    states = _per_link(handle, lambda link: int(pynvml.nvmlDeviceGetNvLinkState(handle, link)))
    return states.count(1), states.count(0), states.count(2)


def _nvlink_error_sum(handle: Any, counter: int) -> int:  # noqa: ANN401
    return sum(_per_link(handle, lambda link: int(pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter))))


def _nvlink_field_sum(handle: Any, field: int) -> int:  # noqa: ANN401
    """The sum over links, for drivers that answer a link at a time only."""
    values = [int(v) for code, v in field_values(handle, [(field, link) for link in _links(handle)]) if code == 0]
    if not values:
        raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return sum(values)


def _c2c(handle: Any) -> tuple[int, int, int]:  # noqa: ANN401
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
    "@count_processes": _count_processes,
    "@count_retired_pages": _count_retired_pages,
    "@sram_exceeded": _sram_exceeded,
    "@fabric_v2": fabric_v2,
    "@fabric_v1": fabric_v1,
    "@nvlink_states": _nvlink_states,
    "@nvlink_error_sum": _nvlink_error_sum,
    "@nvlink_field_sum": _nvlink_field_sum,
    "@c2c": _c2c,
}
