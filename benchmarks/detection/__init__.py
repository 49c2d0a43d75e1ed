"""Tracks that measure detection: data in a public set's own format in, figures with intervals out.

The list is data, so that importing it imports no track.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from graynode.benchmarks.detection.result import Track

TRACKS: Final = {
    "slow": "graynode.benchmarks.detection.slow:run",
    "attribution": "graynode.benchmarks.detection.attribution:run",
    "lemons": "graynode.benchmarks.detection.lemons:run",
    "fleet": "graynode.benchmarks.detection.fleet:run",
    "host": "graynode.benchmarks.detection.host:run",
}
"""Dotted module and function of every track, by its name."""


def track(name: str) -> Track:
    """The track of that name. ``KeyError`` says which there are."""
    import importlib

    if name not in TRACKS:
        raise KeyError(f"no track {name!r}; there are {', '.join(TRACKS)}")
    module, _, function = TRACKS[name].partition(":")
    found: Track = getattr(importlib.import_module(module), function)
    return found
