"""What pages are made of: the grid, small pictures, words; nothing that machines say becomes markup."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from graynode.dashboards.pages import STATICS, grid, render, svg, words
from graynode.service.fleet_now_frames import GPUS, NODES
from graynode.service.pages.session import _inside

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
STATES = ("healthy", "suspect", "quarantined", "in_repair", "probation", "unknown")


class Links(HTMLParser):
    """Every link with its text, and every element's name."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.names: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        if tag == "a":
            self.links.append((dict(attrs)["href"] or "", ""))

    def handle_data(self, data: str) -> None:
        href, text = self.links[-1]
        self.links[-1] = (href, text + data)


def frames(nodes: list[dict[str, Any]], gpus: list[dict[str, Any]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    made = []
    for rows, schema in ((nodes, NODES), (gpus, GPUS)):
        whole = [{name: row.get(name) for name in schema} | {"cluster": "c"} for row in rows]
        made.append(pl.DataFrame(whole, schema=schema))
    return made[0], made[1]


def fleet(count: int, bad: dict[tuple[int, int], str], **more: Any) -> tuple[pl.DataFrame, pl.DataFrame]:
    nodes = [
        {"node_id": f"i{n}", "node": f"n{n}", "state": "healthy", "rack": f"r{n // 4}", **more} for n in range(count)
    ]
    gpus = [
        {"node_id": f"i{n}", "gpu_uuid": f"{n}-{g}", "gpu_index": g, "state": bad.get((n, g), "healthy")}
        for n in range(count) for g in range(8)
    ]  # fmt: skip
    return frames(nodes, gpus)


def test_places_come_by_name_and_say_what_is_not_well() -> None:
    """Nodes are put together by rack; those of no known rack come last."""
    nodes, gpus = fleet(9, {})
    nodes = nodes.with_columns(
        pl.when(pl.col("node") == "n1").then(pl.lit("suspect")).otherwise("state").alias("state"),
        pl.when(pl.col("node") == "n8").then(None).otherwise("rack").alias("rack"),
    )
    places = grid.groups(nodes, gpus)
    assert [(p.name, p.nodes, p.said, p.worst) for p in places] == [
        ("rack r0", 4, "1 suspect", "suspect"), ("rack r1", 4, "", "healthy"), ("no rack known", 1, "", "healthy"),
    ]  # fmt: skip


def test_a_small_fleet_has_an_element_a_gpu_and_a_large_one_a_class_a_sick_gpu() -> None:
    """Above the limit only GPUs that are not healthy cost anything; the words count them in both forms."""
    bad = {(0, 3): "suspect", (0, 7): "lost"}
    small = grid.groups(*fleet(2, bad))[0].cells
    assert small.count("<i ") == 16
    large = grid.groups(*fleet(600, bad))[0].cells
    assert "<i " not in large
    assert re.search(r'class="n h m g3s g7l" href="/nodes/n0">n0 healthy, 2 of 8 GPUs not well<', large)
    assert 'class="n h" href="/nodes/n1">n1 healthy<' in large
    assert "2 of 8 GPUs not well" in small


@given(
    st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=5, unique=True), st.text(max_size=30), st.booleans()
)
def test_whatever_nodes_are_called_the_grid_is_links_with_their_names(names: list[str], why: str, dense: bool) -> None:
    """Any name and any reason: one link a node, its text is the name's own, nothing else becomes an element."""
    safe = [n.encode("utf-8", "ignore").decode() or "x" for n in names]
    nodes = [
        {"node_id": f"i{k}", "node": n, "state": "suspect", "why": why.encode("utf-8", "ignore").decode()}
        for k, n in enumerate(safe)
    ]
    gpus = [
        {"node_id": "i0", "gpu_uuid": str(k), "gpu_index": k, "state": "healthy"} for k in range(5000 if dense else 2)
    ]
    html = "".join(p.cells for p in grid.groups(*frames(nodes, gpus)))
    found = Links(html)
    assert set(found.names) <= {"a", "b", "span", "i"}
    assert len(found.links) == len(safe)
    told = {words.in_path(n): n for n in safe}
    for href, text in found.links:
        shown = re.sub(r"[^\w]", "", told[href.removeprefix("/nodes/")])
        assert shown[:5] in re.sub(r"[^\w]", "", unescape(text)) or not shown


def test_an_empty_fleet_has_no_places() -> None:
    """No node, no grid."""
    assert grid.groups(*frames([], [])) == []


@given(st.text(max_size=40))
def test_a_picture_says_its_words_and_nothing_of_them_is_markup(text: str) -> None:
    """The title is escaped in every kind of picture."""
    made = [
        svg.spark([1, None, 2, 3], text), svg.strip(5, 1, 2, 3, text), svg.bar(1, 2, text),
        svg.stacked([("a", 1)], text),
        svg.timeline([("a", NOW, None)], [("m", NOW)], NOW, NOW + timedelta(hours=1), text),
    ]  # fmt: skip
    for picture in made:
        inside = re.search(r"<title>(.*?)</title>", picture, re.S)
        assert inside is not None
        assert "<" not in inside[1]
        assert picture.count("<svg ") == 1
        assert "style=" not in picture


def test_a_gap_stays_a_gap_and_nothing_is_drawn_of_nothing() -> None:
    """Two pieces of a line with a hole between them; no value, no picture."""
    path = re.search(r' d="([^"]+)"', svg.spark([1, 2, None, 3, 4], "x"))
    assert path is not None
    assert path[1].count("M") == 2
    assert "no data" in svg.spark([None, None], "x")
    assert svg.strip(None, 1, 2, 3, "x") == ""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0 s"),
        (14, "14 s"),
        (90, "1 min"),
        (3600 * 3 + 1200, "3 h 20 min"),
        (86400 * 2 + 3600, "2 d 1 h"),
        (None, None),
    ],
)
def test_spans_are_said_in_a_unit_and_a_half(value: float | None, said: str | None) -> None:
    """A person reads 3 h 20 min, not 12000 s; none stays none."""
    assert words.span(value) == said


