"""The lake's steps of ``graynode init``: tables with their settings, and what of an older lake is due."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from graynode.pipeline.lake import Lake, LakeError, LakeTooNew
from graynode.pipeline.lake_migration import Forward
from graynode.pipeline.schema import TABLES
from graynode.service.init_steps import NotDone, Step, give, owner


def lake_steps(lake: Lake) -> Iterator[Step]:
    """Tables with their settings, and what of an older lake is to be brought forward."""
    try:
        found = Forward(lake).look()
    except (LakeError, OSError) as error:
        yield Step("lake", "hand", str(error), "correct lake.path or lake.storage_options, then this again")
        return
    absent = [f.table for f in found if f.state == "absent"]
    old = [f for f in found if f.due]
    for newer in (f for f in found if f.state == "newer"):
        yield Step("lake", "hand", newer.why, "update graynode here; nothing of this lake is touched")
        return
    if absent:
        some = "all" if len(absent) == len(TABLES) else ", ".join(absent[:5]) + (" …" if len(absent) > 5 else "")
        said = f"{len(absent)} of {len(TABLES)} tables in {lake.path}: {some}"
        yield Step("lake", "make", said, do=lambda: make_tables(lake, absent))
    for f in old:
        if f.state == "columns":
            yield Step("lake", "make", f"table {f.table} forward: {f.why}", do=lambda f=f: make_tables(lake, [f.table]))  # type: ignore[misc]
        else:
            way = "stop pipeline, detect and respond, then: graynode lake migrate --yes"
            yield Step("lake", "hand", f"table {f.table}: {f.why}", way)
    if not absent and not old:
        yield Step("lake", "well", f"{len(found)} tables in {lake.path}, of this contract")


def make_tables(lake: Lake, tables: list[str]) -> None:
    """Make tables or add their columns, and hand what root made to the units' user. ``NotDone``."""
    try:
        for name in tables:
            lake.create(name)
    except (LakeError, LakeTooNew) as error:
        raise NotDone(str(error)) from error
    if lake.local and os.geteuid() == 0 and owner() is not None:
        for path in (Path(lake.path), *(p for name in tables for p in Path(lake.uri(name)).rglob("*"))):
            give(path)
        for name in tables:
            give(Path(lake.uri(name)))
