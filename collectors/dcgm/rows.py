"""A dcgm-exporter page becomes rows: what it says of each GPU, and what has changed about what it says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from graynode.collectors.base import Row
from graynode.collectors.dcgm.fields import Column, Foreign, column
from graynode.collectors.dcgm.gpu import Gpu
from graynode.collectors.dcgm.labels import about
from graynode.collectors.dcgm.page import Page, PageReader
from graynode.collectors.dcgm.values import Refused, value_of
from graynode.collectors.switches import Switches

Metric = Column | Foreign
Names = MutableMapping[bytes, Metric]

_MOST_GPUS: Final = 1024
_MOST_FOREIGN: Final = 512
"""Names told per exporter."""
_MOST_COUNTED: Final = 4096
_OTHERS: Final = "(other names)"
_LONGEST: Final = 200
"""Characters of a name that is counted."""
_TOO_MANY: Final = "more GPUs than one node has"
_OLD_MS: Final = 120_000
"""A line with a time of its own that is older was not measured now."""
_TOO_OLD: Final = b"too old"
_STALE: Final = Refused("stale", f"the line's own time is more than {_OLD_MS // 1000} s ago")
_MOST_SHARED: Final = 4096
_GONE: Final = "its lines are gone from the page; one witness alone does not say that the GPU is lost"


@dataclass(slots=True)
class Tally:
    """Every value that pages held, by what became of it: ``read`` is the sum of the others."""

    read: int = 0
    stored: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By quality state, or not due by the configuration's slower class."""
    foreign: Counter[str] = field(default_factory=Counter)
    """By metric name, or by what the line is about instead of a GPU."""
    repeated: int = 0
    """Given before on the same page, or the parent's value on a MIG instance's line."""
    unchanged_pages: int = 0
    """Pages that were the page before again; nothing of them is in ``read``."""
    bad_lines: int = 0
    """Lines that cannot be read; not in ``read``."""

    def leave_out(self, foreign: Counter[str]) -> None:
        """Count what fills no field; names without end are counted together."""
        for name, count in foreign.items():
            self.foreign[name if name in self.foreign or len(self.foreign) < _MOST_COUNTED else _OTHERS] += count


class Series:
    """What a label set means: a GPU and its job, or why it is about none."""

    __slots__ = ("gpu", "job", "parent", "reason")

    def __init__(self, gpu: Gpu | None, parent: Gpu | None, job: str | None, reason: str = "") -> None:
        self.gpu, self.parent, self.job, self.reason = gpu, parent, job, reason


@dataclass(slots=True)
class Told:
    """A page's rows, without the keys that are the node's; ``host`` and ``driver`` are what labels say of it."""

    gpus: list[Row] = field(default_factory=list)
    quality: list[Row] = field(default_factory=list)
    inventory: list[Row] = field(default_factory=list)
    bad: int = 0
    first_bad: str = ""
    uuids: int = 0
    host: str | None = None
    driver: str | None = None


