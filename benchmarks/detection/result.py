"""What a track gives back, and how it is written down."""

from __future__ import annotations

import hashlib
import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

_LIBRARIES: Final = ("graynode", "numpy", "polars", "scikit-learn", "scipy")


class DataError(Exception):
    """The data cannot be evaluated; the text says the file, what is wrong with it, and what was expected."""


class Figure(msgspec.Struct, frozen=True, omit_defaults=False):
    """One measured number. ``value`` is null where it must not be stated, and ``note`` then says why.

    ``ci_low`` and ``ci_high`` bound it at 95 % (two-sided unless ``note`` says one-sided); ``n`` is how many
    independent units (GPUs, nodes, faults, not rows) it rests on.
    """

    value: float | None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int | None = None
    note: str = ""


Figures = dict[str, Figure]
"""By name; names hold what is measured and under which condition: ``sgemm.cleaned.recall_5pct_at_fpr_0.1pct``."""


class Result(msgspec.Struct, kw_only=True):
    """All that a track measured in one run, ready for JSON.

    ``n`` is the number of independent units of the data. ``thresholds_sha256`` names the frozen thresholds that were
    used. ``baselines`` and ``ablations`` hold figures of the same names for each other method, and for ours with one
    part left out. ``failures`` are the cases that went wrong, in words with their ids. ``notes`` say what the figures
    do not.
    """

    track: str
    seed: int
    n: int
    figures: Figures
    baselines: dict[str, Figures] = {}
    ablations: dict[str, Figures] = {}
    thresholds_sha256: str = ""
    data_sha256: dict[str, str] = {}
    failures: list[str] = []
    notes: list[str] = []
    simulated: bool = False


class Track(Protocol):
    """One track: reads ``data`` (a folder in the format of its public set; ``None`` where the track makes its own).

    The same data and seed give the same result. ``DataError`` where the data cannot be evaluated. ``full`` asks for
    the sizes that certify; without it a run takes minutes.
    """

    def __call__(self, data: Path | None, seed: int, *, full: bool = False) -> Result:
        """Evaluate."""
        ...


def digests(files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of each file, so that a result says which data it is of: by its name, and where several files have one
    name (``train/m.txt``, ``test/m.txt``) by as much of the path as tells them apart."""
    every = sorted(set(files))
    return {
        name: hashlib.sha256(file.read_bytes()).hexdigest() for file, name in zip(every, _names(every), strict=True)
    }


def _names(files: Sequence[Path]) -> list[str]:
    deepest = max((len(file.parts) for file in files), default=0)
    names = [file.name for file in files]
    for depth in range(2, deepest + 1):
        seen = Counter(names)
        names = [
            "/".join(file.parts[-depth:]) if seen[name] > 1 else name for file, name in zip(files, names, strict=True)
        ]
    return names


def machine() -> dict[str, Any]:
    """Where and with what a result was measured."""
    return {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in _LIBRARIES},
    }


def as_json(result: Result, context: Mapping[str, Any]) -> str:
    """The result with machine, versions and command, as indented JSON."""
    return msgspec.json.format(msgspec.json.encode({**msgspec.to_builtins(result), **context}), indent=2).decode()
