"""Whether the lake is well: readable, writable, of this contract, fresh, tidy, maintained; and what reads of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl
from deltalake.exceptions import DeltaError

from graynode.pipeline.lake import Lake, LakeError, LakeTooNew
from graynode.pipeline.lake_format import HOURLY
from graynode.pipeline.lake_migration import Forward, Found
from graynode.pipeline.lock_file import owner_of
from graynode.pipeline.maintenance import Maintainer
from graynode.pipeline.snapshot import FOLDER
from graynode.service.config import Config
from graynode.service.cost_prices import Prices, WrongPrice
from graynode.service.doctor_checks import Check
from graynode.service.wiring import make_lake

_OLD: Final = timedelta(minutes=10)
"""A window is closed a minute after its end at the latest and committed ten seconds later: this is far beyond."""
_UNSORTED: Final = 6
"""Hours. Maintenance sorts an hour 20 minutes after its end; more than a few that wait means that nobody does."""
_SCAN: Final = timedelta(days=2)


def lake_checks(config: Config, now: datetime) -> Iterator[Check]:
    """All of them; one that cannot be read is one line, and the rest is left out."""
    lake = make_lake(config)
    try:
        found = Forward(lake).look()
    except (LakeError, OSError) as error:
        yield Check("lake", "mend", str(error), "correct lake.path, lake.storage_options or the folder's rights")
        return
    yield from _contract(lake, found)
    if any(f.state == "newer" for f in found) or all(f.state == "absent" for f in found):
        return
    yield from _rights(lake)
    try:
        yield _age(lake, now)
        yield _round(config, lake, now)
        yield from _tidy(config, lake)
        yield _prices(config, lake, now)
    except (LakeError, LakeTooNew, DeltaError, OSError, pl.exceptions.PolarsError) as error:
        yield Check("lake", "mend", " ".join(str(error).split())[:300], "is the store reachable, the disk well?")


def _contract(lake: Lake, found: list[Found]) -> Iterator[Check]:
    there = [f for f in found if f.state != "absent"]
    if not there:
        yield Check("lake", "note", f"{lake.path}: empty", "graynode init --role server --yes, or start the pipeline")
        return
    for f in found:
        if f.state == "newer":
            yield Check("lake", "mend", f.why, "update graynode on this machine")
        elif f.state in ("layout", "unfinished"):
            way = "stop pipeline, detect and respond, then: graynode lake migrate --yes"
            yield Check("lake", "mend", f"table {f.table}: {f.why}", way)
    behind = [f.table for f in found if f.state == "columns"]
    if behind:
        said = f"{len(behind)} tables of an older minor contract ({', '.join(behind[:4])})"
        yield Check("lake", "note", said, "the pipeline adds what they lack when it starts")
    if not any(f.due or f.state == "newer" for f in found):
        yield Check("lake", "well", f"{lake.path}: {len(there)} of {len(found)} tables, of this contract")


def _rights(lake: Lake) -> Iterator[Check]:
    if not lake.local:
        yield Check("lake", "note", "an object store: whether we may write there is seen by the pipeline alone")
        return
    closed = [f for f in (lake.path, *_folders(lake)) if not os.access(f, os.W_OK | os.X_OK)]
    if closed:
        way = f"chown -R graynode {lake.path}, or look as the roles do: run this as their user"
        yield Check("lake", "mend", f"this user may not write {closed[0]}", way)
    else:
        yield Check("lake", "well", "writable for this user")


def _folders(lake: Lake) -> list[str]:
    return [str(path) for path in Path(lake.path).glob("*/_delta_log")]


def _age(lake: Lake, now: datetime) -> Check:
    newest = _newest(lake, "host_30s", now) or _newest(lake, "gpu_30s", now)
    if newest is None:
        way = "do agents send, and does the pipeline run? graynode doctor on a node, the pipeline's log here"
        return Check("lake age", "mend", f"no window of the last {_SCAN.days} days", way)
    age = now - newest
    if age > _OLD:
        way = "look at the lag above: messages wait, and the pipeline is behind; none do, and no agent sends"
        return Check("lake age", "mend", f"the newest window began {_ago(age)} ago", way)
    return Check("lake age", "well", f"the newest window began {_ago(age)} ago")


def _newest(lake: Lake, table: str, now: datetime) -> datetime | None:
    """Begin of the newest row: of the last day that has any, so that little is read."""
    since = now - timedelta(hours=1)
    rows = lake.read(table, since, columns=["ts"])
    if rows.is_empty():
        rows = lake.read(table, now - _SCAN, columns=["ts"])
    newest = rows["ts"].max()
    return newest if isinstance(newest, datetime) else None


def _round(config: Config, lake: Lake, now: datetime) -> Check:
    holder = ""
    if lake.local:
        lock = Path(lake.path) / f"detect-{config.cluster}.lock"
        try:
            owner = owner_of(lock)
            holder = f"; process {owner} runs" if owner else "; none runs on this machine"
        except OSError:
            holder = "; none has run on this machine"
    newest = _newest(lake, "round", now)
    if newest is None:
        return Check(
            "detect", "note", f"no round in {_SCAN.days} days{holder}", "start it: systemctl start graynode-detect"
        )
    age = now - newest
    if age > _OLD:
        way = "systemctl status graynode-detect; its log names what it waits for"
        return Check("detect", "mend", f"the last round is {_ago(age)} old{holder}", way)
    return Check("detect", "well", f"the last round is {_ago(age)} old{holder}")


def _tidy(config: Config, lake: Lake) -> Iterator[Check]:
    maintainer = Maintainer(lake)
    waiting = {t: len(maintainer.unsorted(t)) for t in HOURLY if lake.exists(t)}
    worst = max(waiting, key=waiting.__getitem__, default="")
    held = _maintained_by(lake)
    if worst and waiting[worst] > _UNSORTED:
        said = f"{waiting[worst]} hours of {worst} wait to be sorted; {held or 'nobody maintains this lake'}"
        way = (
            "set pipeline.maintain = true on one pipeline" if not config.pipeline.maintain else "see the pipeline's log"
        )
        yield Check("lake files", "mend", said, f"{way}; questions grow slow meanwhile")
    else:
        yield Check("lake files", "well", f"tidy; {held or 'nobody maintains it at this moment'}")


def _maintained_by(lake: Lake) -> str:
    if not lake.local:
        return "maintained by lease"
    try:
        owner = owner_of(Path(lake.path, FOLDER, "maintenance.lock"))
    except OSError:
        return ""
    return f"process {owner} maintains it" if owner else ""


def _prices(config: Config, lake: Lake, now: datetime) -> Check:
    rows = lake.read("gpu_1h", now - timedelta(hours=6), columns=["gpu_model_last"])
    models = sorted(m for m in rows["gpu_model_last"].unique().to_list() if m)
    try:
        prices = Prices(config.cost, lake.read("price").to_dicts())
    except WrongPrice as error:
        return Check("prices", "mend", str(error), "correct [cost]")
    without = [model for model in models if prices.of(model, now) is None]
    if not models:
        return Check("prices", "note", "no GPU of the last six hours to look for a price of")
    if without:
        way = "cost.per_gpu_hour, cost.owned or cost.rented (docs/cost.md); until then waiting is told in GPU-hours"
        return Check("prices", "note", f"none for {', '.join(without)}", way)
    return Check("prices", "well", f"known for {', '.join(models)}")


def _ago(age: timedelta) -> str:
    seconds = age.total_seconds()
    if seconds < 0:
        return f"{-seconds:.0f} s in the future"
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
