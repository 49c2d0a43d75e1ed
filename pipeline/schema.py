"""The data contract: every table and every field, declared once.

Collectors fill these tables, the bus carries them, the lake stores them, detectors read them, and
``docs/metrics.md`` is generated from them. This module imports nothing of graynode and no third-party
package, so that the agent, the server and a reader of the lake all start from the same declaration.

Conventions: units end the name; null is "could not tell", zero is a measurement; ``ts`` is UTC with
microseconds and is taken once a round. DCGM ids and names follow DCGM 4.6 ``dcgm_fields.h``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

VERSION: Final = (1, 3)
"""Contract version (major, minor). A reader takes any older one; unknown columns of a newer minor are
dropped and counted; a newer major goes to the dead letters."""

Type = Literal["int32", "int64", "float32", "float64", "bool", "string", "timestamp"]
Kind = Literal["key", "gauge", "counter", "amount", "state", "bits", "text"]
"""``gauge`` is averaged; ``counter`` only grows, and falls by a named reset; ``amount`` is already a
difference since the previous sample and is summed; ``state`` is an enumeration or flag whose last value
counts; ``bits`` combine and are read bit by bit; ``text`` and ``key`` are carried along."""

INT32_BLANK: Final = range(2147483632, 2147483636)
INT64_BLANK: Final = range(9223372036854775792, 9223372036854775796)
FLOAT64_BLANK: Final = tuple(140737488355328.0 + i for i in range(4))
"""DCGM blanks (blank, not found, not supported, not permitted) per type, from ``dcgm_structs.h``. They are
matched by a field's own type, because an int32 blank is a legal value of a 64-bit byte counter."""


@dataclass(frozen=True, slots=True)
class Field:
    """One column: its name ends in its unit, ``lo``/``hi`` bound what the device can mean.

    ``every_s`` is the reading class (1, 10 or 60 s); rows of other rounds hold null there. ``window`` says
    how the field enters the window tables: ``"full"`` by its kind, ``"last"`` only the last value,
    ``"none"`` not at all.
    """

    name: str
    type: Type
    kind: Kind
    help: str
    unit: str = ""
    dcgm: int | None = None
    nvml: str = ""
    lo: float | None = None
    hi: float | None = None
    every_s: int = 1
    resets: str = ""
    window: Literal["full", "last", "none"] = "full"


@dataclass(frozen=True, slots=True)
class Table:
    """One table: ``entity`` names the columns that, with ``ts``, identify a row's subject."""

    name: str
    help: str
    topic: str
    entity: tuple[str, ...]
    fields: tuple[Field, ...]
    retention_d: int | None = None

    def field(self, name: str) -> Field:
        """The field of that name; ``KeyError`` names table and field."""
        for f in self.fields:
            if f.name == name:
                return f
        raise KeyError(f"{self.name}.{name} is not in the contract")

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in contract order."""
        return tuple(f.name for f in self.fields)


# --- topics -------------------------------------------------------------------------------------------

SAMPLES: Final = "graynode.samples"
EVENTS: Final = "graynode.events"
FINDINGS: Final = "graynode.findings"
INCIDENTS: Final = "graynode.incidents"
ACTIONS: Final = "graynode.actions"
PEOPLE: Final = "graynode.people"
DEADLETTER: Final = "graynode.deadletter"
TOPICS: Final = (SAMPLES, EVENTS, FINDINGS, INCIDENTS, ACTIONS, PEOPLE, DEADLETTER)
"""``people`` holds what persons say by the command line. A topic of its own, because a spool's topic has one writer:
whoever has something to say holds it for as long as that takes (docs/decisions/0014-what-people-say.md)."""

# --- enumerations -------------------------------------------------------------------------------------

CLOCK_EVENT_BITS: Final[Mapping[str, int]] = {
    "gpu_idle": 0x1,
    "app_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display": 0x100,
}
"""``nvmlClocksEventReasons``: bits combine, so they are tested one by one, never by equality."""

JOB_ENDED: Final = frozenset({"completed", "failed", "cancelled", "timeout", "node_fail"})
"""States of table ``job`` in which it stays; ``requeued`` is the end of a placement, not of the job."""

LINK_STATES: Final = ("active", "down", "init", "armed", "inactive", "sleep", "disabled", "unknown")
"""``sleep`` (an NVLink power state) and ``disabled`` (switched off by a person) are not ``down``."""

QUALITY_STATES: Final = (
    "measured", "unsupported", "not_permitted", "error", "stale", "paused", "lost", "implausible",
)  # fmt: skip
PLANNED: Final = "planned: "
BY_VALUES: Final = "normaliser: "
BY_HOURS: Final = "normaliser: still: "
"""How reasons in ``quality`` begin that others tell apart: blindness that somebody wanted, what the pipeline says of a
field by its values, and what it says over hours. Each is a log of its own: none ends another's."""

CAUSES: Final = (
    "slow_gpu", "memory_errors", "memory_degraded", "link_flap", "link_down", "link_degraded", "link_errors",
    "pcie_degraded", "pcie_errors", "thermal", "power_brake", "gpu_lost", "driver_fault", "application_error",
    "nvlink_fault", "recovery_requested", "monitoring_blind", "host_fault", "network_fault", "unusual",
    "clock_skew", "fleet_shift",
)  # fmt: skip
"""What an incident can be about. Closed: a new cause is a contract change."""

VERDICTS: Final = ("infrastructure", "application", "scheduler", "neither", "unknown")
"""What a job's end is put down to. ``neither``: nothing went wrong (its time was up, somebody cancelled it, it completed)."""

SEVERITIES: Final = ("page", "ticket", "digest")
OWNERS: Final = ("platform", "network", "vendor", "job_owner")


# --- short forms for the declarations below -------------------------------------------------------------


def _key(name: str, help_: str, type_: Type = "string") -> Field:
    return Field(name, type_, "key", help_)


def _f(kind: Kind, type_: Type) -> Callable[..., Field]:
    def make(name: str, help_: str, **kw: object) -> Field:
        return Field(name, type_, kind, help_, **kw)  # type: ignore[arg-type]  # a short form for the table below

    return make


_gauge = _f("gauge", "float32")
_gauge_i = _f("gauge", "int32")
_gauge_big = _f("gauge", "int64")
_gauge_d = _f("gauge", "float64")
_count = _f("counter", "int64")
_amount = _f("amount", "float32")
_state = _f("state", "int32")
_text = _f("text", "string")
_word = _f("state", "string")
_time = _f("text", "timestamp")

_WHO: Final = (
    _key("ts", "when the round was taken, UTC; never rewritten", "timestamp"),
    _key("cluster", "part of every key"),
    _key("node_id", "the machine: configured id, instance id, SMBIOS UUID or a hash of machine-id"),
    _key("node", "host name: a label that can move to another machine"),
    _key("boot_id", "kernel boot id; counters are compared only inside one"),
)
_GPU_KEYS: Final = (
    *_WHO,
    _key("driver_load", "driver load id, raised at every reload of the driver", "int64"),
    _key("gpu_uuid", "NVML UUID; a baseline follows it"),
    _key("mig_instance", "GPU instance id where MIG is on, else null"),
    _key("vendor", "always NVIDIA today"),
    _key("gpu_index", "index on this node at this driver load; a slot hint, never an identity", "int32"),
)
_cadence: Final = Field(
    "cadence_s",
    "float32",
    "gauge",
    "seconds between samples by the source's schedule, null where it is 1: windows expect so many fewer",
    "s",
    lo=0,
    window="none",
)
_PER_RELOAD: Final = "driver reload"
_LIFETIME: Final = "never: device lifetime, kept in the InfoROM"
_ECC_PLACES: Final = (
    ("l1", 314, 324), ("l2", 316, 326), ("device", 318, 328), ("register", 320, 330), ("texture", 322, 332),
    ("shared", 334, 338), ("cbu", 336, 340), ("sram", 342, 344),
)  # fmt: skip


def _ecc_places() -> tuple[Field, ...]:
    made: list[Field] = []
    for place, volatile, aggregate in _ECC_PLACES:
        for scope, first, resets in (
            ("volatile", volatile, _PER_RELOAD),
            ("aggregate", aggregate, _LIFETIME),
        ):
            for offset, kind in enumerate(("sbe", "dbe")):
                what = "corrected" if kind == "sbe" else "uncorrected"
                made.append(
                    _count(
                        f"ecc_{kind}_{scope}_{place}",
                        f"{what} ECC errors in {place}, {scope}",
                        dcgm=first + offset,
                        nvml=f"nvmlDeviceGetMemoryErrorCounter({what}, {scope}, {place})",
                        every_s=60,
                        resets=resets,
                        window="full" if place in ("device", "sram") else "last",
                    )
                )
    return tuple(made)


