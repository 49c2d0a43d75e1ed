"""What imported probes say at once: which GPUs are slow at the same work as their peers.

``graynode detect`` ranks probes when a window is due, which an imported file of a past year never brings about. So the
import itself ranks all probes that the lake holds of that cluster, with the detector's own ranking.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from graynode.detectors import probes
from graynode.detectors.accumulate import TAU
from graynode.pipeline.lake import Lake

_SHOWN: Final = 20


def ranking(lake: Lake, cluster: str) -> probes.Ranking:
    """All probes of the cluster that the lake holds, ranked. ``LakeError`` where it cannot be read."""
    return probes.rank(lake.read("probe").filter(pl.col("cluster") == cluster))


def lines(ranked: probes.Ranking, cluster: str) -> Iterator[str]:
    """The verdict for a person: every flagged GPU with its value, its peers' and how sure that is; slowest first."""
    table = ranked.table
    if table.is_empty():
        return
    flagged = table.filter("flagged")
    gpus = table.get_column("gpu_uuid").n_unique()
    yield f"Of {gpus:,} GPUs probed in cluster {cluster!r}, {flagged.height or 'none'} slower than peers at equal work"
    for row in flagged.head(_SHOWN).iter_rows(named=True):
        yield f"  {_line(row)}"
    if flagged.height > _SHOWN:
        yield f"  … and {flagged.height - _SHOWN:,} more"
    yield (
        f"(flagged: at least {TAU:.0%} worse than the median of at least {probes.MIN_RUNS} runs, and beyond what the"
        " others' spread explains; docs/queries.md has the question in SQL)"
    )


def _line(row: dict[str, Any]) -> str:
    place = _plain(row["node"] or row["node_id"])
    return (
        f"{_plain(row['gpu_uuid'])} on {place}: {row['operation']} {row['value']:.6g} {_plain(row['unit'])},"
        f" {row['effect']:.1%} worse than the median {row['peer_median']:.6g} of {row['peers']} peers,"
        f" {row['runs']} runs, p = {row['p_value']:.1g}"
    )


def _plain(text: Any) -> str:  # noqa: ANN401 (a cell)
    """Names come from a file: what would move the cursor is shown as a mark."""
    return "".join(c if c.isprintable() else "�" for c in str(text))[:100]
