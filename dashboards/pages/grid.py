"""The fleet as a grid: one link a node, its GPUs in it, made with columns of frames and not node by node.

Up to ``DETAILED_GPUS`` each GPU is an element of its own and each node shows its name; above, a node is a square whose
GPUs are bits of one gradient: a class a GPU that is not healthy (``g3s``: the fourth GPU is suspect), nothing for the
rest. State is told by colour, pattern and letter, and in words in each link's own text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import polars as pl
from markupsafe import Markup

from graynode.dashboards.pages.words import STATE_LETTERS, STATE_WORDS

DETAILED_GPUS: Final = 4096
"""An element a GPU costs the browser about 3 µs to lay out and paint, and no screen has room for more."""
MOST_BITS: Final = 16
"""GPUs of a node that the gradient can tell apart; a node of more shows the first ones, and its text counts all."""
GROUPS: Final = {"rack": "rack", "domain": "NVLink domain", "switch": "switch", "partition": "partition"}
"""What nodes can be put together by, and what each is called."""
_WORST: Final = ("quarantined", "in_repair", "unknown", "suspect", "probation", "healthy")
_ESCAPES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}
_PLAIN: Final = r"^[A-Za-z0-9._~-]*$"
_CONTROL: Final = r"[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]"


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes of one rack (domain, switch): ``cells`` is their HTML, ``said`` how many of them are what."""

    id: str
    name: str
    nodes: int
    said: str
    worst: str
    cells: Markup


def groups(nodes: pl.DataFrame, gpus: pl.DataFrame, by: str = "rack") -> list[Group]:
    """The grid of these nodes, in the order of their places' names; nodes of no known place come last, as one group.

    ``nodes`` and ``gpus`` have the columns of ``FleetNow``.
    """
    if nodes.is_empty():
        return []
    detailed = gpus.height <= DETAILED_GPUS
    cells = _cells(nodes, gpus, detailed=detailed).with_columns(pl.col(by).cast(pl.String).alias("place"))
    rank = pl.col("state").replace_strict({s: i for i, s in enumerate(_WORST)}, default=2, return_dtype=pl.Int32)
    found = (
        cells.with_columns(rank.alias("rank"))
        .sort("place", "node", nulls_last=True)
        .group_by("place", maintain_order=True)
        .agg(pl.col("cell").str.join(""), pl.len().alias("n"), pl.col("rank").min(), pl.col("state").value_counts())
    )
    return [_group(i, row, by) for i, row in enumerate(found.iter_rows(named=True))]


def _group(number: int, row: dict[str, object], by: str) -> Group:
    counts = {str(c["state"]): int(c["count"]) for c in row["state"]}  # type: ignore[attr-defined]  # a list of structs
    said = ", ".join(f"{counts[s]} {STATE_WORDS.get(s, s)}" for s in _WORST if counts.get(s) and s != "healthy")
    name = f"no {GROUPS[by]} known" if row["place"] is None else f"{GROUPS[by]} {row['place']}"
    n, rank = int(str(row["n"])), int(str(row["rank"]))
    return Group(f"place-{number}", name, n, said, _WORST[rank], Markup(row["cell"]))  # noqa: S704 (escaped in _cells)


