"""Charts: contrast, alternative texts, nulls, hostile names; and pictures with their deadline, cache and limits."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest

from graynode.dashboards import charts
from graynode.dashboards.chart_theme import DARK, DASHES, LIGHT, Theme, dark_rules
from graynode.dashboards.render import MOST_ROWS, Renderer, RenderError, note

T0 = datetime(2026, 11, 20, tzinfo=UTC)
HOSTILE = '<script>alert(1)</script>"&\x1b[31m'
BAND = [
    {"ts": T0 + timedelta(hours=i), "value": 1700.0 - 10 * i, "baseline": 1700.0, "low": 1650.0, "median": 1701.0,
     "high": 1750.0} for i in range(24)
]  # fmt: skip


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    made = Renderer(deadline_s=120)
    yield made
    made.close()


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_every_colour_can_be_read_on_its_paper(theme: Theme) -> None:
    """Text and lines have 4.5 to 1 on the paper (WCAG AA for text); the grid is no content."""
    told = {
        f.name: getattr(theme, f.name) for f in dataclasses.fields(Theme) if f.name not in ("paper", "grid", "series")
    }
    for name, colour in {**told, **{f"series {i}": c for i, c in enumerate(theme.series)}}.items():
        assert contrast(colour, theme.paper) >= 4.5, name
    assert len({str(d) for d in DASHES}) == len(theme.series), "series differ without colour too"


def test_each_light_colour_has_its_own_dark_one() -> None:
    """No two light colours are the same, else a page in the dark could not tell them apart."""
    light = [getattr(LIGHT, f.name) for f in dataclasses.fields(Theme) if f.name != "series"] + list(LIGHT.series)
    assert len(set(light)) == len(light)
    assert all(f'[fill="{colour}"]' in dark_rules() for colour in light)


def test_an_incident_is_held_against_its_normal() -> None:
    """Each entry in percent of its own normal; the words have the numbers; a null is no zero."""
    spec = charts.incident_chart([
        {"signal": "sm_clock_mhz", "pci_bus_id": "0000:18:00.0", "value": 1530, "baseline": 1700, "peer_median": None},
        {"signal": "no_normal", "value": 3, "baseline": None},
    ])  # fmt: skip
    assert "sm_clock_mhz 0000:18:00.0: measured 90 %, own normal 100 %" in spec["description"]
    assert "no_normal" not in spec["description"]
    assert "peers" not in spec["description"]


def test_without_numbers_it_says_when() -> None:
    """Events have times: a line an entry, with how often."""
    spec = charts.incident_chart([{"signal": "xid_79", "since": T0, "last": T0 + timedelta(hours=2), "count": 4}])
    assert "xid_79: 4 × from 2026-11-20T00:00:00Z to 2026-11-20T02:00:00Z" in spec["description"]


@pytest.mark.parametrize(
    "spec",
    [
        charts.bars([], title="x", unit="y"), charts.lines([], title="x", unit="y"), charts.band_chart([], title="x"),
        charts.distribution([], title="x", unit="y"), charts.incident_chart([]),
        charts.lines([{"ts": T0, "value": None, "series": "a"}], title="x", unit="y"),
    ],
)  # fmt: skip
def test_nothing_is_drawn_as_words(spec: dict[str, Any], renderer: Renderer) -> None:
    """No rows, or only nulls: a picture that says so, with no axis."""
    assert "to show" in spec["description"] or "measured" in spec["description"] or "kept" in spec["description"]
    assert renderer.png(spec).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "spec",
    [
        charts.band_chart(BAND, title=HOSTILE, unit="MHz", onset=T0 + timedelta(hours=5), theme="dark"),
        charts.bars([{"name": HOSTILE, "value": 2.0, "low": 1.0, "high": 4.0, "group": "a"},
                     {"name": HOSTILE, "value": 3.0, "group": "b"}], title=HOSTILE, unit="x"),
        charts.lines([{"ts": r["ts"], "value": r["value"], "low": 1.0, "high": 9.0, "series": HOSTILE} for r in BAND],
                     title=HOSTILE, unit="x"),
        charts.distribution([{"value": 2.0**i, "share": i / 9} for i in range(10)], title=HOSTILE, unit="s",
                            quantiles={"median": 20.0}),
    ],
)  # fmt: skip
def test_pictures_are_well_formed_and_say_what_they_show(spec: dict[str, Any], renderer: Renderer) -> None:
    """SVG with role, title and description, hostile names as text; the same as PNG."""
    svg = renderer.svg(spec)
    root = ElementTree.fromstring(svg)  # noqa: S314 (made here)
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert [root[0].tag, root[1].tag] == [f"{space}title", f"{space}desc"]
    assert root[0].text == spec["title"] == '<script>alert(1)</script>"& [31m'
    assert root.get("aria-labelledby") == root[0].get("id")
    assert "<script" not in svg
    assert spec["description"] == root[1].text
    assert renderer.png(spec).startswith(b"\x89PNG")


def test_the_same_picture_is_drawn_once(renderer: Renderer) -> None:
    """The second time it is remembered."""
    spec = charts.bars([{"name": "a", "value": 1.0}], title="once", unit="x")
    first, begun = renderer.svg(spec), time.perf_counter()
    assert renderer.svg(spec) == first
    assert time.perf_counter() - begun < 0.1


def test_too_many_rows_and_addresses_are_refused(renderer: Renderer) -> None:
    """More than 5,000 rows, or data to be fetched: a sentence, and nothing is started."""
    many = {"layer": [{"data": {"values": [{"y": 1}] * (MOST_ROWS + 1)}, "mark": "line"}]}
    with pytest.raises(RenderError, match=r"5,001 rows, at most 5,000; aggregate first"):
        renderer.svg(many)
    with pytest.raises(RenderError, match="must be in it, not at an address"):
        renderer.svg({"data": {"url": "http://127.0.0.1:1/x.json"}, "mark": "bar"})


def test_what_never_answers_is_ended_and_what_died_is_started_again() -> None:
    """A deadline with a sentence; a drawing process that ends by itself is tried once more, then said."""
    slow = Renderer(deadline_s=0.3, command=(sys.executable, "-c", "import time; time.sleep(60)"))
    spec = charts.bars([{"name": "a", "value": 1.0}], title="x", unit="y")
    with pytest.raises(RenderError, match=r"not drawn within 0.3 s"):
        slow.svg(spec)
    slow.close()
    dead = Renderer(deadline_s=60, command=(sys.executable, "-c", ""))
    with pytest.raises(RenderError, match="ends by itself"):
        dead.svg(spec)
    dead.close()


def test_a_wrong_specification_is_a_sentence(renderer: Renderer) -> None:
    """What the engine says, and the process goes on."""
    with pytest.raises(RenderError, match="cannot be drawn"):
        renderer.svg({"mark": "no such mark", "data": {"values": []}, "encoding": {"x": {"field": 3}}})
    assert renderer.svg(charts.bars([], title="x", unit="y")).startswith("<svg")


def test_a_note_stands_for_a_picture() -> None:
    """Two lines, escaped, with the same alternative texts."""
    root = ElementTree.fromstring(note(HOSTILE, "too slow"))  # noqa: S314 (made here)
    assert (root.get("role"), root[1].text) == ("img", "too slow")
