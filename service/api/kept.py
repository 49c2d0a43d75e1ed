"""Answers that cost much and change slowly, kept for a while: one caller works, the others wait for the same answer."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

_MOST: Final = 256
T = TypeVar("T")


@dataclass(slots=True)
class _Slot:
    lock: threading.Lock = field(default_factory=threading.Lock)
    until: float = 0.0
    value: Any = None


@dataclass(slots=True)
class Kept:
    """By key, the oldest thrown away. An answer that could not be made is not kept. ``clock``: monotonic seconds."""

    most: int = _MOST
    clock: Callable[[], float] = time.monotonic
    _slots: OrderedDict[str, _Slot] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: str, seconds: float, make: Callable[[], T]) -> T:
        """What is kept under ``key``, made by ``make`` where there is none or it is older than ``seconds``."""
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            while len(self._slots) > self.most:
                self._slots.popitem(last=False)
        with slot.lock:
            if self.clock() >= slot.until:
                slot.value = make()
                slot.until = self.clock() + seconds
            found: T = slot.value
        return found
