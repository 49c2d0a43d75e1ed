"""Which value of nvidia-smi is which field: one table for its three forms (XML, ``-q`` text, CSV query).

A name with ``|`` has alternatives, the preferred one first. Names are read without unit and in lower case, save XML,
whose tags have underscores. What stands in no line here and in no line of ``smi_unused`` is new, and is counted as such.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from graynode.pipeline.schema import CLOCK_EVENT_BITS
from graynode.service.imports.smi_values import (
    FABRIC,
    ON_OFF,
    RECOVERY,
    SUCCESS,
    YES_NO,
    Convert,
    bit,
    compute_process,
    identity,
    mask,
    no_process,
    number,
    plain,
    pstate,
)

Form = Literal["xml", "text", "csv"]
Place = Literal["gpu", "inventory", "attribute", "fact"]
"""``fact``: read for its own sake (time, host name, numbers of a MIG instance), and in every row of the capture."""
Combine = Literal["first", "sum", "or"]


@dataclass(frozen=True, slots=True)
class Entry:
    """What a value becomes. Of entries of one field the lowest ``rank`` with a value counts; those of one rank are
    combined. With several ``names`` only an absent value is understood: it says that all of them are absent.
    """

    place: Place
    names: tuple[str, ...]
    convert: Convert
    rank: int = 0
    combine: Combine = "first"


_C: Final = number("C")
_W: Final = number("W", whole=False)
_MHZ: Final = number("MHz")
_PERCENT: Final = number("%")
_MIB: Final = number("MiB", 1 << 20)
_US: Final = number("us", 1000)
_COUNT: Final = number("")
_LANES: Final = number("x")
_BANKS: Final = number("bank(s)")
_KBS: Final = number("KB/s")

_Line = tuple[str, Convert, str, str, str]
_GPU: Final[tuple[_Line, ...]] = (
    ("gpu_model", plain, "product_name", "product name", "name|gpu_name"),
    ("gpu_uuid", plain, "uuid", "gpu uuid", "uuid|gpu_uuid"),
    ("gpu_index", _COUNT, "", "", "index"),
    ("pci_bus_id", plain, "pci/pci_bus_id", "pci/bus id", "pci.bus_id|gpu_bus_id"),
    ("sm_clock_mhz", _MHZ, "clocks/sm_clock", "clocks/sm", "clocks.current.sm|clocks.sm"),
    ("mem_clock_mhz", _MHZ, "clocks/mem_clock", "clocks/memory", "clocks.current.memory|clocks.mem"),
    ("app_sm_clock_mhz", _MHZ, "applications_clocks/graphics_clock", "applications clocks/graphics", "clocks.applications.graphics|clocks.applications.gr"),
    ("app_mem_clock_mhz", _MHZ, "applications_clocks/mem_clock", "applications clocks/memory", "clocks.applications.memory|clocks.applications.mem"),
    ("max_sm_clock_mhz", _MHZ, "max_clocks/sm_clock", "max clocks/sm", "clocks.max.sm"),
    ("max_mem_clock_mhz", _MHZ, "max_clocks/mem_clock", "max clocks/memory", "clocks.max.memory|clocks.max.mem"),
    ("clock_event_reasons", mask, "", "", "clocks_event_reasons.active"),
    ("throttle_sw_power_cap_ns", _US, "clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap", "clocks event reasons counters/sw power capping", "clocks_event_reasons_counters.sw_power_cap"),
    ("throttle_sync_boost_ns", _US, "clocks_event_reasons_counters/clocks_event_reasons_counters_sync_boost", "clocks event reasons counters/sync boost", "clocks_event_reasons_counters.sync_boost"),
    ("throttle_sw_thermal_ns", _US, "clocks_event_reasons_counters/clocks_event_reasons_counters_sw_therm_slowdown", "clocks event reasons counters/sw thermal slowdown", "clocks_event_reasons_counters.sw_thermal_slowdown"),
    ("throttle_hw_thermal_ns", _US, "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_therm_slowdown", "clocks event reasons counters/hw thermal slowdown", "clocks_event_reasons_counters.hw_thermal_slowdown"),
    ("throttle_hw_power_brake_ns", _US, "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_power_brake", "clocks event reasons counters/hw power braking", "clocks_event_reasons_counters.hw_power_brake_slowdown"),
    ("pstate", pstate, "performance_state", "performance state", "pstate"),
    ("power_w", _W, "gpu_power_readings/average_power_draw|gpu_power_readings/power_draw|power_readings/power_draw", "gpu power readings/average power draw|gpu power readings/power draw|power readings/power draw", "power.draw|power.draw.average|gpu.power.draw.average"),
    ("power_instant_w", _W, "gpu_power_readings/instant_power_draw", "gpu power readings/instantaneous power draw", "power.draw.instant|gpu.power.draw.instant"),
    ("power_limit_w", _W, "gpu_power_readings/requested_power_limit|power_readings/power_limit", "gpu power readings/requested power limit|gpu power readings/gpu ceiling power limit/requested power limit|power readings/power limit", "power.limit|gpu.power.requested_limit"),
    ("power_limit_min_w", _W, "gpu_power_readings/min_power_limit|power_readings/min_power_limit", "gpu power readings/min power limit|gpu power readings/gpu ceiling power limit/min power limit|power readings/min power limit", "power.min_limit|gpu.power.min_limit"),
    ("power_limit_max_w", _W, "gpu_power_readings/max_power_limit|power_readings/max_power_limit", "gpu power readings/max power limit|gpu power readings/gpu ceiling power limit/max power limit|power readings/max power limit", "power.max_limit|gpu.power.max_limit"),
    ("power_limit_default_w", _W, "gpu_power_readings/default_power_limit|power_readings/default_power_limit", "gpu power readings/default power limit|gpu power readings/gpu ceiling power limit/default power limit|power readings/default power limit", "power.default_limit|gpu.power.default_limit"),
    ("power_limit_enforced_w", _W, "gpu_power_readings/current_power_limit|power_readings/enforced_power_limit", "gpu power readings/current power limit|gpu power readings/gpu ceiling power limit/current power limit|power readings/enforced power limit", "enforced.power.limit|gpu.power.current_limit"),
    ("temp_c", _C, "temperature/gpu_temp", "temperature/gpu current temp", "temperature.gpu"),
    ("mem_temp_c", _C, "temperature/memory_temp", "temperature/memory current temp", "temperature.memory"),
    ("temp_margin_c", _C, "temperature/gpu_temp_tlimit", "temperature/gpu t.limit temp|temperature/gpu current t.limit temp", "temperature.gpu.tlimit"),
    ("temp_mem_max_op_c", _C, "temperature/gpu_temp_max_mem_threshold", "temperature/memory max operating temp", ""),
    ("temp_max_op_c", _C, "temperature/gpu_temp_max_gpu_threshold", "temperature/gpu max operating temp", ""),
    ("temp_slowdown_c", _C, "temperature/gpu_temp_slow_threshold", "temperature/gpu slowdown temp", ""),
    ("temp_shutdown_c", _C, "temperature/gpu_temp_max_threshold", "temperature/gpu shutdown temp", ""),
    ("gpu_util_percent", _PERCENT, "utilization/gpu_util", "utilization/gpu", "utilization.gpu"),
    ("mem_util_percent", _PERCENT, "utilization/memory_util", "utilization/memory", "utilization.memory"),
    ("mem_total_bytes", _MIB, "fb_memory_usage/total", "fb memory usage/total", "memory.total"),
    ("mem_free_bytes", _MIB, "fb_memory_usage/free", "fb memory usage/free", "memory.free"),
    ("mem_used_bytes", _MIB, "fb_memory_usage/used", "fb memory usage/used", "memory.used"),
    ("mem_reserved_bytes", _MIB, "fb_memory_usage/reserved", "fb memory usage/reserved", "memory.reserved"),
    ("pcie_gen", _COUNT, "pci/pci_gpu_link_info/pcie_gen/current_link_gen", "pci/gpu link info/pcie generation/current", "pcie.link.gen.current|pcie.link.gen.gpucurrent"),
    ("pcie_width", _LANES, "pci/pci_gpu_link_info/link_widths/current_link_width", "pci/gpu link info/link width/current", "pcie.link.width.current"),
    ("pcie_gen_max", _COUNT, "pci/pci_gpu_link_info/pcie_gen/max_link_gen", "pci/gpu link info/pcie generation/max", "pcie.link.gen.max"),
    ("pcie_width_max", _LANES, "pci/pci_gpu_link_info/link_widths/max_link_width", "pci/gpu link info/link width/max", "pcie.link.width.max"),
    ("pcie_tx_kb_per_s", _KBS, "pci/tx_util", "pci/tx throughput", ""),
    ("pcie_rx_kb_per_s", _KBS, "pci/rx_util", "pci/rx throughput", ""),
    ("pcie_replays", _COUNT, "pci/replay_counter", "pci/replays since reset", ""),
    ("ecc_mode", ON_OFF, "ecc_mode/current_ecc", "ecc mode/current", "ecc.mode.current"),
    ("ecc_mode_pending", ON_OFF, "ecc_mode/pending_ecc", "ecc mode/pending", "ecc.mode.pending"),
    ("sram_threshold_exceeded", YES_NO, "ecc_errors/aggregate/sram_threshold_exceeded", "ecc errors/aggregate/sram threshold exceeded", "ecc.errors.uncorrected.aggregate.sram.thresholdexceeded"),
    ("retired_pages_sbe", _COUNT, "retired_pages/multiple_single_bit_retirement/retired_count", "retired pages/single bit ecc", "retired_pages.single_bit_ecc.count|retired_pages.sbe"),
    ("retired_pages_dbe", _COUNT, "retired_pages/double_bit_retirement/retired_count", "retired pages/double bit ecc", "retired_pages.double_bit.count|retired_pages.dbe"),
    ("retired_pages_pending", YES_NO, "retired_pages/pending_retirement|retired_pages/pending_blacklist", "retired pages/pending page retirement|retired pages/pending page blacklist", "retired_pages.pending"),
    ("row_remaps_correctable", _COUNT, "remapped_rows/remapped_row_corr", "remapped rows/correctable error", "remapped_rows.correctable|remapped_rows.sbe"),
    ("row_remaps_uncorrectable", _COUNT, "remapped_rows/remapped_row_unc", "remapped rows/uncorrectable error", "remapped_rows.uncorrectable|remapped_rows.dbe"),
    ("row_remap_failed", YES_NO, "remapped_rows/remapped_row_failure", "remapped rows/remapping failure occurred", "remapped_rows.failure"),
    ("row_remap_pending", YES_NO, "remapped_rows/remapped_row_pending", "remapped rows/pending", "remapped_rows.pending"),
    *(
        (f"bank_remap_{n}", _BANKS, f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{n}", f"remapped rows/bank remap availability histogram/{n}", f"remapped_rows.histogram.{n}")
        for n in ("max", "high", "partial", "low", "none")
    ),
    ("recovery_action", RECOVERY, "gpu_recovery_action", "gpu recovery action", "gpu_recovery_action"),
    ("fabric_state", FABRIC, "fabric/state", "fabric/state", "fabric.state"),
    ("fabric_status", SUCCESS, "fabric/status", "fabric/status", "fabric.status"),
    ("persistence_mode", ON_OFF, "persistence_mode", "persistence mode", "persistence_mode"),
    ("mig_mode", ON_OFF, "mig_mode/current_mig", "mig mode/current", "mig.mode.current"),
    ("processes", no_process, "processes", "processes", ""),
)  # fmt: skip

_INVENTORY: Final[tuple[_Line, ...]] = (
    ("serial", identity, "serial", "serial number", "serial|gpu_serial"),
    ("vbios_version", plain, "vbios_version", "vbios version", "vbios_version"),
    ("driver_version", plain, "driver_version|kmd_version", "driver version|kmd version", "driver_version|kmd_version"),
    ("cluster_uuid", identity, "fabric/clusterUuid", "fabric/clusteruuid", "fabric.clusteruuid"),
    ("clique", _COUNT, "fabric/cliqueId", "fabric/cliqueid", "fabric.cliqueid"),
)
_ATTRIBUTES: Final[tuple[_Line, ...]] = (
    ("brand", plain, "product_brand", "product brand", ""),
    ("architecture", plain, "product_architecture", "product architecture", ""),
    ("compute_capability", plain, "", "", "compute_cap"),
    ("cuda_version", plain, "cuda_version|cuda_umd_version", "cuda version|cuda umd version", ""),
    ("gsp_firmware", plain, "gsp_firmware_version", "gsp firmware version", ""),
    ("pdi", identity, "pdi", "gpu pdi", ""),
    ("board_part_number", plain, "board_part_number", "board part number", ""),
    ("gpu_part_number", plain, "gpu_part_number", "gpu part number", ""),
    ("fru_part_number", plain, "gpu_fru_part_number", "fru part number", ""),
    ("inforom_image", plain, "inforom_version/img_version", "inforom version/image version", "inforom.img|inforom.image"),
    ("inforom_ecc", plain, "inforom_version/ecc_object", "inforom version/ecc object", "inforom.ecc"),
    ("module_id", plain, "platformInfo/module_id|gpu_module_id", "platform info/module id|module id", "platform.module_id"),
    ("chassis_serial", identity, "platformInfo/chassis_serial_number", "platform info/chassis serial number", "platform.chassis_serial_number"),
    ("slot_number", plain, "platformInfo/slot_number", "platform info/slot number", "platform.slot_number"),
    ("tray_index", plain, "platformInfo/tray_index", "platform info/tray index", "platform.tray_index"),
    ("host_id", plain, "platformInfo/host_id", "platform info/host id", "platform.host_id"),
    ("fabric_guid", identity, "platformInfo/gpu_fabric_guid", "platform info/gpu fabric guid", "platform.gpu_fabric_guid"),
    ("multiprocessors", _COUNT, "device_attributes/shared/multiprocessor_count", "device attributes/shared/multiprocessor count", ""),
    ("copy_engines", _COUNT, "device_attributes/shared/copy_engine_count", "device attributes/shared/copy engine count", ""),
)  # fmt: skip
_FACTS: Final[tuple[_Line, ...]] = (
    ("timestamp", plain, "timestamp", "timestamp", "timestamp"),
    ("hostname", plain, "", "", "hostname"),
    ("attached", _COUNT, "attached_gpus", "attached gpus", "count"),
    ("gpu_instance", _COUNT, "gpu_instance_id", "gpu instance id", ""),
    ("compute_instance", _COUNT, "compute_instance_id", "compute instance id", ""),
)

_BITS: Final = {
    "gpu_idle": ("gpu_idle", "idle"),
    "app_clocks": ("applications_clocks_setting", "applications clocks setting"),
    "sw_power_cap": ("sw_power_cap", "sw power cap"),
    "hw_slowdown": ("hw_slowdown", "hw slowdown"),
    "sync_boost": ("sync_boost", "sync boost"),
    "sw_thermal": ("sw_thermal_slowdown", "sw thermal slowdown"),
    "hw_thermal": ("hw_thermal_slowdown", "hw slowdown/hw thermal slowdown"),
    "hw_power_brake": ("hw_power_brake_slowdown", "hw slowdown/hw power brake slowdown"),
    "display": ("display_clocks_setting", "display clock setting"),
}
_ECC_PLACES: Final = {
    "device": ("device_memory", "device memory"),
    "register": ("register_file", "register file"),
    "l1": ("l1_cache", "l1 cache"),
    "l2": ("l2_cache", "l2 cache"),
    "texture": ("texture_memory", "texture memory"),
    "shared": ("texture_shm", "texture shared"),
    "cbu": ("cbu", "cbu"),
    "": ("total", "total"),
}
_HISTOGRAM: Final = tuple(f"bank_remap_{n}" for n in ("max", "high", "partial", "low", "none"))
_REMAPS: Final = ("row_remaps_correctable", "row_remaps_uncorrectable", "row_remap_failed", "row_remap_pending")


def _nothing(text: str) -> int:
    """A group's own text is understood only where it says that the group is absent."""
    raise ValueError(text)


