"""Where a GPU is, in the child: its NVLink domain and its place in a rack. Absent where the platform has neither."""

# ruff: noqa: ANN401 (pynvml has no types)
from __future__ import annotations

import ctypes
from typing import Any, Final

import pynvml
from pynvml import NVMLError

from graynode.collectors.nvml.calls import fabric_v1, fabric_v2
from graynode.collectors.nvml.fields import WHOLE_GPU
from graynode.collectors.nvml.gpu import GpuTrouble

_NUMBERS: Final = (
    ("slot_number", "slotNumber"), ("tray_index", "trayIndex"), ("host_id", "hostId"), ("module_id", "moduleId"),
    ("peer_type", "peerType"),
)  # fmt: skip


def domain_of(handle: Any) -> str:
    """Cluster UUID and clique of the fabric that the GPU has joined: ``<32 hex digits>.<clique>``; empty for none.

    HGX systems register with their fabric manager and have no cluster UUID: it is all zeros there.
    """
    for read in (fabric_v2, fabric_v1):
        try:
            info = read(handle)
        except NVMLError as error:
            _whole(error, "nvmlDeviceGetGpuFabricInfo")
            continue
        cluster = bytes(info.clusterUuid).hex()
        return f"{cluster}.{info.cliqueId}" if cluster.strip("0") else ""
    return ""


def place_of(handle: Any) -> dict[str, str]:
    """Chassis serial number, slot, tray, host, module and peer type of a rack-scale system; empty elsewhere."""
    info = pynvml.c_nvmlPlatformInfo_v2_t()
    call = getattr(pynvml, "nvmlDeviceGetPlatformInfo", None)
    try:
        if call is None:
            return {}
        call(handle, ctypes.byref(info))
    except NVMLError as error:
        _whole(error, "nvmlDeviceGetPlatformInfo")
        return {}
    raw = bytes(info)  # pynvml's own attributes are texts, also where they hold a number
    at = type(info).chassisSerialNumber.offset
    serial = raw[at : at + 16].partition(b"\0")[0].decode("ascii", "replace").strip()
    if not serial.isprintable() or not serial:
        return {}
    return {"chassis_serial": serial, **{name: str(raw[getattr(type(info), part).offset]) for name, part in _NUMBERS}}


def _whole(error: NVMLError, where: str) -> None:
    if error.value in WHOLE_GPU:
        raise GpuTrouble(int(error.value), where) from error
