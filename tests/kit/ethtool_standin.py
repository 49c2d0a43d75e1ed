"""A kernel with Ethernet ports for the ethtool collector: answers bytes to ioctls and netlink messages, and can fail,
hang and lie. Counter names are those that the kernel documents for mlx5 and that bnxt_en and ice print."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from graynode.collectors.ethtool import messages
from graynode.collectors.ethtool.wire import Sockets

FAMILY: Final = 21

MLX5: Final[Mapping[str, int]] = {
    "rx_packets": 10, "rx_out_of_buffer": 7, "rx_discards_phy": 5, "tx_discards_phy": 1, "rx_symbol_err_phy": 0,
    "rx_corrected_bits_phy": 900, "link_down_events_phy": 3, "rx_global_pause": 0, "rx_global_pause_duration": 0,
    **{f"rx_prio{i}_pause": 17 if i == 3 else 0 for i in range(8)},
    **{f"rx_prio{i}_pause_duration": 3400 if i == 3 else 0 for i in range(8)},
    **{f"tx_prio{i}_pause": 2 if i == 3 else 0 for i in range(8)},
    **{f"tx_prio{i}_pause_duration": 40 if i == 3 else 0 for i in range(8)},
    "rx_prio3_pause_transition": 8, "module_bus_stuck": 0,
}  # fmt: skip
BNXT: Final[Mapping[str, int]] = {
    "rx_pause_frames": 1, "tx_pause_frames": 0, "rx_pfc_ena_frames_pri5": 4, "tx_pfc_ena_frames_pri5": 6,
    "pfc_pri5_rx_duration_us": 80, "rx_discard_pkts": 2, "rx_corrected_bits": 11, "rx_fec_corrected_blocks": 9,
    "rx_fec_uncorrectable_blocks": 1,
}  # fmt: skip
ICE: Final[Mapping[str, int]] = {
    "link_xon_rx.nic": 9, "link_xoff_rx.nic": 2, "link_xoff_tx.nic": 0, "rx_priority_0_xoff.nic": 4,
    "rx_priority_0_xon.nic": 4, "tx_priority_7_xoff.nic": 1, "rx_dropped.nic": 12,
}  # fmt: skip


def qsfp28(*, temperature: int = 31, received: tuple[int, ...] = (6982, 7100, 6500, 7000)) -> dict[int, bytes]:
    """Lower page of an SFF-8636 module: whole degrees, light in 0.1 µW; sent 0.75 mW, 7.5 mA on all lanes."""
    page = bytearray(128)
    page[0] = 0x11
    page[22:28] = struct.pack(">hHH", temperature * 256, 0, 32800)
    page[34:58] = struct.pack(">12H", *received, *(3750,) * 4, *(7521,) * 4)
    return {0: bytes(page)}


def osfp(*, lanes: int = 8, dark: int | None = None, flat: bool = False) -> dict[int, bytes]:
    """A CMIS module: 48.5 °C, 3.3 V, 1.2 mW received on all lanes but the dark one."""
    low, page1, page11 = bytearray(128), bytearray(256), bytearray(256)
    low[0], low[2] = 0x19, 0x80 if flat else 0
    low[14:18] = struct.pack(">hH", int(48.5 * 256), 33000)
    page1[160] = 1 << 3  # laser current in steps of 4 µA
    lit = [12000 if i < lanes and i != dark else 0 for i in range(8)]
    on = [i < lanes for i in range(8)]
    page11[154:202] = struct.pack(">24H", *(9000 * o for o in on), *(2000 * o for o in on), *lit)
    return {0: bytes(low), 1: bytes(page1), 0x11: bytes(page11)}


@dataclass
class Fake:
    """One port. ``lies`` changes an answer's bytes; ``errors`` by question: names, counters, state, fec, memory."""

    counters: Mapping[str, int] = field(default_factory=lambda: dict(MLX5))
    up: bool = True
    ext: tuple[int, int | None] | None = None
    downs: int | None = None
    fec: tuple[list[int], list[int], list[int], int] | None = None
    memory: Mapping[int, bytes] | None = None
    errors: dict[str, int] = field(default_factory=dict)
    lies: Callable[[bytes], bytes] = lambda answer: answer
    told_count: int | None = None


