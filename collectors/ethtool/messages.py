"""Messages of the kernel's ethtool interfaces: netlink attributes to values and back. Pure: bytes in, values out.

``linux/netlink.h``, ``linux/genetlink.h``, ``linux/ethtool_netlink.h`` and ``linux/ethtool.h`` give the layouts and
numbers; all integers are in the byte order of the machine. What is cut, or longer than it says, is a ``Garbled``.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from typing import Final

HEAD: Final = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_GENERIC: Final = struct.Struct("=BBH")  # genlmsghdr: command, version, reserved
_ATTRIBUTE: Final = struct.Struct("=HH")  # nlattr: length, type
_NESTED: Final = 0x8000
_TYPE_MASK: Final = 0x3FFF
_REQUEST: Final = 0x1
_ERROR: Final = 2  # NLMSG_ERROR
CONTROLLER: Final = 16
"""``GENL_ID_CTRL``, the family that tells the numbers of the others."""
GET_FAMILY: Final = 3
FAMILY_ID: Final = 1
FAMILY_NAME: Final = 2

LINKSTATE_GET: Final = 6
FEC_GET: Final = 29
MODULE_EEPROM_GET: Final = 31
_WITH_STATS: Final = 1 << 2  # ETHTOOL_FLAG_STATS

_FEC_WORDS: Final[Mapping[int, str]] = {49: "none", 50: "rs", 51: "baser", 74: "llrs"}
"""``ETHTOOL_LINK_MODE_FEC_*_BIT``."""
_EXT_STATES: Final = (
    "autonegotiation", "link training failure", "logical mismatch", "bad signal integrity", "no cable", "cable issue",
    "EEPROM issue", "calibration failure", "power budget exceeded", "overheat", "module",
)  # fmt: skip
"""``enum ethtool_link_ext_state``."""
_EXT_SUBSTATES: Final[Mapping[int, tuple[str, ...]]] = {
    0: (
        "no partner detected", "ack not received", "next page exchange failed", "no partner detected in force mode",
        "FEC mismatch during override", "no highest common denominator",
    ),
    1: (
        "KR frame lock not acquired", "KR link inhibit timeout", "link partner did not set receiver ready",
        "remote fault",
    ),
    2: (
        "PCS did not acquire block lock", "PCS did not acquire AM lock", "PCS did not get align status",
        "FC FEC is not locked", "RS FEC is not locked",
    ),
    3: ("large number of physical errors", "unsupported rate", "SerDes reference clock lost", "SerDes ALOS"),
    5: ("unsupported cable", "cable test failure"),
    10: ("CMIS module is not ready",),
}  # fmt: skip
"""``enum ethtool_link_ext_substate_*``, counted from 1."""


class Garbled(ValueError):
    """An answer that the kernel does not give: cut, or with lengths that do not add up."""


def attribute(kind: int, payload: bytes, *, nested: bool = False) -> bytes:
    """One attribute, padded to four bytes."""
    length = _ATTRIBUTE.size + len(payload)
    head = _ATTRIBUTE.pack(length, kind | (_NESTED if nested else 0))
    return head + payload + b"\0" * (-length % 4)


def message(family: int, command: int, sequence: int, body: bytes) -> bytes:
    """One request to a generic netlink family."""
    length = HEAD.size + _GENERIC.size + len(body)
    return HEAD.pack(length, family, _REQUEST, sequence, 0) + _GENERIC.pack(command, 1, 0) + body


def ethtool_request(family: int, command: int, sequence: int, interface: str, more: bytes = b"") -> bytes:
    """A request about one interface; FEC with its statistics."""
    header = attribute(2, interface.encode() + b"\0")
    if command == FEC_GET:
        header += attribute(3, struct.pack("=I", _WITH_STATS))
    return message(family, command, sequence, attribute(1, header, nested=True) + more)


def eeprom_request(family: int, sequence: int, interface: str, where: tuple[int, int, int, int]) -> bytes:
    """A request for ``(page, offset, length, I²C address)`` of a module's memory."""
    page, offset, length, address = where
    more = attribute(2, struct.pack("=I", offset)) + attribute(3, struct.pack("=I", length))
    more += attribute(4, struct.pack("=B", page)) + attribute(5, b"\0") + attribute(6, struct.pack("=B", address))
    return ethtool_request(family, MODULE_EEPROM_GET, sequence, interface, more)


def answer(data: bytes, sequence: int) -> dict[int, bytes] | None:
    """The attributes of the answer to ``sequence``, ``None`` if this is another's. ``OSError`` is the kernel's."""
    if len(data) < HEAD.size:
        raise Garbled(f"{len(data)} bytes are no netlink message")
    length, kind, _, number, _ = HEAD.unpack_from(data)
    if number != sequence:
        return None
    if not HEAD.size <= length <= len(data):
        raise Garbled(f"a netlink message of {length} bytes in {len(data)}")
    if kind == _ERROR:
        if length < HEAD.size + 4:
            raise Garbled("an error without a number")
        code = -struct.unpack_from("=i", data, HEAD.size)[0]
        raise OSError(code, f"ethtool netlink: error {code}")
    return attributes(data[HEAD.size + _GENERIC.size : length])


def attributes(data: bytes) -> dict[int, bytes]:
    """Attributes by type; of a repeated one the last. ``Garbled`` where lengths do not add up."""
    found: dict[int, bytes] = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            raise Garbled(f"an attribute of {length} bytes where {len(data) - at} are left")
        found[kind & _TYPE_MASK] = data[at + _ATTRIBUTE.size : at + length]
        at += length + (-length % 4)
    return found


def number(attribute_: bytes | None) -> int | None:
    """An unsigned integer of 1, 2, 4 or 8 bytes."""
    if attribute_ is None or len(attribute_) not in (1, 2, 4, 8):
        return None
    return int.from_bytes(attribute_, sys.byteorder)


def link_state(found: Mapping[int, bytes]) -> dict[str, int | str | None]:
    """``down_reason`` (null while the link is up or the driver says nothing) and ``phy_downs``."""
    state, substate = number(found.get(5)), number(found.get(6))
    up = number(found.get(2)) == 1
    return {"down_reason": None if up else down_reason(state, substate), "phy_downs": number(found.get(7))}


def down_reason(state: int | None, substate: int | None) -> str | None:
    """The reason in words; a number that is newer than this list stays a number."""
    if state is None:
        return None
    word = _EXT_STATES[state] if state < len(_EXT_STATES) else f"state {state}"
    if not substate:
        return word
    known = _EXT_SUBSTATES.get(state, ())
    return f"{word}: {known[substate - 1] if substate <= len(known) else f'substate {substate}'}"


def fec(found: Mapping[int, bytes]) -> dict[str, int | str | None]:
    """FEC counters (the kernel gives a total, then a number per lane) and the mode in force."""
    stats = attributes(found.get(5, b""))
    active = number(found.get(4))
    return {
        "fec_corrected_blocks": _total(stats.get(2)),
        "fec_uncorrected_blocks": _total(stats.get(3)),
        "fec_corrected_bits": _total(stats.get(4)),
        "fec_mode": None if active is None else _FEC_WORDS.get(active, f"mode {active}"),
    }


def _total(values: bytes | None) -> int | None:
    """The first of an array of 64-bit counters; an empty array is no measurement."""
    return number(values[:8]) if values and len(values) % 8 == 0 else None
