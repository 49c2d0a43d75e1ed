"""What a server's refusal means, by what the asker should do: stop, ask for less, or wait and ask again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from graynode.service.prometheus.answer import error_text, plain

_QUERY_SHOWN: Final = 240
_TOO_MUCH: Final = re.compile(
    r"exceed|too many|too much|too large|too long|limit|maximum|max[A-Z]|would load|timed? ?out", re.I
)
"""Words of Prometheus ("exceeded maximum resolution of 11,000 points", "would load too many samples"), VictoriaMetrics
("cannot exceed -search.maxPointsPerTimeseries") and Mimir ("the query hit the max number of series limit")."""
_BUSY: Final = frozenset({429, 502, 503, 504})
_LONGEST_WAIT_S: Final = 120.0
_FIRST_WAIT_S: Final = 0.5
_DOUBLES_UNTIL: Final = 6


class PrometheusError(Exception):
    """A query that gave nothing: the query, what the server said, and the way out."""

    def __init__(self, query: str, said: str, way_out: str) -> None:
        shown = query if len(query) <= _QUERY_SHOWN else f"{query[:_QUERY_SHOWN]}…"
        super().__init__(f"query {plain(shown)}: {said}; {way_out}")
        self.said, self.way_out = said, way_out


class Refused(PrometheusError):
    """It will never answer this: wrong address, wrong credentials, not this API."""


class TooMuch(PrometheusError):
    """It would answer a smaller question. ``late``: it did not answer this one in time."""

    late = False


class Busy(PrometheusError):
    """Not now. ``after_s``: how long it asks to be left alone, null where it does not say."""

    after_s: float | None = None


class Away(PrometheusError):
    """It kept failing for as long as was agreed."""


def judged(query: str, status: int, headers: Mapping[str, str], body: bytes) -> PrometheusError:
    """What an answer with a status other than 200 means."""
    said = f"HTTP {status}: {error_text(body)}"
    if status in (401, 403):
        return Refused(query, said, "give credentials: --user with --password-file, or --token-file")
    if status in (200, 301, 302, 303, 307, 308, 404, 405):
        moved = plain(headers.get("location", ""))
        return Refused(
            query,
            f"{said}{f', sent on to {moved}' if moved else ''}",
            "the address does not look like a Prometheus: give the one under which /api/v1/query answers",
        )
    if status in (400, 413, 422, 503, 504) and b'"status"' in body and _TOO_MUCH.search(said):
        return TooMuch(query, said, "ask for less at once: a larger --step, or fewer series by --match")
    if status in _BUSY:
        busy = Busy(query, said, "it is overloaded or starting: run again later, or with a smaller --rate")
        busy.after_s = _after_s(headers.get("retry-after", ""))
        return busy
    return Refused(query, said, "the server's log says more")


def wait_s(attempt: int, asked_s: float | None) -> float:
    """How long to wait after the so-many-th failure (from 1), at least as long as the server asks, with an end."""
    doubled = _FIRST_WAIT_S * 2.0 ** (min(attempt, _DOUBLES_UNTIL) - 1)
    return min(max(doubled, asked_s or 0.0), _LONGEST_WAIT_S)


def _after_s(text: str) -> float | None:
    """``Retry-After`` in seconds. Its other form, a date, is left to our own schedule."""
    return float(text) if text.strip().isdecimal() else None
