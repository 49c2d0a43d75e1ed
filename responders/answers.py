"""What an HTTP receiver's answer means, the same for every responder.

- 2xx: told. 410: the receiver is gone for good, refused at once.
- 400, 405, 411, 413, 414, 415, 422: it will never take this body; refused at the third attempt.
- 408, 425, 429, 5xx, no answer in time, no connection: tried again for as long as it takes, so that a receiver that
  was down for a night gets the night's incidents. ``Retry-After`` is honoured.
- any other status, redirects among them (they are never followed: an incident goes where the configuration says and
  nowhere else): somebody has to repair receiver or secret; tried for a day, then refused.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from graynode.responders.base import Outcome

_BAD_BODY: Final = frozenset({400, 405, 411, 413, 414, 415, 422})
_PATIENT: Final = frozenset({408, 425, 429})
_GONE: Final = 410
_TRIES_BAD_BODY: Final = 3
_TRIES_OTHER_S: Final = 86_400.0
_MOST_PATIENCE_S: Final = 3600.0
"""A receiver may ask for an hour; more would be a way to silence the alerts."""
ANSWER_SHOWN: Final = 200


def utc_now() -> datetime:
    """This machine's clock."""
    return datetime.now(UTC)


class Tries:
    """Attempts at each message that is not done with, by its identity."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._open: dict[str, tuple[int, float]] = {}

    def begin(self, identity: str) -> tuple[int, float]:
        """This attempt's number, from 1, and the seconds since the first."""
        number, since = self._open.get(identity, (0, self._monotonic()))
        self._open[identity] = (number + 1, since)
        return number + 1, self._monotonic() - since

    def end(self, identity: str, outcome: Outcome) -> Outcome:
        """Forget what is done with; gives the outcome."""
        if outcome.outcome != "failed":
            self._open.pop(identity, None)
        return outcome


def judge(status: int, answer: str, number: int, trying_s: float, asked_s: float | None) -> Outcome:
    """What an answer means (the module's list)."""
    said = f"HTTP {status}{f': {answer}' if answer else ''}"
    if 200 <= status < 300:
        return Outcome("done", f"HTTP {status}", number)
    if status == _GONE:
        return Outcome("refused", f"{said}; the receiver is gone: take it out of the configuration", number)
    if status in _BAD_BODY and number >= _TRIES_BAD_BODY:
        return Outcome("refused", f"{said}; not taken in {number} attempts", number)
    lasting = status in _PATIENT or status >= 500 or status in _BAD_BODY
    if not lasting and trying_s >= _TRIES_OTHER_S:
        return Outcome("refused", f"{said}; given up after a day", number)
    return Outcome("failed", said, number, asked_s if status in (429, 503) else None)


def retry_after(text: str, now: datetime) -> float | None:
    """Seconds that a ``Retry-After`` header asks for (a number or a date), an hour at most; none if unreadable."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), _MOST_PATIENCE_S)
    try:
        until = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return min(max(0.0, (until - now).total_seconds()), _MOST_PATIENCE_S)


def shown(answer: bytes) -> str:
    """The beginning of an answer as one line without control characters."""
    text = answer[:ANSWER_SHOWN].decode("utf-8", "replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
