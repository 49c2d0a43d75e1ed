"""From captures to rows, across all files of an import: whose machine a capture is, and what has changed since."""

from __future__ import annotations

from datetime import datetime

from graynode.service.imports.smi_capture import Capture
from graynode.service.imports.smi_ledger import Ledger
from graynode.service.imports.smi_record import Row, Told, Where, rows, spend_shared
from graynode.service.imports.smi_sift import Sifted, sift
from graynode.service.imports.smi_time import Clock


class Reader:
    """Captures become rows; what was told of a GPU before, in this file or one before it, is not told again."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.first: datetime | None = None
        self.last: datetime | None = None
        self._machines: dict[str, str] = {}
        self._facts: dict[tuple[str, str, str], Row] = {}
        self._bad: dict[tuple[str, str, str], str] = {}

    def take(self, capture: Capture, clock: Clock, where: Where, held: Told) -> None:
        """Add a capture's rows to ``held``."""
        ledger = self._ledger
        shared = sift(capture.form, capture.shared, ledger)
        shared.facts["machine"] = self._machine(capture)
        before = len(held.gpu)
        for device in capture.devices:
            made, own = rows(capture.form, device, shared, clock.moment, where, ledger)
            if made.gpu:
                self._add(capture.form, made, own, held, where)
        if capture.devices:
            ledger.captures[f"{capture.form}, {capture.schema}"] += 1
        spend_shared(shared, len(held.gpu) > before, ledger)

    def _machine(self, capture: Capture) -> str:
        """A name for the machine of a capture without a host: the least UUID of those first seen together."""
        uuids = sorted(
            text for d in capture.devices for name, text in d.readings if name in ("uuid", "gpu uuid", "gpu_uuid")
        )
        known = next((self._machines[uuid] for uuid in uuids if uuid in self._machines), uuids[0] if uuids else "")
        self._machines.update(dict.fromkeys(uuids, known))
        return known

    def _add(self, form: str, made: Told, own: Sifted, held: Told, where: Where) -> None:
        held.gpu += made.gpu
        ts = made.gpu[0]["ts"]
        self.first = min(self.first or ts, ts)
        self.last = max(self.last or ts, ts)
        for row in made.inventory:
            facts = {name: value for name, value in row.items() if name != "ts"}
            key = (form, row["node_id"], row["entity"])  # each form knows other facts
            if self._facts.get(key) != facts:
                self._facts[key] = facts
                held.inventory.append(row)
        self._changes(made, own, held, where)

    def _changes(self, made: Told, own: Sifted, held: Told, where: Where) -> None:
        told: set[tuple[str, str, str]] = set()
        for row in made.quality:
            key = (row["node_id"], row["entity"], row["field"])
            told.add(key)
            if self._bad.get(key) != row["state"]:
                self._bad[key] = row["state"]
                held.quality.append(row)
        who = made.gpu[0]
        for name in own.gpu:
            key = (who["node_id"], who["gpu_uuid"], name)
            if key not in told and self._bad.pop(key, None) is not None:
                held.quality.append(
                    {
                        **{k: who[k] for k in ("ts", "cluster", "node_id", "node")},
                        "table_name": "gpu", "entity": who["gpu_uuid"], "field": name, "state": "measured",
                        "reason": f"{where.source}: has a value again",
                    }
                )  # fmt: skip
