"""Which collectors the agent runs, made from the configuration."""

# ruff: noqa: ANN401 (a collector's constructor is its own)
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import structlog

from graynode.collectors import COLLECTORS, load
from graynode.collectors.agent import Listener
from graynode.collectors.base import Collector, Machine, NoSource, Rows
from graynode.collectors.context import JobContext
from graynode.collectors.health import Health, Probe
from graynode.collectors.switches import Switches, switches
from graynode.service import agent_jobs
from graynode.service.config import Config, ConfigError

_log = structlog.get_logger()


class Given(NamedTuple):
    """What a collector may want: the configuration, the machine, the agent's health and the node's jobs."""

    config: Config
    machine: Machine
    health: Health
    context: JobContext

    @property
    def switches(self) -> Switches:
        """Which fields are not read, or more seldom."""
        return switches(self.config.fields.off, self.config.fields.every)


Make = Callable[[Any, Given], Collector]


def _nvml(class_: Any, given: Given) -> Collector:
    made: Collector = class_(
        given.machine,
        context=given.context,
        switches=given.switches,
        nvlink_watch_s=given.config.agent.nvlink_watch_s,
    )
    return made


def _host(class_: Any, given: Given) -> Collector:
    made: Collector = class_(given.machine, given.health)
    return made


def _kernel_log(class_: Any, given: Given) -> Collector:
    made: Collector = class_(given.machine, given.config.agent.kmsg, given.config.agent.kernel_log_format)
    return made


def _simulated(class_: Any, given: Given) -> Collector:
    from graynode.collectors.simulated import faults

    s = given.config.simulated
    try:
        if s.faults:
            faults.read(s.faults, datetime.now(UTC))  # the collector reads it with the first round: too late to say
        made: Collector = class_(
            given.machine,
            nodes=s.nodes,
            gpus_per_node=s.gpus_per_node,
            seed=s.seed,
            faults_path=s.faults,
            start=s.start,
        )
    except ValueError as error:
        raise ConfigError(f"simulated: {error}") from error
    return made


def _dcgm(class_: Any, given: Given) -> Collector:
    c = given.config.dcgm
    try:
        made: Collector = class_(
            given.machine,
            c.targets,
            fleet=c.fleet,
            fleet_files=c.fleet_files,
            interval_s=c.interval_s,
            timeout_s=c.timeout_s,
            ca_file=c.ca_file,
            authorization_file=c.authorization_file,
            context=given.context,
        )
    except (ValueError, OSError) as error:
        raise ConfigError(f"dcgm: {error}") from error
    return made


def _replay(class_: Any, given: Given) -> Collector:
    made: Collector = class_(given.machine, given.config.replay.path, pace=given.config.replay.pace)
    return made


def _services(class_: Any, given: Given) -> Collector:
    from graynode.collectors.services.units import UNITS

    said = given.config.services
    units = [unit for unit in dict.fromkeys((*UNITS, *said.units)) if unit not in said.ignore]
    made: Collector = class_(given.machine, units=units, full_ratio=said.full_ratio)
    return made


_MAKE: Final[Mapping[str, Make]] = {
    "nvml": _nvml,
    "host": _host,
    "kernel_log": _kernel_log,
    "simulated": _simulated,
    "replay": _replay,
    "services": _services,
    "dcgm": _dcgm,
    **agent_jobs.MAKE,
}
"""Collectors that want more than the machine; all others are made with it alone."""


def make_collectors(
    config: Config, machine: Machine, health: Health, context: JobContext | None = None
) -> list[Collector]:
    """The configured collectors in order. One without its source here is said and left out.

    ``ConfigError`` for a name that is not in the list.
    """
    known = [name for name, _ in COLLECTORS]
    unknown = [name for name in config.agent.collectors if name not in known]
    if unknown:
        raise ConfigError(f"agent.collectors = {list(config.agent.collectors)!r}: no {unknown[0]!r}; known: {known}")
    given = Given(config, machine, health, context or JobContext())
    made: list[Collector] = []
    for name in agent_jobs.wanted(config):
        try:
            made.append(make_one(name, given))
        except NoSource as none:
            _log.info("no such source on this machine; left out", collector=name, reason=str(none))
    connect(made)
    return made


def make_one(name: str, given: Given) -> Collector:
    """One collector by its name. ``NoSource`` where this machine has none, ``KeyError`` for an unknown name."""
    class_, make = load(name), _MAKE.get(name)
    made: Collector = make(class_, given) if make else class_(given.machine)
    if isinstance(getattr(made, "switches", None), Switches):
        made.switches = given.switches  # type: ignore[attr-defined]  # those that have fields to leave out
    return made


def connect(collectors: Sequence[Collector]) -> None:
    """Ports are rows of ``infiniband``: where it runs, what ``ethtool`` reads goes into them. Beside ``nvml`` a dead
    exporter blinds nobody."""
    found: dict[str, Any] = {c.name: c for c in collectors}
    if "dcgm" in found and "nvml" in found:
        nvml = found["nvml"]
        found["dcgm"].read_otherwise = lambda: nvml.nvml_up is True
    if "ethtool" in found and "infiniband" in found:
        found["infiniband"].more, found["ethtool"].feeds = found["ethtool"].take, True


def probes(collectors: Sequence[Collector]) -> list[Probe]:
    """What collectors know of the agent's own health."""
    found: dict[str, Any] = {c.name: c for c in collectors}
    made: list[Probe] = []
    if "nvml" in found:
        nvml = found["nvml"]
        made.append(lambda due: nvml.host_fields())
    if "services" in found:
        made.append(found["services"].host_fields)
    if "kernel_log" in found:
        log = found["kernel_log"]
        made.append(lambda due: {"kmsg_lost": log.lost})
    if "dcgm" in found and "nvml" not in found:
        dcgm = found["dcgm"]
        made.append(lambda due: dcgm.host_fields() if 10 in due else {})
    return made


def driver_load(collectors: Sequence[Collector]) -> Callable[[], int | None]:
    """Asks for the driver load id of now, for rows of collectors that do not know it."""
    found: dict[str, Any] = {c.name: c for c in collectors}
    nvml = found.get("nvml")
    return lambda: getattr(nvml, "driver_load", None)


def listeners(collectors: Sequence[Collector]) -> list[Listener]:
    """Who wants to hear what the kernel log says: NVML's reader, for which it is the second witness of a loss."""
    ears = [getattr(c, "note_kernel_events", None) for c in collectors]

    def tell(collector: str, rows: Rows) -> None:
        if collector == "kernel_log" and rows.get("event"):
            for ear in filter(None, ears):
                ear(rows["event"])

    return [tell] if any(ears) else []
