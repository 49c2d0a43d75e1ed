"""Steps of ``graynode init``: what is to be made, what is well, and what a person has to do; then doing it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from graynode.pipeline.bus import BusRefused, BusUnavailable
from graynode.pipeline.lake import Lake, LakeError, LakeTooNew
from graynode.pipeline.lake_migration import Forward
from graynode.pipeline.schema import TABLES
from graynode.service.config import Config
from graynode.service.init_config import Role

USER: Final = "graynode"
"""Of the units in ``deploy/systemd``."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing. ``make`` is done with ``--yes``; ``hand`` is a person's, ``way_out`` says how."""

    about: str
    state: Literal["well", "make", "hand"]
    said: str
    way_out: str = ""
    do: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a step that was done: ``said`` is why it failed, where it did."""

    step: Step
    failed: bool = False
    said: str = ""


def carry_out(steps: list[Step]) -> Iterator[Done]:
    """Do what is to be made, one after the other; one that fails does not keep the next ones from it."""
    for step in steps:
        if step.do is None:
            continue
        try:
            step.do()
        except (OSError, LakeError, LakeTooNew, BusRefused, BusUnavailable) as error:
            yield Done(step, failed=True, said=" ".join(str(error).split())[:400])
        else:
            yield Done(step)


# --- user, folders ---------------------------------------------------------------------------------------------


def user_steps(there: tuple[int, int] | None, root: bool | None = None) -> Iterator[Step]:
    """The user that the units run as (``owner()``). Users are the site's: none is made here."""
    if there is not None:
        yield Step("user", "well", f"{USER} is there")
    elif os.geteuid() == 0 if root is None else root:
        way = f"useradd --system --no-create-home --shell /usr/sbin/nologin {USER}, then this again"
        yield Step("user", "hand", f"no user {USER}, as whom the units run: folders would be root's", way)


def owner() -> tuple[int, int] | None:
    """User and group of the units, where they are there."""
    try:
        found = pwd.getpwnam(USER)
    except KeyError:
        return None
    return found.pw_uid, found.pw_gid


def folder_steps(config: Config, role: Role) -> Iterator[Step]:
    """Folders that this role keeps things in: mode 0750, the units' user's where root makes them."""
    wanted = {"agent.state_dir": config.agent.state_dir} if role != "server" else {}
    if config.bus.kind == "spool":
        wanted["bus.spool_dir"] = config.bus.spool_dir
    if role != "agent":
        wanted["serve.tokens_file"] = config.serve.tokens_file.parent
        if "://" not in config.lake.path:
            wanted["lake.path"] = Path(config.lake.path)
    for key, folder in wanted.items():
        yield _folder(key, folder)


def _folder(key: str, folder: Path) -> Step:
    if folder.is_dir():
        return Step("folder", "well", f"{folder} ({key})")
    if folder.exists():
        return Step("folder", "hand", f"{folder} ({key}) is there and no folder", "name another")
    return Step("folder", "make", f"{folder} ({key}), mode 0750", do=lambda: make_folder(folder))


def make_folder(folder: Path) -> None:
    """The folder, closed to others; folders above it that were missing too are open to pass through."""
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    for made in reversed(missing):
        made.mkdir(exist_ok=True)
        made.chmod(0o750 if made == folder else 0o755)  # whatever the umask
    for made in missing:
        give(made)


def give(path: Path) -> None:
    """Hand a file or folder to the units' user where root made it."""
    to = owner()
    if os.geteuid() == 0 and to is not None:
        os.chown(path, *to)


# --- the lake --------------------------------------------------------------------------------------------------


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
    """Make tables or add their columns, and hand what root made to the units' user."""
    for name in tables:
        lake.create(name)
    if lake.local and os.geteuid() == 0 and owner() is not None:
        for path in (Path(lake.path), *(p for name in tables for p in Path(lake.uri(name)).rglob("*"))):
            give(path)
        for name in tables:
            give(Path(lake.uri(name)))
