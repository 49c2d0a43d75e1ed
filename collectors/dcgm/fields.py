"""Names that dcgm-exporter gives DCGM fields, and the fields of table ``gpu`` that they fill.

Names and ids are those of ``dcgm_fields.h``: of DCGM 4.6, which renamed 268 of them, of the releases before it, and
of the 1.x exporter (lower case). Kind and unit are the contract's, never the page's ``# TYPE``: pages call
``PROF_PCIE_TX_BYTES`` a counter, and it is a rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from graynode.pipeline.schema import FLOAT64_BLANK, INT32_BLANK, INT64_BLANK, TABLES, Field

MIB: Final = 1 << 20
_DEV: Final = "DCGM_FI_DEV_"
_PROF: Final = "DCGM_FI_PROF_"


@dataclass(frozen=True, slots=True)
class Column:
    """Where a metric goes: ``field`` of table ``gpu``, times ``scale``.

    ``low``/``high`` bound the value as the page gives it; blanks of the field's type lie outside. ``of_instance``: a
    MIG instance has a value of its own; of all other fields DCGM repeats the parent's.
    """

    field: str
    dcgm: int
    whole: bool
    """Whether the field holds integers."""
    low: float
    high: float
    scale: int = 1
    of_instance: bool = False
    flag: bool = False
    """A count of which the contract keeps whether there is any."""
    said: str = ""
    """Its newest name, for reasons."""
    off: bool = False
    """Switched off in the configuration."""

    def switched_off(self) -> Column:
        """The same, with no value that would be taken."""
        return replace(self, off=True, low=float("inf"), high=float("-inf"))


@dataclass(frozen=True, slots=True)
class Foreign:
    """A metric that fills no field, and why."""

    name: str
    reason: str


NOT_IN_CONTRACT: Final = "not in the contract"
_ONLY_LEVEL: Final = "the last Xid, which never clears: events come from the kernel log or NVML"
_LEFT_OUT: Final[Mapping[str, str]] = {
    f"{_DEV}XID_ERROR": _ONLY_LEVEL,
    f"{_DEV}XID_ERRORS": _ONLY_LEVEL,
    "dcgm_xid_errors": _ONLY_LEVEL,
    "DCGM_EXP_XID_ERRORS_COUNT": "counts what the exporter has seen in its own window, not events",
    f"{_DEV}NVLINK_SYMBOL_BER_RAW": "packed; the decoded ratio is read",
    f"{_DEV}NVLINK_COUNT_SYMBOL_BER": "packed; the decoded ratio is read",
    f"{_DEV}NVLINK_EFFECTIVE_BER_RAW": "packed; the decoded ratio is read",
    f"{_DEV}NVLINK_COUNT_EFFECTIVE_BER": "packed; the decoded ratio is read",
    f"{_DEV}C2C_LINK_STATUS": "a status, where the contract counts links that are up",
    f"{_DEV}NVLINK_GET_STATE": "per link",
}

_ECC: Final = {
    f"ECC_{kind}_{scope}_{place}": first + offset
    for place, volatile, aggregate in (
        ("L1", 314, 324), ("L2", 316, 326), ("DEV", 318, 328), ("REG", 320, 330), ("TEX", 322, 332),
        ("SHM", 334, 338), ("CBU", 336, 340), ("SRM", 342, 344),
    )
    for scope, first in (("VOL", volatile), ("AGG", aggregate))
    for offset, kind in enumerate(("SBE", "DBE"))
}  # fmt: skip

_DEVICE_NAMES: Final[Mapping[int, str]] = {
    100: "SM_CLOCK", 101: "MEM_CLOCK", 110: "APP_SM_CLOCK", 111: "APP_MEM_CLOCK",
    112: "CLOCKS_EVENT_REASONS CLOCK_THROTTLE_REASONS", 113: "MAX_SM_CLOCK", 114: "MAX_MEM_CLOCK",
    140: "MEMORY_TEMP_CELSIUS MEMORY_TEMP", 150: "GPU_TEMP_CELSIUS GPU_TEMP",
    151: "MEMORY_MAX_OP_TEMP_CELSIUS MEM_MAX_OP_TEMP", 152: "GPU_MAX_OP_TEMP_CELSIUS GPU_MAX_OP_TEMP",
    153: "GPU_TEMP_MARGIN_CELSIUS GPU_TEMP_LIMIT", 158: "GPU_TEMP_SLOWDOWN_CELSIUS SLOWDOWN_TEMP",
    159: "GPU_TEMP_SHUTDOWN_CELSIUS SHUTDOWN_TEMP",
    155: "BOARD_POWER_WATTS POWER_USAGE", 156: "TOTAL_ENERGY_CONSUMPTION",
    157: "BOARD_POWER_RAW_WATTS POWER_USAGE_INSTANT",
    160: "BOARD_POWER_LIMIT_REQUESTED_WATTS POWER_MGMT_LIMIT",
    161: "BOARD_POWER_LIMIT_MIN_WATTS POWER_MGMT_LIMIT_MIN", 162: "BOARD_POWER_LIMIT_MAX_WATTS POWER_MGMT_LIMIT_MAX",
    163: "BOARD_POWER_LIMIT_DEFAULT_WATTS POWER_MGMT_LIMIT_DEF",
    164: "BOARD_POWER_LIMIT_ENFORCED_WATTS ENFORCED_POWER_LIMIT",
    170: "FABRIC_MANAGER_STATUS", 171: "FABRIC_MANAGER_ERROR FABRIC_MANAGER_ERROR_CODE", 174: "FABRIC_HEALTH_MASK",
    190: "GPU_PSTATE PSTATE",
    200: "PCIE_TX_THROUGHPUT", 201: "PCIE_RX_THROUGHPUT", 202: "PCIE_REPLAY_TOTAL PCIE_REPLAY_COUNTER",
    203: "GPU_UTIL_RATIO GPU_UTIL", 204: "MEM_COPY_UTIL",
    235: "PCIE_MAX_LINK_GEN", 236: "PCIE_MAX_LINK_WIDTH", 237: "PCIE_LINK_GEN", 238: "PCIE_LINK_WIDTH",
    240: "POWER_VIOLATION", 241: "THERMAL_VIOLATION", 242: "SYNC_BOOST_VIOLATION", 243: "BOARD_LIMIT_VIOLATION",
    244: "LOW_UTIL_VIOLATION", 245: "RELIABILITY_VIOLATION", 246: "TOTAL_APP_CLOCKS_VIOLATION",
    247: "TOTAL_BASE_CLOCKS_VIOLATION",
    250: "FB_TOTAL", 251: "FB_FREE", 252: "FB_USED", 253: "FB_RESERVED",
    285: "C2C_LINK_QUANTITY C2C_LINK_COUNT", 287: "C2C_MAX_BANDWIDTH",
    300: "ECC_MODE ECC_CURRENT", 301: "ECC_PENDING",
    310: "ECC_SBE_VOL_TOTAL", 311: "ECC_DBE_VOL_TOTAL", 312: "ECC_SBE_AGG_TOTAL", 313: "ECC_DBE_AGG_TOTAL",
    346: "SRAM_EXCEEDED THRESHOLD_SRM",
    385: "BANK_REMAP_AVAIL_MAX BANKS_REMAP_ROWS_AVAIL_MAX", 386: "BANK_REMAP_AVAIL_HIGH BANKS_REMAP_ROWS_AVAIL_HIGH",
    387: "BANK_REMAP_AVAIL_PARTIAL BANKS_REMAP_ROWS_AVAIL_PARTIAL",
    388: "BANK_REMAP_AVAIL_LOW BANKS_REMAP_ROWS_AVAIL_LOW", 389: "BANK_REMAP_AVAIL_NONE BANKS_REMAP_ROWS_AVAIL_NONE",
    390: "PAGE_RETIRED_SBE_TOTAL RETIRED_SBE", 391: "PAGE_RETIRED_DBE_TOTAL RETIRED_DBE",
    392: "PAGE_RETIRED_PENDING RETIRED_PENDING",
    393: "ROW_REMAP_UNCORRECTABLE_TOTAL UNCORRECTABLE_REMAPPED_ROWS",
    394: "ROW_REMAP_CORRECTABLE_TOTAL CORRECTABLE_REMAPPED_ROWS",
    395: "ROW_REMAP_FAILED ROW_REMAP_FAILURE", 396: "ROW_REMAP_PENDING",
    409: "NVLINK_CRC_FLIT_ERROR_TOTAL NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    419: "NVLINK_CRC_DATA_ERROR_TOTAL NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    429: "NVLINK_REPLAY_ERROR_TOTAL NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    439: "NVLINK_RECOVERY_ERROR_TOTAL NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    1201: "NVLINK_TX_BYTES_TOTAL NVLINK_COUNT_TX_BYTES", 1203: "NVLINK_RX_BYTES_TOTAL NVLINK_COUNT_RX_BYTES",
    1204: "NVLINK_RX_PACKET_MALFORMED_TOTAL NVLINK_COUNT_RX_MALFORMED_PACKET_ERRORS",
    1205: "NVLINK_RX_PACKET_DROPPED_TOTAL NVLINK_COUNT_RX_BUFFER_OVERRUN_ERRORS",
    1206: "NVLINK_RX_ERROR_TOTAL NVLINK_COUNT_RX_ERRORS",
    1207: "NVLINK_RX_REMOTE_ERROR_TOTAL NVLINK_COUNT_RX_REMOTE_ERRORS",
    1208: "NVLINK_RX_GENERAL_ERROR_TOTAL NVLINK_COUNT_RX_GENERAL_ERRORS",
    1209: "NVLINK_INTEGRITY_ERROR_TOTAL NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
    1210: "NVLINK_COUNT_TX_DISCARDS",
    1211: "NVLINK_RECOVERY_SUCCESSFUL_TOTAL NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS",
    1212: "NVLINK_RECOVERY_FAILED_TOTAL NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
    1213: "NVLINK_RECOVERY_EVENT_TOTAL NVLINK_COUNT_LINK_RECOVERY_EVENTS",
    1214: "NVLINK_RX_SYMBOL_ERROR_TOTAL NVLINK_COUNT_RX_SYMBOL_ERRORS",
    1216: "NVLINK_SYMBOL_BER_RATIO NVLINK_COUNT_SYMBOL_BER_FLOAT",
    1218: "NVLINK_EFFECTIVE_BER_RATIO NVLINK_COUNT_EFFECTIVE_BER_FLOAT",
    1219: "NVLINK_EFFECTIVE_ERROR_TOTAL NVLINK_COUNT_EFFECTIVE_ERRORS",
    1220: "NVLINK_ECC_ERROR_TOTAL NVLINK_ECC_DATA_ERROR_COUNT_TOTAL",
    1420: "CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", 1421: "CLOCKS_EVENT_REASON_SYNC_BOOST_COUNT_NS",
    1422: "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", 1423: "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS",
    1424: "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",
    1501: "PCIE_CORRECTABLE_ERROR_TOTAL PCIE_COUNT_CORRECTABLE_ERRORS",
    1523: "GPU_RECOVERY_ACTION GET_GPU_RECOVERY_ACTION",
    **{id_: name for name, id_ in _ECC.items()},
}  # fmt: skip
_PROFILING_NAMES: Final[Mapping[int, str]] = {
    1001: "GR_ENGINE_UTIL_RATIO GR_ENGINE_ACTIVE", 1002: "SM_UTIL_RATIO SM_ACTIVE",
    1003: "SM_OCCUPANCY_RATIO SM_OCCUPANCY", 1004: "TENSOR_UTIL_RATIO PIPE_TENSOR_ACTIVE",
    1005: "DRAM_UTIL_RATIO DRAM_ACTIVE", 1006: "FP64_UTIL_RATIO PIPE_FP64_ACTIVE",
    1007: "FP32_UTIL_RATIO PIPE_FP32_ACTIVE", 1008: "FP16_UTIL_RATIO PIPE_FP16_ACTIVE",
    1009: "PCIE_TX_BYTES", 1010: "PCIE_RX_BYTES", 1011: "NVLINK_TX_BYTES", 1012: "NVLINK_RX_BYTES",
}  # fmt: skip
_NAMES_1X: Final[Mapping[int, str]] = {
    100: "dcgm_sm_clock", 101: "dcgm_memory_clock", 140: "dcgm_memory_temp", 150: "dcgm_gpu_temp",
    155: "dcgm_power_usage", 156: "dcgm_total_energy_consumption", 200: "dcgm_pcie_tx_throughput",
    201: "dcgm_pcie_rx_throughput", 202: "dcgm_pcie_replay_counter", 203: "dcgm_gpu_utilization",
    204: "dcgm_mem_copy_utilization", 240: "dcgm_power_violation", 241: "dcgm_thermal_violation",
    242: "dcgm_sync_boost_violation", 243: "dcgm_board_limit_violation", 244: "dcgm_low_util_violation",
    245: "dcgm_reliability_violation", 251: "dcgm_fb_free", 252: "dcgm_fb_used",
    310: "dcgm_ecc_sbe_volatile_total", 311: "dcgm_ecc_dbe_volatile_total", 312: "dcgm_ecc_sbe_aggregate_total",
    313: "dcgm_ecc_dbe_aggregate_total", 390: "dcgm_retired_pages_sbe", 391: "dcgm_retired_pages_dbe",
    392: "dcgm_retired_pages_pending", 409: "dcgm_nvlink_flit_crc_error_count_total",
    419: "dcgm_nvlink_data_crc_error_count_total", 429: "dcgm_nvlink_replay_error_count_total",
    439: "dcgm_nvlink_recovery_error_count_total", 1001: "dcgm_fi_prof_gr_engine_active",
    1002: "dcgm_fi_prof_sm_active", 1003: "dcgm_fi_prof_sm_occupancy", 1004: "dcgm_fi_prof_pipe_tensor_active",
    1005: "dcgm_fi_prof_dram_active", 1009: "dcgm_fi_prof_pcie_tx_bytes", 1010: "dcgm_fi_prof_pcie_rx_bytes",
}  # fmt: skip
_WITHOUT_ID: Final[Mapping[str, str]] = {
    f"{_DEV}GPU_PERSISTENCE_MODE": "persistence_mode", f"{_DEV}PERSISTENCE_MODE": "persistence_mode",
    f"{_DEV}MIG_MODE": "mig_mode",
}  # fmt: skip
"""Fields whose source id in the contract is NVML's (66 and 67 in DCGM)."""
_IN_MIB: Final = range(250, 254)
_FLAGS: Final = frozenset({392})
_OF_INSTANCE: Final = frozenset((*_IN_MIB, *_PROFILING_NAMES))
"""What DCGM measures per GPU instance; of everything else it repeats what it measures of the GPU."""


