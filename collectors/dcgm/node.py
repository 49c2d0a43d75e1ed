"""The node behind one exporter: whose keys its rows carry, and what is said while the exporter is silent."""

from __future__ import annotations

import json
import re
from collections import deque
from datetime import datetime
from typing import Final

from graynode.collectors.base import Row
from graynode.collectors.dcgm.http import Fetched
from graynode.collectors.dcgm.page import whole_lines
from graynode.collectors.dcgm.rows import PageRows, Told
from graynode.collectors.dcgm.targets import Target

FROZEN_S: Final = 300.0
"""A page with energy counters that does not change by a byte for so long is an exporter whose DCGM hangs: the counters
of a GPU that is powered grow with every reading."""
_GAPS: Final = 5
"""Refreshes of the page that are remembered, to know how often there is one."""
_WELL: Final = ("measured", "")


class Node:
    """One target's pages in order, made rows with keys. ``cadence_s`` is how often it is asked.

    An exporter reads more seldom than it is asked (every 30 s by default) and gives the same page until then. What was
    not read is not repeated: such a page gives no rows, and ``cadence_s`` of its GPUs is how often there is a new one.
    Rows about this machine leave node and boot to the agent. Another node's carry its own, without a boot id: no
    page tells it, so its counters are taken to be reset when they fall.
    """

    def __init__(self, target: Target, cluster: str, node_id: str, pages: PageRows, cadence_s: float) -> None:
        self.target, self._pages, self._cadence_s = target, pages, cadence_s
        self.node_id = node_id if target.own else target.node_id(cluster)
        self._host_of_url = "" if target.address.literal else target.address.host
        self._name = target.node or self._host_of_url or target.instance
        self._state, self._since = _WELL, 0.0
        self._driver: str | None = None
        self._page_host: str | None = None
        self._hash, self._changed_at = 0, 0.0
        self._gaps: deque[float] = deque(maxlen=_GAPS)
        self._inventory: Row = {}
        self.gpus: int | None = None
        """GPUs on the last whole page; null while there is none."""

    def take(self, fetched: Fetched, ts: datetime, at_s: float, took_s: float) -> dict[str, list[Row]]:
        """The rows of one attempt. ``at_s`` is monotonic."""
        page = fetched.body if fetched.whole else whole_lines(fetched.body)
        unchanged = fetched.whole and self._unchanged(page, at_s)
        frozen = unchanged and at_s - self._changed_at >= FROZEN_S
        if unchanged and not frozen and self._state == _WELL:
            self._pages.tally.unchanged_pages += 1
            return self._keyed({} if self.target.own else {"host": [self._host(True, took_s)]}, ts)
        rows: dict[str, list[Row]] = {}
        told: Told | None = None
        if page and not frozen:
            told = self._pages.take(page, whole=fetched.whole, at_s=at_s, ts=ts)
            rows = {"gpu": told.gpus, "quality": told.quality, "inventory": told.inventory}
        state = self._judge(fetched, told, frozen, at_s)
        self.gpus = told.uuids if told is not None and fetched.whole else None
        quality = rows.setdefault("quality", [])
        if told is None or not told.gpus:
            quality += self._pages.stop_measuring(f"{self.target.instance}: {state[1]}")
        self._change(state, at_s, quality)
        if told is not None:
            self._learn(told)
        if not self.target.own:
            rows["host"] = [self._host(told is not None and bool(told.gpus), took_s)]
            rows.setdefault("inventory", []).extend(self._new_inventory())
        return self._keyed(rows, ts)

    def leave(self, ts: datetime) -> dict[str, list[Row]]:
        """It is no longer a target."""
        gone = self._pages.stop_measuring(f"{self.target.instance} is no longer configured")
        return self._keyed({"quality": gone}, ts)

    def _judge(self, fetched: Fetched, told: Told | None, frozen: bool, at_s: float) -> tuple[str, str]:
        if not fetched.whole:
            kept = f"; {len(told.gpus)} GPUs were on the part that came" if told is not None else ""
            return ("not_permitted" if fetched.denied else "error"), fetched.error + kept
        if frozen:
            still_s = round(at_s - self._changed_at)
            return "stale", f"the page has not changed for {still_s} s: the exporter answers, its DCGM does not"
        if told is None or not told.gpus:
            return "error", "the page names no GPU"
        if told.bad:
            return "error", f"{told.bad} lines cannot be read, the rest is kept; the first is {told.first_bad}"
        return _WELL

    def _change(self, state: tuple[str, str], at_s: float, quality: list[Row]) -> None:
        """Tell a change of the node's state. Numbers in a reason that goes on are no change."""
        before, self._state = self._state, state
        if _shape(state) == _shape(before):
            return
        reason = state[1]
        if state == _WELL:
            reason = f"answers again after {at_s - self._since:.0f} s"
        elif before == _WELL:
            self._since = at_s
        quality.append({
            "table_name": "gpu", "entity": self.node_id, "field": "*", "state": state[0],
            "reason": f"{self.target.instance}: {reason}"[:600],
        })  # fmt: skip

    def _unchanged(self, page: bytes, at_s: float) -> bool:
        """Whether this is the last page again. Without counters that always grow nobody can tell."""
        now = hash(page)
        if now == self._hash:
            return b"TOTAL_ENERGY_CONSUMPTION{" in page
        if self._hash:
            self._gaps.append(at_s - self._changed_at)
        self._hash, self._changed_at = now, at_s
        return False

    def _refreshed_s(self) -> float:
        """How often there is a new page: the middle one of the last gaps."""
        middle = sorted(self._gaps)[len(self._gaps) // 2] if self._gaps else 0.0
        return max(self._cadence_s, round(middle / self._cadence_s) * self._cadence_s)

    def _learn(self, told: Told) -> None:
        self._driver = told.driver or self._driver
        self._page_host = told.host or self._page_host
        if not self.target.node and not self._host_of_url and told.host:
            self._name = told.host

    def _host(self, taken: bool, took_s: float) -> Row:
        return {
            "samples_expected": 1.0, "samples_taken": 1.0 if taken else 0.0,
            "collect_errors": 0.0 if self._state == _WELL else 1.0, "collect_max_ms": took_s * 1e3,
            "gpus_read": self.gpus, "driver_version": self._driver, "node_id_source": "exporter",
        }  # fmt: skip

    def _new_inventory(self) -> list[Row]:
        more = {"identity": "unconfirmed", "instance": self.target.instance, "node": self._name}
        if self._page_host:
            more["hostname_on_page"] = self._page_host
        row: Row = {
            "kind": "node", "entity": self.node_id, "driver_version": self._driver,
            "attributes": json.dumps({**more, "node_id_source": "exporter"}, sort_keys=True),
        }  # fmt: skip
        if row == self._inventory:
            return []
        self._inventory = row
        return [dict(row)]

    def _keyed(self, rows: dict[str, list[Row]], ts: datetime) -> dict[str, list[Row]]:
        keys, cadence_s = Row({"ts": ts}), self._refreshed_s()
        if not self.target.own:
            keys |= {"node_id": self.node_id, "node": self._name}
        for table, some in rows.items():
            for row in some:
                row |= keys
                if table == "gpu":
                    row["cadence_s"] = cadence_s
                elif table == "host":
                    row["cadence_s"] = self._cadence_s
                elif table == "quality" and not row["entity"]:
                    row["entity"] = self.node_id
        return {table: some for table, some in rows.items() if some}


def _shape(state: tuple[str, str]) -> tuple[str, str]:
    return state[0], re.sub(r"\d+", "0", state[1])[:120]
