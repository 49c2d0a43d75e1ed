"""What is asked of a Prometheus: which expression gives which field of ``gpu``, ``host`` and ``link``.

``$x`` in an expression stands for the selector's labels, ``$r`` for the range that a step looks back. Names of
node-exporter are those of its own collectors (``infiniband_linux.go``, ``netclass``, ``meminfo``, ``cpu``, ``timex``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from string import Template
from typing import Final

from graynode.collectors.dcgm.fields import COLUMNS, Column


@dataclass(frozen=True, slots=True)
class Wanted:
    """One field: the expression whose values, times ``factor``, it is.

    ``needs`` are the metrics without which it is not asked. ``low``/``high`` bound the value as it is given. ``words``
    turns numbers into a state's words; a number without one is ``unknown``. ``flag``: whether there is any counts.
    ``of_instance``: a MIG instance has a value of its own; of other fields it repeats its GPU's.
    """

    table: str
    field: str
    expression: str
    needs: tuple[str, ...]
    factor: float = 1.0
    words: Mapping[int, str] | None = None
    low: float = float("-inf")
    high: float = float("inf")
    flag: bool = False
    of_instance: bool = False

    def query(self, matchers: str, range_ms: int) -> str:
        """The expression for the series that ``matchers`` select."""
        return Template(self.expression).substitute(x=matchers, r=f"{range_ms}ms")


def last(metric: str, more: str = "") -> str:
    """The newest sample of the step itself: a plain selector would repeat one that is up to five minutes old."""
    return f"last_over_time({metric}{{{more}$x}}[$r])"


def last_of(table: str, field: str, metric: str, factor: float = 1.0, words: Mapping[int, str] | None = None) -> Wanted:
    """A field that is the last sample of one metric."""
    return Wanted(table, field, last(metric), (metric,), factor, words)


_ROOT: Final = 'mountpoint="/",fstype!="rootfs",'
_CPU: Final = "node_cpu_seconds_total"
_HOST: Final = (
    last_of("host", "load1", "node_load1"),
    last_of("host", "mem_total_bytes", "node_memory_MemTotal_bytes"),
    last_of("host", "mem_available_bytes", "node_memory_MemAvailable_bytes"),
    Wanted(
        "host",
        "swap_used_bytes",
        f"{last('node_memory_SwapTotal_bytes')} - {last('node_memory_SwapFree_bytes')}",
        ("node_memory_SwapTotal_bytes", "node_memory_SwapFree_bytes"),
    ),
    last_of("host", "oom_kills", "node_vmstat_oom_kill"),
    Wanted("host", "uptime_s", f"time() - {last('node_boot_time_seconds')}", ("node_boot_time_seconds",)),
    last_of("host", "clock_synced", "node_timex_sync_status"),
    last_of("host", "clock_offset_s", "node_timex_offset_seconds"),
    Wanted(
        "host",
        "root_used_ratio",
        f"1 - {last('node_filesystem_avail_bytes', _ROOT)} / {last('node_filesystem_size_bytes', _ROOT)}",
        ("node_filesystem_avail_bytes", "node_filesystem_size_bytes"),
    ),
    # What a node has one of per CPU is summed up by the server: 200 series a node would come over the wire for one.
    Wanted(
        "host",
        "cpu_util_percent",
        f'1 - avg without (cpu, mode) (rate({_CPU}{{mode="idle",$x}}[$r]))',
        (_CPU,),
        100.0,
    ),
    Wanted(
        "host",
        "cpu_iowait_percent",
        f'avg without (cpu, mode) (rate({_CPU}{{mode="iowait",$x}}[$r]))',
        (_CPU,),
        100.0,
    ),
)

_STATES: Final = {1: "down", 2: "init", 3: "armed", 4: "active"}
_PHYSICAL: Final = {1: "Sleep", 2: "Polling", 3: "Disabled", 5: "LinkUp", 6: "LinkErrorRecovery"}
_PORT_COUNTERS: Final = {
    "link_downed": "link_downed_total",
    "link_error_recovery": "link_error_recovery_total",
    "symbol_errors": "symbol_error_total",
    "rx_errors": "port_errors_received_total",
    "rx_remote_physical_errors": "port_receive_remote_physical_errors_total",
    "tx_discards": "port_discards_transmitted_total",
    "rx_drops": "port_discards_received_total",
    "integrity_errors": "local_link_integrity_errors_total",
    "buffer_overruns": "excessive_buffer_overrun_errors_total",
    "tx_wait_ticks": "port_transmit_wait_total",
    "tx_bytes": "port_data_transmitted_bytes_total",
    "rx_bytes": "port_data_received_bytes_total",
    "tx_packets": "port_packets_transmitted_total",
    "rx_packets": "port_packets_received_total",
}
_LINK: Final = (
    last_of("link", "state", "node_infiniband_state_id", words=_STATES),
    last_of("link", "phys_state", "node_infiniband_physical_state_id", words=_PHYSICAL),
    last_of("link", "rate_gbps", "node_infiniband_rate_bytes_per_second", 8e-9),
    *(last_of("link", field, f"node_infiniband_{name}") for field, name in _PORT_COUNTERS.items()),
)


def _of_dcgm(name: str, c: Column) -> Wanted:
    # A GPU that runs has used energy: DCGM has been seen to give 0 J (DCGM #171).
    low = max(c.low, 1.0) if c.field == "energy_mj" else c.low
    return Wanted("gpu", c.field, last(name), (name,), float(c.scale), None, low, c.high, c.flag, c.of_instance)


GPU: Final = tuple(_of_dcgm(name, column) for name, column in COLUMNS.items())
"""All that is asked of dcgm-exporter, by every name that a field has had."""
GPU_NAMES: Final = "(DCGM_FI_|dcgm_).+"
NODE: Final = (*_HOST, *_LINK)
"""All that is asked of node-exporter."""
NODE_NAMES: Final = (
    "node_(load1|memory_.+|vmstat_oom_kill|boot_time_seconds|timex_.+|filesystem_.+|cpu_seconds_total|infiniband_.+)"
)
"""A regular expression that all metrics of ``NODE`` match."""


def known(wanted: Collection[Wanted], there: Collection[str]) -> list[Wanted]:
    """Those that this server can answer."""
    have = frozenset(there)
    return [w for w in wanted if have.issuperset(w.needs)]