class Standin:
    """The kernel. ``silent`` answers nothing over netlink; ``asked`` remembers the module memory that was read."""

    def __init__(self, **ports: Fake) -> None:
        self.ports = ports
        self.silent = False
        self.connections = 0
        self.asked: list[tuple[int, int, int, int]] = []

    def kernel(self, timeout_s: float = 0.05) -> Sockets:
        """The real wire code, with this at its other end."""
        return Sockets(ioctl=self._ioctl, connect=self._connect, timeout_s=timeout_s)

    # --- ioctl ---

    def _ioctl(self, interface: str, buffer: Any) -> None:
        port = self._port(interface)
        (command,) = struct.unpack_from("=I", buffer, 0)
        names, values = list(port.counters), list(port.counters.values())
        if command == 0x37:
            self._fail(port, "names")
            struct.pack_into("=IIQI", buffer, 0, command, 0, 2 if names else 0, len(names))
        elif command == 0x1B:
            struct.pack_into("=I", buffer, 8, len(names))
            self._write(buffer, 12, b"".join(name.encode().ljust(32, b"\0") for name in names))
        else:
            self._fail(port, "counters")
            struct.pack_into("=I", buffer, 4, len(values) if port.told_count is None else port.told_count)
            self._write(buffer, 8, struct.pack(f"={len(values)}Q", *values))

    @staticmethod
    def _write(buffer: Any, at: int, data: bytes) -> None:
        assert at + len(data) <= ctypes.sizeof(buffer), "the kernel would have written over the caller's memory"
        ctypes.memmove(ctypes.addressof(buffer) + at, data, len(data))

    # --- netlink ---

    def _connect(self) -> socket.socket:
        self.connections += 1
        return _Ear(self)  # type: ignore[return-value]  # what the wire uses of a socket

    def answer(self, request: bytes) -> bytes:
        """The kernel's bytes for a request's bytes."""
        _, family, _, sequence, _ = messages.HEAD.unpack_from(request)
        command, found = request[16], messages.attributes(request[20:])
        if family == messages.CONTROLLER:
            return self._reply(family, sequence, messages.attribute(1, struct.pack("=H", FAMILY)))
        header = messages.attributes(found[1])
        name = header[2].rstrip(b"\0").decode()
        try:
            port = self._port(name)
            body = {6: self._state, 29: self._fec, 31: self._memory}[command](port, found)
        except OSError as error:
            code = struct.pack("=i", -(error.errno or 0)) + request[:16]
            return messages.HEAD.pack(16 + len(code), 2, 0, sequence, 0) + code
        return port.lies(self._reply(family, sequence, body))

    @staticmethod
    def _reply(family: int, sequence: int, body: bytes) -> bytes:
        return messages.HEAD.pack(20 + len(body), family, 0, sequence, 0) + b"\1\1\0\0" + body

    def _state(self, port: Fake, asked: Mapping[int, bytes]) -> bytes:
        self._fail(port, "state")
        body = messages.attribute(2, bytes([port.up]))
        if port.ext:
            body += messages.attribute(5, bytes([port.ext[0]]))
            body += messages.attribute(6, bytes([port.ext[1]])) if port.ext[1] is not None else b""
        if port.downs is not None:
            body += messages.attribute(7, struct.pack("=I", port.downs))
        return body

    def _fec(self, port: Fake, asked: Mapping[int, bytes]) -> bytes:
        self._fail(port, "fec")
        if port.fec is None:
            raise OSError(errno.EOPNOTSUPP, "no FEC")
        stats = b"".join(
            messages.attribute(kind, struct.pack(f"={len(some)}Q", *some))
            for kind, some in zip((2, 3, 4), port.fec[:3], strict=True)
        )
        return messages.attribute(4, struct.pack("=I", port.fec[3])) + messages.attribute(5, stats, nested=True)

    def _memory(self, port: Fake, asked: Mapping[int, bytes]) -> bytes:
        self._fail(port, "memory")
        if port.memory is None:
            raise OSError(errno.ENODEV, "no module")
        offset, length = (struct.unpack("=I", asked[i])[0] for i in (2, 3))
        page, address = asked[4][0], asked[6][0]
        self.asked.append((page, offset, length, address))
        return messages.attribute(7, port.memory[page][offset : offset + length])

    def _port(self, name: str) -> Fake:
        if name not in self.ports:
            raise OSError(errno.ENODEV, "no such interface")
        return self.ports[name]

    @staticmethod
    def _fail(port: Fake, question: str) -> None:
        if question in port.errors:
            raise OSError(port.errors[question], "as told")


class _Ear:
    """What the wire uses of a netlink socket."""

    def __init__(self, standin: Standin) -> None:
        self._standin = standin
        self._answers: list[bytes] = []

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def send(self, request: bytes) -> None:
        if not self._standin.silent:
            self._answers.append(self._standin.answer(request))

    def recv(self, most: int) -> bytes:
        if not self._answers:
            raise TimeoutError
        return self._answers.pop(0)[:most]

    def close(self) -> None:
        self._answers.clear()