def test_none_is_a_dot_and_a_missing_name_is_an_error() -> None:
    """What could not be told is never zero and never the word None; a template that asks for what nobody gave fails."""
    frame = {"theme": "auto", "me": None, "cluster": "", "at": None, "now": NOW, "path": "/"}
    html = render("problem.html", **frame, title="x", detail=None)
    assert "None" not in html
    assert "·" in html
    with pytest.raises(UndefinedError, match="detail"):
        render("problem.html", **frame, title="x")


def test_control_and_direction_characters_do_not_reach_the_page() -> None:
    """A message cannot turn the page's direction of writing or hide in control characters."""
    frame = {"theme": "auto", "me": None, "cluster": "", "at": None, "now": NOW, "path": "/"}
    html = render("problem.html", **frame, title="x", detail="a\x1b[31mb\u202ec")
    assert "\x1b" not in html
    assert "\u202e" not in html


def test_statics_name_nothing_outside() -> None:
    """Style sheets and scripts ask nobody else: no address in them but our own, no import from elsewhere."""
    assert {"page.js", "base.css", "parts.css", "grid.css", "icon.svg"} <= set(STATICS)
    for name, static in STATICS.items():
        text = static.content.decode()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", text), name


@pytest.mark.parametrize("address", ["/", "/nodes?q=a%5Cb", "/jobs/a/b"])
def test_signing_in_leads_back_to_a_path_here(address: str) -> None:
    """With its parameters."""
    assert _inside(address)


@pytest.mark.parametrize(
    "address", ["//evil.example", "/\\evil.example", "/\t/evil.example", "/\n/evil.example", "https://evil.example", ""]
)
def test_signing_in_leads_nowhere_else(address: str) -> None:
    """A browser takes a backslash for a slash and leaves tabs out."""
    assert not _inside(address)
