"""From NVML calls to contract fields, as data; and which field ids a driver version has.

Nothing here imports pynvml: the child binds the names. A call that a driver or GPU lacks is replaced by its
``instead``, where there is one, before the field counts as unsupported. Ids and structures follow the bindings
of nvidia-ml-py 13.615.71; where branches differ, the comment says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

How = Literal["as_is", "milli", "kib", "ber", "mb_gbit"]
ALL_LINKS: Final = 0xFFFFFFFF
"""Scope of NVLink field values that asks for the sum over links (DCGM asks the same way)."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function of pynvml (or, with ``@``, of ``nvml.calls``) and the fields that its result fills.

    ``pick`` names attributes or places of the result, field by field; empty means the result itself. ``wide``: the
    results have 64 bits, which decides what their blank is. ``sampled`` marks calls that take some 20 ms by
    design: they come last in a round and say nothing about latency.
    """

    function: str
    fields: tuple[str, ...]
    args: tuple[int, ...] = ()
    pick: tuple[str | int, ...] = ()
    how: How = "as_is"
    wide: bool = False
    instead: Call | None = None
    sampled: bool = False


@dataclass(frozen=True, slots=True)
class FieldValue:
    """A field id of nvmlDeviceGetFieldValues, read in one batch per GPU. ``id`` 0: this driver has none."""

    field: str
    id: int
    scope: int = 0
    how: How = "as_is"
    instead: Call | FieldValue | None = None


def _one(field: str, function: str, *args: int, how: How = "as_is", instead: Call | None = None) -> Call:
    return Call(function, (field,), args, how=how, instead=instead)


def _wide(field: str, function: str, *args: int, instead: Call | None = None) -> Call:
    return Call(function, (field,), args, wide=True, instead=instead)


_MEMORY: Final = ("mem_total_bytes", "mem_free_bytes", "mem_used_bytes", "mem_reserved_bytes")
_PLACES: Final = (
    ("l1", 0),
    ("l2", 1),
    ("device", 2),
    ("register", 3),
    ("texture", 4),
    ("shared", 5),
    ("cbu", 6),
    ("sram", 7),
)
_ERROR_KINDS: Final = (("sbe", 0), ("dbe", 1))
_SCOPES: Final = (("volatile", 0), ("aggregate", 1))
_POLICIES: Final = (
    ("power", 0), ("thermal", 1), ("sync_boost", 2), ("board_limit", 3), ("low_utilisation", 4), ("reliability", 5),
    ("app_clocks", 10), ("base_clocks", 11),
)  # fmt: skip

PROCESSES: Final = _one("processes", "@processes", 3, instead=_one("processes", "@processes", 2))
"""Their number; who they are is kept beside it (``calls.Processes``)."""
MEMORY: Final = Call(
    "@memory_v2", _MEMORY, pick=("total", "free", "used", "reserved"), wide=True,
    instead=Call("nvmlDeviceGetMemoryInfo", _MEMORY[:3], pick=("total", "free", "used"), wide=True),
)  # fmt: skip
_REMAPS: Final = ("row_remaps_correctable", "row_remaps_uncorrectable", "row_remap_pending", "row_remap_failed")
_BANKS: Final = ("max", "high", "partial", "low", "none")

CALLS: Final[tuple[Call, ...]] = (
    _one("sm_clock_mhz", "nvmlDeviceGetClockInfo", 1),
    _one("mem_clock_mhz", "nvmlDeviceGetClockInfo", 2),
    _wide(
        "clock_event_reasons", "nvmlDeviceGetCurrentClocksEventReasons",
        instead=_wide("clock_event_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    ),
    _one("app_sm_clock_mhz", "nvmlDeviceGetApplicationsClock", 1),
    _one("app_mem_clock_mhz", "nvmlDeviceGetApplicationsClock", 2),
    _one("max_sm_clock_mhz", "nvmlDeviceGetMaxClockInfo", 1),
    _one("max_mem_clock_mhz", "nvmlDeviceGetMaxClockInfo", 2),
    *(
        Call("nvmlDeviceGetViolationStatus", (f"violation_{name}_ns",), (policy,), ("violationTime",), wide=True)
        for name, policy in _POLICIES
    ),
    _one("pstate", "nvmlDeviceGetPerformanceState"),
    _one("power_w", "nvmlDeviceGetPowerUsage", how="milli"),
    _one("power_limit_w", "nvmlDeviceGetPowerManagementLimit", how="milli"),
    Call(
        "nvmlDeviceGetPowerManagementLimitConstraints", ("power_limit_min_w", "power_limit_max_w"),
        pick=(0, 1), how="milli",
    ),
    _one("power_limit_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", how="milli"),
    _one("power_limit_enforced_w", "nvmlDeviceGetEnforcedPowerLimit", how="milli"),
    _wide("energy_mj", "nvmlDeviceGetTotalEnergyConsumption"),
    _one("temp_c", "nvmlDeviceGetTemperatureV", 0, instead=_one("temp_c", "nvmlDeviceGetTemperature", 0)),
    _one("temp_margin_c", "nvmlDeviceGetMarginTemperature"),
    _one("temp_shutdown_c", "nvmlDeviceGetTemperatureThreshold", 0),
    _one("temp_slowdown_c", "nvmlDeviceGetTemperatureThreshold", 1),
    _one("temp_mem_max_op_c", "nvmlDeviceGetTemperatureThreshold", 2),
    _one("temp_max_op_c", "nvmlDeviceGetTemperatureThreshold", 3),
    Call("nvmlDeviceGetUtilizationRates", ("gpu_util_percent", "mem_util_percent"), pick=("gpu", "memory")),
    MEMORY,
    _one("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _one("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    _one("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    _one("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    _one("pcie_replays", "nvmlDeviceGetPcieReplayCounter"),
    Call("@c2c", ("c2c_links", "c2c_links_up", "c2c_max_bw_mb_per_s"), pick=(0, 1, 2)),
    Call("nvmlDeviceGetEccMode", ("ecc_mode", "ecc_mode_pending"), pick=(0, 1)),
    *(
        _wide(f"ecc_{kind}_{scope}", "nvmlDeviceGetTotalEccErrors", k, s)
        for kind, k in _ERROR_KINDS for scope, s in _SCOPES
    ),
    *(
        _wide(f"ecc_{kind}_{scope}_{place}", "nvmlDeviceGetMemoryErrorCounter", k, s, p)
        for place, p in _PLACES for scope, s in _SCOPES for kind, k in _ERROR_KINDS
    ),
    _one("sram_threshold_exceeded", "@sram_exceeded"),
    _one("retired_pages_sbe", "@count_retired_pages", 0),
    _one("retired_pages_dbe", "@count_retired_pages", 1),
    _one("retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus"),
    Call("nvmlDeviceGetRemappedRows", _REMAPS, pick=(0, 1, 2, 3)),
    Call("nvmlDeviceGetRowRemapperHistogram", tuple(f"bank_remap_{n}" for n in _BANKS), pick=_BANKS),
    Call(
        "@fabric_v2", ("fabric_state", "fabric_status", "fabric_health_mask"), pick=("state", "status", "healthMask"),
        instead=Call("@fabric_v1", ("fabric_state", "fabric_status"), pick=("state", "status")),
    ),
    _one("persistence_mode", "nvmlDeviceGetPersistenceMode"),
    Call("nvmlDeviceGetMigMode", ("mig_mode",), pick=(0,)),
    PROCESSES,
    Call("nvmlDeviceGetPcieThroughput", ("pcie_tx_kb_per_s",), (0,), sampled=True),
    Call("nvmlDeviceGetPcieThroughput", ("pcie_rx_kb_per_s",), (1,), sampled=True),
)  # fmt: skip

# GPM metric id, field, and what turns the metric's unit (percent, MiB/s) into the field's.
GPM: Final[tuple[tuple[int, str, float], ...]] = (
    (1, "gr_engine_active_ratio", 0.01), (2, "sm_active_ratio", 0.01), (3, "sm_occupancy_ratio", 0.01),
    (5, "tensor_active_ratio", 0.01), (10, "dram_active_ratio", 0.01), (11, "fp64_active_ratio", 0.01),
    (12, "fp32_active_ratio", 0.01), (13, "fp16_active_ratio", 0.01),
    (20, "pcie_tx_bytes_per_s", 1048576.0), (21, "pcie_rx_bytes_per_s", 1048576.0),
    (61, "nvlink_tx_bytes_per_s", 1048576.0), (60, "nvlink_rx_bytes_per_s", 1048576.0),
)  # fmt: skip

MIG_CALLS: Final = (MEMORY, PROCESSES)
"""What a GPU instance answers of its own beside GPM; the rest is the whole GPU's."""

