"""One GPU in the child: which calls it supports, learnt by making them, and a round's readings."""

# ruff: noqa: ANN401 (pynvml has no types)
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pynvml import NVMLError

from graynode.collectors.nvml.calls import Processes, bind, converted, field_values, function_of
from graynode.collectors.nvml.fields import SETTLED, WHOLE_GPU, WHOLE_NVML, Call, FieldValue
from graynode.collectors.nvml.gpm import FIELDS as GPM_FIELDS
from graynode.collectors.nvml.gpm import Gpm
from graynode.collectors.nvml.wire import NO_FIELD_ID, NOT_AVAILABLE, mark

Values = dict[str, int | float]
_clock: Final = time.perf_counter
_BAD_PAIR: Final = 2
"""INVALID_ARGUMENT of GPM speaks of two samples, not of support: the next pair may be good."""


class NvmlGone(Exception):
    """NVML as a whole answers no more; ``code`` and ``where`` say what, and which call said it."""

    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"{where}: NVML {code}")
        self.code, self.where = code, where


class GpuTrouble(Exception):
    """This GPU as a whole cannot be read."""

    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"{where}: NVML {code}")
        self.code, self.where = code, where


@dataclass(slots=True)
class Watch:
    """Where the child is (``page``, shared with the parent), its failed calls by code, and the slowest call."""

    page: Any  # an mmap, or a bytearray of the same size
    counts: Counter[int] = field(default_factory=Counter)
    max_s: float = 0.0

    def timed(self, started: float) -> None:
        """A call that began then has ended."""
        took = _clock() - started
        if took > self.max_s:
            self.max_s = took

    def failed(self, error: NVMLError, where: str) -> int:
        """Count it; its code, unless it speaks of more than the call: then ``NvmlGone`` or ``GpuTrouble``."""
        code = int(error.value)
        self.counts[code] += 1
        if code in WHOLE_NVML:
            raise NvmlGone(code, where) from error
        if code in WHOLE_GPU:
            raise GpuTrouble(code, where) from error
        return code


class _Planned:
    """A call bound to pynvml, with its mark for the progress page."""

    __slots__ = ("call", "function", "mark", "read")

    def __init__(self, call: Call, slot: int) -> None:
        self.call, self.mark, self.function = call, mark(slot, call.function), function_of(call.function)
        self.read = bind(call, self.function)


class _Plan(NamedTuple):
    """What one set of due classes reads."""

    calls: list[tuple[_Planned, tuple[bool, ...]]]
    sampled: list[tuple[_Planned, tuple[bool, ...]]]
    batch: list[FieldValue]
    gpm: bool


