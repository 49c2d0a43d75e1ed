"""Racks, NVLink domains and switches, as rows of ``inventory`` name them.

Column ``domain``; in ``attributes`` the keys ``rack`` or ``chassis_serial`` of a node or GPU, and ``switch`` of a node
or port.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import polars as pl

_ATTRIBUTES: Final = {"rack": ("rack", "chassis_serial"), "switch": ("switch", "leaf_switch", "neighbour")}
PLACE_ROWS: Final = dict.fromkeys(("kind", "name", "node", "port"), pl.String)


def of_inventory(inventory: pl.DataFrame, *, ports: bool) -> pl.DataFrame:
    """Racks, domains and switches that rows of ``inventory`` name, a row each.

    Columns ``kind``, ``name``, ``node`` (machine) and ``port`` (empty: the whole node). With ``ports`` a switch is that
    of a port, else of a node. The rows may lack any column.
    """
    if not {"node_id", "kind", "entity"} <= set(inventory.columns) or inventory.is_empty():
        return pl.DataFrame(schema=PLACE_ROWS)
    rows = inventory.filter(pl.col("kind").is_in(["node", "gpu", "port"])).drop_nulls(["node_id", "entity"])
    if "ts" in rows.columns:
        rows = rows.sort("ts").unique(["node_id", "kind", "entity"], keep="last", maintain_order=True)
    named = rows.select("node_id", "kind", "entity", *_named(rows.columns))
    port = pl.col("entity") if ports else pl.lit("")
    made = [
        named.select(
            pl.lit(what).alias("kind"), pl.col(what).alias("name"), pl.col("node_id").alias("node"),
            (port if what == "switch" else pl.lit("")).alias("port"),
        )
        for what, named in (
            ("domain", named), ("rack", named), ("switch", named.filter((pl.col("kind") == "port") == ports)),
        )
    ]  # fmt: skip
    return pl.concat(made).drop_nulls("name").filter(pl.col("name") != "").unique()


def _named(columns: Sequence[str]) -> Iterable[pl.Expr]:
    yield (pl.col("domain") if "domain" in columns else pl.lit(None)).cast(pl.String).alias("domain")
    for name, keys in _ATTRIBUTES.items():
        if "attributes" not in columns:
            yield pl.lit(None, dtype=pl.String).alias(name)
            continue
        # A regular expression, not a JSON parser: one unreadable text must not cost the round
        said = [pl.col("attributes").str.extract(rf'"{key}"\s*:\s*"([^"]+)"') for key in keys]
        yield pl.coalesce(said).alias(name)
