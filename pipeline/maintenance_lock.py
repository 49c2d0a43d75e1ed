"""Exclusive ownership of a lake's maintenance: two maintainers at once double rows without any error.

On a folder the kernel's lock, which dies with its owner. On an object store a lease in a Delta table of its own:
expiry in epoch seconds as an application's version, so that of two claims one fails in the transaction log.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import polars as pl
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from graynode.pipeline.lake import Lake, LakeError
from graynode.pipeline.lock_file import LockFile, Taken
from graynode.pipeline.snapshot import FOLDER

LEASE_S: Final = 1800
"""A lease that is not renewed is over after this; longer than any one transaction of maintenance."""
_ID: Final = "lease"
_WAY_OUT: Final = "one maintainer per lake; set pipeline.maintain = false on all pipelines but one"


class AlreadyMaintained(Exception):
    """Somebody else holds the lake's maintenance; the text says who, if it is known."""


class MaintenanceLock(Protocol):
    """Take it, keep it, let it go."""

    def take(self) -> None:
        """``AlreadyMaintained`` if somebody else has it."""
        ...

    def renew(self) -> None:
        """Keep it; ``AlreadyMaintained`` if it was lost."""
        ...

    def release(self) -> None:
        """Let go; twice is as good as once."""
        ...


def maintenance_lock(lake: Lake) -> MaintenanceLock:
    """The lock that fits where the lake is."""
    return FolderLock(lake) if lake.local else LeaseLock(lake)


class FolderLock:
    """The lock of a lake on this machine."""

    def __init__(self, lake: Lake) -> None:
        self._file = Path(lake.path, FOLDER, "maintenance.lock")
        self._held: LockFile | None = None

    def take(self) -> None:
        """Lock the file, and write who holds it."""
        try:
            self._held = LockFile(self._file)
        except Taken as taken:
            raise AlreadyMaintained(f"{taken}: {_WAY_OUT}") from taken
        except OSError as error:
            raise LakeError(f"{self._file}: cannot be opened: {error.strerror}") from error

    def renew(self) -> None:
        """The kernel keeps it."""

    def release(self) -> None:
        """Close the file."""
        if self._held is not None:
            self._held.close()
            self._held = None


class LeaseLock:
    """The lock of a lake that several machines reach."""

    def __init__(self, lake: Lake, *, clock: Callable[[], float] = time.time, lease_s: int = LEASE_S) -> None:
        self._uri, self._storage = f"{lake.path}/{FOLDER}/maintenance", lake.storage_options or None
        self._clock, self._lease_s = clock, lease_s
        self._table: DeltaTable | None = None

    def take(self) -> None:
        """Claim the lease if it is free or over."""
        try:
            table = self._opened()
            until = table.transaction_version(_ID) or 0
            if until > self._clock():
                holder = table.history(1)[0].get("graynodeOwner", "(unknown)")
                left = until - self._clock()
                raise AlreadyMaintained(f"{self._uri} is held by {holder} for {left:.0f} s more: {_WAY_OUT}")
            self._claim(table, int(self._clock()) + self._lease_s)
        except (DeltaError, OSError) as error:
            raise LakeError(f"{self._uri}: {error}") from error
        self._table = table

    def renew(self) -> None:
        """Claim it again on the handle that claimed it: whoever came between makes this fail."""
        if self._table is None:
            raise AlreadyMaintained(f"{self._uri} is not held")
        try:
            self._claim(self._table, int(self._clock()) + self._lease_s)
        except (DeltaError, OSError) as error:
            raise LakeError(f"{self._uri}: {error}") from error

    def release(self) -> None:
        """Let the lease be over now."""
        table, self._table = self._table, None
        if table is not None:
            try:
                self._claim(table, int(self._clock()))
            except (AlreadyMaintained, DeltaError, OSError):
                return  # it is over by itself, or somebody else's

    def _opened(self) -> DeltaTable:
        try:
            return DeltaTable(self._uri, storage_options=self._storage)
        except TableNotFoundError:
            empty = pl.DataFrame(schema={"owner": pl.String}).to_arrow(compat_level=pl.CompatLevel.oldest())
            return DeltaTable.create(self._uri, empty.schema, mode="ignore", storage_options=self._storage)

    def _claim(self, table: DeltaTable, until: int) -> None:
        owner = f"{socket.gethostname()}:{os.getpid()}"
        empty = pl.DataFrame(schema={"owner": pl.String}).to_arrow(compat_level=pl.CompatLevel.oldest())
        try:
            write_deltalake(
                table,
                empty,
                mode="append",
                commit_properties=CommitProperties(
                    custom_metadata={"graynodeOwner": owner}, app_transactions=[Transaction(_ID, until)]
                ),
            )
        except CommitFailedError as error:
            raise AlreadyMaintained(f"{self._uri} was claimed by somebody else just now: {_WAY_OUT}") from error
