"""List, then watch, for ever, in a thread of its own that sleeps in the socket: a collector cannot wait for a stream.

The rules are those of "Kubernetes API Concepts": go on from the last resource version, bookmarks move it on; 410 means
list again; a stream that ends is opened again. Failures are asked again after 1, 2, 4 … at most 60 s (5 minutes where
permission is lacking), with a random part, so that a fleet's agents do not come all at once after an outage.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from graynode.collectors.kubernetes.api import Api, ApiError, Lines
from graynode.collectors.kubernetes.store import Expired, Store, WatchFailed

_PAGE: Final = "500"
_WATCH_S: Final = (300, 600)
"""How long a stream is asked for: as client-go does, between five and ten minutes."""
_REFUSED_S: Final = 300.0
_MOST_S: Final = 60.0
_MOST_PAGES: Final = 1000


@dataclass(frozen=True, slots=True)
class Standing:
    """How it stands: ``listed`` after the first whole list; ``failing_s`` since when nothing was heard, null while all
    is well; ``error`` and ``refused`` of the last failure."""

    listed: bool
    failing_s: float | None
    error: str
    refused: bool
    status: int = 0


def _nothing() -> None:
    """No work between events."""


class Watch:
    """Keeps ``store`` up to date. ``start`` once; ``between`` is called in the thread after each change.

    ``paths`` are tried in turn where the server has no such resource (API versions, newest first). ``cached``: the
    first list may come from the server's memory, a little old, and whole: what a thousand agents ask at once must not
    all go to etcd, and what one page may not hold must.
    """

    def __init__(
        self,
        api: Api,
        paths: tuple[str, ...],
        store: Store[Any, Any],
        *,
        query: Mapping[str, str] | None = None,
        cached: bool = False,
        between: Callable[[], None] = _nothing,
        first_wait_s: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._api, self._paths, self.store, self._query = api, paths, store, dict(query or {})
        self._between, self._first_wait_s, self._monotonic = between, first_wait_s, monotonic
        self._cached = cached
        self._rng = rng or random.Random()  # noqa: S311 (spreads load)
        self._stop = threading.Event()
        self._lines: Lines | None = None
        self._thread: threading.Thread | None = None
        self._version = ""
        self._failed: ApiError | None = None
        self._failing_since: float | None = None
        self._failures = 0
        self.lists = 0
        """Whole lists taken."""

    def start(self) -> None:
        """Begin; a second time does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kubernetes", daemon=True)
            self._thread.start()

    @property
    def standing(self) -> Standing:
        """How it stands now."""
        failed, since = self._failed, self._failing_since
        if failed is None or since is None:
            return Standing(self.lists > 0, None, "", refused=False)
        return Standing(self.lists > 0, self._monotonic() - since, str(failed), failed.refused, failed.status)

    def close(self) -> None:
        """End the thread; twice is as good as once."""
        self._stop.set()
        lines = self._lines
        if lines is not None:
            lines.interrupt()
        if self._thread is not None:
            self._thread.join(2.0)  # one that waits for an answer ends with the process

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._version = self._version or self._list()
                self._follow()
            except Expired as error:
                self._fail(ApiError(410, str(error)))
            except WatchFailed as error:
                self._fail(ApiError(0, str(error)))
            except ApiError as error:
                self._fail(error)
            except Exception as error:  # a thread that ended would leave the last knowledge standing for ever
                self._version = ""
                self._fail(ApiError(0, f"{type(error).__name__}: {error}"))

    def _list(self) -> str:
        """A whole list, page by page; its resource version."""
        items: list[Any] = []
        query = {**self._query, "limit": _PAGE, **({"resourceVersion": "0"} if self._cached else {})}
        for _ in range(_MOST_PAGES):
            some, version, more = self.store.page(self._get(query))
            items += some
            if not more:
                break
            query = {**self._query, "limit": _PAGE, "continue": more}
        else:
            raise ApiError(0, f"a list of more than {_MOST_PAGES} pages")
        self.store.replace(items)
        self._between()
        self.lists += 1
        self._well()
        return version

    def _get(self, query: Mapping[str, str]) -> bytes:
        try:
            return self._api.get(self._paths[0], query)
        except ApiError as error:
            if error.status == 404 and len(self._paths) > 1:
                self._paths = (*self._paths[1:], self._paths[0])
            raise

    def _follow(self) -> None:
        """Take events until the stream ends."""
        asked = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": self._version}
        asked["timeoutSeconds"] = str(self._rng.randint(*_WATCH_S))
        with self._api.lines(self._paths[0], {**self._query, **asked}) as lines:
            self._lines = lines
            self._failed, self._failing_since = None, None
            try:
                self._take(lines)
            finally:
                self._lines = None
        self._stop.wait(self._first_wait_s * 0.1)  # a server that ends each stream at once is not asked in a circle

    def _take(self, lines: Lines) -> None:
        while not self._stop.is_set():
            arrived = lines.arrive()
            if arrived is None:
                return
            for line in arrived:
                self._version = self.store.line(line) or self._version
            if arrived:
                self._well()
                self._between()

    def _well(self) -> None:
        self._failed, self._failing_since, self._failures = None, None, 0

    def _fail(self, error: ApiError) -> None:
        if self._stop.is_set():
            return
        if error.expired:
            self._version, self._cached = "", False
        if self._failing_since is None:
            self._failing_since = self._monotonic()
        self._failed = error
        self._failures += 1
        again_s = min(_MOST_S, self._first_wait_s * 2.0 ** min(self._failures - 1, 10))
        if error.refused:
            again_s = max(again_s, self._first_wait_s * _REFUSED_S)
        again_s = max(again_s * self._rng.uniform(0.5, 1.0), min(error.retry_after_s, _REFUSED_S))
        self._stop.wait(again_s)
