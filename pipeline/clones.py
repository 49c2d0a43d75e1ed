"""Two machines under one ``node_id``: a cloned image, or two agents on one machine.

One machine has one boot at a time, and its agent's epoch only grows. Where an earlier boot or epoch goes on sending
*new* messages after a later one has begun, there are two. Nothing of theirs can be told apart by ``node_id``, so it is
said: an ``event`` of kind ``identity_conflict``, again every hour while it lasts. GPU rows stay right, for they go by
the GPU's UUID; rows of host and links mix. Numbers of two agents that collide are dropped as repeats
(``graynode_pipeline_repeated_messages_total``): a repeat that was sent later than everything of its machine before it
is no repeat, and counts as a sign here too.

State per machine is a few words, bounded by the number of machines. A restart begins anew: what goes on is seen again
within two messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import polars as pl

from graynode.pipeline.bus import Received
from graynode.pipeline.decode import SOURCE
from graynode.pipeline.schema import stable_id

KIND: Final = "identity_conflict"
_LABEL: Final = "pipeline"
_AGAIN_MS: Final = 3_600_000
_LIVES: Final = 4
"""Boots and epochs remembered per machine; more alternate nowhere."""
_WHO: Final = ("cluster", "node_id", "node", "boot_id")

Life = tuple[int, str]
"""Agent epoch and boot id."""


@dataclass(slots=True)
class _Machine:
    began: dict[Life, datetime] = field(default_factory=dict)
    """Lives in the order in which they were met, with the time of their first sample."""
    said: tuple[str, str | None] = ("", None)
    """Epoch and boot of its last message, as they were written."""
    newest_sent: str = ""
    told_ms: int = -_AGAIN_MS


class CloneWatch:
    """One partition's machines, by message key."""

    def __init__(self) -> None:
        self._machines: dict[str, _Machine] = {}

    def repeats(self, received: Sequence[Received], fresh: Sequence[bool]) -> list[tuple[int, dict[str, Any]]]:
        """Look at the headers of a poll: index of the message and an ``event`` row for a repeat that cannot be one."""
        told: list[tuple[int, dict[str, Any]]] = []
        for index, (one, new) in enumerate(zip(received, fresh, strict=True)):
            machine, sent = self._machine(one), one.message.headers.get("sent", "")
            if new:
                machine.newest_sent = max(machine.newest_sent, sent)
            elif machine.newest_sent and sent > machine.newest_sent:
                said = "a message number that its agent has used came again with new content"
                event = self._tell(machine, one, said, {"sent": sent})
                told += [(index, event)] if event else []
        return told

    def events(self, frame: pl.DataFrame, received: Sequence[Received]) -> list[tuple[int, dict[str, Any]]]:
        """Look at each message's first row; an ``event`` row where a life that was over goes on.

        ``frame`` has ``_source``, ascending, an index into ``received``.
        """
        if not frame.height:
            return []
        source = frame[SOURCE].to_numpy()
        starts = np.flatnonzero(np.append(True, source[1:] != source[:-1]))
        boots = frame["boot_id"].gather(starts).to_list()
        told: list[tuple[int, dict[str, Any]]] = []
        for at, index, boot in zip(starts.tolist(), source[starts].tolist(), boots, strict=True):
            one = received[index]
            machine, said = self._machine(one), (one.message.headers.get("epoch", ""), boot)
            if said == machine.said:  # the usual case
                continue
            machine.said = said
            who = frame.row(at, named=True)
            event = self._see(machine, one, boot or "", who["ts"])
            if event is not None:
                told.append((index, {**event, **{name: who[name] for name in _WHO}}))
        return told

    def _machine(self, received: Received) -> _Machine:
        return self._machines.setdefault(received.message.key, _Machine())

    def _see(self, machine: _Machine, received: Received, boot_id: str, ts: datetime) -> dict[str, Any] | None:
        epoch = received.message.headers.get("epoch", "")
        life = (int(epoch) if epoch.isascii() and epoch.isdigit() and len(epoch) < 20 else 0, boot_id)
        if not boot_id:  # written by a source that does not know: no sign of anything
            return None
        if life not in machine.began:
            machine.began[life] = ts
            if len(machine.began) > _LIVES:
                del machine.began[next(iter(machine.began))]
            return None
        latest, began = next(reversed(machine.began.items()))
        if life == latest or ts <= began:
            return None
        machine.began[life] = machine.began.pop(life)  # now the other one is the earlier that must not go on
        return self._tell(machine, received, _words(life, latest), {"one": list(life), "other": list(latest)})

    def _tell(
        self, machine: _Machine, received: Received, said: str, facts: Mapping[str, object]
    ) -> dict[str, Any] | None:
        if received.arrived_ms - machine.told_ms < _AGAIN_MS:
            return None
        machine.told_ms = received.arrived_ms
        arrived = datetime.fromtimestamp(received.arrived_ms / 1000, UTC)
        cluster, _, node_id = received.message.key.partition("/")
        place = f"{received.partition.topic}/{received.partition.number}"
        return {
            "ts": arrived,
            "cluster": cluster,
            "node_id": node_id,
            "event_id": stable_id(received.message.key, _LABEL, KIND, place, received.offset),
            "source": _LABEL,
            "kind": KIND,
            "message": f"two agents send as {node_id}: {said}",
            "attributes": json.dumps(facts, sort_keys=True),
            "observed_ts": arrived,
            "ts_quality": "observed",
        }


def _words(one: Life, other: Life) -> str:
    if one[1] != other[1]:
        return f"boots {one[1]} and {other[1]} go on at the same time"
    return f"agent starts {one[0]} and {other[0]} of one boot go on at the same time"
