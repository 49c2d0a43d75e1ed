"""What the pipeline counts, for ``/metrics``: nothing is dropped that is not in one of these."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

MESSAGES: Final = Counter("graynode_pipeline_messages_total", "Messages read from the bus.", ["topic"])
ROWS: Final = Counter("graynode_pipeline_rows_total", "Rows committed to the lake.", ["table"])
VALUES: Final = Counter(
    "graynode_pipeline_values_total", "Non-null values of samples committed to the lake.", ["table"]
)
REPEATS: Final = Counter(
    "graynode_pipeline_repeated_messages_total", "Messages met before (same machine, epoch and sequence).", ["topic"]
)
REJECTS: Final = Counter("graynode_pipeline_rejected_messages_total", "Messages that cannot be read.", ["topic"])
ROWS_DROPPED: Final = Counter(
    "graynode_pipeline_rows_dropped_total",
    "Rows left out: unplaced (no machine or no usable time), duplicate (same entity and time).",
    ["table", "reason"],
)
NULLED: Final = Counter(
    "graynode_pipeline_values_nulled_total", "Values that are no measurement, made null.", ["table", "field"]
)
UNKNOWN: Final = Counter(
    "graynode_pipeline_unknown_columns_total", "Messages with a column of a newer contract, dropped.", ["table"]
)
LATE: Final = Counter(
    "graynode_pipeline_late_samples_total", "Samples whose window was closed; kept raw only.", ["table"]
)
LATE_HOURS: Final = Counter(
    "graynode_pipeline_late_windows_total", "Windows of 30 s whose hour was closed; not in the hour.", ["table"]
)
SKEWED: Final = Counter("graynode_pipeline_clock_skews_total", "Times a machine's clock went wrong.")
CLONES: Final = Counter("graynode_pipeline_identity_conflicts_total", "Times two agents sent as one machine.")
LOST: Final = Counter(
    "graynode_pipeline_lost_messages_total", "Messages that left the bus before they were read.", ["topic"]
)
FAILURES: Final = Counter("graynode_pipeline_commit_failures_total", "Commits that the lake did not take.", ["table"])
UNTOLD: Final = Counter("graynode_pipeline_dead_letters_lost_total", "Rejects that the dead letters did not take.")
LAG: Final = Gauge("graynode_pipeline_lag_messages", "Messages on the bus not yet read.", ["topic", "partition"])
HELD: Final = Gauge("graynode_pipeline_held_bytes", "Bytes read and not yet committed.")
PENDING: Final = Gauge("graynode_pipeline_open_window_rows", "Samples in open windows.", ["topic", "partition"])
COMMIT_S: Final = Histogram(
    "graynode_pipeline_commit_seconds",
    "Duration of one commit of all tables.",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