def _lines(form: Form) -> Iterator[tuple[str, Entry]]:
    column = {"xml": 2, "text": 3, "csv": 4}[form]
    places: tuple[tuple[Place, tuple[_Line, ...]], ...] = (
        ("gpu", _GPU), ("inventory", _INVENTORY), ("attribute", _ATTRIBUTES), ("fact", _FACTS),
    )  # fmt: skip
    for place, lines in places:
        for line in lines:
            for rank, name in enumerate(str(line[column]).split("|")):
                if name:
                    yield name, Entry(place, (line[0],), line[1], rank)


def _reasons(form: Form) -> Iterator[tuple[str, Entry]]:
    """Clock event reasons, one name for each bit. Where the mask itself is given it counts, not they."""
    for name, (tag, words) in _BITS.items():
        made = Entry("gpu", ("clock_event_reasons",), bit(CLOCK_EVENT_BITS[name]), 1, "or")
        if form == "csv":
            yield f"clocks_event_reasons.{tag}", made
        elif form == "text":
            yield f"clocks event reasons/{words}", made
            yield f"clocks throttle reasons/{words}", made
        else:
            yield f"clocks_event_reasons/clocks_event_reason_{tag}", made
            yield f"clocks_throttle_reasons/clocks_throttle_reason_{tag}", made


