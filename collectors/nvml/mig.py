"""The MIG instances of one GPU, in the child: found, read and let go of while an administrator makes and unmakes them.

A GPU instance is the entity (its id is ``mig_instance``); compute instances in it share its memory and engines, so only
their processes are added up. Whatever an instance answers, the GPU itself is not lost by it.
"""

# ruff: noqa: ANN401 (pynvml has no types)
from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pynvml
from pynvml import NVMLError

from graynode.collectors.nvml.fields import GPU_NOT_FOUND, MIG_CALLS, PROCESSES
from graynode.collectors.nvml.gpu import GpuTrouble, NvmlGone, Readings, Watch
from graynode.collectors.nvml.wire import Part, mark

_FIND: Final = 10
"""Reading class in which instances are looked for: with what they are asked of their own."""
_GONE: Final = frozenset({2, 6, GPU_NOT_FOUND})
"""Codes of a handle whose instance was destroyed."""


@dataclass(slots=True)
class _Instance:
    """One GPU instance: ``first`` reads it, ``others`` count the processes of its further compute instances."""

    profile: str
    handles: tuple[int, ...]
    uuids: list[str]
    first: Readings
    others: Sequence[Readings]


class Parts:
    """The instances of one GPU. ``every`` as ``Setup.every``."""

    def __init__(self, parent: Any, slot: int, every: Mapping[str, int], watch: Watch) -> None:
        self._parent, self._slot, self._every, self._watch = parent, slot, every, watch
        self._found: dict[int, _Instance] = {}
        self._mark = mark(slot, "nvmlDeviceGetMigDeviceHandleByIndex")
        self.changed = True
        """Look for instances in the next round, whatever is due: the driver has said that they changed."""

    @property
    def profiles(self) -> str:
        """Profiles in order of their instances' ids, such as ``3g.40gb,4g.40gb``."""
        return ",".join(one.profile for _, one in sorted(self._found.items()))

    def read(self, due: frozenset[int]) -> list[Part]:
        """Readings of the instances that there are now."""
        if _FIND in due or self.changed:
            self._find()
        parts: list[Part] = []
        for gi, one in list(self._found.items()):
            try:
                parts.append(self._read(gi, one, due))
            except (GpuTrouble, NvmlGone):  # said of a handle that leads nowhere: the GPU's own calls decide about it
                self._let_go(gi)
        return parts

    def close(self) -> None:
        """Free what NVML allocated for them."""
        for gi in list(self._found):
            self._let_go(gi)

    def _read(self, gi: int, one: _Instance, due: frozenset[int]) -> Part:
        values = one.first.read(due)
        pids = one.first.pids if "processes" in values else None
        for other in one.others:
            more = other.read(due)
            if "processes" in values and "processes" in more:
                values["processes"] += more["processes"]
                pids = sorted({*(pids or ()), *(other.pids or ())})
        errors = one.first.take_changed()
        if not values and errors and set(errors.values()) <= _GONE:
            raise GpuTrouble(GPU_NOT_FOUND, "MIG instance")
        return Part(gi, one.profile, values, errors, pids, one.uuids if _FIND in due else [])

    def _find(self) -> None:
        self.changed = False
        handles = self._handles()
        for gi, one in list(self._found.items()):
            here = handles.get(gi, [])
            if _addresses(here) != one.handles or _profile(here[0]) != one.profile:
                self._let_go(gi)
        for gi, some in handles.items():
            if gi not in self._found:
                self._found[gi] = self._made(gi, some)

    def _made(self, gi: int, handles: Sequence[Any]) -> _Instance:
        first, *others = handles
        own = Readings(first, self._slot, self._every, self._watch, MIG_CALLS, parent=self._parent, gi=gi)
        more = [Readings(h, self._slot, self._every, self._watch, (PROCESSES,), gpm=False) for h in others]
        return _Instance(_profile(first), _addresses(handles), [u for u in map(_uuid, handles) if u], own, more)

    def _handles(self) -> dict[int, list[Any]]:
        """Handles by GPU instance, one for each compute instance."""
        self._watch.page[:] = self._mark
        found: dict[int, list[Any]] = {}
        try:
            most = int(pynvml.nvmlDeviceGetMaxMigDeviceCount(self._parent))
        except NVMLError:
            return found
        for index in range(most):
            try:
                handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(self._parent, index)
                found.setdefault(int(pynvml.nvmlDeviceGetGpuInstanceId(handle)), []).append(handle)
            except NVMLError:
                continue
        return dict(sorted(found.items()))

    def _let_go(self, gi: int) -> None:
        try:
            self._found.pop(gi).first.close()
        except NVMLError:
            return


def _addresses(handles: Sequence[Any]) -> tuple[int, ...]:
    return tuple(ctypes.cast(h, ctypes.c_void_p).value or 0 for h in handles)


def _uuid(handle: Any) -> str:
    try:
        return str(pynvml.nvmlDeviceGetUUID(handle))
    except NVMLError:
        return ""


def _profile(handle: Any) -> str:
    """``3g.40gb`` of ``NVIDIA H100 80GB HBM3 MIG 3g.40gb``."""
    try:
        return str(pynvml.nvmlDeviceGetName(handle)).rpartition(" MIG ")[2]
    except NVMLError:
        return ""