class PageRows:
    """One exporter's pages in order. ``names`` and ``shared`` are common to exporters that are much alike.

    ``knows_job`` says whether another source knows the job on a GPU better (it is asked with uuid and instance).
    """

    def __init__(
        self,
        names: Names | None = None,
        shared: dict[frozenset[str], frozenset[str]] | None = None,
        tally: Tally | None = None,
        switches: Switches | None = None,
        knows_job: Callable[[str, str | None], bool] = lambda _uuid, _instance: False,
    ) -> None:
        self._switches = switches or Switches()
        self._off = self._switches.off_in("gpu")
        self._reader: PageReader[Metric, Series] = PageReader(self._column, self._series_of, names)
        self._minute = -1.0
        self._shared = {} if shared is None else shared
        self.tally = tally or Tally()
        self._knows_job = knows_job
        self._gpus: dict[tuple[str, str | None], Gpu] = {}
        self._page = 0
        self._told_foreign: set[str] = set()

    def take(self, page: bytes, *, whole: bool, at_s: float, ts: datetime) -> Told:
        """The page's rows. Of one that is not ``whole`` nothing is called gone. ``at_s`` is monotonic."""
        self._page += 1
        got = self._reader.read(page)
        told = Told(bad=got.bad, first_bad=got.first_bad)
        foreign: Counter[str] = Counter()
        due = frozenset({1, 10} if at_s // 60 == self._minute else {1, 10, 60})
        self._minute = at_s // 60
        begun = self._fill(got, int(ts.timestamp() * 1000) - _OLD_MS, foreign)
        self.tally.read += len(got.samples)
        self.tally.bad_lines += got.bad
        for gpu in begun:
            self._finish(gpu, whole, at_s, told)
            if self._switches.slower:
                self._slow_down(gpu, told.gpus[-1], due)
        if whole:
            self._tell_gone(told, ts)
            self._tell_inventory(begun, told)
        self._tell_foreign(foreign, told)
        told.uuids = len({gpu.about.uuid for gpu in begun})
        return told

    def stop_measuring(self, reason: str) -> list[Row]:
        """Quality rows for all GPUs that were on the last page: nothing is known of them now."""
        told = Told()
        for gpu in self._gpus.values():
            if gpu.told and not gpu.gone:
                gpu.gone = True
                told.quality.append(_quality(gpu.entity, "*", "stale", reason))
        return told.quality

    def _fill(self, got: Page[Metric, Series], oldest_ms: int, foreign: Counter[str]) -> list[Gpu]:
        """Put the samples where they belong; the GPUs that the page names."""
        number, begun, stored = self._page, [], 0
        for metric, series, value, stamp in got.samples:
            gpu, parent = series.gpu, series.parent
            if gpu is None or isinstance(metric, Foreign):
                foreign[(series.reason or metric_name(metric))[:_LONGEST]] += 1
                continue
            lifted = parent is not None and not metric.of_instance
            if lifted and parent is not None:
                gpu = parent
            if gpu.page != number:
                gpu.begin(number, series, None if lifted else series.job)
                begun.append(gpu)
            elif series is not gpu.series and not lifted:
                gpu.add_job(series.job)
            if stamp is not None and stamp < oldest_ms:
                value = _TOO_OLD
            stored += self._put(gpu, metric, value)
        self.tally.stored += stored
        return begun

    def _put(self, gpu: Gpu, metric: Column, value: int | float | bytes) -> int:
        name, kind = metric.field, value.__class__
        if name in gpu.row or name in gpu.refused:
            self.tally.repeated += 1
            return 0
        plain = kind is int or (kind is float and not metric.whole)
        if plain and metric.low <= value <= metric.high and not metric.flag:  # type: ignore[operator]  # a number
            gpu.row[name] = value * metric.scale  # type: ignore[assignment]  # the same
            return 1
        meant = value_of(metric, value) if value is not _TOO_OLD else _STALE
        if isinstance(meant, Refused):
            gpu.refused[name] = Refused(meant.state, f"{metric.said}: {meant.reason}")
            self.tally.refused[meant.state] += 1
            return 0
        gpu.row[name] = meant
        return 1

    def _finish(self, gpu: Gpu, whole: bool, at_s: float, told: Told) -> None:
        moved = gpu.check(at_s)
        if moved:
            self.tally.stored -= moved
            self.tally.refused["implausible"] += moved
        of = gpu.about
        told.host, told.driver = told.host or of.host, told.driver or of.driver
        gpu.tell_changes(whole, self._shared, lambda *said: told.quality.append(_quality(*said)))
        if len(self._shared) < _MOST_SHARED:
            self._shared.setdefault(gpu.fields, gpu.fields)
        job = None if gpu.job is None or self._knows_job(of.uuid, of.instance) else gpu.job
        told.gpus.append({
            "gpu_uuid": of.uuid, "mig_instance": of.instance, "gpu_index": of.number, "gpu_model": of.model,
            "pci_bus_id": of.bus, "job_id": job, **gpu.row,
        })  # fmt: skip

    def _slow_down(self, gpu: Gpu, row: Row, due: frozenset[int]) -> None:
        """Leave out what the configuration wants more seldom and is not due now."""
        kept = self._switches.strip("gpu", row, due)
        for name in row.keys() - kept.keys():
            del row[name]
            if name in gpu.row:
                self.tally.stored -= 1
                self.tally.refused["not due"] += 1

    def _column(self, name: str) -> Metric:
        found = column(name)
        return found.switched_off() if isinstance(found, Column) and found.field in self._off else found

    def _tell_inventory(self, begun: list[Gpu], told: Told) -> None:
        """GPUs and MIG instances that are new or other than when last told."""
        parts: dict[str, list[tuple[int, str]]] = {}
        for gpu in begun:
            of = gpu.about
            known = parts.setdefault(of.uuid, [])
            if of.instance is not None:
                known.append((int(of.instance), of.profile or ""))
                if gpu.inventory != (of.model, of.bus, of.profile):
                    gpu.inventory = (of.model, of.bus, of.profile)
                    told.inventory.append(_mig_inventory(gpu))
        for uuid, known in parts.items():
            whole = self._gpus.get((uuid, None))
            if whole is None:  # forgotten between two lines of a page with too many
                continue
            of, profiles = whole.about, ",".join(profile for _, profile in sorted(known))
            if whole.inventory != (of, profiles):
                whole.inventory = (of, profiles)
                told.inventory.append({
                    "kind": "gpu", "entity": uuid, "model": of.model, "serial": of.serial, "slot": of.bus,
                    "vbios_version": of.vbios, "driver_version": of.driver, "mig_profile": profiles or None,
                    "attributes": json.dumps({"source": "dcgm-exporter"}),
                })  # fmt: skip

    def _tell_gone(self, told: Told, ts: datetime) -> None:
        for gpu in self._gpus.values():
            if gpu.page != self._page and gpu.told and not gpu.gone:
                gpu.gone = True
                told.quality.append(_quality(gpu.entity, "*", "stale", _GONE))
                if gpu.about.instance is not None:
                    gpu.inventory = None
                    told.inventory.append(_mig_inventory(gpu) | {"valid_until": ts})

    def _tell_foreign(self, foreign: Counter[str], told: Told) -> None:
        """What the page has and the contract has not: counted, and each told once."""
        self.tally.leave_out(foreign)
        for name, count in foreign.items():
            if name not in self._told_foreign and len(self._told_foreign) < _MOST_FOREIGN:
                self._told_foreign.add(name)
                metric = column(name)
                why = metric.reason if isinstance(metric, Foreign) and " " not in name else "about no GPU"
                told.quality.append(_quality("", name, "unsupported", f"{count} on the page, not stored: {why}"))

    def _series_of(self, labels: Mapping[str, str]) -> Series:
        of = about(labels)
        if isinstance(of, str):
            return Series(None, None, None, of)
        if (of.uuid, of.instance) not in self._gpus and len(self._gpus) >= _MOST_GPUS:
            self._forget_gone()
        if (of.uuid, of.instance) not in self._gpus and len(self._gpus) >= _MOST_GPUS:
            return Series(None, None, None, _TOO_MANY)
        gpu = self._gpus.setdefault((of.uuid, of.instance), Gpu(of))
        gpu.about = of._replace(job=None)
        if of.instance is None:
            return Series(gpu, None, of.job)
        whole = of._replace(instance=None, profile=None, job=None)
        parent = self._gpus.setdefault((of.uuid, None), Gpu(whole))
        parent.about = whole
        return Series(gpu, parent, of.job)

    def _forget_gone(self) -> None:
        """Make room: MIG instances come and go for months."""
        kept = {key: gpu for key, gpu in self._gpus.items() if not gpu.gone}
        if len(kept) < len(self._gpus):
            self._gpus = kept
            self._reader.forget()


def _mig_inventory(gpu: Gpu) -> Row:
    of = gpu.about
    return {
        "kind": "mig", "entity": gpu.entity, "model": of.model, "slot": of.bus, "mig_profile": of.profile,
        "attributes": json.dumps({"gpu_uuid": of.uuid, "mig_instance": of.instance}),
    }  # fmt: skip


def metric_name(metric: Metric) -> str:
    """Under which name a metric is counted that is not stored."""
    return metric.name if isinstance(metric, Foreign) else metric.said


def _quality(entity: str, name: str, state: str, reason: str) -> Row:
    """A change; an empty entity is the node's, which the caller fills in."""
    return {"table_name": "gpu", "entity": entity, "field": name, "state": state, "reason": reason}
