"""Steps of ``graynode init``: what is to be made, what is well, and what a person has to do; then doing it.

A node has the base install: nothing of the server is imported here (``init_lake`` has the lake's).
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from graynode.pipeline.bus import BusRefused, BusUnavailable
from graynode.service.config import Config
from graynode.service.init_config import Role

USER: Final = "graynode"
"""Of the units in ``deploy/systemd``."""


class NotDone(Exception):
    """A step could not be done now; the text says why."""


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
        except (OSError, NotDone, BusRefused, BusUnavailable) as error:
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
