"""What samples cost on the bus: real rows of each reading class, encoded as the agent encodes them, times a day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from graynode.collectors.base import Machine, Row, utc_now
from graynode.collectors.batch import Batcher, Misfits

SAMPLED: Final = ("gpu", "link", "host")
_DAY_S: Final = 86_400

ByClass = Mapping[int, Sequence[tuple[str, Row]]]
"""Rows with their table, by the slowest class that was due in their rounds: of the 1 s class five rounds, else one."""
_FAST_ROUNDS: Final = 5


def bytes_per_day(batch_s: float, machine: Machine, sources: Sequence[ByClass]) -> int:
    """Bytes of messages a day of these sources together. Changes (events, inventory, quality) are not in it.

    A batch of fast rounds is encoded, one with a 10 s round and one with a 60 s round in place of a fast one; the
    differences come as often as these classes do.
    """
    rounds = max(1, round(batch_s))
    fast = _size(machine, sources, rounds, None)
    ten = _size(machine, sources, rounds, 10) - fast
    sixty = _size(machine, sources, rounds, 60) - fast
    # a round of the 60 s class is one of the 10 s class too
    day = fast * _DAY_S / batch_s + max(ten, 0) * _DAY_S * (1 / 10 - 1 / 60) + max(sixty, 0) * _DAY_S / 60
    return round(day)


def _size(machine: Machine, sources: Sequence[ByClass], rounds: int, slow: int | None) -> int:
    """Bytes of one batch of so many rounds, one of them of the slow class."""
    batcher = Batcher(machine, 0, driver_load=lambda: None, now=utc_now, misfits=Misfits())
    for source in sources:
        ordinary = list(source.get(1, ()))
        each = -(-len(ordinary) // _FAST_ROUNDS)
        wanted = each * (rounds - (slow is not None))
        rows = [ordinary[i % len(ordinary)] for i in range(wanted)] if ordinary else []
        rows += list(source.get(slow, ())) if slow is not None else []
        for table, row in rows:
            batcher.add({table: [dict(row)]}, utc_now())
    return sum(len(message.value) for _, message in batcher.take())