def _violations() -> tuple[Field, ...]:
    names = (
        "power",
        "thermal",
        "sync_boost",
        "board_limit",
        "low_utilisation",
        "reliability",
        "app_clocks",
        "base_clocks",
    )
    return tuple(
        _count(
            f"violation_{name}_ns",
            f"time held below clocks by {name.replace('_', ' ')}; deprecated call, absent on new drivers",
            unit="ns", dcgm=240 + i, nvml=f"nvmlDeviceGetViolationStatus({name})", every_s=60, resets=_PER_RELOAD,
            window="last",
        )
        for i, name in enumerate(names)
    )  # fmt: skip


_GPU_FIELDS: Final = (
    _text("gpu_model", "product name", nvml="nvmlDeviceGetName"),
    _text("pci_bus_id", "PCI address, domain:bus:device.function, lower case", nvml="nvmlDeviceGetPciInfo"),
    _text("mig_profile", "profile of the MIG instance, such as 3g.40gb; of a whole GPU those of its instances, 3g.40gb,4g.40gb; null where MIG is off. Only equal ones are peers"),
    # clocks and why they are what they are
    _gauge_i("sm_clock_mhz", "SM clock; low when idle, so judged with the event reasons", unit="MHz", dcgm=100, nvml="nvmlDeviceGetClockInfo(SM)", lo=0, hi=5000),
    _gauge_i("mem_clock_mhz", "memory clock", unit="MHz", dcgm=101, nvml="nvmlDeviceGetClockInfo(MEM)", lo=0, hi=20000),
    Field("clock_event_reasons", "int64", "bits", "why the clocks are what they are; bits combine; unknown bits are kept", dcgm=112, nvml="nvmlDeviceGetCurrentClocksEventReasons"),
    _gauge_i("app_sm_clock_mhz", "application SM clock; deprecated", unit="MHz", dcgm=110, nvml="nvmlDeviceGetApplicationsClock(SM)", lo=0, hi=5000, every_s=60, window="last"),
    _gauge_i("app_mem_clock_mhz", "application memory clock; deprecated", unit="MHz", dcgm=111, nvml="nvmlDeviceGetApplicationsClock(MEM)", lo=0, hi=20000, every_s=60, window="last"),
    _gauge_i("max_sm_clock_mhz", "maximum SM clock", unit="MHz", dcgm=113, nvml="nvmlDeviceGetMaxClockInfo(SM)", lo=0, hi=5000, every_s=60, window="last"),
    _gauge_i("max_mem_clock_mhz", "maximum memory clock", unit="MHz", dcgm=114, nvml="nvmlDeviceGetMaxClockInfo(MEM)", lo=0, hi=20000, every_s=60, window="last"),
    _count("throttle_sw_power_cap_ns", "time the software power cap held clocks down", unit="ns", dcgm=1420, nvml="NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP", every_s=10, resets=_PER_RELOAD),
    _count("throttle_sync_boost_ns", "time a sync boost group held clocks down", unit="ns", dcgm=1421, nvml="NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST", every_s=10, resets=_PER_RELOAD),
    _count("throttle_sw_thermal_ns", "time software thermal slowdown was on", unit="ns", dcgm=1422, nvml="NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN", every_s=10, resets=_PER_RELOAD),
    _count("throttle_hw_thermal_ns", "time hardware thermal slowdown was on", unit="ns", dcgm=1423, nvml="NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN", every_s=10, resets=_PER_RELOAD),
    _count("throttle_hw_power_brake_ns", "time the external power brake was asserted", unit="ns", dcgm=1424, nvml="NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN", every_s=10, resets=_PER_RELOAD),
    *_violations(),
    _state("pstate", "performance state 0–15", dcgm=190, nvml="nvmlDeviceGetPerformanceState", lo=0, hi=15),
    # power and heat
    _gauge("power_w", "board power, about a 1 s average; A100 and H100 sensors see 25 % of the time", unit="W", dcgm=155, nvml="nvmlDeviceGetPowerUsage (mW)", lo=0, hi=4000),
    _gauge("power_instant_w", "instant board power", unit="W", dcgm=157, nvml="NVML_FI_DEV_POWER_INSTANT (mW)", lo=0, hi=4000),
    _gauge("power_limit_w", "power limit requested", unit="W", dcgm=160, nvml="nvmlDeviceGetPowerManagementLimit (mW)", lo=0, hi=4000, every_s=60, window="last"),
    _gauge("power_limit_min_w", "lowest settable power limit", unit="W", dcgm=161, nvml="nvmlDeviceGetPowerManagementLimitConstraints (mW)", lo=0, hi=4000, every_s=60, window="last"),
    _gauge("power_limit_max_w", "highest settable power limit", unit="W", dcgm=162, nvml="nvmlDeviceGetPowerManagementLimitConstraints (mW)", lo=0, hi=4000, every_s=60, window="last"),
    _gauge("power_limit_default_w", "default power limit", unit="W", dcgm=163, nvml="nvmlDeviceGetPowerManagementDefaultLimit (mW)", lo=0, hi=4000, every_s=60, window="last"),
    _gauge("power_limit_enforced_w", "power limit in force", unit="W", dcgm=164, nvml="nvmlDeviceGetEnforcedPowerLimit (mW)", lo=0, hi=4000, every_s=60, window="last"),
    _count("energy_mj", "energy since the driver was loaded", unit="mJ", dcgm=156, nvml="nvmlDeviceGetTotalEnergyConsumption", resets=_PER_RELOAD),
    _gauge_i("temp_c", "core temperature", unit="°C", dcgm=150, nvml="nvmlDeviceGetTemperatureV", lo=0, hi=150),
    _gauge_i("mem_temp_c", "HBM temperature; absent on other memory", unit="°C", dcgm=140, nvml="NVML_FI_DEV_MEMORY_TEMP", lo=1, hi=150),
    _gauge_i("temp_margin_c", "distance to the slowdown temperature; negative is legal", unit="°C", dcgm=153, nvml="nvmlDeviceGetMarginTemperature", lo=-60, hi=150, every_s=10),
    _gauge_i("temp_mem_max_op_c", "highest memory operating temperature", unit="°C", dcgm=151, nvml="nvmlDeviceGetTemperatureThreshold(MEM_MAX)", lo=0, hi=200, every_s=60, window="last"),
    _gauge_i("temp_max_op_c", "highest core operating temperature", unit="°C", dcgm=152, nvml="nvmlDeviceGetTemperatureThreshold(GPU_MAX)", lo=0, hi=200, every_s=60, window="last"),
    _gauge_i("temp_slowdown_c", "slowdown temperature", unit="°C", dcgm=158, nvml="nvmlDeviceGetTemperatureThreshold(SLOWDOWN)", lo=0, hi=200, every_s=60, window="last"),
    _gauge_i("temp_shutdown_c", "shutdown temperature", unit="°C", dcgm=159, nvml="nvmlDeviceGetTemperatureThreshold(SHUTDOWN)", lo=0, hi=200, every_s=60, window="last"),
    # use
    _gauge_i("gpu_util_percent", "time with a kernel resident, 0–100; 100 on a hang; absent on MIG", unit="%", dcgm=203, nvml="nvmlDeviceGetUtilizationRates", lo=0, hi=100),
    _gauge_i("mem_util_percent", "time the memory was read or written, 0–100", unit="%", dcgm=204, nvml="nvmlDeviceGetUtilizationRates", lo=0, hi=100),
    *(
        _gauge(f"{name}_ratio", f"{what}; Hopper or newer by NVML, 0 or absent while a profiler holds the counters", dcgm=1001 + i, nvml="nvmlGpmMetricsGet", lo=0, hi=1.05)
        for i, (name, what) in enumerate((
            ("gr_engine_active", "graphics or compute engine active"), ("sm_active", "an SM has a warp, mean over SMs"),
            ("sm_occupancy", "resident warps of possible ones"), ("tensor_active", "tensor pipe active"),
            ("dram_active", "memory interface active"), ("fp64_active", "FP64 pipe active"),
            ("fp32_active", "FP32 pipe active"), ("fp16_active", "FP16 pipe active"),
        ))
    ),
    _gauge_big("mem_total_bytes", "framebuffer size", unit="bytes", dcgm=250, nvml="nvmlDeviceGetMemoryInfo_v2", lo=0, every_s=10, window="last"),
    _gauge_big("mem_free_bytes", "framebuffer free", unit="bytes", dcgm=251, nvml="nvmlDeviceGetMemoryInfo_v2", lo=0, every_s=10, window="last"),
    _gauge_big("mem_used_bytes", "framebuffer used", unit="bytes", dcgm=252, nvml="nvmlDeviceGetMemoryInfo_v2", lo=0, every_s=10),
    _gauge_big("mem_reserved_bytes", "framebuffer reserved by driver and firmware", unit="bytes", dcgm=253, nvml="nvmlDeviceGetMemoryInfo_v2", lo=0, every_s=10, window="last"),
    # PCIe
    _state("pcie_gen", "PCIe generation now; drops when idle, so judged under load only", dcgm=237, nvml="nvmlDeviceGetCurrPcieLinkGeneration", lo=1, hi=8),
    _state("pcie_width", "PCIe lanes now", dcgm=238, nvml="nvmlDeviceGetCurrPcieLinkWidth", lo=1, hi=32),
    _state("pcie_gen_max", "highest PCIe generation of GPU and slot", dcgm=235, nvml="nvmlDeviceGetMaxPcieLinkGeneration", lo=1, hi=8, every_s=60),
    _state("pcie_width_max", "most PCIe lanes of GPU and slot", dcgm=236, nvml="nvmlDeviceGetMaxPcieLinkWidth", lo=1, hi=32, every_s=60),
    _gauge("pcie_tx_bytes_per_s", "PCIe bytes sent per second; a rate although DCGM says BYTES", unit="bytes/s", dcgm=1009, nvml="nvmlGpmMetricsGet", lo=0, hi=1e12),
    _gauge("pcie_rx_bytes_per_s", "PCIe bytes received per second", unit="bytes/s", dcgm=1010, nvml="nvmlGpmMetricsGet", lo=0, hi=1e12),
    _gauge_i("pcie_tx_kb_per_s", "PCIe throughput sent, sampled over 20 ms", unit="KB/s", dcgm=200, nvml="nvmlDeviceGetPcieThroughput(TX)", lo=0, every_s=60, window="last"),
    _gauge_i("pcie_rx_kb_per_s", "PCIe throughput received, sampled over 20 ms", unit="KB/s", dcgm=201, nvml="nvmlDeviceGetPcieThroughput(RX)", lo=0, every_s=60, window="last"),
    _count("pcie_replays", "PCIe replays; 32 bits in NVML, so it wraps", dcgm=202, nvml="nvmlDeviceGetPcieReplayCounter", every_s=10, resets=_PER_RELOAD),
    _count("pcie_correctable_errors", "PCIe correctable errors", dcgm=1501, nvml="NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS", every_s=10, resets=_PER_RELOAD),
    # NVLink, sums over the GPU's links; per link in table link
    _gauge("nvlink_tx_bytes_per_s", "NVLink bytes sent per second, sum of links", unit="bytes/s", dcgm=1011, nvml="nvmlGpmMetricsGet", lo=0, hi=1e13),
    _gauge("nvlink_rx_bytes_per_s", "NVLink bytes received per second, sum of links", unit="bytes/s", dcgm=1012, nvml="nvmlGpmMetricsGet", lo=0, hi=1e13),
    _count("nvlink_tx_bytes", "NVLink bytes sent, sum of links", unit="bytes", dcgm=1201, nvml="NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES", every_s=10, resets="GPU reset"),
    _count("nvlink_rx_bytes", "NVLink bytes received, sum of links", unit="bytes", dcgm=1203, nvml="NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES", every_s=10, resets="GPU reset"),
    _state("nvlink_links_active", "NVLinks active", dcgm=1508, nvml="nvmlDeviceGetNvLinkState", lo=0, hi=36, every_s=10),
    _state("nvlink_links_inactive", "NVLinks inactive; links without a partner count here too, so compared with own history", nvml="nvmlDeviceGetNvLinkState", lo=0, hi=36, every_s=10),
    _state("nvlink_links_sleep", "NVLinks in the sleep power state; not down", nvml="nvmlDeviceGetNvLinkState", lo=0, hi=36, every_s=10),
    _count("nvlink_crc_flit_errors", "NVLink 1–4 flit CRC errors, sum of links", dcgm=409, nvml="NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", every_s=10, resets="GPU reset"),
    _count("nvlink_crc_data_errors", "NVLink 1–4 data CRC errors, sum of links", dcgm=419, nvml="NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", every_s=10, resets="GPU reset"),
    _count("nvlink_replay_errors", "NVLink 1–4 replays, sum of links", dcgm=429, nvml="NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", every_s=10, resets="GPU reset"),
    _count("nvlink_recovery_errors", "NVLink 1–4 recoveries, sum of links", dcgm=439, nvml="NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", every_s=10, resets="GPU reset"),
    _count("nvlink_ecc_errors", "NVLink data ECC errors, sum of links", dcgm=1220, nvml="NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL", every_s=10, resets="GPU reset"),
    *(
        _count(f"nvlink5_{name}", f"NVLink 5 {what}, sum of links", dcgm=1204 + i, nvml=f"NVML_FI_DEV_NVLINK_COUNT_{call}", every_s=10, resets="GPU reset")
        for i, (name, what, call) in enumerate((
            ("malformed_packets", "malformed packet errors", "MALFORMED_PACKET_ERRORS"),
            ("buffer_overruns", "packets dropped by buffer overrun", "BUFFER_OVERRUN_ERRORS"),
            ("rx_errors", "packets received with errors", "RCV_ERRORS"),
            ("rx_remote_errors", "packets marked bad by the far end", "RCV_REMOTE_ERRORS"),
            ("rx_general_errors", "packets with header mismatch", "RCV_GENERAL_ERRORS"),
            ("integrity_errors", "local link integrity errors", "LOCAL_LINK_INTEGRITY_ERRORS"),
            ("tx_discards", "transmit packets discarded", "XMIT_DISCARDS"),
            ("recoveries_ok", "successful link recoveries", "LINK_RECOVERY_SUCCESSFUL_EVENTS"),
            ("recoveries_failed", "failed link recoveries", "LINK_RECOVERY_FAILED_EVENTS"),
            ("recovery_events", "link recovery events", "LINK_RECOVERY_EVENTS"),
        ))
    ),
    _count("nvlink5_symbol_errors", "NVLink 5 symbol errors, sum of links", dcgm=1214, nvml="NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS", every_s=10, resets="GPU reset"),
    _gauge_d("nvlink5_symbol_ber_ratio", "NVLink 5 symbol bit error ratio, worst link, unpacked", dcgm=1216, nvml="NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER", lo=0, hi=1, every_s=60, window="last"),
    _gauge_d("nvlink5_effective_ber_ratio", "NVLink 5 effective bit error ratio, worst link, unpacked", dcgm=1218, nvml="NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER", lo=0, hi=1, every_s=60, window="last"),
    _count("nvlink5_effective_errors", "NVLink 5 effective errors, sum of links", dcgm=1219, nvml="NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS", every_s=10, resets="GPU reset"),
    _state("c2c_links", "chip-to-chip links (Grace systems)", dcgm=285, nvml="NVML_FI_DEV_C2C_LINK_COUNT", lo=0, hi=64, every_s=60),
    _state("c2c_links_up", "chip-to-chip links that are up", dcgm=286, nvml="NVML_FI_DEV_C2C_LINK_GET_STATUS", lo=0, hi=64, every_s=60),
    _gauge_i("c2c_max_bw_mb_per_s", "chip-to-chip maximum bandwidth", unit="MB/s", dcgm=287, nvml="NVML_FI_DEV_C2C_LINK_GET_MAX_BW", lo=0, every_s=60, window="last"),
    # memory errors
    _state("ecc_mode", "1 ECC on, 0 off; off makes the counters absent, not zero", dcgm=300, nvml="nvmlDeviceGetEccMode", lo=0, hi=1, every_s=60),
    _state("ecc_mode_pending", "ECC mode after the next reboot", dcgm=301, nvml="nvmlDeviceGetEccMode", lo=0, hi=1, every_s=60),
    _count("ecc_sbe_volatile", "corrected ECC errors since driver load", dcgm=310, nvml="nvmlDeviceGetTotalEccErrors(CORRECTED, VOLATILE)", every_s=10, resets=_PER_RELOAD),
    _count("ecc_dbe_volatile", "uncorrected ECC errors since driver load", dcgm=311, nvml="nvmlDeviceGetTotalEccErrors(UNCORRECTED, VOLATILE)", every_s=10, resets=_PER_RELOAD),
    _count("ecc_sbe_aggregate", "corrected ECC errors, lifetime", dcgm=312, nvml="nvmlDeviceGetTotalEccErrors(CORRECTED, AGGREGATE)", every_s=10, resets=_LIFETIME),
    _count("ecc_dbe_aggregate", "uncorrected ECC errors, lifetime", dcgm=313, nvml="nvmlDeviceGetTotalEccErrors(UNCORRECTED, AGGREGATE)", every_s=10, resets=_LIFETIME),
    *_ecc_places(),
    _state("sram_threshold_exceeded", "1 when SRAM uncorrected errors passed the vendor's return threshold", dcgm=346, nvml="nvmlDeviceGetSramEccErrorStatus.bThresholdExceeded", lo=0, hi=1, every_s=60),
    _count("retired_pages_sbe", "pages retired for corrected errors (before Ampere)", dcgm=390, nvml="nvmlDeviceGetRetiredPages", every_s=60, resets=_LIFETIME),
    _count("retired_pages_dbe", "pages retired for uncorrected errors (before Ampere)", dcgm=391, nvml="nvmlDeviceGetRetiredPages", every_s=60, resets=_LIFETIME),
    _state("retired_pages_pending", "1 when a retirement waits for a reboot", dcgm=392, nvml="nvmlDeviceGetRetiredPagesPendingStatus", lo=0, hi=1, every_s=60),
    _count("row_remaps_uncorrectable", "rows remapped for uncorrectable errors", dcgm=393, nvml="nvmlDeviceGetRemappedRows", every_s=60, resets=_LIFETIME),
    _count("row_remaps_correctable", "rows remapped for correctable errors", dcgm=394, nvml="nvmlDeviceGetRemappedRows", every_s=60, resets=_LIFETIME),
    _state("row_remap_failed", "1 when a remap failed: return criterion, validated by field diagnostic", dcgm=395, nvml="nvmlDeviceGetRemappedRows", lo=0, hi=1, every_s=10),
    _state("row_remap_pending", "1 when a remap waits for a GPU reset", dcgm=396, nvml="nvmlDeviceGetRemappedRows", lo=0, hi=1, every_s=10),
    *(
        _gauge_i(f"bank_remap_{name}", f"memory banks with {name} remap availability; the five sum to all banks", unit="banks", dcgm=385 + i, nvml="nvmlDeviceGetRowRemapperHistogram", lo=0, hi=100000, every_s=60, window="last")
        for i, name in enumerate(("max", "high", "partial", "low", "none"))
    ),
    # state of the device as the driver sees it
    _state("recovery_action", "what the driver asks for; open enumeration, read by driver version", dcgm=1523, nvml="NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", lo=0, hi=1000, every_s=10),
    _state("fabric_state", "fabric registration: 0 not supported, 1 not started, 2 in progress, 3 completed", dcgm=170, nvml="nvmlDeviceGetGpuFabricInfoV", lo=0, hi=1000, every_s=60),
    _state("fabric_status", "error code of the fabric registration, 0 when well", dcgm=171, nvml="nvmlDeviceGetGpuFabricInfoV", every_s=60),
    Field("fabric_health_mask", "int64", "bits", "fabric health, two bits per question, 2 means no fault", dcgm=174, nvml="nvmlDeviceGetGpuFabricInfoV", every_s=60, window="last"),
    _state("persistence_mode", "1 when the driver stays loaded without clients", nvml="nvmlDeviceGetPersistenceMode", lo=0, hi=1, every_s=60),
    _state("mig_mode", "1 when MIG is on", nvml="nvmlDeviceGetMigMode", lo=0, hi=1, every_s=60),
    _gauge_i("processes", "compute processes on the GPU", nvml="nvmlDeviceGetComputeRunningProcesses", lo=0, hi=100000, every_s=10),
    _gauge("nvml_call_max_ms", "slowest NVML call for this GPU in this round; growth precedes loss", unit="ms", lo=0),
    _text("job_id", "job the scheduler placed here, null where none is known"),
    _text("job_role", "pipeline stage or role inside the job"),
    _state("job_rank", "rank inside the job", lo=0),
    _cadence,
)  # fmt: skip

