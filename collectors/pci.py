"""PCI addresses, in the one form that records use."""

from __future__ import annotations


def pci_address(text: str) -> str:
    """Lower case ``domain:bus:device.function`` with a domain of at least four digits, such as ``0000:9b:00.0``.

    Xid lines leave out the function and mean 0; NVML and fabric manager write eight domain digits; some lines
    begin with ``PCI:``.
    """
    found = text.strip().lower().removeprefix("pci:")
    if "." not in found:
        found += ".0"
    domain, _, rest = found.partition(":")
    if ":" not in rest:  # bus:device.function without a domain
        domain, rest = "0000", found
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"
