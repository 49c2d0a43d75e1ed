"""Names of nvidia-smi that are known and are not stored, with why; any other is of a newer version.

A name belongs to the longest prefix that stands here. Prefixes end at ``/``, ``.`` or the end of a name.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from graynode.service.imports.smi_fields import Form

NO_FIELD: Final = "no field of the contract"
CLOCKS: Final = "a list of possible clocks, no measurement"
PROCESS: Final = "of one process: the contract counts processes only"
KNOWN_BY: Final = "known by another name already: PCI address or UUID"

_XML: Final[Mapping[str, str]] = {
    CLOCKS: "supported_clocks",
    PROCESS: "processes/process_info accounted_processes",
    KNOWN_BY: "minor_number pci/pci_bus pci/pci_device pci/pci_domain board_id index",
    NO_FIELD: (
        "display_mode display_attached display_active addressing_mode mig_mode/pending_mig mig_devices accounting_mode"
        " accounting_mode_buffer_size driver_model multigpu_board platformInfo inforom_version inforom_bbx_flush"
        " gpu_operation_mode c2c_mode gpu_virtualization_mode gpu_reset_status ibmnpu pci fan_speed"
        " clocks_event_reasons_counters sparse_operation_mode bar1_memory_usage cc_protected_memory_usage compute_mode"
        " utilization encoder_stats fbc_stats dram_encryption_mode ecc_errors retired_pages remapped_rows temperature"
        " supported_gpu_target_temp gpu_power_readings power_readings gpu_memory_power_readings module_power_readings"
        " power_smoothing power_profiles edpp_multiplier clocks applications_clocks default_applications_clocks"
        " deferred_clocks max_clocks max_customer_boost_clocks clock_policy voltage fabric capabilities"
        " device_attributes"
    ),
}
_TEXT: Final[Mapping[str, str]] = {
    CLOCKS: "supported clocks",
    PROCESS: "processes|accounted processes",
    KNOWN_BY: "minor number|pci/bus|pci/device|pci/domain|board id|index",
    NO_FIELD: (
        "display mode|display attached|display active|addressing mode|mig mode/pending|mig device|accounting mode"
        "|accounting mode buffer size|driver model|multigpu board|platform info|inforom version"
        "|inforom bbx object flush|inforom time data|gpu operation mode|gpu c2c mode|gpu virtualization mode"
        "|gpu reset status|ibmnpu|pci|fan speed|clocks event reasons counters|sparse operation mode|bar1 memory usage"
        "|shared bar1 memory|conf compute protected memory usage|compute mode|utilization|encoder stats|fbc stats"
        "|dram encryption mode|ecc errors|retired pages|remapped rows|temperature|gpu power readings|power readings"
        "|gpu memory power readings|module power readings|power smoothing|workload power profiles|edpp multiplier"
        "|clocks|applications clocks|default applications clocks|deferred clocks|max clocks|max customer boost clocks"
        "|clock policy|voltage|fabric|capabilities|device attributes"
    ),
}
_CSV: Final[Mapping[str, str]] = {
    PROCESS: "pid process_name used_gpu_memory",
    KNOWN_BY: "pci.domain pci.bus pci.device gpu_pci.domain",
    NO_FIELD: (
        "vgpu_driver_capability vgpu_device_capability pci.baseclass pci.subclass pci.device_id pci.sub_device_id"
        " pcie.link.gen.gpumax pcie.link.gen.hostmax display_mode display_attached display_active addressing_mode"
        " accounting driver_model inforom gom gpu_operation_mode fan.speed clocks_event_reasons.supported compute_mode"
        " utilization.encoder utilization.decoder utilization.jpeg utilization.ofa encoder.stats dramencryption"
        " ecc.errors power.management module power_smoothing edpp_multiplier clocks.current.graphics clocks.gr"
        " clocks.current.video clocks.video clocks.default_applications clocks.max.graphics clocks.max.gr"
        " mig.mode.pending gsp c2c protected_memory fabric.health platform remapped_rows retired_pages gpu.base bbx"
    ),
}


@functools.cache
def _prefixes(form: Form) -> Mapping[str, str]:
    table = {"xml": _XML, "text": _TEXT, "csv": _CSV}[form]
    gap = "|" if form == "text" else " "
    return {prefix: reason for reason, names in table.items() for prefix in names.split(gap)}


def unused(form: Form, name: str) -> str | None:
    """Why a known name is not stored; ``None`` for a name of a newer version."""
    known, gap = _prefixes(form), "." if form == "csv" else "/"
    while name:
        if name in known:
            return known[name]
        name = name.rpartition(gap)[0]
    return None
