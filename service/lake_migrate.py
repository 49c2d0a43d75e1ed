"""``graynode lake migrate``: what of the lake is of an older version, and bringing it forward."""

from __future__ import annotations

from collections.abc import Callable

from graynode.pipeline.lake import LakeError, LakeTooNew
from graynode.pipeline.lake_migration import Forward
from graynode.pipeline.maintenance_lock import AlreadyMaintained, maintenance_lock
from graynode.service.config import Config, ConfigError
from graynode.service.wiring import make_lake


def run(config: Config, *, yes: bool, say: Callable[[str], None] = print) -> int:
    """0 where the lake is of this contract at the end, 1 where something is due and ``yes`` was not said.

    ``ConfigError`` where it is newer, cannot be read, or somebody else works on it.
    """
    lake = make_lake(config)
    forward = Forward(lake, stepped=lambda table, step: say(f"  {table}: {step}"))
    try:
        found = forward.look()
        due = [f for f in found if f.due]
        for f in found:
            if f.state not in ("absent", "current"):
                say(f"  {f.table:<14}{f.why}")
        newer = [f for f in found if f.state == "newer"]
        if newer:
            raise ConfigError(newer[0].why)
        if not due:
            there = sum(f.state == "current" for f in found)
            if not there:
                say(f"No table is in {lake.path} (yet): nothing to bring forward; --lake names another.")
                return 0
            say(f"{there} tables in {lake.path}, all of this contract: nothing to do.")
            return 0
        if not yes:
            say(f"{len(due)} tables to bring forward. Stop pipeline, detect and respond, then say it again with --yes.")
            return 1
        _held(forward)
    except (LakeError, LakeTooNew) as error:
        raise ConfigError(str(error)) from error
    say(f"{len(due)} tables were brought forward.")
    return 0


def _held(forward: Forward) -> None:
    lock = maintenance_lock(forward.lake)
    try:
        lock.take()
    except AlreadyMaintained as error:
        raise ConfigError(f"a pipeline works on this lake ({error}); stop it first") from error
    try:
        forward.run()
    finally:
        lock.release()
