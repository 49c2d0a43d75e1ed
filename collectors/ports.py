"""Network ports as sysfs shows them: what there is, and one port's state, counters and facts.

``/sys/class/infiniband`` (Documentation/ABI/stable/sysfs-class-infiniband) and the physical interfaces of
``/sys/class/net`` (testing/sysfs-class-net). Left out: interfaces without a device (lo, veth, bridges, bonds), virtual
functions seen from their host, and interfaces whose port is already read as an RDMA port.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from graynode.collectors.sysfs import SysFile, names, text_of

_ARPHRD_INFINIBAND: Final = "32"
_IFF_UP: Final = 0x1
_IB_STATES: Final[Mapping[str, str]] = {"1": "down", "2": "init", "3": "armed", "4": "active", "5": "active"}
"""``ib_port_state``; 5 is ACTIVE_DEFER, still carrying traffic."""
_PHYS_IS_NOT_DOWN: Final[Mapping[str, str]] = {"1": "sleep", "3": "disabled"}
"""``ib_port_phys_state`` 1 Sleep and 3 Disabled: somebody wanted the port down."""
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec")

_IB_COUNTERS: Final[Mapping[str, str]] = {
    "link_error_recovery": "link_error_recovery", "symbol_errors": "symbol_error", "rx_errors": "port_rcv_errors",
    "rx_remote_physical_errors": "port_rcv_remote_physical_errors", "tx_discards": "port_xmit_discards",
    "integrity_errors": "local_link_integrity_errors", "buffer_overruns": "excessive_buffer_overrun_errors",
    "tx_wait_ticks": "port_xmit_wait", "tx_packets": "port_xmit_packets", "rx_packets": "port_rcv_packets",
}  # fmt: skip
_IB_WORDS: Final[Mapping[str, str]] = {"tx_bytes": "port_xmit_data", "rx_bytes": "port_rcv_data"}
"""Counted in words of four bytes."""
_HW_COUNTERS: Final[Mapping[str, str]] = {
    "rnr_nak_retry_errors": "rnr_nak_retry_err", "ack_timeouts": "local_ack_timeout_err",
    "out_of_sequence": "out_of_sequence", "packet_sequence_errors": "packet_seq_err",
    "roce_slow_restarts": "roce_slow_restart",
}  # fmt: skip
_NET_COUNTERS: Final[Mapping[str, str]] = {
    "tx_bytes": "tx_bytes", "rx_bytes": "rx_bytes", "tx_packets": "tx_packets", "rx_packets": "rx_packets",
    "tx_errors": "tx_errors", "rx_errors": "rx_errors", "tx_discards": "tx_dropped", "rx_drops": "rx_dropped",
}  # fmt: skip


def ib_state(state: str | None, phys_state: str | None) -> str:
    """Class of a port from the texts of ``state`` ("4: ACTIVE") and, where down, ``phys_state`` ("3: Disabled")."""
    found = _IB_STATES.get((state or "").partition(":")[0].strip(), "unknown")
    if found == "down":
        return _PHYS_IS_NOT_DOWN.get((phys_state or "").partition(":")[0].strip(), "down")
    return found


def net_state(carrier: str | None, flags: str | None) -> str:
    """Class of an interface from ``carrier`` (1, 0, unreadable while switched off) and ``flags`` ("0x1003")."""
    if carrier in ("0", "1"):
        return "active" if carrier == "1" else "down"
    try:
        return "unknown" if flags is None or int(flags, 16) & _IFF_UP else "disabled"
    except ValueError:
        return "unknown"


def rate_gbps(text: str | None) -> float | None:
    """The rate of "400 Gb/sec (4X NDR)"."""
    found = _RATE.match(text or "")
    return float(found[1]) if found else None


class RdmaPort:
    """One port of an InfiniBand or RoCE device: ``mlx5_0/1``. ``netdev`` adds its interface's carrier changes."""

    def __init__(self, device: Path, port: str, netdev: Path | None) -> None:
        self.link = f"{device.name}/{port}"
        self.files: tuple[Path, Path | None] = (device, netdev)
        self._device, self._netdev = device, netdev
        self._at = device / "ports" / port
        self._state, self._phys = SysFile(self._at / "state"), SysFile(self._at / "phys_state")
        self._rate = SysFile(self._at / "rate")
        self._fast = {"link_downed": SysFile(self._at / "counters/link_downed")}
        if netdev:
            self._fast["carrier_changes"] = SysFile(netdev / "carrier_changes")
        self._slow = {name: SysFile(self._at / "counters" / file) for name, file in _IB_COUNTERS.items()}
        self._slow |= {name: SysFile(self._at / "hw_counters" / file) for name, file in _HW_COUNTERS.items()}
        self._words = {name: self._word_counter(file) for name, file in _IB_WORDS.items()}

    def state(self) -> str:
        """One of ``LINK_STATES``."""
        state = self._state.text()
        return ib_state(state, self._phys.text() if (state or "").startswith("1") else None)

    def fast(self) -> dict[str, int | None]:
        """The counters that tell whether the link went down between two looks."""
        return {name: file.number() for name, file in self._fast.items()}

    def slow(self) -> dict[str, Any]:
        """All other counters, rate and physical state."""
        row: dict[str, Any] = {name: file.number() for name, file in self._slow.items()}
        for name, file in self._words.items():
            words = file.number()
            row[name] = words * 4 if words is not None and words < 2**61 else None
        phys = self._phys.text()
        return row | {"phys_state": (phys or "").partition(": ")[2] or phys, "rate_gbps": rate_gbps(self._rate.text())}

    def facts(self) -> dict[str, Any]:
        """What does not change without a person: layer, model, firmware, address."""
        layer = text_of(self._at / "link_layer")
        guid = text_of(self._device / "node_guid")
        return {
            "link_kind": "ethernet" if layer == "Ethernet" else "infiniband",
            "link_layer": layer,
            "model": text_of(self._device / "hca_type"),
            "firmware": text_of(self._device / "fw_ver"),
            "board": text_of(self._device / "board_id"),
            "serial": guid,
            "slot": _slot(self._device),
            "netdev": self._netdev.name if self._netdev else None,
        }

    def drop(self, names: Collection[str]) -> list[str]:
        """Do not read these counters; which of them it has."""
        had = [name for name in (*self._slow, *self._words, "phys_state", "rate_gbps") if name in names]
        self._slow = {name: file for name, file in self._slow.items() if name not in names}
        self._words = {name: file for name, file in self._words.items() if name not in names}
        return had

    def close(self) -> None:
        """Let go of the files."""
        for file in (self._state, self._phys, self._rate, *self._fast.values(), *self._slow.values()):
            file.close()
        for file in self._words.values():
            file.close()

    def _word_counter(self, file: str) -> SysFile:
        extended = self._at / "counters_ext" / f"{file}_64"  # older drivers keep the 64-bit form here
        return SysFile(extended if extended.exists() else self._at / "counters" / file)