def _ecc(form: Form) -> Iterator[tuple[str, Entry]]:
    for scope in ("volatile", "aggregate"):
        for kind, bits, csv_word in (("sbe", "single", "corrected"), ("dbe", "double", "uncorrected")):
            for place, (tag, words) in _ECC_PLACES.items():
                field = f"ecc_{kind}_{scope}" + (f"_{place}" if place else "")
                name = {
                    "xml": f"ecc_errors/{scope}/{bits}_bit/{tag}",
                    "text": f"ecc errors/{scope}/{bits} bit/{words}",
                    "csv": f"ecc.errors.{csv_word}.{scope}.{tag}",
                }[form]
                yield name, Entry("gpu", (field,), _COUNT)
            yield from _ecc_ampere(form, scope, kind, csv_word)


def _ecc_ampere(form: Form, scope: str, kind: str, csv_word: str) -> Iterator[tuple[str, Entry]]:
    """Since Ampere by SRAM and DRAM; newer drivers part uncorrectable SRAM errors into parity and SEC-DED."""
    told = "correctable" if kind == "sbe" else "uncorrectable"
    for place, field in (("sram", "sram"), ("dram", "device")):
        name = {
            "xml": f"ecc_errors/{scope}/{place}_{told}",
            "text": f"ecc errors/{scope}/{place} {told}",
            "csv": f"ecc.errors.{csv_word}.{scope}.{place}",
        }[form]
        yield name, Entry("gpu", (f"ecc_{kind}_{scope}_{field}",), _COUNT, 1 if place == "dram" else 0)
    if kind == "dbe":
        names = {
            "xml": (f"ecc_errors/{scope}/sram_uncorrectable_{p}" for p in ("parity", "secded")),
            "text": (f"ecc errors/{scope}/sram uncorrectable {p}" for p in ("parity", "sec-ded")),
            "csv": (f"ecc.errors.uncorrected.{scope}.sram.{p}" for p in ("parity", "secded")),
        }[form]
        for name in names:
            yield name, Entry("gpu", (f"ecc_dbe_{scope}_sram",), _COUNT, 1, "sum")


