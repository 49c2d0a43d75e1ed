"""The NVLinks of one GPU, in the child: which there are, their states, counters and far ends."""

# ruff: noqa: ANN401 (pynvml has no types)
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pynvml
from pynvml import NVMLError

from graynode.collectors.nvml.calls import NO_SUCH_LINK, converted, field_values
from graynode.collectors.nvml.fields import NOT_SUPPORTED, SETTLED, WHOLE_GPU
from graynode.collectors.nvml.gpu import GpuTrouble, Values, Watch
from graynode.collectors.nvml.nvlink_fields import (
    ACTIVE,
    COUNT_S,
    COUNTERS,
    GROWS,
    MAX_LINKS,
    REMOTE_LINK_ID,
    REMOTES,
    STATE_ID,
    SUMS,
    VERSIONS,
    Counter,
)
from graynode.collectors.nvml.wire import NOT_AVAILABLE, Link, mark

_A_CALL: Final = 8
"""Counters a call: one call of hundreds of answers would be long, and that would say nothing of the GPU's health."""
_clock: Final = time.perf_counter


class Links:
    """What of the links of one GPU can be read is learnt by reading it. ``every`` as ``Setup.links``."""

    def __init__(self, handle: Any, slot: int, every: Mapping[str, int], watch: Watch) -> None:
        self._handle, self._every, self._watch = handle, every, watch
        self._marks = {w: mark(slot, w) for w in ("nvmlDeviceGetFieldValues", "nvmlDeviceGetNvLinkState")}
        self._remote_mark = mark(slot, "nvmlDeviceGetNvLinkRemotePciInfo")
        self._counter_mark = mark(slot, "nvmlDeviceGetNvLinkErrorCounter")
        self._links: list[int] | None = None
        self._by_field = True
        self._left: dict[str, list[int]] = {c.field: list(c.ids) for c in COUNTERS if c.field in every}
        self._older = {c.field for c in COUNTERS if c.counter is not None and c.field in every}
        self._sums: dict[str, int | float] = {}
        self._active: set[int] = set()
        self._asked: set[int] = set()
        self._codes: dict[str, int] = {}
        self._changed: dict[str, int] = {}

    # --- states ------------------------------------------------------------------------------------------

    def states(self) -> dict[int, int]:
        """State of each link that there is; NOT_SUPPORTED where there is none. ``NVMLError``, ``GpuTrouble``."""
        if self._links is None:
            return self._find()
        if self._by_field:
            got = self._ask([(STATE_ID, link) for link in self._links])
            failed = next((code for code, _ in got if code not in (0, NOT_AVAILABLE)), 0)
            if failed:
                raise NVMLError(failed)
            return {n: -1 if code else int(value) for n, (code, value) in zip(self._links, got, strict=True)}
        return {n: self._state(n) for n in self._links}

    def _find(self) -> dict[int, int]:
        got = self._ask([(STATE_ID, link) for link in range(MAX_LINKS)])
        found = {n: int(value) for n, (code, value) in enumerate(got) if code == 0}
        passing = next((code for code, _ in got if code > 0 and code not in SETTLED), 0)
        if not found and passing:
            raise NVMLError(passing)
        if not found:  # older drivers have no such field
            self._by_field = False
            for link in range(MAX_LINKS):
                try:
                    found[link] = self._state(link)
                except NVMLError as error:
                    if error.value not in NO_SUCH_LINK:
                        raise
                    break
        if not found:
            raise NVMLError(NOT_SUPPORTED)
        self._links = list(found)
        return found

    def _state(self, link: int) -> int:
        return int(self._timed("nvmlDeviceGetNvLinkState", pynvml.nvmlDeviceGetNvLinkState, link))

    # --- a round -----------------------------------------------------------------------------------------

    def read(self, states: Mapping[int, int], due: frozenset[int], values: Mapping[str, int | float]) -> list[Link]:
        """The links with what is due; ``values`` are the GPU's, whose sums say whether a link has something to tell."""
        links = [Link(n, state, {}) for n, state in states.items()]
        grown = self._grown(values)
        wanted = [c for c in COUNTERS if self._is_due(c.field, due, grown=grown)]
        if wanted:
            self._count(links, wanted)
        active = {n for n, state in states.items() if state == ACTIVE}
        for link in links:
            if link.n in active - self._active or link.n not in self._asked:
                link.remote = self._remote(link.n)
        self._active = active
        self._asked |= states.keys()
        return links

    def take_changed(self) -> dict[str, int]:
        """Codes of fields that changed since the last time."""
        changed, self._changed = self._changed, {}
        return changed

    def _is_due(self, field: str, due: frozenset[int], *, grown: bool) -> bool:
        every = self._every.get(field)
        return every is not None and (every in due or (grown and every == COUNT_S))

    def _grown(self, values: Mapping[str, int | float]) -> bool:
        sums = {name: value for name, value in values.items() if name.startswith(GROWS)}
        grown = any(value > self._sums.get(name, value) for name, value in sums.items())
        self._sums |= sums
        return grown

    def _count(self, links: Sequence[Link], wanted: Sequence[Counter]) -> None:
        by_field = [c for c in wanted if self._left.get(c.field)]
        for start in range(0, len(by_field), _A_CALL):
            self._count_fields(links, by_field[start : start + _A_CALL])
        for counter in wanted:
            if not self._left[counter.field] and counter.field in self._older:
                self._count_older(links, counter)

    def _count_fields(self, links: Sequence[Link], counters: Sequence[Counter]) -> None:
        asked = [(self._left[c.field][0], link.n) for c in counters for link in links]
        got = self._ask(asked)
        for i, counter in enumerate(counters):
            some = got[i * len(links) : (i + 1) * len(links)]
            how = counter.how_of(self._left[counter.field][0])
            for link, (code, value) in zip(links, some, strict=True):
                if code == 0:
                    link.values[counter.field] = converted(value, how)
            self._learn(counter, links, [code for code, _ in some])

    def _learn(self, counter: Counter, links: Sequence[Link], codes: Sequence[int]) -> None:
        """A field that no link gives, though one is active, is tried under its next id; the last one's code is told."""
        if not all(code in SETTLED or code == NOT_AVAILABLE for code in codes):
            self._say(counter.field, next((c for c in codes if c and c not in SETTLED), 0))
        elif any(link.state == ACTIVE for link in links):
            self._left[counter.field].pop(0)
            if self._left[counter.field]:
                self._count_fields(links, [counter])
            elif counter.field not in self._older:
                self._say(counter.field, codes[0])

    def _count_older(self, links: Sequence[Link], counter: Counter) -> None:
        codes: list[int] = []
        for link in links:
            try:
                value = self._timed(
                    "nvmlDeviceGetNvLinkErrorCounter", pynvml.nvmlDeviceGetNvLinkErrorCounter, link.n, counter.counter
                )
            except NVMLError as error:
                codes.append(int(error.value))
                if error.value in SETTLED and link.state == ACTIVE:
                    break
            else:
                codes.append(0)
                link.values[counter.field] = converted(value, counter.how)
        if not any(code == 0 for code in codes) and any(link.state == ACTIVE for link in links):
            self._say(counter.field, codes[-1])
            if codes[-1] in SETTLED:
                self._older.discard(counter.field)

    def _say(self, field: str, code: int) -> None:
        if self._codes.get(field, 0) != code:
            self._codes[field] = self._changed[field] = code

    # --- the far end -------------------------------------------------------------------------------------

    def _remote(self, link: int) -> dict[str, str]:
        found: dict[str, str] = {}
        version = self._fact(pynvml.nvmlDeviceGetNvLinkVersion, link)
        if version:
            found["version"] = VERSIONS.get(int(version), str(version))
        kind = self._fact(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, link)
        if kind is not None:
            found["remote"] = REMOTES.get(int(kind), "unknown")
        pci = self._fact(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, link)
        if pci is not None and (pci.domain or pci.bus or pci.device):
            found["remote_pci"] = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        code, number = self._ask([(REMOTE_LINK_ID, link)])[0]
        if code == 0 and 0 <= number < 1024:  # a switch has more ports than a GPU has links
            found["remote_link"] = str(int(number))
        return found

    def _fact(self, function: Callable[..., Any], link: int) -> Any:
        self._watch.page[:] = self._remote_mark
        try:
            return function(self._handle, link)
        except NVMLError as error:
            if error.value in WHOLE_GPU:
                raise GpuTrouble(int(error.value), function.__name__) from error
            return None

    # --- calls -------------------------------------------------------------------------------------------

    def _ask(self, ids: list[tuple[int, int]]) -> list[tuple[int, int | float]]:
        where = "nvmlDeviceGetFieldValues"
        self._watch.page[:] = self._marks[where]
        started = _clock()
        try:
            got = field_values(self._handle, ids)
        except NVMLError as error:
            got = [(self._watch.failed(error, where), 0)] * len(ids)
        finally:
            self._watch.timed(started)
        lost = next((code for code, _ in got if code in WHOLE_GPU), 0)
        if lost:
            self._watch.counts[lost] += 1
            raise GpuTrouble(lost, where)
        return got

    def _timed(self, where: str, function: Callable[..., Any], *arguments: Any) -> Any:
        self._watch.page[:] = self._marks.get(where, self._counter_mark)
        started = _clock()
        try:
            return function(self._handle, *arguments)
        except NVMLError as error:
            self._watch.failed(error, where)
            raise
        finally:
            self._watch.timed(started)


class LinkSums:
    """The states as fields of table ``gpu``, with their own codes; a GPU that has no links is asked once."""

    def __init__(self, links: Links, every: Mapping[str, int]) -> None:
        self.links, self._every = links, every
        self._settled = False
        self._code = 0

    def read(self, values: Values, changed: dict[str, int]) -> dict[int, int] | None:
        """States of this round, with the sums put into ``values``; ``None`` where they cannot be read."""
        if self._settled:
            return None
        try:
            states = self.links.states()
        except NVMLError as error:
            self._failed(int(error.value), changed)
            return None
        self._code = 0
        all_states = list(states.values())
        counted = {name: all_states.count(state) for name, state in zip(SUMS, (ACTIVE, 0, 2), strict=True)}
        values |= {name: n for name, n in counted.items() if name in self._every}
        return states

    def _failed(self, code: int, changed: dict[str, int]) -> None:
        self._settled = code in SETTLED
        if code != self._code:
            self._code = code
            changed |= {name: code for name in SUMS if name in self._every}