def names_of(dcgm: int) -> tuple[str, ...]:
    """The names under which pages have had a field, the newest first; empty where the field is not read."""
    new = [_DEV + name for name in _DEVICE_NAMES.get(dcgm, "").split()]
    new += [_PROF + name for name in _PROFILING_NAMES.get(dcgm, "").split()]
    return (*new, *_NAMES_1X.get(dcgm, "").split())


def column(name: str) -> Column | Foreign:
    """What becomes of a metric of that name."""
    return COLUMNS.get(name) or Foreign(name, _LEFT_OUT.get(name, NOT_IN_CONTRACT))


def _columns() -> Iterator[tuple[str, Column]]:
    by_name = {f.name: f for f in TABLES["gpu"].fields}
    by_id = {f.dcgm: f for f in TABLES["gpu"].fields if f.dcgm is not None}
    for dcgm in {**_DEVICE_NAMES, **_PROFILING_NAMES}:
        made = _column(by_id[dcgm], dcgm)
        yield from ((name, made) for name in names_of(dcgm))
    yield from ((name, _column(by_name[field], 0)) for name, field in _WITHOUT_ID.items())


def _column(field: Field, dcgm: int) -> Column:
    low, high = _legal(field)
    scale, flag = MIB if dcgm in _IN_MIB else 1, dcgm in _FLAGS
    high = INT32_BLANK[0] - 1 if flag else high // scale if scale > 1 else high
    whole = field.type in ("int32", "int64")
    said = (names_of(dcgm) or (field.name,))[0]
    return Column(field.name, dcgm, whole, low, high, scale, dcgm in _OF_INSTANCE, flag, said)


def _legal(field: Field) -> tuple[float, float]:
    """Bounds of what the device can mean, below all blanks of the field's own type."""
    low = field.lo if field.lo is not None else (0 if field.kind in ("counter", "bits") else -(2**31))
    top = {"int32": INT32_BLANK[0] - 1, "int64": INT64_BLANK[0] - 1}.get(field.type, FLOAT64_BLANK[0] - 1)
    return low, top if field.hi is None else min(field.hi, top)


COLUMNS: Final[Mapping[str, Column]] = dict(_columns())
"""Columns by metric name."""
