"""Detector memory as rows of table ``state``, and back.

One row per detector and frame (in parts where it is large), each an Arrow stream, and last a manifest that names
the parts and the round they belong to. A manifest counts only when all of its parts are there, so a state of which
a half has landed is no state. Frames that did not change since the last writing are named, not written again.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Protocol

import polars as pl

from graynode.detectors.base import State

MANIFEST: Final = "manifest"
_PART_BYTES: Final = 3 << 20
"""Of Arrow before base64: a message has room for one part under its 8 MiB."""
_TRIES: Final = 5
Row = dict[str, Any]


class Keeper(Protocol):
    """Whose memory is stored: a detector, or what else a round remembers. Memory of another version is not taken up."""

    version: ClassVar[int]


@dataclass(slots=True)
class StateWriter:
    """Remembers what was written last, so that only changed frames are written again."""

    cluster: str
    _written: dict[str, tuple[pl.DataFrame, list[str]]] = field(default_factory=dict)

    def rows(
        self, start: datetime, window_s: int, detectors: Mapping[str, Keeper], states: Mapping[str, State]
    ) -> Iterator[Row]:
        """The rows to publish after the round that began at ``start``, the manifest last."""
        manifest: dict[str, list[str]] = {}
        for name, state in sorted(states.items()):
            version = detectors[name].version
            for frame_name, frame in sorted(state.items()):
                place = f"{name}.{frame_name}"
                before = self._written.get(place)
                if before is not None and before[0] is frame:
                    manifest[place] = before[1]
                    continue
                parts = []
                for i, text in enumerate(_pack(frame)):
                    parts.append(f"{place}#{i}@{start.isoformat()}")
                    yield self._row(start, f"{place}#{i}", version, text)
                self._written[place] = (frame, parts)
                manifest[place] = parts
        said = {"window_s": window_s, "frames": manifest, "versions": {n: d.version for n, d in detectors.items()}}
        yield self._row(start, MANIFEST, 1, json.dumps(said))

    def took(self, states: Mapping[str, State], parts: Mapping[str, list[str]]) -> None:
        """Restored frames count as written."""
        for name, state in states.items():
            for frame_name, frame in state.items():
                place = f"{name}.{frame_name}"
                self._written[place] = (frame, parts[place])

    def _row(self, start: datetime, detector: str, version: int, text: str) -> Row:
        who = {"ts": start, "cluster": self.cluster, "node_id": "detect"}
        return {**who, "detector": detector, "version": version, "state": text}


@dataclass(frozen=True, slots=True)
class Restored:
    """State after the round that began at ``start``."""

    start: datetime
    states: dict[str, State]
    parts: dict[str, list[str]]


class Read(Protocol):
    """Rows of table ``state`` of one cluster."""

    def __call__(self, since: datetime, until: datetime | None, columns: list[str]) -> pl.DataFrame:
        """Rows of ``since <= ts < until``."""
        ...


def restore(read: Read, since: datetime, window_s: int, detectors: Mapping[str, Keeper]) -> Restored | None:
    """The newest complete state of a round not before ``since``. Of a detector whose version has changed: nothing."""
    names = read(since, None, ["ts", "detector"]).filter(pl.col("detector") == MANIFEST)
    for ts in sorted(set(names.get_column("ts")), reverse=True)[:_TRIES]:
        manifest = _at(read, ts)[MANIFEST]
        said = json.loads(manifest)
        if said["window_s"] != window_s:
            continue
        wanted = {p: parts for p, parts in said["frames"].items() if _same(p, said["versions"], detectors)}
        written = {_key(part)[1] for parts in wanted.values() for part in parts}
        held = {(name, at): text for at in sorted(written) for name, text in _at(read, at).items()}
        if all(_key(part) in held for parts in wanted.values() for part in parts):
            states: dict[str, dict[str, pl.DataFrame]] = {}
            for place, parts in wanted.items():
                name, _, frame_name = place.partition(".")
                states.setdefault(name, {})[frame_name] = _unpack([held[_key(part)] for part in parts])
            return Restored(ts.astimezone(UTC), dict(states), wanted)
    return None


def _at(read: Read, ts: datetime) -> dict[str, str]:
    rows = read(ts, ts + timedelta(microseconds=1), ["detector", "state"])
    return dict(zip(rows.get_column("detector"), rows.get_column("state"), strict=True))


def _same(place: str, versions: Mapping[str, int], detectors: Mapping[str, Keeper]) -> bool:
    name = place.partition(".")[0]
    return name in detectors and detectors[name].version == versions.get(name)


def _key(part: str) -> tuple[str, datetime]:
    detector, _, written = part.partition("@")
    return detector, datetime.fromisoformat(written).astimezone(UTC)


def _pack(frame: pl.DataFrame) -> Iterator[str]:
    rows = max(1, int(frame.height * _PART_BYTES / max(frame.estimated_size(), 1)))
    for begin in range(0, max(frame.height, 1), rows):
        sink = io.BytesIO()
        frame.slice(begin, rows).write_ipc_stream(sink, compression="zstd")
        yield base64.b64encode(sink.getvalue()).decode("ascii")


def _unpack(texts: list[str]) -> pl.DataFrame:
    parts = [pl.read_ipc_stream(io.BytesIO(base64.b64decode(text))) for text in texts]
    return pl.concat(parts) if len(parts) > 1 else parts[0]