def _cells(nodes: pl.DataFrame, gpus: pl.DataFrame, *, detailed: bool) -> pl.DataFrame:
    """A column ``cell``: the HTML of each node, every text of it escaped."""
    bits = _gpu_elements(gpus) if detailed else _gpu_classes(gpus)
    letters = pl.col("state").replace_strict(STATE_LETTERS, default="u", return_dtype=pl.String)
    words = pl.col("state").replace_strict(STATE_WORDS, default="unknown", return_dtype=pl.String)
    keys = ["cluster", "node_id"]
    shown = pl.coalesce("node", "node_id")
    made = nodes.join(bits, on=keys, how="left").with_columns(
        shown.alias("node"), letters.alias("letter"), words.alias("word"), pl.col("bits").fill_null("")
    )
    made = made.with_columns(
        _escaped(pl.col("node")).alias("name"), _addresses(made["node"]).alias("address"),
        _said(made).alias("more"), _escaped(pl.col("why").fill_null("")).alias("reason"),
    )  # fmt: skip
    reason = pl.when(pl.col("reason") == "").then(pl.lit("")).otherwise(pl.format(": {}", pl.col("reason")))
    if detailed:
        cell = pl.format(
            '<a class="node {}" href="/nodes/{}"><b>{}</b><span class="word">{}</span><span class="gpus">{}</span>'
            '<span class="off">{}{}</span></a>',
            "letter", "address", "name", "word", "bits", "more", reason,
        )  # fmt: skip
    else:
        cell = pl.format(
            '<a class="n {}{}" href="/nodes/{}">{} {}{}{}</a>',
            "letter", "bits", "address", "name", "word", "more", reason,
        )  # fmt: skip
    return made.with_columns(cell.alias("cell"))


def _said(made: pl.DataFrame) -> pl.Expr:
    """``, 2 of 8 GPUs not well``; empty where all are."""
    bad = pl.col("bad") if "bad" in made.columns else pl.lit(0)
    of = pl.coalesce("gpus", "seen", pl.lit(0))
    return pl.when(bad.fill_null(0) > 0).then(pl.format(", {} of {} GPUs not well", bad, of)).otherwise(pl.lit(""))


def _placed(gpus: pl.DataFrame) -> pl.DataFrame:
    """GPUs with their place on the node (0, 1, …) and the letter of their state."""
    order = gpus.sort("gpu_index", "slot", "gpu_uuid", nulls_last=True)
    letter = pl.col("state").replace_strict(STATE_LETTERS, default="u", return_dtype=pl.String)
    return order.with_columns(pl.int_range(pl.len()).over("cluster", "node_id").alias("place"), letter.alias("letter"))


def _counted(placed: pl.DataFrame, bit: pl.Expr) -> pl.DataFrame:
    bad = (pl.col("letter") != "h").sum().cast(pl.Int64)
    return placed.group_by("cluster", "node_id", maintain_order=True).agg(
        bit.str.join("").alias("bits"), bad.alias("bad"), pl.len().cast(pl.Int64).alias("seen")
    )


def _gpu_elements(gpus: pl.DataFrame) -> pl.DataFrame:
    return _counted(_placed(gpus), pl.format('<i class="{}"></i>', "letter"))


def _gpu_classes(gpus: pl.DataFrame) -> pl.DataFrame:
    """Classes of the GPUs that are not healthy, and ``m`` (mixed) where there is one: the gradient costs only those."""
    placed = _placed(gpus.filter(pl.col("state") != "healthy").select("cluster", "node_id").unique().join(
        gpus, on=["cluster", "node_id"], how="left"
    ))  # fmt: skip
    shown = (pl.col("letter") != "h") & (pl.col("place") < MOST_BITS)
    one = pl.when(shown).then(pl.format(" g{}{}", "place", "letter")).otherwise(pl.lit(""))
    return _counted(placed, one).with_columns(pl.format(" m{}", "bits").alias("bits"))


def _escaped(text: pl.Expr) -> pl.Expr:
    """As HTML text or attribute: control and direction characters gone, the five characters of markup written out."""
    safe = text.cast(pl.String).str.replace_all(_CONTROL, " ")
    for character, entity in _ESCAPES.items():
        safe = safe.str.replace_all(character, entity, literal=True)
    return safe


def _addresses(names: pl.Series) -> pl.Series:
    """Names as parts of an address; only the odd ones cost a call each."""
    odd = names.filter(~names.str.contains(_PLAIN)).unique().to_list()
    return names.replace({name: quote(name, safe="") for name in odd}) if odd else names
