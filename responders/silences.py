"""What people have muted or taken, as silences in Alertmanager: it repeats by itself, so it has to know.

A silence has exactly the labels of one alert. It does not fit any more when the incident gets worse, which is when
people want to hear of it again. Ours are known by ``createdBy``, so nothing has to be remembered over a restart, and a
silence that a person made is never touched. The members of a cluster share silences; where one of several that are no
cluster is away, it goes without until the next minute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from graynode.responders.alert_labels import iso
from graynode.responders.message import clean, moment
from graynode.responders.post import Post

_BY: Final = "graynode respond"
_LENGTH: Final = timedelta(minutes=30)
_RENEW: Final = timedelta(minutes=10)
"""Short and renewed: when respond ends for good, nothing stays silent because of it."""
_SKEW: Final = timedelta(minutes=5)
"""Alertmanager takes what began before its own now for what begins now: its clock may be behind ours."""
_PATH: Final = "/api/v2/silences"

Labels = Mapping[str, str]


class Silences:
    """Keeps the silences of one cluster of Alertmanagers as people want them."""

    def __init__(self, posts: Sequence[Post], clock: Callable[[], datetime]) -> None:
        self._posts, self._clock = posts, clock

    def set(self, alerts: Mapping[str, Labels], spared: Mapping[str, str]) -> None:
        """Silence the alerts of these incidents, and of no others; ``spared`` says why."""
        wanted = {_key(labels): (labels, spared[i]) for i, labels in alerts.items() if i in spared}
        now = self._clock()
        for post in self._posts:
            there = _ours(post)
            self._end(post, [silence for key, silence in there if key not in wanted])
            lasting = {key for key, silence in there if _ends(silence, now) - now >= _RENEW}
            for key, (labels, why) in wanted.items():
                if key not in lasting:
                    post.ask("POST", _PATH, content=_silence(labels, why, now), headers=_JSON)

    def lift(self, labels: Labels) -> None:
        """End ours of these labels."""
        for post in self._posts:
            self._end(post, [silence for key, silence in _ours(post) if key == _key(labels)])

    @staticmethod
    def _end(post: Post, silences: Sequence[Mapping[str, Any]]) -> None:
        for silence in silences:
            post.ask("DELETE", f"/api/v2/silence/{silence['id']}")


_JSON: Final = [("content-type", "application/json")]
_Key = frozenset[tuple[str, str]]


def _ours(post: Post) -> list[tuple[_Key, dict[str, Any]]]:
    """Silences that we made and that are in force, by their labels; none where nobody answers."""
    answer = post.ask("GET", _PATH)
    found: list[tuple[_Key, dict[str, Any]]] = []
    if answer is None or not answer.is_success:
        return found
    with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):
        for silence in msgspec.json.decode(answer.content):
            if silence["createdBy"] == _BY and silence["status"]["state"] != "expired":
                found.append((frozenset((m["name"], m["value"]) for m in silence["matchers"]), silence))
    return found


def _ends(silence: Mapping[str, Any], now: datetime) -> datetime:
    return moment(silence.get("endsAt")) or now


def _key(labels: Labels) -> _Key:
    return frozenset(labels.items())


def _silence(labels: Labels, why: str, now: datetime) -> bytes:
    matchers = [{"name": n, "value": v, "isRegex": False, "isEqual": True} for n, v in sorted(labels.items())]
    told = {"matchers": matchers, "startsAt": iso(now - _SKEW), "endsAt": iso(now + _LENGTH), "createdBy": _BY}
    return msgspec.json.encode(told | {"comment": clean(why) or "said by a person"})
