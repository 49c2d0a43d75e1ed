"""Tells people where they are: Slack, Teams, PagerDuty, mail and what else apprise knows, by its addresses.

One receiver may have several addresses; each is told once, whatever becomes of the others. The picture goes along where
the service takes files, and not any more after a first failure: a message without it is better than none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

import apprise
from apprise.attachment.memory import AttachMemory

from graynode.responders import message
from graynode.responders.addresses import service
from graynode.responders.answers import Tries, judge, retry_after, utc_now
from graynode.responders.base import Incident, Kind, Outcome
from graynode.responders.requests_watch import Seen, watched
from graynode.responders.webhook import webhook_id

Picture = Callable[[Incident], bytes | None]
"""PNG of an incident; none where there is none or it could not be drawn in time."""

_TYPES: Final = {"page": apprise.NotifyType.FAILURE, "ticket": apprise.NotifyType.WARNING}


@dataclass(frozen=True, slots=True)
class _Letter:
    """One message, ready to be sent."""

    identity: str
    title: str
    body: str
    type: apprise.NotifyType
    picture: Callable[[], bytes | None] = lambda: None


class Chat:
    """One receiver of one or more apprise ``urls``. ``ValueError`` for bad ones, which shows nothing of their secrets.

    ``plain_http`` permits what is not encrypted beyond this machine.
    """

    name: ClassVar[str] = "chat"

    def __init__(
        self,
        urls: Sequence[str],
        *,
        links: message.Links | None = None,
        where: Callable[[Incident], Mapping[str, str]] = lambda _: {},
        picture: Picture = lambda _: None,
        timeout_s: float = 15.0,
        plain_http: bool = False,
        clock: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._links, self._where, self._picture = links or message.Links(), where, picture
        self._timeout_s, self._plain_http, self._clock = timeout_s, plain_http, clock
        self._services = [
            service(url, number, timeout_s=timeout_s, plain_http=plain_http) for number, url in enumerate(urls, 1)
        ]
        self._tries = Tries(monotonic)
        self._reached: dict[str, set[int]] = {}

    def respond(self, incident: Incident, kind: Kind = "revision") -> Outcome:
        """One attempt at each address that does not have it yet."""
        over = incident.get("state") == "resolved"
        type_ = (
            apprise.NotifyType.SUCCESS if over else _TYPES.get(str(incident.get("severity")), apprise.NotifyType.INFO)
        )
        body = "" if kind == "canary" else message.body(incident, self._where(incident), self._links)
        picture = (lambda: None) if over or kind == "canary" else (lambda: self._picture(incident))
        return self._tell(_Letter(webhook_id(incident, kind), message.title(incident, kind), body, type_, picture))

    def bundle(self, incidents: Sequence[Incident], why: str) -> Outcome:
        """One attempt at all of them in one message."""
        title, body = message.many(incidents, why, self._links)
        type_ = apprise.NotifyType.WARNING if any(i.get("severity") == "page" for i in incidents) else _INFO
        return self._tell(_Letter("|".join(webhook_id(i) for i in incidents), title, body, type_))

    def close(self) -> None:
        """Nothing is held."""

    def _tell(self, letter: _Letter) -> Outcome:
        number, trying_s = self._tries.begin(letter.identity)
        reached = self._reached.setdefault(letter.identity, set())
        picture = letter.picture() if number == 1 and any(p.attachment_support for p in self._plugins()) else None
        met = [
            (i, self._send(one, letter, picture, number, trying_s))
            for i, one in enumerate(self._services)
            if i not in reached
        ]
        reached |= {i for i, outcome in met if outcome.outcome != "failed"}
        outcome = _together([o for _, o in met], len(self._services), number)
        if outcome.outcome != "failed":
            self._reached.pop(letter.identity, None)
        return self._tries.end(letter.identity, outcome)

    def _plugins(self) -> Iterable[Any]:
        return (one[0] for one in self._services)

    def _send(
        self, one: apprise.Apprise, letter: _Letter, picture: bytes | None, number: int, trying_s: float
    ) -> Outcome:
        plugin = one[0]
        attach = _file(picture) if picture and plugin.attachment_support else None
        with watched(Seen(self._timeout_s, self._plain_http)) as seen:
            told = one.notify(
                body=letter.body or letter.title, title=letter.title, notify_type=letter.type,
                body_format=apprise.NotifyFormat.TEXT, attach=attach,
            )  # fmt: skip
        name = str(plugin.service_name)
        if told:  # an object whose truth counts
            return Outcome("done", f"{name} took it", number)
        if seen.status and not 200 <= seen.status < 300:
            judged = judge(seen.status, seen.answer, number, trying_s, retry_after(seen.retry_after, self._clock()))
            return Outcome(judged.outcome, f"{name}: {judged.reason}", number, judged.retry_after_s)
        return Outcome("failed", f"{name}: {seen.trouble or 'not taken; it does not say why'}", number)


def _file(picture: bytes) -> AttachMemory:
    return AttachMemory(content=picture, name="incident.png", mimetype="image/png")  # type: ignore[no-untyped-call]


_INFO: Final = apprise.NotifyType.INFO


def _together(met: Sequence[Outcome], services: int, number: int) -> Outcome:
    """One outcome of several addresses: failed while any is to be tried again."""
    waiting = [o for o in met if o.outcome == "failed"]
    refused = [o for o in met if o.outcome == "refused"]
    if waiting:
        asked = [o.retry_after_s for o in waiting if o.retry_after_s is not None]
        return Outcome("failed", "; ".join(o.reason for o in waiting), number, max(asked, default=None))
    if refused and len(refused) == services:
        return Outcome("refused", "; ".join(o.reason for o in refused), number)
    return Outcome("done", "; ".join(o.reason for o in met) or "all have it", number)
