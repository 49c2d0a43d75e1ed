"""The kernel's ethtool interfaces: driver counters by ioctl, link state, FEC and module memory by netlink.

No program is started: an ``ethtool`` per port and question costs milliseconds of processor each, and its JSON differs
by version. Netlink has no driver counters, hence the ioctl. A driver that hangs in a call holds the thread that asked;
netlink answers are waited for with a deadline.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from graynode.collectors.ethtool import messages
from graynode.collectors.ethtool.messages import Garbled

_SIOCETHTOOL: Final = 0x8946
_IFREQ: Final = struct.Struct("=16sQ16x") if ctypes.sizeof(ctypes.c_void_p) == 8 else struct.Struct("=16sI12x")
_GSTRINGS: Final = 0x1B
_GSTATS: Final = 0x1D
_GSSET_INFO: Final = 0x37
_SS_STATS: Final = 1
_NAME_BYTES: Final = 32
MOST_COUNTERS: Final = 65_536
"""A driver with more is not believed (mlx5 with 128 queues has some 5,000)."""
_SLACK: Final = 8_192
"""The kernel writes as many counters as there are when it writes, not as there were when we asked: a queue added in
between must find room, or it would write over this process's memory."""
_NETLINK_GENERIC: Final = 16
_MOST_BYTES: Final = 64 << 10
_STRAY: Final = 16
"""Answers to others' or to abandoned requests that are passed over."""

Ioctl = Callable[[str, Any], None]
"""Interface and buffer, which the kernel changes in place; ``OSError`` is the kernel's."""


class Changed(Exception):
    """The list of counters changed while it was read: ask again later."""


class Kernel(Protocol):
    """What the collector asks. ``OSError`` is the kernel's or the driver's answer, ``Garbled`` a broken one."""

    def counter_names(self, interface: str) -> Sequence[str]:
        """Names of the driver's counters, in order."""
        ...

    def counters(self, interface: str, count: int) -> Sequence[int]:
        """The driver's counters. ``Changed`` if they are not ``count`` any more."""
        ...

    def link_state(self, interface: str) -> dict[str, int | str | None]:
        """As ``messages.link_state``."""
        ...

    def fec(self, interface: str) -> dict[str, int | str | None]:
        """As ``messages.fec``."""
        ...

    def memory(self, interface: str, where: tuple[int, int, int, int]) -> bytes:
        """The module's memory at ``(page, offset, length, I²C address)``; needs CAP_NET_ADMIN."""
        ...

    def close(self) -> None:
        """Let go of the sockets; twice is as good as once."""
        ...


class Sockets:
    """The real kernel. ``ioctl`` and ``connect`` are the two ways to it; tests give others."""

    def __init__(
        self,
        *,
        ioctl: Ioctl | None = None,
        connect: Callable[[], socket.socket] | None = None,
        timeout_s: float = 2.0,
    ) -> None:
        self._given, self._connect, self._timeout_s = ioctl, connect or _generic_netlink, timeout_s
        self._plain: socket.socket | None = None
        self._netlink: socket.socket | None = None
        self._family, self._sequence = 0, 0

    def counter_names(self, interface: str) -> Sequence[str]:
        """As in ``Kernel``. A driver without counters is ``EOPNOTSUPP``."""
        asked = ctypes.create_string_buffer(struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0), 20)
        self._ioctl(interface, asked)
        _, _, mask, count = struct.unpack("=IIQI", asked.raw[:20])
        if not mask or not count:
            raise OSError(errno.EOPNOTSUPP, "the driver has no counters of its own")
        if count > MOST_COUNTERS:
            raise Garbled(f"{count} counters")
        buffer = ctypes.create_string_buffer(12 + (count + _SLACK) * _NAME_BYTES)
        struct.pack_into("=III", buffer, 0, _GSTRINGS, _SS_STATS, count)
        self._ioctl(interface, buffer)
        (told,) = struct.unpack_from("=I", buffer, 8)
        if told != count:
            raise Changed
        raw = ctypes.string_at(ctypes.addressof(buffer) + 12, count * _NAME_BYTES)
        cut = (raw[i : i + _NAME_BYTES].partition(b"\0")[0] for i in range(0, len(raw), _NAME_BYTES))
        return [name.decode("ascii", "replace") for name in cut]

    def counters(self, interface: str, count: int) -> Sequence[int]:
        """As in ``Kernel``."""
        buffer = ctypes.create_string_buffer(8 + (count + _SLACK) * 8)
        struct.pack_into("=II", buffer, 0, _GSTATS, count)
        self._ioctl(interface, buffer)
        (told,) = struct.unpack_from("=I", buffer, 4)
        if told != count:
            raise Changed
        return struct.unpack_from(f"={count}Q", buffer, 8)

    def link_state(self, interface: str) -> dict[str, int | str | None]:
        """As in ``Kernel``."""
        return messages.link_state(self._ask(messages.LINKSTATE_GET, interface))

    def fec(self, interface: str) -> dict[str, int | str | None]:
        """As in ``Kernel``."""
        return messages.fec(self._ask(messages.FEC_GET, interface))

    def memory(self, interface: str, where: tuple[int, int, int, int]) -> bytes:
        """As in ``Kernel``."""
        family = self._ethtool_family()
        found = self._exchange(lambda n: messages.eeprom_request(family, n, interface, where))
        data = found.get(7, b"")
        if len(data) < where[2]:
            raise Garbled(f"{len(data)} bytes of module memory where {where[2]} were asked for")
        return data[: where[2]]

    def close(self) -> None:
        """As in ``Kernel``."""
        for kept in (self._plain, self._netlink):
            if kept is not None:
                kept.close()
        self._plain = self._netlink = None
        self._family = 0

    def _ioctl(self, interface: str, buffer: Any) -> None:  # noqa: ANN401 (a ctypes buffer)
        if self._given is not None:
            self._given(interface, buffer)
            return
        if self._plain is None:
            self._plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        fcntl.ioctl(self._plain, _SIOCETHTOOL, _IFREQ.pack(interface.encode()[:15], ctypes.addressof(buffer)))

    def _ask(self, command: int, interface: str) -> dict[int, bytes]:
        family = self._ethtool_family()
        return self._exchange(lambda n: messages.ethtool_request(family, command, n, interface))

    def _ethtool_family(self) -> int:
        if not self._family:
            body = messages.attribute(messages.FAMILY_NAME, b"ethtool\0")
            found = self._exchange(lambda n: messages.message(messages.CONTROLLER, messages.GET_FAMILY, n, body))
            self._family = messages.number(found.get(messages.FAMILY_ID)) or 0
            if not self._family:
                raise Garbled("the kernel names no number for its ethtool family")
        return self._family

    def _exchange(self, request: Callable[[int], bytes]) -> dict[int, bytes]:
        """One request and its answer. After a silence or a broken answer the socket is opened anew."""
        if self._netlink is None:
            self._netlink = self._connect()
            self._netlink.settimeout(self._timeout_s)
        self._sequence += 1
        try:
            self._netlink.send(request(self._sequence))
            return self._answer(self._netlink)
        except (TimeoutError, Garbled):
            self.close()
            raise

    def _answer(self, netlink: socket.socket) -> dict[int, bytes]:
        for _ in range(_STRAY):
            found = messages.answer(netlink.recv(_MOST_BYTES), self._sequence)
            if found is not None:
                return found
        raise Garbled("answers to everything but the question")


def _generic_netlink() -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC)
    opened.bind((0, 0))
    return opened