class Readings:
    """Readings of one device handle: a GPU, or a MIG instance with fewer calls and ``gi``.

    A call that is not supported is replaced by its alternative, or never made again by this object. ``codes`` are
    the fields that have none now, ``changed`` those whose code changed since ``take_changed``.
    """

    def __init__(
        self,
        handle: Any,
        slot: int,
        every: Mapping[str, int],
        watch: Watch,
        calls: tuple[Call, ...],
        batch: tuple[FieldValue, ...] = (),
        parent: Any = None,
        gi: int | None = None,
        *,
        gpm: bool = True,
    ) -> None:
        self._handle, self._slot, self._every, self._watch = handle, slot, every, watch
        self._calls = [_Planned(c, slot) for c in calls]
        self._batch = list(batch)
        self._gpm: Gpm | None = None
        self._gpm_on, self._gpm_of, self._gi = gpm, parent if gi is not None else handle, gi
        self._plans: dict[frozenset[int], _Plan] = {}
        self._batch_mark, self._gpm_mark = mark(slot, "nvmlDeviceGetFieldValues"), mark(slot, "nvmlGpmSampleGet")
        self.codes: dict[str, int] = {}
        self.changed: dict[str, int] = {}
        self._passing: set[str] = set()

    def read(self, due: frozenset[int]) -> Values:
        """What is due, without the sampled calls. ``GpuTrouble`` and ``NvmlGone`` as they arise."""
        plan = self._plan(due)
        values: Values = {}
        for planned, wanted in plan.calls:
            self._make(planned, wanted, values)
        if plan.batch:
            self._read_batch(plan.batch, values)
        if plan.gpm:
            self._read_gpm(values)
        if self._passing:
            self._recovered(values)
        return values

    def read_sampled(self, due: frozenset[int]) -> Values:
        """The due calls that sample for some 20 ms each; by then the round's slowest call is settled."""
        values: Values = {}
        for planned, wanted in self._plan(due).sampled:
            self._make(planned, wanted, values)
        return values

    def take_changed(self) -> dict[str, int]:
        """Codes that changed since the last time."""
        changed, self.changed = self.changed, {}
        return changed

    @property
    def pids(self) -> list[int] | None:
        """Processes of the last reading that counted them; ``None`` where nothing is known."""
        return next((p.function.pids for p in self._calls if isinstance(p.function, Processes)), None)

    def close(self) -> None:
        """Free what NVML allocated."""
        gpm, self._gpm = self._gpm, None
        if gpm is not None:
            gpm.close()

    # --- calls -------------------------------------------------------------------------------------------

    def _make(self, planned: _Planned, wanted: tuple[bool, ...], values: Values) -> None:
        watch, call = self._watch, planned.call
        watch.page[:] = planned.mark
        started = _clock()
        try:
            got = planned.read(self._handle)
        except NVMLError as error:
            watch.timed(started)
            self._call_failed(planned, watch.failed(error, call.function), wanted, values)
            return
        watch.timed(started)
        for name, value, want in zip(call.fields, got, wanted, strict=True):
            if not want:
                continue
            if value is None:
                self._fail(name, NOT_AVAILABLE)
            else:
                values[name] = value

    def _call_failed(self, planned: _Planned, code: int, wanted: tuple[bool, ...], values: Values) -> None:
        call = planned.call
        if code in SETTLED:
            self._calls.remove(planned)
            self._plans.clear()
            if call.instead is not None:
                other = _Planned(call.instead, self._slot)
                self._calls.append(other)
                for name in set(call.fields) - set(call.instead.fields):
                    self._fail(name, code)
                self._make(other, wanted[: len(call.instead.fields)], values)
                return
        for name, want in zip(call.fields, wanted, strict=True):
            if want or code in SETTLED:
                self._fail(name, code)

    # --- the batch ---------------------------------------------------------------------------------------

    def _read_batch(self, batch: list[FieldValue], values: Values) -> None:
        while batch:
            batch = self._read_once([f for f in batch if self._has_id(f)], values)

    def _has_id(self, f: FieldValue) -> bool:
        if f.id == 0:
            self._drop(f, NO_FIELD_ID)
        return f.id != 0

    def _read_once(self, batch: list[FieldValue], values: Values) -> list[FieldValue]:
        """Read; what is to be tried instead of fields that are not supported."""
        if not batch:
            return []
        watch = self._watch
        watch.page[:] = self._batch_mark
        started = _clock()
        try:
            got = field_values(self._handle, [(f.id, f.scope) for f in batch])
        except NVMLError as error:
            code = watch.failed(error, "nvmlDeviceGetFieldValues")
            got = [(code, 0)] * len(batch)
        finally:
            watch.timed(started)
        again: list[FieldValue] = []
        for f, (code, value) in zip(batch, got, strict=True):
            if code == 0:
                values[f.field] = converted(value, f.how)
            else:
                again += self._field_failed(f, code, values)
        return again

    def _field_failed(self, f: FieldValue, code: int, values: Values) -> list[FieldValue]:
        if code in WHOLE_GPU:
            self._watch.counts[code] += 1
            raise GpuTrouble(code, f"nvmlDeviceGetFieldValues({f.id})")
        if code not in SETTLED and code != NOT_AVAILABLE:
            self._watch.counts[code] += 1
            self._fail(f.field, code)
            return []
        if code == NOT_AVAILABLE and f.instead is None:
            self._fail(f.field, code)
            return []
        self._drop(f, code)
        if isinstance(f.instead, FieldValue):
            self._batch.append(f.instead)
            return [f.instead]
        if f.instead is not None:
            other = _Planned(f.instead, self._slot)
            self._calls.append(other)
            self._make(other, (True,), values)
        return []

    def _drop(self, f: FieldValue, code: int) -> None:
        self._batch.remove(f)
        self._plans.clear()
        if f.instead is None:
            self._fail(f.field, code)

    # --- GPM -----------------------------------------------------------------------------------------------

    def _read_gpm(self, values: Values) -> None:
        watch = self._watch
        watch.page[:] = self._gpm_mark
        started = _clock()
        try:
            if self._gpm is None:
                self._gpm = Gpm(self._gpm_of, self._gi)
            got, codes = self._gpm.read()
        except NVMLError as error:
            code = watch.failed(error, "nvmlGpmSampleGet")
            if code in SETTLED and code != _BAD_PAIR:
                self._gpm_on = False
                self._plans.clear()
                self.close()
            for name in GPM_FIELDS:
                self._fail(name, code)
        else:
            values.update((name, value) for name, value in got.items() if name in self._every)
            for name, code in codes.items():
                self._fail(name, code)
        finally:
            watch.timed(started)

    # --- what is known ---------------------------------------------------------------------------------------

    def _fail(self, name: str, code: int) -> None:
        if name not in self._every:  # switched off: nobody asked
            return
        if self.codes.get(name) != code:
            self.codes[name] = self.changed[name] = code
        if code not in SETTLED and code != NO_FIELD_ID:
            self._passing.add(name)

    def _recovered(self, values: Values) -> None:
        for name in self._passing & values.keys():
            self._passing.discard(name)
            self.codes.pop(name, None)
            self.changed.pop(name, None)

    def _plan(self, due: frozenset[int]) -> _Plan:
        plan = self._plans.get(due)
        if plan is None:
            made = [(p, tuple(self._every.get(name) in due for name in p.call.fields)) for p in self._calls]
            made = [(p, wanted) for p, wanted in made if any(wanted)]
            plan = self._plans[due] = _Plan(
                [m for m in made if not m[0].call.sampled],
                [m for m in made if m[0].call.sampled],
                [f for f in self._batch if self._every.get(f.field) in due],
                self._gpm_on and any(self._every.get(name) in due for name in GPM_FIELDS),
            )
        return plan