_NVLINK5: Final = (
    ("malformed_packets", 206), ("buffer_overruns", 207), ("rx_errors", 208), ("rx_remote_errors", 209),
    ("rx_general_errors", 210), ("integrity_errors", 211), ("tx_discards", 212), ("recoveries_ok", 213),
    ("recoveries_failed", 214), ("recovery_events", 215), ("effective_errors", 219), ("symbol_errors", 221),
)  # fmt: skip
_NVLINK4: Final = (("crc_flit", 38, 2), ("crc_data", 45, 3), ("replay", 52, 0), ("recovery", 59, 1), ("ecc", 160, 4))
"""Name, total's field id, counter of nvmlDeviceGetNvLinkErrorCounter where the total is not served."""


def version_of(driver: str) -> tuple[int, ...]:
    """``580.126.09`` → (580, 126, 9); empty where it is no version."""
    parts = driver.split(".")
    return tuple(int(p) for p in parts) if all(p.isdecimal() for p in parts) else ()


def throttle_ids(driver: str) -> tuple[tuple[int, int, int], ...]:
    """Ids of (SW thermal, HW thermal, HW power brake) throttle time to try in turn; empty: this driver has none.

    Bindings 575.51 to 580.65 have 251–253; bindings 580.126 and 615 have 269–271, and 251 means power
    smoothing there. Drivers between are tried with the later ids first: what answers is then held to ≤ 1 s/s.
    """
    version, old, new = version_of(driver), (251, 252, 253), (269, 270, 271)
    if version >= (580, 126):
        return (new,)
    if version > (580, 65, 99):
        return (new, old)
    return (old,) if version >= (575, 51) else ()


