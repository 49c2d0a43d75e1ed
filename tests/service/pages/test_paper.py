"""Pages on paper, pictures that are not there yet, unmuting by clicking; and axe over a fleet of 12,500 nodes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from axe_playwright_python.sync_playwright import Axe
from pages_site import CLUSTER, OPEN_ID, Serving, Visit
from playwright.sync_api import Route, expect

from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform

pytestmark = pytest.mark.early
_DARK = "rgb(27, 32, 39)"
"""The text's colour on paper."""


@pytest.mark.parametrize("path", ["/", f"/incidents/{OPEN_ID}", "/nodes/sim-000", "/cost"])
def test_on_paper_there_is_no_navigation_and_no_cut_table(visit: Visit, serving: Serving, path: str) -> None:
    """Dark words on white whatever the theme, nothing to click, nothing wider than the sheet, upright or across."""
    page = visit(serving, "act", path)
    page.emulate_media(media="print", color_scheme="dark", reduced_motion="reduce")
    for hidden in ("nav", ".find", ".act", "#theme", "#signout"):
        for found in page.locator(hidden).all():
            assert not found.is_visible(), hidden
    assert page.evaluate("getComputedStyle(document.querySelector('main h1')).color") == _DARK
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    for width in (700, 1030):  # A4 at 96 to the inch, less its margins
        page.set_viewport_size({"width": width, "height": 1000})
        cut = page.evaluate(
            "[...document.querySelectorAll('table, pre, svg, img')].filter(e => e.getClientRects().length"
            " && (e.getBoundingClientRect().right > innerWidth + 1 || e.scrollWidth > e.clientWidth + 1"
            " && getComputedStyle(e).overflowX !== 'visible')).map(e => e.outerHTML.slice(0, 120))"
        )
        assert cut == []
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_a_picture_that_is_being_drawn_says_so(visit: Visit, serving: Serving) -> None:
    """Its place is not blank while it is drawn, and is the picture's afterwards; a failure is said."""
    page = visit(serving, "read", expected=("503",))
    drawn, fail = threading.Event(), False

    def slow(route: Route) -> None:
        if fail:
            route.fulfill(status=503, body="no")
        elif drawn.is_set():
            route.continue_()
        else:
            held.append(route)

    held: list[Route] = []
    page.route("**/picture.svg*", slow)
    page.goto(f"{serving.url}/incidents/{OPEN_ID}", wait_until="domcontentloaded")
    waiting = page.locator(".picture .waiting")
    expect(waiting).to_be_visible()
    expect(waiting).to_have_text("The picture is being drawn…")
    drawn.set()
    page.locator(".picture").scroll_into_view_if_needed()
    page.wait_for_timeout(100)
    for route in held:
        route.continue_()
    expect(waiting).to_be_hidden()
    assert page.locator(".picture img").first.evaluate("e => e.naturalWidth") > 0
    fail = True
    page.goto(f"{serving.url}/incidents/{OPEN_ID}")
    page.locator(".picture").scroll_into_view_if_needed()
    expect(waiting).to_contain_text("could not be drawn")


def test_a_node_is_unmuted_by_clicking(visit: Visit, serving: Serving) -> None:
    """The form says that it is heard again, and so does the bus."""
    page = visit(serving, "act", "/nodes/sim-001")
    form = page.locator("form[data-api$='/unmute']")
    form.get_by_label("Why").fill("is back")
    form.get_by_role("button", name="Unmute").click()
    expect(form.locator(".outcome.good")).to_contain_text("is heard again")
    (said,) = [row for row in serving.said("mute") if row["why"] == "is back"]
    assert (said["node"], said["who"], said["until"]) == ("sim-001", "act", said["ts"])


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Serving]:
    """12,500 nodes in racks of sixteen, one in a hundred of them silent."""
    lake = Lake(str(tmp_path / "lake"))
    at = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=2)
    nodes = pl.DataFrame({"n": pl.int_range(12_500, eager=True)}).select(
        pl.lit(at).alias("ts"), pl.lit(CLUSTER).alias("cluster"), pl.format("id-{}", "n").alias("node_id"),
        pl.format("node{}", pl.col("n").cast(pl.String).str.zfill(5)).alias("node"),
        pl.concat_str(pl.lit('{"rack": "r'), pl.col("n") // 16, pl.lit('"}')).alias("attributes"),
        silent=pl.col("n") % 100 == 7,
    )  # fmt: skip
    told = nodes.drop("silent").with_columns(kind=pl.lit("node"), entity=pl.col("node_id"))
    lake.write("inventory", conform("inventory", told))
    seen = nodes.filter(~pl.col("silent")).select("ts", "cluster", "node_id", "node", samples=pl.lit(30))
    lake.write("host_30s", conform("host_30s", seen))
    (tmp_path / "bus").mkdir()
    made = Serving(tmp_path, lake)
    made.start()
    yield made
    made.stop()


@pytest.mark.long
def test_a_grid_of_12_500_nodes_has_no_serious_axe_finding(visit: Visit, large: Serving) -> None:
    """As of the small fleet, light and dark."""
    page = visit(large, "act", "/")
    for _ in range(60):  # the first look at a fleet takes a while
        if page.locator("#grid a").count():
            break
        page.wait_for_timeout(1000)
        page.reload()
    assert page.locator("#grid a").count() >= 700
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        found = Axe().run(page).response["violations"]
        assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found if v["impact"] in ("serious", "critical")] == []
