"""Ethernet and RoCE ports as their driver sees them: PFC pause, discards, FEC, modules' heat and light, into ``link``.

A row of table ``link`` is one port at one time, and ``infiniband`` writes it every second. So this collector only
reads; where both run, ``infiniband`` takes what was read into its next row (docs/decisions/0008), and a module whose
memory takes a second to read delays no port's state. Alone, this collector writes rows of its own.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from graynode.collectors.base import Machine, NoSource, Round, Row, Rows
from graynode.collectors.ethtool import module as ethtool_module
from graynode.collectors.ethtool.messages import Garbled
from graynode.collectors.ethtool.module import NoMonitors
from graynode.collectors.ethtool.names import Plan, plan
from graynode.collectors.ethtool.wire import Changed, Kernel, Sockets
from graynode.collectors.ports import find_ports
from graynode.collectors.switches import Switches
from graynode.collectors.sysfs import names, text_of
from graynode.pipeline.schema import TABLES

_PRIORITIES: Final = tuple(f"{way}_pause_frames_prio{i}" for way in ("rx", "tx") for i in range(8))
_COUNTERS: Final = (
    "rx_pause_frames", "tx_pause_frames", "rx_pause_us", "tx_pause_us", "rx_port_discards", "tx_port_discards",
    "rx_buffer_discards", *_PRIORITIES,
)  # fmt: skip
_FEC: Final = ("fec_corrected_blocks", "fec_uncorrected_blocks", "fec_corrected_bits", "fec_mode")
_LINK: Final = ("down_reason", "phy_downs")
_MODULE: Final = (
    "module_temp_c", "module_voltage_v", "module_rx_power_min_mw", "module_tx_power_min_mw", "module_bias_max_ma",
)  # fmt: skip
_MINE: Final = (*_COUNTERS, *_FEC, *_LINK, *_MODULE)
_EVERY_S: Final[Mapping[str, int]] = {name: TABLES["link"].field(name).every_s for name in _MINE}
_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
"""An older kernel answers EINVAL to a message that it does not know."""
_NO_MODULE: Final = frozenset({errno.ENODEV, errno.EIO, errno.ENXIO, errno.ETIMEDOUT})

Said = tuple[str, str]
"""A state of ``QUALITY_STATES`` and the reason."""


@dataclass(slots=True)
class _Port:
    """One port: its interface, where its driver keeps what, and what was last said of its fields."""

    link: str
    interface: str
    plan: Plan | None = None
    count: int = 0
    said: dict[str, Said] = field(default_factory=dict)


class Ethtool:
    """Counters, FEC and link-down reason every 10 s, modules every 60 s, of ports with an interface.

    Ports of InfiniBand alone have none: the collector ``infiniband`` reads their counters. A question that a driver
    does not answer costs its own fields, and a ``quality`` row says why, once.
    """

    name: ClassVar[str] = "ethtool"
    tables: ClassVar[tuple[str, ...]] = ("link", "quality")
    every_s: ClassVar[int] = 10

    def __init__(self, machine: Machine, *, kernel: Kernel | None = None) -> None:
        self._net = machine.sys / "class/net"
        self._sys = machine.sys
        self._kernel = kernel or Sockets()
        self._ports: dict[str, _Port] = {}
        self._listing: list[str] | None = None
        self._ready: dict[str, Row] = {}
        self.switches = Switches()
        """What is not read. A question none of whose fields is due is not asked."""
        self.feeds = False
        """Whether another collector takes what was read (``take``) into its rows."""

    def collect(self, round_: Round) -> Rows:
        """Read what is due. ``NoSource`` where no port has an interface."""
        if 10 not in round_.due:
            return {}
        rows: dict[str, list[Row]] = {"link": [], "quality": []}
        for new in self._find(again=60 in round_.due):
            rows["quality"] += self.switches.told("link", new, _MINE)
        for port in self._ports.values():
            found = self._read(port, round_, rows["quality"])
            if self.feeds:
                self._ready[port.link] = self._ready.pop(port.link, {}) | found
            elif found:
                rows["link"].append({"link": port.link, "link_kind": "ethernet", **found})
        return {table: some for table, some in rows.items() if some}

    def take(self, link: str) -> Row:
        """What was read of a port since this was last called; from any thread. Nothing is given twice."""
        return self._ready.pop(link, {})

    def close(self) -> None:
        """Let go of the sockets; twice is as good as once."""
        self._kernel.close()

    def _find(self, *, again: bool) -> list[str]:
        """Look which ports there are; the new ones."""
        listing = names(self._net)
        if listing == self._listing and not again:
            return []
        first, self._listing = self._listing is None, listing
        found = interfaces(self._sys)
        if first and not found:
            raise NoSource(f"no Ethernet interface with a device below {self._net}")
        before = self._ports
        self._ports = {
            link: old if (old := before.get(link)) and old.interface == name else _Port(link, name)
            for link, name in found.items()
        }
        return [link for link in self._ports if link not in before]

    def _read(self, port: _Port, round_: Round, quality: list[Row]) -> Row:
        found: Row = {}
        due = {name for name, every_s in self.switches.every("link", _EVERY_S).items() if every_s in round_.due}
        questions: list[tuple[tuple[str, ...], Callable[[], Mapping[str, Any]]]] = [
            (_COUNTERS, partial(self._counters, port)),
            (_LINK, partial(self._kernel.link_state, port.interface)),
            (_FEC, partial(self._kernel.fec, port.interface)),
            (_MODULE, partial(self._module, port)),
        ]
        unanswered: dict[str, Said] = {}
        for fields, ask in questions:
            if due.isdisjoint(fields):
                continue
            given, said = _answer(ask)
            # the driver's own list has some of what netlink was asked for, and netlink's word is better
            found |= {name: value for name, value in given.items() if value is not None}
            unanswered |= {name: said for name in fields if name not in found}
        found = {name: value for name, value in found.items() if name in due}
        self._say(port, {n: s for n, s in unanswered.items() if n not in found and n in due}, found, quality)
        return found

    def _counters(self, port: _Port) -> Mapping[str, Any]:
        try:
            if port.plan is None:
                listed = self._kernel.counter_names(port.interface)
                port.plan, port.count = plan(listed), len(listed)
            return port.plan.read(self._kernel.counters(port.interface, port.count))
        except (Changed, OSError, Garbled):
            port.plan = None
            raise

    def _module(self, port: _Port) -> Mapping[str, Any]:
        """From the module's memory, which asks for a privilege; else what the adapter's driver tells anybody."""
        try:
            return ethtool_module.read(lambda *where: self._kernel.memory(port.interface, where))
        except OSError:
            warm = warmest_module(self._net / port.interface)
            if warm is None:
                raise
            return {"module_temp_c": warm}

    def _say(self, port: _Port, unanswered: Mapping[str, Said], found: Row, quality: list[Row]) -> None:
        """Changes only: a field that is there again, and one that is not, or for another reason."""
        now: dict[str, Said] = {name: ("measured", "read again") for name in found if name in port.said}
        now |= unanswered
        for name, said in now.items():
            if name == "down_reason" and said[0] != "not_permitted":
                continue  # null while the link is up
            if port.said.get(name) != said:
                row = {"table_name": "link", "entity": port.link, "field": name, "state": said[0], "reason": said[1]}
                quality.append(row)
            if said[0] == "measured":
                del port.said[name]
            else:
                port.said[name] = said


def interfaces(sys: Path) -> dict[str, str]:
    """Interface by link name, as table ``link`` names ports; ports without an interface are left out."""
    found: dict[str, str] = {}
    for link, port in find_ports(sys).items():
        device, interface = port.files
        if "/" not in link:
            found[link] = device.name
        elif interface is not None:
            found[link] = interface.name
    return found


def warmest_module(interface: Path) -> float | None:
    """The warmest module sensor of the port's adapter in hwmon, where its driver has one (mlx5 since Linux 6.7)."""
    warmest: float | None = None
    for chip in names(interface / "device/hwmon"):
        at = interface / "device/hwmon" / chip
        for label in (name for name in names(at) if name.startswith("temp") and name.endswith("_label")):
            if "module" not in (text_of(at / label) or "").lower():
                continue
            text = text_of(at / label.replace("_label", "_input")) or ""
            if text.lstrip("-").isdecimal():
                warmest = max(int(text) / 1000, -1000.0 if warmest is None else warmest)
    return warmest


def _answer(ask: Callable[[], Mapping[str, Any]]) -> tuple[Mapping[str, Any], Said]:
    """What was answered, and what to say of fields that are not in it."""
    try:
        return ask(), ("unsupported", "the driver does not tell it")
    except NoMonitors as none:
        return {}, ("unsupported", str(none))
    except Changed:
        return {}, ("error", "the driver's list of counters changed while it was read")
    except Garbled as error:
        return {}, ("error", f"the kernel's answer is broken: {error}")
    except TimeoutError:
        return {}, ("error", "the kernel did not answer in time")
    except OSError as error:
        return {}, _told(error)


def _told(error: OSError) -> Said:
    if error.errno in (errno.EPERM, errno.EACCES):
        return "not_permitted", "the kernel wants CAP_NET_ADMIN for this"
    if error.errno in _UNSUPPORTED:
        return "unsupported", "kernel or driver cannot tell it"
    if error.errno in _NO_MODULE:
        return "error", f"no module, port or answer ({errno.errorcode.get(error.errno or 0, error.errno)})"
    return "error", f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror}"