class NetPort:
    """One physical interface: ``eth0``."""

    def __init__(self, interface: Path) -> None:
        self.link = interface.name
        self.files: tuple[Path, Path | None] = (interface, None)
        self._at = interface
        self._carrier, self._flags = SysFile(interface / "carrier"), SysFile(interface / "flags")
        self._speed, self._operstate = SysFile(interface / "speed"), SysFile(interface / "operstate")
        self._changes = SysFile(interface / "carrier_changes")
        self._slow = {name: SysFile(interface / "statistics" / file) for name, file in _NET_COUNTERS.items()}

    def state(self) -> str:
        """One of ``LINK_STATES``."""
        carrier = self._carrier.text()
        return net_state(carrier, None if carrier in ("0", "1") else self._flags.text())

    def fast(self) -> dict[str, int | None]:
        """The counter that tells whether the link went down between two looks."""
        return {"carrier_changes": self._changes.number()}

    def slow(self) -> dict[str, Any]:
        """All other counters, rate and physical state."""
        row: dict[str, Any] = {name: file.number() for name, file in self._slow.items()}
        speed = self._speed.number()  # Mb/s; -1 is the driver's "unknown"
        rate = speed / 1000 if speed is not None and speed > 0 else None
        return row | {"phys_state": self._operstate.text(), "rate_gbps": rate}

    def facts(self) -> dict[str, Any]:
        """What does not change without a person: driver, address, slot."""
        driver = self._at / "device/driver"
        return {
            "link_kind": "ethernet",
            "link_layer": "Ethernet",
            "model": driver.resolve().name if driver.exists() else None,
            "serial": text_of(self._at / "address"),
            "slot": _slot(self._at),
            "bond": (self._at / "master").resolve().name if (self._at / "master").exists() else None,
        }

    def drop(self, names: Collection[str]) -> list[str]:
        """Do not read these counters; which of them it has."""
        had = [name for name in (*self._slow, "phys_state", "rate_gbps") if name in names]
        self._slow = {name: file for name, file in self._slow.items() if name not in names}
        return had

    def close(self) -> None:
        """Let go of the files."""
        for file in (self._carrier, self._flags, self._speed, self._operstate, self._changes, *self._slow.values()):
            file.close()


Port = RdmaPort | NetPort


def find_ports(sys: Path) -> dict[str, Port]:
    """All ports there are, by link name, RDMA ports first."""
    rdma, net = sys / "class/infiniband", sys / "class/net"
    interfaces = {name: net / name for name in names(net) if _is_physical(net / name)}
    found: dict[str, Port] = {}
    for device in (rdma / name for name in names(rdma)):
        if (device / "device/physfn").exists():
            continue
        for port in names(device / "ports"):
            netdev = _netdev_of(device, port, interfaces)
            if netdev:
                del interfaces[netdev.name]
            made = RdmaPort(device, port, netdev)
            found[made.link] = made
    return found | {name: NetPort(path) for name, path in interfaces.items()}


def _is_physical(interface: Path) -> bool:
    if not (interface / "device").exists() or (interface / "device/physfn").exists():
        return False
    return text_of(interface / "type") != _ARPHRD_INFINIBAND  # IPoIB: the InfiniBand port below it is read


def _netdev_of(device: Path, port: str, interfaces: Mapping[str, Path]) -> Path | None:
    """The interface of a RoCE port. Not that of a bond's members: the bond's RDMA port is more than one of them."""
    for name in names(device / "device/net"):
        at = interfaces.get(name)
        if at is None or (at / "master").exists():
            continue
        number = text_of(at / "dev_port") or "0"
        if number.isdecimal() and int(number) + 1 == int(port if port.isdecimal() else 0):
            return at
    return None


def _slot(of: Path) -> str | None:
    device = of / "device"
    return device.resolve().name if device.exists() else None
