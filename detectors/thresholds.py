"""Shipped thresholds: data with source, version and hash, so that a finding can say by which rule it was told.

They are what a site runs on before it has enough healthy node-days for its own.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Threshold:
    """``value`` is the score from which a finding is told, for windows of ``window_s`` (0: of any length).

    ``provisional``: not yet from maxima of healthy node-days, or of simulated ones of too small a number.
    """

    detector: str
    signal: str
    window_s: int
    value: float
    unit: str
    source: str
    provisional: bool = False


@dataclass(frozen=True, slots=True)
class Thresholds:
    """A set of thresholds. ``digest`` is the SHA-256 of its canonical JSON."""

    version: str
    digest: str
    rows: Mapping[tuple[str, str, int], Threshold]

    def value(self, detector: str, signal: str, window_s: int) -> float:
        """The threshold for windows of that length, of the next shorter known length, or of any length.

        ``KeyError`` names the detector and signal that have none.
        """
        lengths = sorted(w for d, s, w in self.rows if (d, s) == (detector, signal) and w <= window_s)
        if not lengths:
            raise KeyError(f"no threshold for {detector}.{signal} at {window_s} s")
        return self.rows[detector, signal, lengths[-1]].value


def for_site(base: Thresholds, values: Mapping[tuple[str, str, int], float], set_id: str) -> Thresholds:
    """``base`` with a site's own values in their place. ``ValueError`` for one that is not positive.

    A signal that ``base`` does not know is left out: no detector would ask for it.
    """
    rows = dict(base.rows)
    for key, value in values.items():
        if not value > 0:
            raise ValueError(f"threshold {key[0]}.{key[1]} is {value}, not positive")
        if key in rows:
            rows[key] = replace(rows[key], value=value, source=f"this site's set {set_id}", provisional=False)
    named = [[*key, row.value] for key, row in sorted(rows.items())]
    digest = hashlib.sha256(json.dumps(named, separators=(",", ":")).encode()).hexdigest()
    return Thresholds(f"site {set_id}", digest, MappingProxyType(rows))


def parse(text: str) -> Thresholds:
    """Thresholds from their JSON form. ``ValueError`` for one that is not positive."""
    data = json.loads(text)
    rows = {}
    for entry in data["thresholds"]:
        row = Threshold(**entry)
        if not row.value > 0:
            raise ValueError(f"threshold {row.detector}.{row.signal} is {row.value}, not positive")
        rows[row.detector, row.signal, row.window_s] = row
    canonical = json.dumps(data["thresholds"], sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return Thresholds(data["version"], digest, MappingProxyType(rows))


@functools.cache
def shipped() -> Thresholds:
    """The thresholds that come with this version."""
    return parse(Path(__file__).with_name("thresholds.json").read_text("utf-8"))
