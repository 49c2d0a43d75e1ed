"""A derived table is replaced by whole days: what a day's rows were made of stands in the same commit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import polars as pl
import structlog
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from graynode.pipeline.lake import LakeError
from graynode.pipeline.lake_format import to_lake, writer_properties

_log = structlog.get_logger()


def replace_day(handle: DeltaTable, table: str, day: str, frame: pl.DataFrame, done: Sequence[Transaction]) -> bool:
    """Put ``frame`` in the place of that day's rows and remember ``done``. False where somebody else was quicker since
    ``handle`` was opened: the day is made again at the next look. ``LakeError`` where it cannot be written.
    """
    try:
        write_deltalake(
            handle,
            to_lake(table, frame),
            mode="overwrite",
            predicate=f"date = '{day}'",
            writer_properties=writer_properties(table),
            commit_properties=CommitProperties(
                custom_metadata={"graynodeMaintenance": uuid.uuid4().hex},
                app_transactions=list(done),
                max_commit_retries=0,
            ),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
        )
    except CommitFailedError as error:
        _log.info("a day changed while it was made; later again", table=table, day=day, reason=str(error)[:200])
        return False
    except (DeltaError, OSError) as error:
        raise LakeError(f"{handle.table_uri}: {' '.join(str(error).split())[:300]}") from error
    return True
