"""What changes slowly about a fleet: which GPUs there should be, where nodes stand, partitions, what lemons says.

Read anew where its tables were committed since, and then at most every few minutes: none of it is a measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from graynode.pipeline.lake import Lake
from graynode.pipeline.place_rows import of_inventory
from graynode.pipeline.queries import Queries
from graynode.service import lemons
from graynode.service.node_state import EVIDENCE
from graynode.service.places_file import NONE, PlacesFile

NODE: Final = ["cluster", "node_id"]
PLACES: Final = ("rack", "switch", "domain")
_LOOK_BACK: Final = timedelta(days=14)
"""How old a placement may be that tells a node's partition."""
_EVERY_S: Final = {"inventory": 60.0, "gpus": 60.0, "partitions": 300.0, "ranked": 300.0}

_GPUS: Final = "SELECT cluster, node_id, node, gpu_uuid, slot, gpu_model FROM gpu_homes WHERE until IS NULL"
_INVENTORY: Final = """
SELECT ts, cluster, node_id, node, kind, entity, domain, driver_version, expected, attributes FROM inventory
WHERE kind IN ('node', 'gpu') AND node_id IS NOT NULL
"""
_PARTITIONS: Final = """
SELECT cluster, node_id, arg_max("partition", ts) AS "partition" FROM job_placements
WHERE ts >= TIMESTAMPTZ '{since}' AND "partition" IS NOT NULL AND state IS DISTINCT FROM 'queued' GROUP BY ALL
"""
_RANKED: Final = ("down", "last_fault", "last_kind", "probation_until", "last_return")


@dataclass(frozen=True, slots=True)
class Facts:
    """``nodes``: cluster, node_id, node, driver_version, gpus_expected, rack, switch, domain, partition and what a
    state rests on of lemons; ``gpus``: cluster, node_id, node, gpu_uuid, slot, gpu_model, of all that are in force."""

    nodes: pl.DataFrame
    gpus: pl.DataFrame


@dataclass(slots=True)
class FactReader:
    """Keeps what was read until its tables change, and then for a while."""

    lake: Lake
    queries: Queries
    places: PlacesFile = NONE
    monotonic: Callable[[], float] = time.monotonic
    _made: dict[str, tuple[tuple[object, ...], float, pl.DataFrame]] = field(default_factory=dict)

    def read(self, at: datetime) -> Facts:
        """The facts by what the lake holds before ``at``."""
        ask, since = self.queries.frame, at - _LOOK_BACK
        inventory = self._kept("inventory", ("inventory",), lambda: ask(_INVENTORY))
        gpus = self._kept("gpus", ("inventory",), lambda: ask(_GPUS))
        jobs = self._kept("partitions", ("job", "inventory"), lambda: ask(_PARTITIONS.format(since=since.isoformat())))
        tables = ("inventory", "incident", "event", "node_state", "repair")
        ranked = self._kept("ranked", tables, lambda: self._ranked(at))
        machines = inventory.filter(pl.col("kind") == "node").sort("ts").unique(NODE, keep="last", maintain_order=True)
        nodes = pl.concat([machines.select(*NODE, "node"), ranked.select(*NODE, "node")]).unique(NODE, keep="first")
        drivers = machines.select(*NODE, "driver_version")
        for part in (drivers, _expected(inventory), self._places(inventory, machines, at), jobs, ranked.drop("node")):
            nodes = nodes.join(part, on=NODE, how="left")
        return Facts(nodes, gpus)

    def _kept(self, name: str, tables: tuple[str, ...], make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        held, now = self._made.get(name), self.monotonic()
        if held is not None and now - held[1] < _EVERY_S[name]:
            return held[2]
        stamp = tuple(self.lake.version(table) for table in tables)
        made = held[2] if held is not None and held[0] == stamp else make()
        self._made[name] = (stamp, now, made)
        return made

    def _ranked(self, at: datetime) -> pl.DataFrame:
        """Of every node that is known what ``graynode lemons`` says, with its name."""
        empty = pl.DataFrame(schema={"cluster": pl.String, "node_id": pl.String, "node": pl.String, **_OF_RANK})
        return pl.concat([empty, *(_of(lemons.read(self.queries, c, at)) for c in lemons.clusters(self.queries))])

    def _places(self, inventory: pl.DataFrame, machines: pl.DataFrame, at: datetime) -> pl.DataFrame:
        """Rack, switch and domain of each node: by its inventory, and by the site's file where that says more."""
        said = self.places.inventory(machines.select("cluster", "node", "node_id"), at)
        columns = ["ts", *NODE, "kind", "entity", "domain", "attributes"]
        parts = [inventory.select(columns), *([said.select(columns)] if said.height else [])]
        rows = [
            of_inventory(some, ports=False).with_columns(pl.lit(cluster).alias("cluster"))
            for (cluster,), some in pl.concat(parts).group_by("cluster")
        ]
        if not rows:
            return pl.DataFrame(schema=dict.fromkeys((*NODE, *PLACES), pl.String))
        told = pl.concat(rows).rename({"node": "node_id"}).sort("name")
        first = (pl.col("name").filter(pl.col("kind") == kind).first().alias(kind) for kind in PLACES)
        return told.group_by(NODE).agg(first)


_OF_RANK: Final = {name: EVIDENCE[name] for name in _RANKED}


def _of(found: lemons.Lemons) -> pl.DataFrame:
    names = pl.DataFrame({"node_id": list(found.names), "node": list(found.names.values())}, schema_overrides=_NAME)
    ranked = found.ranking.nodes.select("node_id", *(pl.col(n).cast(kind) for n, kind in _OF_RANK.items()))
    known = ranked.join(names, on="node_id", how="left").with_columns(pl.coalesce("node", "node_id").alias("node"))
    return known.select(pl.lit(found.cluster).alias("cluster"), "node_id", "node", *_OF_RANK)


_NAME: Final = {"node_id": pl.String, "node": pl.String}


def _expected(inventory: pl.DataFrame) -> pl.DataFrame:
    """How many GPUs each node should have, as it was said last."""
    rows = inventory.filter((pl.col("kind") == "gpu") & pl.col("expected").is_not_null()).sort("ts")
    return rows.group_by(NODE).agg(pl.col("expected").last().alias("gpus_expected"))