def field_values(driver: str) -> tuple[FieldValue, ...]:
    """The batch for this driver version."""
    return (
        FieldValue("mem_temp_c", 82),
        FieldValue("power_instant_w", 186, how="milli"),
        FieldValue("throttle_sw_power_cap_ns", 74),
        FieldValue("throttle_sync_boost_ns", 76),
        *_throttle(driver),
        FieldValue("pcie_correctable_errors", 173),
        FieldValue("recovery_action", 230),
        *_nvlink(),
    )


def _throttle(driver: str) -> tuple[FieldValue, ...]:
    names = ("throttle_sw_thermal_ns", "throttle_hw_thermal_ns", "throttle_hw_power_brake_ns")
    ids = throttle_ids(driver) or ((0, 0, 0),)
    made = []
    for i, name in enumerate(names):
        chain: FieldValue | None = None
        for choice in reversed(ids):
            chain = FieldValue(name, choice[i], instead=chain)
        if chain is not None:
            made.append(chain)
    return tuple(made)


def _nvlink() -> tuple[FieldValue, ...]:
    # NVLink 5 counts bytes; NVLink 4 and older only through the throughput counters, in KiB.
    made = [
        FieldValue(f"nvlink_{way}_bytes", new, ALL_LINKS,
                   instead=FieldValue(f"nvlink_{way}_bytes", old, ALL_LINKS, how="kib"))
        for way, new, old in (("tx", 202, 138), ("rx", 204, 139))
    ]  # fmt: skip
    made += [
        FieldValue(f"nvlink_{name}_errors", total, instead=_one(f"nvlink_{name}_errors", "@nvlink_error_sum", counter))
        for name, total, counter in _NVLINK4
    ]
    made += [
        FieldValue(f"nvlink5_{name}", id_, ALL_LINKS, instead=_one(f"nvlink5_{name}", "@nvlink_field_sum", id_))
        for name, id_ in _NVLINK5
    ]
    made += [
        FieldValue(f"nvlink5_{kind}_ber_ratio", id_, ALL_LINKS, how="ber")
        for kind, id_ in (("effective", 220), ("symbol", 222))
    ]
    return tuple(made)


# --- what return codes mean ----------------------------------------------------------------------------

NOT_SUPPORTED, NO_PERMISSION, IN_USE, LOST, RESET_REQUIRED, GPU_NOT_FOUND = 3, 4, 19, 15, 16, 28
SETTLED: Final = frozenset({2, 3, 4, 13, 22, 25, 26})
"""Codes that a call keeps until the driver is loaded anew: it is not made again until then."""
WHOLE_GPU: Final = frozenset({LOST, RESET_REQUIRED, GPU_NOT_FOUND})
"""Codes that speak of the GPU, not of the call."""
WHOLE_NVML: Final = frozenset({1, 9, 18})
"""Codes after which this child can read nothing: uninitialised, driver gone, driver of another version."""

WORDS: Final[dict[int, str]] = {
    -2: "this driver version has no field id for it",
    -1: "the call succeeds with a blank value",
    1: "NVML is not initialised", 2: "invalid argument: this driver does not know the request", 3: "not supported",
    4: "no permission", 6: "not found", 7: "insufficient size", 8: "insufficient power: check the power cables",
    9: "the NVIDIA driver is not loaded", 10: "timeout", 11: "interrupt issue", 12: "libnvidia-ml.so.1 not found",
    13: "function not found: the driver's library is older than this call", 14: "corrupted InfoROM", 15: "GPU is lost",
    16: "GPU requires reset", 17: "operating system call failed",
    18: "driver and library are of different versions", 19: "in use", 20: "insufficient memory", 21: "no data",
    22: "ECC of a vGPU is not supported", 23: "insufficient resources", 24: "frequency not supported",
    25: "structure version not known to this driver", 26: "deprecated", 27: "not ready", 28: "GPU not found",
    29: "invalid state", 30: "reset type not supported", 999: "unknown error",
}  # fmt: skip


def words(code: int) -> str:
    """What a return code says, with its number."""
    return f"{WORDS.get(code, 'error')} (NVML {code})" if code > 0 else WORDS.get(code, str(code))


def quality_of(code: int) -> str:
    """The quality state of a field that answers ``code``."""
    if code == NO_PERMISSION:
        return "not_permitted"
    if code < 0 or code in SETTLED:
        return "unsupported"
    return {LOST: "lost", GPU_NOT_FOUND: "lost", IN_USE: "paused"}.get(code, "error")
