"""The objects of one kind as a list and the watch after it tell them; no I/O.

Only what ``trim`` makes of an object is kept, so memory is bounded by ``most`` small facts, whatever the objects weigh.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from graynode.collectors.kubernetes.objects import UNDECODABLE, Bare, Failure, Meta, Page, WatchEvent


class _Object(Protocol):
    @property
    def metadata(self) -> Meta: ...


O = TypeVar("O", bound=_Object)  # noqa: E741 (an object)
F = TypeVar("F")

_MOST_ENDED: Final = 10_000
_EVENT: Final = msgspec.json.Decoder(WatchEvent)
_PAGE: Final = msgspec.json.Decoder(Page)
_BARE: Final = msgspec.json.Decoder(Bare)
_FAILURE: Final = msgspec.json.Decoder(Failure)


class Expired(Exception):
    """The server no longer has the resource version that the watch goes on from: list again."""


class WatchFailed(Exception):
    """The server ended the watch with an error."""


class Store(Generic[O, F]):
    """Facts by uid. One thread writes, any thread reads."""

    def __init__(self, kind: type[O], trim: Callable[[O], F], most: int = 100_000) -> None:
        self._decoder: msgspec.json.Decoder[O] = msgspec.json.Decoder(kind)
        self._trim, self._most = trim, most
        self._lock = threading.Lock()
        self._facts: dict[str, tuple[str, F]] = {}
        self._ended: deque[F] = deque(maxlen=_MOST_ENDED)
        self.undecodable = 0
        """Objects that were none, since the start."""
        self.left_out = 0
        """Objects beyond ``most``, in the last list and since."""

    def facts(self) -> dict[str, F]:
        """What there is, by uid."""
        with self._lock:
            return {uid: fact for uid, (_, fact) in self._facts.items()}

    def take(self) -> tuple[dict[str, F], list[F]]:
        """What there is, and what was deleted since the last time, as it was last seen; each object in one of them."""
        with self._lock:
            ended, self._ended = list(self._ended), deque(maxlen=_MOST_ENDED)
            return {uid: fact for uid, (_, fact) in self._facts.items()}, ended

    def page(self, body: bytes) -> tuple[list[tuple[str, str, F]], str, str]:
        """What is kept of a page (to be given to ``replace``), the list's version, and where the next page begins.

        ``WatchFailed`` where it is no list.
        """
        try:
            page = _PAGE.decode(body)
        except UNDECODABLE as error:
            raise WatchFailed(f"a list that is none: {error}"[:200]) from error
        found = (self._object(bytes(raw)) for raw in page.items or ())
        kept = [(o.metadata.uid, o.metadata.resource_version, self._trim(o)) for o in found if o is not None]
        return kept, page.metadata.resource_version, page.metadata.continue_

    def replace(self, items: Iterable[tuple[str, str, F]]) -> None:
        """A whole list: what is not in it has ended."""
        fresh: dict[str, tuple[str, F]] = {}
        left_out = 0
        for uid, version, fact in items:
            if len(fresh) >= self._most and uid not in fresh:
                left_out += 1
            else:
                fresh[uid] = (version, fact)
        with self._lock:
            self._ended.extend(fact for uid, (_, fact) in self._facts.items() if uid not in fresh)
            self._facts, self.left_out = fresh, left_out

    def line(self, line: bytes) -> str:
        """Take a watch's line; the resource version to go on from, empty if the line does not tell one.

        ``Expired`` and ``WatchFailed`` as the server says. A line that cannot be read is counted; it may have been any
        change, so ``Expired``: only a new list is certain.
        """
        try:
            event = _EVENT.decode(line)
        except UNDECODABLE as error:
            self.undecodable += 1
            raise Expired(f"a line that cannot be read: {error}"[:200]) from error
        if event.type == "ERROR":
            raise _failure(bytes(event.object))
        if event.type == "BOOKMARK":
            return _version(bytes(event.object))
        found = self._object(bytes(event.object))
        if found is None:
            return _version(bytes(event.object))
        self._apply(event.type, found)
        return found.metadata.resource_version

    def _apply(self, type_: str, item: O) -> None:
        uid, version = item.metadata.uid, item.metadata.resource_version
        with self._lock:
            known = self._facts.get(uid)
            if known is not None and _older(version, known[0]):
                return
            if type_ == "DELETED":
                if known is not None:
                    del self._facts[uid]
                    self._ended.append(self._trim(item))
            elif known is not None or len(self._facts) < self._most:
                self._facts[uid] = (version, self._trim(item))
            else:
                self.left_out += 1

    def _object(self, raw: bytes) -> O | None:
        try:
            found = self._decoder.decode(raw)
        except UNDECODABLE:
            self.undecodable += 1
            return None
        if not found.metadata.uid:
            self.undecodable += 1
            return None
        return found


def _version(raw: bytes) -> str:
    try:
        return _BARE.decode(raw).metadata.resource_version
    except UNDECODABLE:
        return ""


def _failure(raw: bytes) -> Exception:
    try:
        said = _FAILURE.decode(raw)
    except UNDECODABLE:
        return WatchFailed("the server ended the watch with an error that cannot be read")
    text = f"{said.reason or said.code}: {said.message or ''}"[:200]
    return Expired(text) if said.code == 410 else WatchFailed(text)


def _older(version: str, than: str) -> bool:
    """Whether a version is an earlier one. They are numbers in etcd; of others nothing can be told."""
    return (
        version.isdecimal() and than.isdecimal() and len(version) < 20 and len(than) < 20 and int(version) < int(than)
    )
