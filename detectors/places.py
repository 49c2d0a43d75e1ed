"""What nodes and ports share: rack, NVLink domain, leaf switch, rail, job, driver.

Racks, domains and switches come from ``inventory`` (``graynode.pipeline.place_rows``), jobs and drivers from the
window's rows.
Where no inventory names the switch, equal ports of many nodes are a *rail*: in rail-optimised fabrics they end in the
same leaf switches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from graynode.detectors.base import Round
from graynode.pipeline.place_rows import PLACE_ROWS, of_inventory

Member = tuple[str, str]
"""Machine, and port of it where the place holds ports; the port is empty where it holds whole nodes."""

_FEWEST: Final = {"rack": 3, "domain": 3, "switch": 3, "rail": 5, "job": 5, "driver": 5}
_LEAST_PART: Final = {"rack": 0.5, "domain": 0.5, "switch": 0.5, "rail": 0.0, "job": 0.2, "driver": 0.2}
"""A place is named where so many of its nodes, and more than such a part of them, are concerned. A rack of four is
complete with three and one that answers late; a job of a thousand is not named for two hundred by chance."""
NETWORK: Final = frozenset({"link_flap", "link_down", "link_degraded", "link_errors", "network_fault"})
_HEAT: Final = frozenset({"thermal", "power_brake"})
_ORDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "heat": ("rack", "domain", "job", "driver"),
    "network": ("switch", "rail", "rack", "driver"),
    "nvlink": ("domain", "rack", "job", "driver"),
    "other": ("job", "driver", "rack", "domain", "switch"),
}
"""What can be behind it, by what is wrong; of equally good explanations the first."""
_NUMBER: Final = re.compile(r"(\d+)(?:/\d+)?$")


@dataclass(frozen=True, slots=True)
class Place:
    """``kind`` (a subject of the contract), its name, and who is there."""

    kind: str
    name: str
    members: frozenset[Member]

    @property
    def nodes(self) -> frozenset[str]:
        """Machines there, by ``node_id``."""
        return frozenset(node for node, _ in self.members)

    def words(self, concerned: int) -> str:
        """The place as a person names it."""
        if self.kind != "rail":
            return f"{self.kind} {self.name}"
        number = _NUMBER.search(self.name)
        return f"rail {number[1] if number else self.name} (port {self.name} of {concerned} nodes)"


@dataclass(frozen=True, slots=True)
class Places:
    """Every place of a cluster that its rows tell of, and all nodes seen."""

    places: tuple[Place, ...]
    everyone: frozenset[str]

    def best(self, concerned: Sequence[Member], cause: str) -> Place | None:
        """The place that explains best who is concerned: the highest harmonic mean of the part of the place that is
        concerned and the part of the concerned that is there. ``None`` where no place is concerned enough."""
        order = _order(cause)
        whole, nodes = frozenset(concerned), frozenset(node for node, _ in concerned)
        ranked: list[tuple[float, int, str, Place]] = []
        for place in self.places:
            if place.kind not in order:
                continue
            there, of, those = _there(place, whole, nodes)
            n, part = len(those), there / of if of else 0.0
            if n < _FEWEST[place.kind] or part <= _LEAST_PART[place.kind]:
                continue
            if place.kind != "rail" and place.nodes >= self.everyone:
                continue
            found = there / len(whole) if place.kind in ("switch", "rail") else n / len(nodes)
            precision = (
                1.0 if place.kind == "rail" else part
            )  # a rail has as many leaves as pods: its size says nothing
            ranked.append((-2 * precision * found / (precision + found), order.index(place.kind), place.name, place))
        return min(ranked, key=lambda r: r[:3])[3] if ranked else None


def _order(cause: str) -> tuple[str, ...]:
    if cause in _HEAT:
        return _ORDERS["heat"]
    if cause in NETWORK:
        return _ORDERS["network"]
    return _ORDERS["nvlink" if cause == "nvlink_fault" else "other"]


def _there(place: Place, whole: frozenset[Member], nodes: frozenset[str]) -> tuple[int, int, frozenset[str]]:
    """How many of the concerned are there, of how many, and on which nodes."""
    if any(port for _, port in place.members):
        inside = place.members & whole
        return len(inside), len(place.members), frozenset(node for node, _ in inside)
    those = place.nodes & nodes
    return len(those), len(place.nodes), those


def places(round_: Round, *, ports: bool = False, concerned: frozenset[str] | None = None) -> Places:
    """The places of a round; switches and rails by port with ``ports``.

    ``concerned``: only places with at least three of these machines; they count though they may be silent.
    """
    rows, here = _latest(round_, ports=ports)
    seen = here | concerned if concerned else here
    if concerned is not None:
        with_some = rows.filter(pl.col("node").is_in(list(concerned))).group_by("kind", "name").agg(pl.n_unique("node"))
        rows = rows.join(with_some.filter(pl.col("node") >= min(_FEWEST.values())), on=["kind", "name"], how="semi")
    found: dict[tuple[str, str], set[Member]] = {}
    for kind, name, node, port in rows.iter_rows():
        if node in seen:
            found.setdefault((kind, name), set()).add((node, port))
    made = tuple(Place(kind, name, frozenset(members)) for (kind, name), members in sorted(found.items()))
    return Places(made, seen)


@dataclass(frozen=True, slots=True)
class _Held:
    """The frames that were looked at last, and what was made of them: the detectors of a round ask in turn."""

    frames: tuple[pl.DataFrame, ...]
    of_inventory: pl.DataFrame
    rows: pl.DataFrame
    seen: frozenset[str]


_held: Final[dict[bool, _Held]] = {}


def table(round_: Round, *, ports: bool) -> pl.DataFrame:
    """Columns ``kind``, ``name``, ``node`` and ``port`` (empty for whole nodes): who is where, by all that is known."""
    return _latest(round_, ports=ports)[0]


def _latest(round_: Round, *, ports: bool) -> tuple[pl.DataFrame, frozenset[str]]:
    """The table, and the machines that this round has rows of."""
    frames, held = (round_.inventory, round_.gpu, round_.host, round_.link), _held.get(ports)
    if held is not None and all(a is b for a, b in zip(held.frames, frames, strict=True)):
        return held.rows, held.seen
    same = held is not None and held.frames[0] is round_.inventory
    fixed = held.of_inventory if held is not None and same else of_inventory(round_.inventory, ports=ports)
    parts = [_column(round_.gpu, "job", "job_id_last"), _column(round_.host, "driver", "driver_version_last"), fixed]
    rows = pl.concat([*parts, *([_rails(round_.link)] if ports else [])])
    seen = frozenset().union(*(_nodes(f) for f in frames[1:]))
    _held[ports] = _Held(frames, fixed, rows, seen)
    return rows, seen


def _column(frame: pl.DataFrame, kind: str, column: str) -> pl.DataFrame:
    if not {column, "node_id"} <= set(frame.columns):
        return pl.DataFrame(schema=PLACE_ROWS)
    pairs = frame.select(name=pl.col(column).cast(pl.String), node=pl.col("node_id")).drop_nulls().unique()
    return pairs.select(pl.lit(kind).alias("kind"), "name", "node", pl.lit("").alias("port"))


def _rails(link: pl.DataFrame) -> pl.DataFrame:
    if not {"link", "node_id", "link_kind_last"} <= set(link.columns):
        return pl.DataFrame(schema=PLACE_ROWS)
    wired = link.filter(pl.col("link_kind_last").fill_null("") != "nvlink").select("link", "node_id")
    named = wired.drop_nulls().unique().select(name=pl.col("link"), node=pl.col("node_id"), port=pl.col("link"))
    return named.select(pl.lit("rail").alias("kind"), "name", "node", "port")


def _nodes(frame: pl.DataFrame) -> set[str]:
    return set(frame.get_column("node_id").drop_nulls().unique()) if "node_id" in frame.columns else set()
