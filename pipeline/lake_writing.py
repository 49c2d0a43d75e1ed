"""Committing to one table: offsets are read and moved on the same Delta handle, or not at all.

Only on one handle is a second writer refused by the transaction log; by path string it is not, and rows double.
"""

from __future__ import annotations

import errno
import shutil
import uuid
from typing import Any, Final, Protocol

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from graynode.pipeline.lake_format import writer_properties

_REOPEN_AFTER: Final = 20
"""Commits on one object before it is opened anew: a long-held one grows slower with every commit."""
_TRIES: Final = 5
_COMMIT: Final = "graynodeCommit"
"""Name of a commit in its own metadata, by which a failed one is told from one whose answer was lost."""

_SPARE: Final = 64 << 10
"""Bytes beside the rows: the commit's own file and Parquet's frame."""
_SHRINKS: Final = 4
"""Rows in memory are at least so many times as large as their file (8 bytes a value there, ≤ 1.3 here)."""


_ROOM: Final = "free some space there, or move the lake (lake.path)"


class LakeError(Exception):
    """The lake cannot be read or written now; the text names table and reason, and of a full disk the way out."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text}; {_ROOM}" if "No space left" in text else text)


class LakeTooNew(Exception):
    """The table was written by a newer major version of the contract; this version must not touch it."""


class SecondWriter(Exception):
    """Somebody else has committed this partition: what is in hand here is theirs already, or will be."""


class Tables(Protocol):
    """What a writer needs of its lake."""

    def create(self, table: str) -> DeltaTable:
        """A fresh handle of the table, made if need be."""
        ...

    def uri(self, table: str) -> str:
        """Where it is."""
        ...


class Writing:
    """One table's handle for committing, opened anew now and then and after every trouble."""

    def __init__(self, lake: Tables, table: str) -> None:
        self._lake, self._table = lake, table
        self._handle: DeltaTable | None = None
        self._commits = 0
        self._known: dict[str, int | None] = {}

    def known(self, id_: str) -> int | None:
        """The offset that the next commit builds upon."""
        if id_ not in self._known:
            self._known[id_] = self._opened().transaction_version(id_)
        return self._known[id_]

    def commit(self, data: Any, offsets: dict[str, int], marks: dict[str, int]) -> int:  # noqa: ANN401 (Arrow)
        """Append in one transaction and give its version; see ``Lake.write``."""
        for id_, offset in offsets.items():
            if offset < (self.known(id_) or 0):
                raise SecondWriter(f"{self._table}: {id_} would go back from {self.known(id_)} to {offset}")
        name = uuid.uuid4().hex
        last: Exception | None = None
        for _ in range(_TRIES):
            try:
                handle = self._opened()
                self._refuse_moved(handle, offsets)
                _must_fit(self._lake.uri(self._table), data.nbytes)
                self._write(handle, data, {**offsets, **marks}, name)
            except (DeltaError, OSError) as error:
                last = error
                self._handle = None
                if self._landed(name):
                    break
                if not isinstance(error, CommitFailedError):
                    raise LakeError(f"{self._lake.uri(self._table)}: {_plain(error)}") from error
            else:
                break
        else:
            raise LakeError(f"{self._lake.uri(self._table)}: {_TRIES} tries failed: {last}") from last
        self._known.update(offsets)
        return self._opened().version()

    def _write(self, handle: DeltaTable, data: Any, ids: dict[str, int], name: str) -> None:  # noqa: ANN401 (Arrow)
        transactions = [Transaction(id_, version) for id_, version in ids.items()]
        extra = set(handle.schema().to_arrow().names) - set(data.schema.names)
        write_deltalake(
            handle,
            data,
            mode="append",
            schema_mode="merge" if extra else None,  # a newer minor version has added columns: leave them null
            writer_properties=writer_properties(self._table),
            commit_properties=CommitProperties(
                custom_metadata={_COMMIT: name}, app_transactions=transactions or None, max_commit_retries=15
            ),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
        )
        self._commits += 1

    def _refuse_moved(self, handle: DeltaTable, offsets: dict[str, int]) -> None:
        for id_ in offsets:
            found, known = handle.transaction_version(id_), self.known(id_)
            if found != known:
                raise SecondWriter(
                    f"{self._table}: {id_} stands at {found}, this process left it at {known}: another pipeline "
                    "reads the same partition; stop one of them"
                )

    def _landed(self, name: str) -> bool:
        """Whether this very commit is in the log: what follows a commit (a checkpoint) may fail on its own."""
        try:
            return any(entry.get(_COMMIT) == name for entry in self._opened().history(_REOPEN_AFTER))
        except (LakeError, DeltaError, OSError):
            return False

    def _opened(self) -> DeltaTable:
        if self._handle is None or self._commits >= _REOPEN_AFTER:
            self._handle = self._lake.create(self._table)
            self._commits = 0
        return self._handle


def _must_fit(where: str, in_memory: int) -> None:
    """``OSError`` where rows of that size do not fit on the disk. Met in the middle of a write, a full disk makes the
    library's threads panic on stderr as well, which tells a person less than this.
    """
    if "://" in where:
        return
    free, wanted = shutil.disk_usage(where).free, in_memory // _SHRINKS + _SPARE
    if free < wanted:
        raise OSError(errno.ENOSPC, f"No space left: {free:,} bytes are free, about {wanted:,} are needed")


def _plain(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
