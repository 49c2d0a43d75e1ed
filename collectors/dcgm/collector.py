"""``dcgm``: what dcgm-exporters show, into table ``gpu``; of this node, or of a fleet that installs nothing new.

``targets`` are exporters of this machine: their rows are this machine's. ``fleet`` and ``fleet_files`` are exporters
of other nodes: each is a node of its own, whose identity is unconfirmed and says so (``inventory``, kind node), so
that nothing acts on it. Pages are read by a thread at their own pace; a round takes what has come.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final

from graynode.collectors.base import Machine, NoSource, Round, Row, Rows
from graynode.collectors.context import GpuKey, JobContext
from graynode.collectors.dcgm.node import Node
from graynode.collectors.dcgm.rows import Names, PageRows, Tally
from graynode.collectors.dcgm.scraper import Pace, Scraper
from graynode.collectors.dcgm.targets import Target, TargetFiles, fleet_target, own_target
from graynode.collectors.switches import Switches
from graynode.pipeline.schema import TABLES

_PROFILING: Final = tuple(f.name for f in TABLES["gpu"].fields if f.dcgm is not None and 1001 <= f.dcgm <= 1012)
"""DCGM_FI_PROF_*: what a GPU before Hopper gives to DCGM only."""


class Dcgm:
    """Scrapes exporters every ``interval_s``, looks at ``fleet_files`` every ``reread_s``.

    ``context`` knows jobs by better sources than labels of pods. ``NoSource`` where no target is configured;
    ``WrongTarget`` for an address that is none; ``OSError`` where the certificate or authorization file cannot be read.
    """

    name: ClassVar[str] = "dcgm"
    tables: ClassVar[tuple[str, ...]] = ("gpu", "host", "quality", "inventory")

    def __init__(
        self,
        machine: Machine,
        targets: Sequence[str] = (),
        *,
        fleet: Sequence[str] = (),
        fleet_files: Sequence[str] = (),
        interval_s: float = 10.0,
        timeout_s: float = 5.0,
        reread_s: float = 5.0,
        ca_file: Path | None = None,
        authorization_file: Path | None = None,
        context: JobContext | None = None,
    ) -> None:
        if not (targets or fleet or fleet_files):
            raise NoSource("no exporter is configured: dcgm.targets, dcgm.fleet or dcgm.fleet_files")
        self._machine, self._interval_s, self._context = machine, interval_s, context
        fixed = [*map(own_target, targets), *map(fleet_target, fleet)]
        self._names: Names = {}
        self._shared: dict[frozenset[str], frozenset[str]] = {}
        self.switches = Switches()
        self.read_otherwise: Callable[[], bool] = lambda: False
        """Whether another collector reads this machine's GPUs now: what is wrong here is then no blindness."""
        self.values = Tally()
        """Every value read so far, by what became of it."""
        if ca_file is not None:
            ssl.create_default_context(cafile=ca_file)  # one that cannot be used is said now, not by every target
        authorization = authorization_file.read_text(encoding="ascii").strip() if authorization_file else ""
        self.scraper = Scraper(
            fixed, TargetFiles(fleet_files).read, self._node, Pace(interval_s, timeout_s, reread_s),
            tls=functools.cache(lambda: ssl.create_default_context(cafile=ca_file)), authorization=authorization,
        )  # fmt: skip

    def collect(self, round_: Round) -> Rows:
        """What has come since the last round; the first one begins the scraping. ``RuntimeError`` if that has ended
        by itself: it begins again with the next round."""
        if self.scraper.failed:
            why, self.scraper.failed = self.scraper.failed, ""
            self.scraper.stop()
            raise RuntimeError(f"scraping had ended: {why}")
        self.scraper.start()
        rows: dict[str, list[Row]] = {}
        for scraped in self.scraper.take():
            for table, some in scraped.items():
                rows.setdefault(table, []).extend(some)
        if "quality" in rows and self.read_otherwise():
            rows["quality"] = [said for row in rows["quality"] for said in _of_profiling(row)]
        return rows

    def close(self) -> None:
        """End the scraping; twice is as good as once."""
        self.scraper.stop()

    @property
    def tally(self) -> dict[str, int]:
        """Values by what became of them, and scrapes; those shed were read, and nobody took their rows in time."""
        found = self.values
        return {
            "value_stored": found.stored, "value_refused": found.refused.total(),
            "value_foreign": found.foreign.total(), "value_repeated": found.repeated, "line_bad": found.bad_lines,
            "scrape": self.scraper.pages, "scrape_shed": self.scraper.shed,
        }  # fmt: skip

    def host_fields(self) -> Row:
        """What is known of this machine's GPUs, for its own ``host`` row."""
        counts = [node.gpus for target, node in list(self.scraper.nodes.items()) if target.own]
        known = [count for count in counts if count is not None]
        return {"gpus_read": sum(known)} if known and len(known) == len(counts) else {}

    def _node(self, target: Target) -> Node:
        knows: Callable[[str, str | None], bool] = self._knows_job if target.own else lambda _uuid, _instance: False
        pages = PageRows(self._names, self._shared, self.values, self.switches, knows)
        return Node(target, self._machine.cluster, self._machine.node_id, pages, self._interval_s)

    def _knows_job(self, uuid: str, instance: str | None) -> bool:
        return self._context is not None and self._context.of(GpuKey(uuid, instance)) is not None


def _of_profiling(said: Row) -> list[Row]:
    """What is said of this machine's whole GPUs, said of the fields that only DCGM may give; the rest as it is."""
    if said["field"] != "*" or said["table_name"] != "gpu" or "node_id" in said:
        return [said]
    return [{**said, "field": name} for name in _PROFILING]
