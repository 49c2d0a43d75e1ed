"""Answers that cost much and change slowly, kept for a while: one caller works, the others wait for the same answer."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from graynode.service.api.problems import Problem

_MOST: Final = 256
_WAIT_S: Final = 30.0
_END_S: Final = 20.0
T = TypeVar("T")


@dataclass(slots=True)
class _Slot:
    lock: threading.Lock = field(default_factory=threading.Lock)
    until: float = -math.inf
    value: Any = None


@dataclass(slots=True)
class Kept:
    """By key, the oldest thrown away. An answer that could not be made is not kept. ``clock``: monotonic seconds."""

    most: int = _MOST
    clock: Callable[[], float] = time.monotonic
    _slots: OrderedDict[str, _Slot] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def get(
        self, key: str, seconds: float, make: Callable[[], T], *, stale_s: float = 0.0,
        stands: Callable[[T], bool] | None = None,
    ) -> T:  # fmt: skip
        """What is kept under ``key``, made by ``make`` where there is none or it is older than ``seconds``.

        For ``stale_s`` longer the old answer is given at once while a thread makes the new one, where it ``stands``:
        "nothing as yet" is no old answer to give. ``Problem`` 503 for who has waited long for another's making.
        """
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            while len(self._slots) > self.most:
                self._slots.popitem(last=False)
        old = slot.until <= self.clock() < slot.until + stale_s
        if old and (stands is None or stands(slot.value)):
            self._renew(slot, seconds, make)
            stale: T = slot.value
            return stale
        if not slot.lock.acquire(timeout=_WAIT_S):
            raise Problem(503, "this is being reckoned and takes long; ask again", {"Retry-After": "10"})
        try:
            if self.clock() >= slot.until:
                slot.value = make()
                slot.until = self.clock() + seconds
            found: T = slot.value
        finally:
            slot.lock.release()
        return found

    def _renew(self, slot: _Slot, seconds: float, make: Callable[[], Any]) -> None:
        """Make the new answer in a thread, unless one does so already. What fails keeps the old one."""
        if not slot.lock.acquire(blocking=False):
            return

        def work() -> None:
            try:
                with contextlib.suppress(Exception):
                    slot.value, slot.until = make(), self.clock() + seconds
            finally:
                slot.lock.release()

        made = threading.Thread(target=work, name="graynode-renew", daemon=True)
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()] + [made]
        made.start()

    def close(self) -> None:
        """Wait for what is being made."""
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(_END_S)
