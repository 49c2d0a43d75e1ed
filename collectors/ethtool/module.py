"""A plugged module's own sensors: temperature, voltage, light and laser current, from its memory map. Pure.

SFF-8472 (SFP), SFF-8636 (QSFP) and CMIS 4/5 (QSFP-DD, OSFP). Only the bytes of the monitors are asked for: the alarm
flags beside them are cleared by reading, and belong to whoever manages the link.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

Memory = Callable[[int, int, int, int], bytes]
"""``(page, offset, length, I²C address)`` to bytes; fewer than asked for is an error of the module's."""

_LOW, _HIGH = 0x50, 0x51  # the two I²C addresses of an SFP; all others have the first alone
_SFP: Final = frozenset({0x03, 0x0B})
_QSFP: Final = frozenset({0x0C, 0x0D, 0x11})
_CMIS: Final = frozenset({0x18, 0x19, 0x1B, 0x1E, 0x1F, 0x20, 0x21})
"""Identifiers of SFF-8024, first byte of the memory."""
_FLAT: Final = 0x80
"""CMIS byte 2, bit 7: no pages above the lower one; a passive copper cable."""


class NoMonitors(Exception):
    """The module has no sensors to read, as passive cables have none; the text says which."""


def read(memory: Memory) -> dict[str, float]:
    """What the module tells, in the contract's names. ``NoMonitors``; errors of ``memory`` go through."""
    kind = memory(0, 0, 1, _LOW)[0]
    if kind in _SFP:
        return _sfp(memory)
    if kind in _QSFP:
        return _qsfp(memory)
    if kind in _CMIS:
        return _cmis(memory)
    raise NoMonitors(f"a module of kind {kind:#04x}, of which nothing is known here")


def _sfp(memory: Memory) -> dict[str, float]:
    diagnostics = memory(0, 92, 1, _LOW)[0]
    if not diagnostics & 0x40:
        raise NoMonitors("an SFP without digital diagnostics, such as a passive cable")
    if not diagnostics & 0x20:
        raise NoMonitors("an SFP that leaves calibration to the host, which is not done here")
    values = memory(0, 96, 10, _HIGH)
    temperature, voltage, bias, sent, received = struct.unpack(">hHHHH", values)
    return {
        "module_temp_c": temperature / 256,
        "module_voltage_v": voltage / 1e4,
        **_lanes([received], [sent], [bias], 2.0),
    }


def _qsfp(memory: Memory) -> dict[str, float]:
    values = memory(0, 22, 6, _LOW)
    temperature, _, voltage = struct.unpack(">hHH", values)
    if temperature == 0 and voltage == 0:  # SFF-8636: monitors of a passive cable read as zero
        raise NoMonitors("a QSFP without monitors, such as a passive cable")
    lanes = memory(0, 34, 24, _LOW)
    received, bias, sent = (list(struct.unpack(">4H", lanes[i : i + 8])) for i in (0, 8, 16))
    found = {"module_temp_c": temperature / 256, "module_voltage_v": voltage / 1e4}
    return found | (_lanes(received, sent, bias, 2.0) if any((*received, *bias, *sent)) else {})


def _cmis(memory: Memory) -> dict[str, float]:
    head = memory(0, 2, 1, _LOW)[0]
    temperature, voltage = struct.unpack(">hH", memory(0, 14, 4, _LOW))
    if head & _FLAT:
        raise NoMonitors("a module with a flat memory, such as a passive cable")
    found = {"module_temp_c": temperature / 256, "module_voltage_v": voltage / 1e4}
    # page 11h: eight lanes of light sent, laser current and light received; page 01h says the unit of the current
    scale = 2.0 * 2 ** (memory(1, 160, 1, _LOW)[0] >> 3 & 3)
    lanes = memory(0x11, 154, 48, _LOW)
    sent, bias, received = (list(struct.unpack(">8H", lanes[i : i + 16])) for i in (0, 16, 32))
    used = [i for i in range(8) if sent[i] or bias[i] or received[i]]  # a module with four lanes leaves four at zero
    if not used:
        return found
    count = 8 if used[-1] > 3 else 4
    return found | _lanes(received[:count], sent[:count], bias[:count], scale)


def _lanes(received: list[int], sent: list[int], bias: list[int], microamperes: float) -> dict[str, float]:
    """Light in steps of 0.1 µW, laser current in steps of so many µA."""
    return {
        "module_rx_power_min_mw": min(received) / 1e4,
        "module_tx_power_min_mw": min(sent) / 1e4,
        "module_bias_max_ma": max(bias) * microamperes / 1e3,
    }
