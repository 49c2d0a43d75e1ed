"""Messages that cannot be read, and where they go: each is told of once, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from graynode.pipeline import land_metrics as metrics
from graynode.pipeline.bus import BusRefused, BusUnavailable, Received
from graynode.pipeline.decode import SOURCE, Decoded, tables_of

_log = structlog.get_logger()


class Rejects(Protocol):
    """Where messages go that cannot be read (``graynode.pipeline.deadletter.DeadLetters``)."""

    def skips(self, received: Received) -> bool:
        """Whether to pass over the message unread, because its machine floods."""
        ...

    def readable(self, received: Received) -> None:
        """The message was read."""
        ...

    def put(self, received: Received, reason: str) -> None:
        """Keep it with its reason. May raise ``BusUnavailable``, ``BusRefused`` or ``FloodStop``."""
        ...


def tell(rejects: Rejects, received: Sequence[Received], wanted: Sequence[bool], decoded: Decoded) -> None:
    """Say of each message of a topic whether it could be read; rows of a table that belongs elsewhere are taken out.

    ``FloodStop`` as the dead letters raise it.
    """
    topic = received[0].partition.topic
    allowed = tables_of(topic)
    for table in [table for table in decoded.frames if table not in allowed]:
        reason = f"rows of {table} do not belong on {topic}"
        decoded.rejects.update(dict.fromkeys(decoded.frames.pop(table)[SOURCE].unique().to_list(), reason))
    for index, message in enumerate(received):
        if index in decoded.rejects:
            _put(rejects, message, decoded.rejects[index])
        elif wanted[index]:
            rejects.readable(message)


def _put(rejects: Rejects, received: Received, reason: str) -> None:
    metrics.REJECTS.labels(received.partition.topic).inc()
    try:
        rejects.put(received, reason)
    except (BusUnavailable, BusRefused) as error:
        metrics.UNTOLD.inc()
        _log.error("a message can neither be read nor put aside", reason=reason, error=str(error))
