"""Detectors: frames in, findings out. The list is data, so that importing it imports no detector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from graynode.detectors.base import Detector
    from graynode.detectors.thresholds import Thresholds

DETECTORS: Final = (
    "graynode.detectors.rules:Rules",
    "graynode.detectors.ecc:Ecc",
    "graynode.detectors.links:Links",
    "graynode.detectors.pcie:Pcie",
    "graynode.detectors.slow:Slow",
    "graynode.detectors.thermal:Thermal",
    "graynode.detectors.blind:Blind",
    "graynode.detectors.forest:Forest",
    "graynode.detectors.hosts:Hosts",
    "graynode.detectors.stragglers:Stragglers",
)
"""Dotted module and class of every detector; the module's last name is the detector's own."""
_PLACES: Final = {place.partition(":")[0].rpartition(".")[2]: place for place in DETECTORS}
NAMES: Final = tuple(_PLACES)
"""Every detector's name, in the order of the list."""


def make(name: str, thresholds: Thresholds | None = None) -> Detector:
    """A detector by its name, with a site's thresholds or the shipped. ``KeyError`` says which names there are."""
    import importlib
    import inspect

    if name not in _PLACES:
        raise KeyError(f"no detector {name!r}; there are {', '.join(NAMES)}")
    module, _, attribute = _PLACES[name].partition(":")
    class_ = getattr(importlib.import_module(module), attribute)
    takes = thresholds is not None and "thresholds" in inspect.signature(class_).parameters
    detector: Detector = class_(thresholds) if takes else class_()
    return detector