def _groups(form: Form) -> Iterator[tuple[str, Entry]]:
    """Names that stand for a group where the device has none of it, and lists of processes."""
    gap = "_" if form == "xml" else " "
    yield f"remapped{gap}rows", Entry("gpu", (*_REMAPS, *_HISTOGRAM), _nothing)
    histogram = "row_remapper_histogram" if form == "xml" else "bank remap availability histogram"
    yield f"remapped{gap}rows/{histogram}", Entry("gpu", _HISTOGRAM, _nothing)
    kind = "processes/process_info/type" if form == "xml" else "processes/process id/type"
    yield kind, Entry("gpu", ("processes",), compute_process, 1, "sum")
    # a MIG instance's own
    if form == "xml":
        yield "ecc_error_count/volatile_count/sram_uncorrectable", Entry("gpu", ("ecc_dbe_volatile_sram",), _COUNT)
        return
    for name in ("total", "free", "used", "reserved"):
        yield f"shared fb memory usage/{name}", Entry("gpu", (f"mem_{name}_bytes",), _MIB)


@functools.cache
def entries(form: Form) -> Mapping[str, Entry]:
    """What each name of that form becomes."""
    made = dict(_lines(form))
    made.update(_reasons(form))
    made.update(_ecc(form))
    if form != "csv":
        made.update(_groups(form))
    return made