_LINK_FIELDS: Final = (
    _text("link_kind", "nvlink, infiniband or ethernet"),
    _word("state", f"one of {', '.join(LINK_STATES)}"),
    _text("phys_state", "physical state as the kernel words it", every_s=10),
    _gauge("rate_gbps", "link rate now", unit="Gb/s", lo=0, hi=10000),
    _text("link_layer", "InfiniBand or Ethernet", every_s=60),
    _text("device", "device the port belongs to, with firmware where known", every_s=60),
    _amount("down_s", "seconds down since the previous sample, at 1 s resolution", unit="s", lo=0),
    _gauge("outage_s", "the running outage so far, or the longest that ended since the previous sample: one contiguous piece", unit="s", lo=0),
    _amount("downs", "times the link left active since the previous sample"),
    _amount("unseen_s", "seconds since the previous sample in which the state was not watched (agent away)", unit="s", lo=0),
    _count("carrier_changes", "carrier up and down changes", resets="host boot"),
    _count("link_downed", "times the port's training failed; 8 bits on classic hardware, saturates", resets="host boot"),
    *(
        _count(name, help_, every_s=10, resets="host boot", **kw)
        for name, help_, kw in (
            ("link_error_recovery", "successful link error recoveries", {}),
            ("symbol_errors", "minor link errors", {}),
            ("rx_errors", "packets received with errors", {}),
            ("rx_remote_physical_errors", "packets received marked bad by the far end", {}),
            ("tx_discards", "packets not sent", {}),
            ("tx_errors", "packets not sent for errors", {}),
            ("rx_drops", "packets received and dropped", {}),
            ("integrity_errors", "local link integrity errors", {}),
            ("buffer_overruns", "excessive buffer overrun errors", {}),
            ("tx_wait_ticks", "ticks with data to send and no credit", {"unit": "ticks"}),
            ("tx_bytes", "bytes sent (InfiniBand counts four-byte words; converted)", {"unit": "bytes"}),
            ("rx_bytes", "bytes received", {"unit": "bytes"}),
            ("tx_packets", "packets sent", {}),
            ("rx_packets", "packets received", {}),
            ("rnr_nak_retry_errors", "receiver-not-ready retries exhausted", {}),
            ("ack_timeouts", "local ack timeouts (RoCE: local_ack_timeout_err)", {}),
            ("out_of_sequence", "out of sequence packets", {}),
            ("packet_sequence_errors", "packet sequence error NAKs received", {}),
            ("roce_slow_restarts", "RoCE slow restarts", {}),
            ("crc_flit_errors", "NVLink 1–4 flit CRC errors; NVLink counters fall by a GPU reset", {"nvml": "nvmlDeviceGetNvLinkErrorCounter(CRC_FLIT)"}),
            ("crc_data_errors", "NVLink 1–4 data CRC errors", {"nvml": "nvmlDeviceGetNvLinkErrorCounter(CRC_DATA)"}),
            ("crc_errors", "NVLink data link layer CRC errors", {"nvml": "NVML_FI_DEV_NVLINK_ERROR_DL_CRC"}),
            ("replays", "NVLink replays", {"nvml": "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY"}),
            ("ecc_errors", "NVLink data ECC errors", {"nvml": "nvmlDeviceGetNvLinkErrorCounter(ECC_DATA)"}),
            ("malformed_packets", "NVLink 5 malformed packet errors", {"nvml": "NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS"}),
            ("rx_general_errors", "NVLink 5 packets with header mismatch", {"nvml": "NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS"}),
            ("recoveries_failed", "NVLink 5 failed link recoveries", {"nvml": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS"}),
            ("recovery_events", "NVLink 5 link recovery events", {"nvml": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS"}),
            ("effective_errors", "NVLink 5 effective errors", {"nvml": "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS"}),
            ("rx_pause_frames", "pause frames received, global and of all priorities: the far end cannot take more", {}),
            ("tx_pause_frames", "pause frames sent, global and of all priorities: this host cannot take more", {}),
            ("rx_pause_us", "time the far end kept this port from sending, summed over priorities", {"unit": "µs"}),
            ("tx_pause_us", "time this port kept the far end from sending, summed over priorities", {"unit": "µs"}),
            ("rx_port_discards", "packets dropped on arrival for lack of buffers in the port", {}),
            ("tx_port_discards", "packets dropped in the port instead of being sent", {}),
            ("rx_buffer_discards", "packets dropped because software had no receive buffer ready", {}),
            ("fec_corrected_blocks", "FEC blocks with errors that were corrected", {}),
            ("fec_uncorrected_blocks", "FEC blocks with errors beyond correction: packets were lost", {}),
            ("fec_corrected_bits", "bits that FEC corrected", {"unit": "bits"}),
            ("phy_downs", "times the physical link went down, by the adapter's own count", {}),
        )
    ),
    *(
        _count(f"{way}_pause_frames_prio{i}", f"PFC pause frames {said}, priority {i}", every_s=10, resets="host boot", window="last")
        for way, said in (("rx", "received"), ("tx", "sent")) for i in range(8)
    ),
    _word("down_reason", "why the link is down, as the driver tells the kernel (ethtool link extended state)", every_s=10),
    _text("fec_mode", "forward error correction in force: none, baser, rs or llrs", every_s=60),
    _gauge("module_temp_c", "temperature of the plugged module", unit="°C", lo=-50, hi=150, every_s=60),
    _gauge("module_voltage_v", "supply voltage of the plugged module", unit="V", lo=0, hi=10, every_s=60),
    _gauge("module_rx_power_min_mw", "light received on the darkest lane; 0 is dark (dBm is 10·log10)", unit="mW", lo=0, hi=100, every_s=60),
    _gauge("module_tx_power_min_mw", "light sent on the darkest lane; 0 is dark", unit="mW", lo=0, hi=100, every_s=60),
    _gauge("module_bias_max_ma", "laser bias current of the lane with most; grows as a laser ages", unit="mA", lo=0, hi=600, every_s=60),
    _gauge_d("symbol_ber_ratio", "NVLink 5 symbol bit error ratio, unpacked", nvml="NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER", lo=0, hi=1, every_s=60, window="last"),
    _gauge_d("effective_ber_ratio", "NVLink 5 effective bit error ratio, unpacked", nvml="NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER", lo=0, hi=1, every_s=60, window="last"),
)  # fmt: skip

_HOST_FIELDS: Final = (
    _gauge("cpu_util_percent", "CPU time not idle since the previous sample", unit="%", lo=0, hi=100),
    _gauge("cpu_iowait_percent", "CPU time waiting for I/O", unit="%", lo=0, hi=100),
    _gauge_i("cpus", "CPUs online", lo=1, every_s=60, window="last"),
    _gauge("load1", "load average over one minute", lo=0),
    _gauge_big("mem_total_bytes", "memory", unit="bytes", lo=0, every_s=60, window="last"),
    _gauge_big("mem_available_bytes", "memory available", unit="bytes", lo=0),
    _gauge_big("swap_used_bytes", "swap in use", unit="bytes", lo=0, every_s=10),
    _count("oom_kills", "processes killed for memory", every_s=10, resets="host boot"),
    _count("disk_io_ms", "time the busiest disk had work", unit="ms", every_s=10, resets="host boot"),
    _gauge("root_used_ratio", "root file system in use", lo=0, hi=1, every_s=60, window="last"),
    _gauge_d("uptime_s", "seconds since boot", unit="s", lo=0, window="last"),
    _text("kernel", "kernel release", every_s=60),
    _text("driver_version", "NVIDIA driver version", every_s=60),
    _text("driver_kind", "open or proprietary kernel module", every_s=60),
    _text("bios_version", "system firmware version", every_s=60),
    _text("product_name", "system product name", every_s=60),
    _text("node_id_source", "where node_id came from: configured, instance_id, smbios, machine_id; exporter where only its exporter's address is known", every_s=60),
    _state("clock_synced", "1 when the kernel says that the clock is disciplined", lo=0, hi=1, every_s=10),
    _gauge_d("clock_offset_s", "the kernel's own estimate of its offset", unit="s", every_s=10),
    _gauge_d("clock_skew_s", "this clock minus the bus's clock, where a broker gives one", unit="s", every_s=10),
    _gauge_i("services_failed", "watched services that should run and do not, by the look before", lo=0, every_s=60, window="last"),
    _gauge_i("mounts_hung", "mounts that do not answer, by the look before", lo=0, every_s=60),
    _gauge("fs_used_max_ratio", "fullest local file system, bytes or inodes, by the look before", lo=0, hi=1, every_s=60, window="last"),
    _count("edac_corrected_errors", "corrected memory errors, sum of EDAC controllers", every_s=60, resets="host boot"),
    _count("edac_uncorrected_errors", "uncorrected memory errors, sum of EDAC controllers", every_s=60, resets="host boot"),
    _count("nvme_media_errors", "unrecovered data errors, sum of NVMe disks", every_s=60, resets="never: a disk's lifetime, but a disk can be swapped"),
    _gauge_i("nvme_temp_max_c", "warmest NVMe disk", unit="°C", lo=-50, hi=200, every_s=60),
    _gauge_i("nvme_used_max_percent", "rated life used, most worn NVMe disk; may pass 100", unit="%", lo=0, hi=255, every_s=60, window="last"),
    _text("agent_version", "graynode version", every_s=60),
    _gauge("agent_cpu_percent", "CPU time of the agent and its children, of one core", unit="%", lo=0, every_s=10),
    _gauge_big("agent_rss_bytes", "resident memory of the agent and its children", unit="bytes", lo=0, every_s=10),
    _cadence,
    _amount("samples_expected", "collections that were due since the previous sample"),
    _amount("samples_taken", "collections that gave rows"),
    _amount("samples_missed", "collections skipped because the one before still ran"),
    _amount("collect_errors", "collections that failed"),
    _gauge("collect_max_ms", "slowest collection since the previous sample", unit="ms", lo=0),
    _gauge("nvml_call_max_ms", "slowest NVML call since the previous sample", unit="ms", lo=0),
    _gauge_i("gpus_expected", "GPUs on the PCI bus", lo=0, every_s=10),
    _gauge_i("gpus_read", "GPUs that NVML answered for", lo=0, every_s=10),
    _state("nvml_up", "1 when NVML answers, 0 when it does not, null where there is none", lo=0, hi=1),
    _gauge_big("spool_bytes", "bytes waiting for the bus", unit="bytes", lo=0, every_s=10),
    _count("spool_dropped", "messages dropped because the spool was full", every_s=10, resets="agent start"),
    _count("kmsg_lost", "kernel log records lost to its ring buffer", every_s=10, resets="agent start"),
)  # fmt: skip

_ENTITY: Final = (
    _text("gpu_uuid", "GPU concerned, where one is named"),
    _text("link", "link concerned, where one is named"),
)

_EVENT: Final = (
    *_WHO,
    Field("driver_load", "int64", "text", "driver load id"),
    _text("event_id", "UUIDv5 of machine, source and native key: reading again tells nothing twice"),
    _text("source", "kernel_log, nvml, infiniband, services, host, slurm, steps, agent, import"),
    _text("kind", "xid, sxid, gpu_off_bus, aer, mce, mlx5, gsp, nvrm, link_down, link_up, gpu_lost, gpu_returned, gpu_hung, driver_reload, nvml_blind, nvml_back, nvml_released, nvml_resumed, agent_start, agent_stop, kmsg_gap, clock_skew, identity_conflict, service_failed, service_back, service_restarted, mount_hung, mount_failing, mount_read_only, mount_back, disk_full, disk_room, edac_ue, edac_ce, nvme_critical_warning, nvme_dead, nvme_well, ipmi_sel, fault_start, fault_end, …"),
    Field("code", "int64", "text", "Xid, SXid or other number"),
    *_ENTITY,
    _text("pci_bus_id", "PCI address, lower case with domain"),
    Field("pid", "int64", "text", "process, where named"),
    _text("process", "process name, where named"),
    _text("message", "one line for a person"),
    _text("raw", "the line as read"),
    _text("attributes", "JSON object of parsed details (NVLink sub-codes, AER type, GPC and TPC, sequence …)"),
    _time("observed_ts", "when graynode read it; ts is the record's own time"),
    _word("ts_quality", "exact, approximate (text log without zone) or observed"),
)  # fmt: skip

_PROBE: Final = (
    *_WHO,
    _text("gpu_uuid", "GPU probed"),
    _text("gpu_model", "product name"),
    _text("operation", "gemm, hbm, pcie, p2p, all_reduce, all_gather, reduce_scatter, alltoall, sendrecv, train_step"),
    _text("dtype", "data type"),
    _text("variant", "size, kernel or path that makes results comparable: same operation, dtype and variant"),
    Field("ranks", "int32", "text", "ranks taking part"),
    Field("bytes", "int64", "text", "bytes moved or problem size"),
    Field("value", "float64", "gauge", "the result in its unit"),
    _text("unit", "unit of value"),
    _text("better", "higher or lower"),
    Field("latency_us", "float64", "gauge", "latency, where measured"),
    Field("sm_clock_mhz", "float32", "gauge", "SM clock during the probe"),
    Field("power_w", "float32", "gauge", "power during the probe"),
    Field("temp_c", "float32", "gauge", "core temperature during the probe"),
    _text("correctness", "hash of the result, where one is comparable"),
    _text("run_id", "UUIDv5 of the result's own key"),
    _text("source", "probe, preflight or import"),
)  # fmt: skip

_JOB: Final = (
    *_WHO,
    _text("job_id", "scheduler's job id: Slurm's own number (of an array's task or a heterogeneous job's part too), <namespace>/<kind>/<name> of the workload in Kubernetes"),
    _text("job_alias", "the job's other name where it has one: 123_4 of an array, 123+1 of a heterogeneous job"),
    _text("user", "user"), _text("account", "account"), _text("partition", "partition or queue"),
    _text("work", "training, fine_tuning, quantisation, batch_inference, inference, notebook, other"),
    _word("state", "queued, allocated, running, completed, failed, cancelled, timeout, node_fail, requeued; null with an end where how it ended is not known"),
    _text("reason", "the scheduler's own words where they say more than the state: OUT_OF_MEMORY, NonZeroExitCode, Resources"),
    _time("queued_ts", "queued"), _time("allocated_ts", "allocated"), _time("first_step_ts", "first step"),
    _time("end_ts", "end"),
    Field("exit_code", "int32", "text", "exit code"), Field("exit_signal", "int32", "text", "signal"),
    Field("requeues", "int32", "text", "times requeued"),
    Field("nodes", "int32", "text", "nodes placed"), Field("gpus", "int32", "text", "GPUs placed"),
    Field("ranks", "int32", "text", "ranks"),
    _text("gpu_uuids", "JSON array of this machine's GPUs in the job"),
    _text("image_digest", "container image digest"), _text("code_revision", "code revision"),
    _text("config_hash", "configuration hash"), _text("run_id", "experiment run id"),
)  # fmt: skip

_SUBJECT: Final = (
    _text("subject", "node, gpu, link, rack, domain, switch, rail, job, driver or cluster"),
    *_ENTITY,
    _word("cause", "one of CAUSES"),
)


def _table(
    name: str, help_: str, topic: str, entity: tuple[str, ...], *fields: Field, retention_d: int | None = None
) -> Table:
    return Table(name, help_, topic, entity, fields, retention_d)


_RAW: Final = (
    _table("gpu", "one GPU, one sample", SAMPLES, ("cluster", "node_id", "gpu_uuid", "mig_instance"), *_GPU_KEYS, *_GPU_FIELDS, retention_d=7),
    _table("link", "one NVLink or network port, one sample", SAMPLES, ("cluster", "node_id", "link"), *_WHO, _key("driver_load", "driver load id", "int64"), _key("link", "mlx5_0/1, eth0, or GPU uuid and NVLink number"), _key("gpu_uuid", "GPU of an NVLink"), *_LINK_FIELDS, retention_d=7),
    _table("host", "one node, one sample, and the agent's own health", SAMPLES, ("cluster", "node_id"), *_WHO, _key("driver_load", "driver load id", "int64"), *_HOST_FIELDS, retention_d=7),
)  # fmt: skip

_OTHER: Final = (
    _table("event", "one event: what happened, with the raw line beside the parsed one", EVENTS, ("event_id",), *_EVENT),
    _table("probe", "one active check's result", SAMPLES, ("run_id",), *_PROBE),
    _table("step", "one training step of one rank", SAMPLES, ("cluster", "node_id", "job_id", "rank"), *_WHO,
        _text("job_id", "job"), Field("rank", "int32", "text", "rank"), _text("role", "pipeline stage"), _text("gpu_uuid", "GPU"),
        Field("step", "int64", "text", "step number"), Field("seconds", "float64", "gauge", "wall seconds"),
        Field("busy_s", "float64", "gauge", "compute, waits excluded"), Field("wait_s", "float64", "gauge", "waiting in collectives"),
        retention_d=90),
    _table("job", "one change of one placement", EVENTS, ("cluster", "node_id", "job_id"), *_JOB),
    _table("job_log", "one telling line of a job's output; opt-in, redacted", SAMPLES, ("cluster", "node_id", "job_id"), *_WHO,
        _text("job_id", "job"), Field("rank", "int32", "text", "rank"), _text("kind", "traceback, cuda, nccl, oom, nan, signal"), _text("line", "at most 1 kB"), retention_d=90),
    _table("inventory", "one change of what there is", SAMPLES, ("cluster", "node_id", "kind", "entity"), *_WHO,
        _text("kind", "node, gpu, port (NVLinks too), mig (one MIG instance), or node_name: a name that others call this machine by"),
        _text("entity", "gpu uuid, link name, node id; of mig the gpu uuid, a slash and the GPU instance id; of node_name the naming system: slurm or kubernetes (the host name is column node of kind node, no row of its own)"), _text("model", "product name"),
        _text("serial", "serial number"), _text("slot", "slot or PCI address"), _text("vbios_version", "VBIOS or firmware"),
        _text("driver_version", "driver"), _text("mig_profile", "MIG profile"), _text("domain", "NVLink domain: cluster uuid and clique"),
        Field("expected", "int32", "text", "how many of this kind the node should have"),
        _text("attributes", "JSON object of further facts: supported fields; of node_name {\"name\": NodeName or node name, \"uid\": Kubernetes node uid where there is one}"),
        _time("valid_until", "end of validity where the source knows it (set to ts: the name is gone); null else, for the next row of the same entity or the same name on another machine ends it (views inventory_history and machine_names)")),
    _table("quality", "one change of one field's state on one GPU, link or node", SAMPLES, ("cluster", "node_id", "table_name", "entity", "field"), *_WHO,
        _text("table_name", "table of the field"), _text("entity", "gpu uuid, link or node id; gpu uuid/GPU instance for a MIG instance, and in table link the gpu uuid for all of its NVLinks"), _text("field", "field, or * for all of them"),
        _word("state", f"one of {', '.join(QUALITY_STATES)}"), _text("reason", "why, in the source's words")),
    _table("service", "one change of the state of one service, mount, file system, disk, memory controller or BMC; the state in force is told again every hour", SAMPLES, ("cluster", "node_id", "kind", "name"), *_WHO,
        _text("kind", "unit, mount, disk, nvme, memory or bmc"), _text("name", "unit name, mount point, device, controller"),
        _word("state", "unit: active, starting, restarting, failed, down, off, masked, absent, not_needed; mount: ok, hung, failing, read_only, hidden, gone; disk: ok, full, gone; nvme: ok, warning, dead, gone; memory: ok, corrected, uncorrected, gone; bmc: ok, full"),
        Field("bad", "bool", "state", "true while the state is a fault here"), _time("since", "since when, by the source where it tells"),
        Field("restarts", "int64", "text", "unit: automatic restarts by systemd since it was last started by hand"),
        Field("value", "float64", "gauge", "disk: used ratio; memory: uncorrected errors; nvme: percent of rated life used; bmc: entries of its log"), _text("unit", "unit of value"),
        _text("reason", "why, in the source's words"), _text("attributes", "JSON object of further facts of the source")),
    _table("finding", "one detector's statement about one entity in one window", FINDINGS, ("finding_id",), *_WHO,
        _text("finding_id", "UUIDv5 of cluster, entity, detector, version and window"), _text("detector", "detector"),
        Field("version", "int32", "text", "detector version"), *_SUBJECT, _text("signal", "what was measured"),
        Field("value", "float64", "gauge", "measured"), Field("baseline", "float64", "gauge", "own history"),
        Field("peer_median", "float64", "gauge", "median of the peers"), Field("peers", "int32", "gauge", "how many peers"),
        _text("unit", "unit of value"), Field("effect", "float64", "gauge", "relative effect, 0.05 is 5 % worse"),
        Field("score", "float64", "gauge", "accumulated score"), Field("threshold", "float64", "gauge", "score from which it is told"),
        Field("p_value", "float64", "gauge", "conformal or exact p-value"), _time("since", "first evidence"),
        _word("severity", "page, ticket or digest"), _text("message", "one line for a person"), _text("action", "what to do"),
        _text("evidence", "JSON object"), Field("live", "bool", "state", "false while in shadow")),
    _table("incident", "one revision of one incident", INCIDENTS, ("incident_id", "revision"), *_WHO,
        _text("incident_id", "UUIDv5 of cluster, subject, cause and time of first evidence"), Field("revision", "int32", "text", "counts up"),
        _word("state", "open, updated or resolved"), *_SUBJECT, _text("pci_bus_id", "PCI address of the GPU, where known"), _word("severity", "page, ticket or digest"),
        _text("title", "one line"), _text("action", "recommended action"), _text("action_source", "who says so, with version"),
        _text("owner", f"one of {', '.join(OWNERS)}"), _text("next_step", "the next step for the owner"),
        _time("since", "first evidence"), _time("opened_ts", "opened"), _time("updated_ts", "this revision"), _time("resolved_ts", "resolved"),
        Field("count", "int32", "text", "findings and events behind it"), _text("finding_ids", "JSON array, the latest 50"),
        _text("evidence", "JSON array of what was seen, against what"),
        _time("due_ts", "until when the owner should have taken the next step; null once it is resolved"),
        _text("job_id", "job that ran there when it was last told"),
        Field("wait_gpu_h_per_day", "float64", "gauge", "GPU-hours that a day of waiting is expected to cost; null where nothing tells"),
        Field("wait_cost_per_day", "float64", "gauge", "the same in money; null without a price"), _text("currency", "currency of wait_cost_per_day"),
        _text("wait_basis", "how that was reckoned and what was assumed"),
        _text("grouped_under", "incident that speaks for this one: the shift it is part of, or the page that has taken this shift's place")),
    _table("attribution", "one judgement of why one placement of a job ended or hangs; the latest revision counts (view attribution_now)", FINDINGS, ("attribution_id", "revision"), *_WHO,
        _text("attribution_id", "UUIDv5 of cluster, job, attempt, start and phase"), Field("revision", "int32", "text", "0 soon after the end, 1 where what came later changed it"), Field("version", "int32", "text", "version of the rules"),
        _text("job_id", "job"), _text("job_alias", "the job's other name"), Field("attempt", "int32", "text", "0 for the first placement, 1 after one requeue"),
        _text("user", "user"), _text("account", "account"), _text("partition", "partition or queue"), _text("work", "kind of work"),
        _word("job_state", "state of the placement when it was judged"), _word("phase", "ended or hung"),
        _time("start_ts", "start of the placement"), _time("end_ts", "its end; null while it hangs"), _time("window_since", "evidence from here"), _time("window_until", "to here"), Field("nodes", "int32", "text", "machines placed"),
        _word("verdict", f"one of {', '.join(VERDICTS)}"), _text("kind", "gpu, memory, nvlink, driver, pcie, network, storage, host, node; code, data, resources, program; time_limit, cancelled, preempted, requeued, completed; collective_timeout, no_evidence, …"),
        _text("detail", "the kind in its own words: xid_79, gpu_out_of_memory, missing_file, nan"), _word("confidence", "high, medium, low; null where the verdict is unknown"),
        *_ENTITY, _text("pci_bus_id", "PCI address of the GPU where it began"), _time("since", "the first cause in time; node and GPU are its own, node_id is job:<id> where there is none"),
        _text("message", "the verdict in one sentence"), _text("action", "what to do next"), _text("owner", f"one of {', '.join(OWNERS)}"),
        _text("evidence", "JSON array in order of time, each with its role: initiating, cascade, teardown, context"), _text("suspects", "JSON array of node ids that an unknown cause leaves in doubt, the most doubtful first"),
        _text("elsewhere", "JSON object: runs of the same image on other nodes, failures of other jobs on these nodes"), _text("missing", "JSON array of what could not be asked"), _text("notes", "JSON array of remarks: what weakens or supports it"), _text("finding_ids", "JSON array of the findings made of it")),
    _table("action", "one thing done or refused about an incident", ACTIONS, ("action_id",), *_WHO,
        _text("action_id", "UUIDv5"), _text("incident_id", "incident"), Field("revision", "int32", "text", "incident revision"), _text("responder", "webhook:NAME, alertmanager:NAME, chat:NAME, slurm, kubernetes, …"),
        _text("kind", "notify, remind, bundle, drain, release, …"), _word("outcome", "done, dry_run, refused, failed; held: it is told later"), _text("reason", "why"), _text("who", "actor"),
        Field("attempts", "int32", "text", "attempts")),
    _table("canary", "one heartbeat of the alert path: detect sends it, respond tells it to receivers that want it", INCIDENTS, ("cluster", "canary_id"), *_WHO, _text("canary_id", "UUIDv5 of cluster and time")),
    _table("label", "a person's verdict on an incident, or on a node in a day or an audited week; the latest counts (view label_now)", PEOPLE, ("incident_id",), *_WHO, _text("incident_id", "incident; null where the verdict is about a node in a period"), _word("verdict", "true (something was wrong), false or unsure"), _text("why", "reason"), _text("who", "person"),
        _text("period", "day (2026-11-20) or ISO week (2026-W48) of a verdict on a node")),
    _table("ack", "a person has taken an incident", PEOPLE, ("incident_id",), *_WHO, _text("incident_id", "incident"), _text("why", "reason"), _text("who", "person")),
    _table("mute", "receivers are told nothing of a node until then; what is found is stored all the same", PEOPLE, ("cluster", "node_id"), *_WHO, _time("until", "until when; not after ts: the node is heard again"), _text("why", "reason"), _text("who", "person")),
    _table("maintenance", "receivers are told nothing of these nodes in this window; what is found is stored all the same, and what is still open at its end is told then", PEOPLE, ("cluster", "maintenance_id"), *_WHO, _text("maintenance_id", "window; a later row of it changes or ends it (view maintenance_now)"),
        _word("scope", "node, rack, partition or all"), _text("name", "which one: node_id, rack or partition; null for all"), _time("since", "from"), _time("until", "to; not after since: it does not take place"), _text("why", "reason"), _text("who", "person")),
    _table("repair", "a logged repair; ends the baseline", PEOPLE, ("cluster", "node_id"), *_WHO, *_ENTITY, _text("what", "what was done"), _text("who", "person"), _text("incident_id", "incident"), _time("logged_ts", "when it was said; ts is when it was done")),
    _table("node_state", "one change of a node's state, the scheduler's and ours", EVENTS, ("cluster", "node_id"), *_WHO, _word("scheduler_state", "as the scheduler words it"),
        _word("state", "healthy, suspect, quarantined, in_repair, probation, unknown"), _text("reason", "why"), _text("who", "actor")),
    _table("round", "one detection round", FINDINGS, ("cluster",), *_WHO, Field("window_s", "int32", "text", "window length"), _text("table_versions", "JSON object: table versions read"),
        Field("machines", "int32", "gauge", "machines present"), Field("late_machines", "int32", "gauge", "machines not yet closed"), Field("findings", "int32", "gauge", "findings stored"), Field("seconds", "float64", "gauge", "duration")),
    _table("state", "detector memory after a round", FINDINGS, ("cluster", "detector"), *_WHO, _text("detector", "detector"), Field("version", "int32", "text", "detector version"), _text("state", "Arrow IPC stream, base64"), retention_d=7),
    _table("baseline", "an entity's own normal", FINDINGS, ("cluster", "gpu_uuid", "signal", "work"), *_WHO, *_ENTITY, _text("signal", "signal"), _text("work", "kind of work"), Field("value", "float64", "gauge", "median"), Field("spread", "float64", "gauge", "MAD"),
        Field("days", "float64", "gauge", "days behind it"), _text("ended_by", "repair, driver, vbios, power_limit, mig or gpu")),
    _table("threshold", "a threshold of a set that was fitted or accepted, with its data and hash", PEOPLE, ("cluster", "detector", "signal"), *_WHO, _text("detector", "detector"), _text("signal", "signal"), Field("value", "float64", "gauge", "threshold"),
        Field("budget", "float64", "gauge", "false findings per node-day"), Field("upper_bound", "float64", "gauge", "confidence bound of the false rate"), Field("node_days", "float64", "gauge", "healthy node-days behind it"), _text("hash", "hash of the data"), _text("who", "who accepted it"),
        _text("set_id", "the set it belongs to; accepted rows of one set_id and ts are in force together"), _word("state", "candidate or accepted"), Field("window_s", "int32", "text", "window length, 0 for any"), _text("unit", "unit of value"),
        Field("usual_most", "float64", "gauge", "0.99 quantile of the node-day maxima behind it"), Field("provisional", "bool", "state", "true where no healthy node-days stand behind it"),
        _time("data_since", "first day of the data"), _time("data_until", "end of the last day of the data"), _text("why", "reason")),
    _table("node_day", "a node-day's maxima", FINDINGS, ("cluster", "node_id", "detector", "signal"), *_WHO, _text("detector", "detector"), _text("signal", "signal"), Field("maximum", "float64", "gauge", "maximum score; of detector * the largest score in parts of its threshold"), Field("windows", "int32", "gauge", "windows in which the node was seen"), Field("window_s", "int32", "text", "window length"), Field("threshold", "float64", "gauge", "threshold in force; scores are kept up to twice that")),
    _table("price", "price of a GPU-hour", ACTIONS, ("cluster", "gpu_model"), *_WHO, _text("gpu_model", "model"), _text("commitment", "commitment"), Field("per_gpu_hour", "float64", "gauge", "price"), _text("currency", "currency")),
)  # fmt: skip


# --- window tables are derived, never written by hand ---------------------------------------------------


def window_field_names(f: Field) -> tuple[str, ...]:
    """Names of the window columns that a raw field becomes, in order."""
    if f.window == "none" or f.kind == "key":
        return ()
    if f.window == "last" or f.kind in ("state", "text"):
        return (f"{f.name}_last",)
    if f.kind == "gauge":
        return (f"{f.name}_mean", f"{f.name}_min", f"{f.name}_max")
    if f.kind == "counter":
        return (f"{f.name}_delta", f"{f.name}_since_reset", f"{f.name}_last")
    if f.kind == "amount":
        return (f"{f.name}_sum",)
    return (*(f"{bit}_s" for bit in CLOCK_EVENT_BITS), "other_clock_event_s")


def _window_type(f: Field, column: str) -> Type:
    if column.endswith("_mean"):
        return "float64" if f.type in ("int64", "float64") else "float32"
    if column.endswith(("_sum", "_s")) and f.kind in ("amount", "bits"):
        return "float32"
    return f.type


def _window_table(raw: Table, suffix: str, length: str, retention_d: int) -> Table:
    fields = [f for f in raw.fields if f.kind == "key"]
    fields += [
        Field("samples", "int32", "text", "samples in the window"),
        Field("samples_expected", "int32", "text", "samples that the schedule promised"),
        Field("resets", "int32", "text", "counter resets in the window: boot, driver reload or a fall"),
    ]
    for f in raw.fields:
        for column in window_field_names(f):
            fields.append(Field(column, _window_type(f, column), f.kind, f.help, f.unit, f.dcgm, f.nvml, f.lo, f.hi))
    help_ = f"{length} of {raw.name}: ts is the window's start; _delta sums differences inside one boot and driver load"
    return Table(f"{raw.name}_{suffix}", help_, "", raw.entity, tuple(fields), retention_d)


WINDOW_S: Final[Mapping[str, int]] = {"30s": 30, "1h": 3600}
_WINDOWS: Final = tuple(
    _window_table(raw, suffix, "30 seconds" if suffix == "30s" else "one hour", 90 if suffix == "30s" else 730)
    for suffix in WINDOW_S
    for raw in _RAW
)
FLEET_GAUGES: Final = ("gpu_util_percent", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "power_w", "temp_c", "mem_temp_c", "sm_clock_mhz", "mem_used_bytes")  # fmt: skip
FLEET_AMOUNTS: Final[Mapping[str, str]] = {
    "energy_mj": "energy_mj_sum", "ecc_sbe_volatile": "ecc_sbe_volatile_delta", "ecc_dbe_volatile": "ecc_dbe_volatile_delta",
    "pcie_replays": "pcie_replays_delta",
}  # fmt: skip
"""Gauges, and counters with their columns, of ``gpu`` that ``fleet_1h`` has."""
FLEET_SECONDS: Final = ("sw_power_cap_s", "sw_thermal_s", "hw_thermal_s", "hw_power_brake_s")


def _fleet_fields() -> tuple[Field, ...]:
    gpu = next(t for t in _RAW if t.name == "gpu")
    fields: list[Field] = []
    for f in map(gpu.field, FLEET_GAUGES):
        kind: Type = "float64" if f.type == "int64" else "float32"
        fields += [Field(f"{f.name}_{part}", kind, "gauge", f"{f.help}; {what}", f.unit) for part, what in (
            ("mean", "mean, weighted by GPU-hours"), ("min", "lowest of any GPU"), ("max", "highest of any GPU"))]  # fmt: skip
        fields.append(
            Field(
                f"{f.name}_gpu_hours",
                "float64",
                "amount",
                f"GPU-hours in which {f.name} was measured: the weight of its mean",
            )
        )
    fields += [Field(c, "int64", "amount", gpu.field(n).help, gpu.field(n).unit) for n, c in FLEET_AMOUNTS.items()]
    fields += [
        Field(n, "float64", "amount", "GPU-seconds in which this clock event was on", "s") for n in FLEET_SECONDS
    ]
    return tuple(fields)


_FLEET: Final = _table(
    "fleet_1h", "a part of an hour of the fleet by partition, rack, model and job, made of gpu_1h: fast overviews; rows add up, means by their gpu_hours", "",
    ("cluster", "partition", "rack", "gpu_model", "job_id"), *_WHO,
    _text("gpu_model", "model"), _text("job_id", "job at the end of the hour, null for none"), Field("gpus", "int32", "gauge", "GPUs seen"),
    Field("gpu_hours", "float64", "amount", "GPU-hours in which samples were taken"), _text("partition", "partition of the job, or of the latest one placed on the node"), _text("rack", "rack, where the inventory names it"),
    Field("windows", "int32", "amount", "rows of gpu_1h behind it, MIG instances too"),
    Field("blind_s", "float64", "amount", "GPU-seconds without a sample that was due, of GPUs seen in the hour", "s"), *_fleet_fields(), retention_d=730,
)  # fmt: skip

OWNED_MEANS: Final = ("util_percent", "sm_active_ratio", "tensor_active_ratio", "power_w")
_OWNED: Final = _table(
    "owned_hours", "an hour's GPU-hours by model, category and job, made of gpu_hours() over the whole UTC day: what cost and capacity are reckoned from; rows add up", "",
    ("cluster", "gpu_model", "category", "job_id"), *_WHO,
    _text("gpu_model", "model"), _text("category", "what the hours went to, as gpu_hours() has it (docs/cost.md)"), _text("job_id", "job, null for none"), _text("user", "user of the job"), _text("account", "account of the job"),
    _text("partition", "partition of the job"), _text("work", "kind of work of the job"), Field("gpu_hours", "float64", "amount", "GPU-hours owned"),
    *(Field(f"{m}{end}", "float64", "amount", f"{m} {what}") for m in OWNED_MEANS for end, what in (("_h", "times GPU-hours, summed"), ("_of_h", "was measured in so many GPU-hours"))),
    retention_d=730,
)  # fmt: skip

TABLES: Final[Mapping[str, Table]] = {t.name: t for t in (*_RAW, *_OTHER, *_WINDOWS, _FLEET, _OWNED)}
"""Every table by name. ``topic`` is empty for tables that the pipeline derives."""


# --- identifiers ----------------------------------------------------------------------------------------

_NAMESPACE: Final = uuid.UUID("6f2d1c1e-5b0e-5d60-9a0d-9c5b8f7a2e11")


def stable_id(*parts: object) -> str:
    """UUIDv5 over the parts, joined unambiguously: the same parts give the same id on any machine."""
    return str(uuid.uuid5(_NAMESPACE, json.dumps([str(p) for p in parts], ensure_ascii=False)))
