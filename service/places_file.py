"""Where nodes and ports stand, as the site says it: a CSV file for ``detect.places_file``.

Columns ``node`` (host name) and any of ``port``, ``rack``, ``switch``, ``domain``. A row without ``port`` is about the
node, one with it about that port, whose ``switch`` is the leaf it ends in. What collectors find stands beside it.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import polars as pl

from graynode.service.config import ConfigError

_COLUMNS: Final = ("node", "port", "rack", "switch", "domain")
_SCHEMA: Final = dict.fromkeys(("node", "kind", "port", "domain", "attributes"), pl.String)


@dataclass(frozen=True, slots=True)
class PlacesFile:
    """The file's rows."""

    rows: pl.DataFrame

    def inventory(self, host: pl.DataFrame, now: datetime) -> pl.DataFrame:
        """Rows of ``inventory`` for the machines that go by these names in ``host``; other names are left out.

        They are of ``now``: what the site says of a place is newer than what a collector found.
        """
        if self.rows.is_empty() or not {"node", "node_id", "cluster"} <= set(host.columns):
            return pl.DataFrame()
        known = host.select("cluster", "node", "node_id").drop_nulls().unique().sort("node", "node_id")
        entity = pl.coalesce("port", "node_id").alias("entity")
        ts = pl.lit(now).cast(pl.Datetime("us", "UTC")).alias("ts")
        return self.rows.join(known, on="node", how="inner").with_columns(entity, ts).drop("port")


NONE: Final = PlacesFile(pl.DataFrame(schema=_SCHEMA))


def read(path: Path | None) -> PlacesFile:
    """The file; without a path nothing is known. ``ConfigError`` names the file, the line and what is wanted."""
    if path is None:
        return NONE
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"detect.places_file = {path}: {error}") from error
    return parse(text, str(path))


def parse(text: str, name: str) -> PlacesFile:
    """The rows of a file's text."""
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    given = [c.strip() for c in reader.fieldnames or ()]
    unknown = [c for c in given if c not in _COLUMNS]
    if "node" not in given or unknown or len(given) < 2:
        raise ConfigError(f"detect.places_file = {name}: line 1 is {','.join(given)!r}; wanted are node and any of "
                          f"{', '.join(_COLUMNS[1:])}")  # fmt: skip
    rows = []
    for number, row in enumerate(reader, start=2):
        said = {c.strip(): (v or "").strip() for c, v in row.items() if isinstance(c, str) and not isinstance(v, list)}
        if None in row or not said.get("node"):
            raise ConfigError(
                f"detect.places_file = {name}: line {number}: wanted are {len(given)} values, a node first"
            )
        named = {c: said[c] for c in ("rack", "switch") if said.get(c)}
        port = said.get("port") or None
        rows.append((said["node"], "port" if port else "node", port, said.get("domain") or None, json.dumps(named)))
    return PlacesFile(pl.DataFrame(rows, schema=_SCHEMA, orient="row"))
