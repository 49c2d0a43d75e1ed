"""The status page in a real browser: every page at three sizes, light and dark, with axe; empty lake; hostile names."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages_site import HOSTILE, OPEN_ID, OVER_ID, Serving, Visit

pytestmark = pytest.mark.early
WIDTHS = (1440, 768, 360)
NODE, USER = quote(HOSTILE, safe=""), quote(HOSTILE, safe="")
PAGES = [
    "/", "/?state=suspect", "/nodes", "/nodes/sim-000", "/incidents", "/incidents?state=all", f"/incidents/{OPEN_ID}",
    "/jobs", "/jobs/ns/job/odd", f"/users/{USER}", "/cost", "/lemons",
]  # fmt: skip
SERIOUS = ("serious", "critical")


@pytest.mark.parametrize("path", [*PAGES, "/signin"])
def test_a_page_has_no_serious_axe_finding_and_fits_every_width_in_both_themes(
    visit: Visit, serving: Serving, path: str
) -> None:
    """No serious or critical finding of axe, no sideways scrolling at 1440, 768 and 360, light and dark."""
    page = visit(serving, None if path == "/signin" else "act", path)
    assert page.locator("main h1").count() == 1
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        found = Axe().run(page).response["violations"]
        assert [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found if v["impact"] in SERIOUS] == []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, f"{path} is {over} px too wide at {width}"


@pytest.mark.parametrize(
    "path",
    ["/", "/nodes", "/incidents?state=all", f"/incidents/{OVER_ID}", "/jobs", f"/users/{USER}", f"/nodes/{NODE}"],
)
def test_hostile_names_are_shown_as_text(visit: Visit, serving: Serving, path: str) -> None:
    """HTML in names of nodes and users, in titles, messages and raw lines is read, not run."""
    page = visit(serving, "read", path)
    assert page.locator("img[src=x]").count() == 0
    assert "<img src=x onerror=alert(1)>" in page.locator("main").inner_text() + page.locator("main").text_content()


@pytest.mark.parametrize(
    "path", ["/", "/nodes", "/incidents", "/incidents?state=all", "/jobs", "/users/nobody", "/cost", "/lemons"]
)
def test_an_empty_lake_says_what_to_do_next(visit: Visit, barren: Serving, path: str) -> None:
    """Where there is nothing yet, the page says why and what to do."""
    page = visit(barren, "read", path)
    assert page.locator("main .empty").first.is_visible()


def test_what_does_not_exist_is_said_on_a_page(visit: Visit, serving: Serving) -> None:
    """A node, a job and an incident that nobody knows: 404 with the way back, not JSON."""
    page = visit(serving, "read", "/nodes/sim-00", expected=("404",))
    assert "no node sim-00; near: sim-00" in page.locator("main").inner_text()
    for path in ("/jobs/no-such-job", "/incidents/ffffffff"):
        answer = page.goto(serving.url + path)
        assert answer is not None
        assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert page.get_by_role("link", name="To the fleet").is_visible()


def test_the_search_finds_nodes_gpus_incidents_jobs_and_users(visit: Visit, serving: Serving) -> None:
    """One box: each is opened by its own name."""
    page = visit(serving, "read")
    for text, path in (
        ("sim-000", "/nodes/sim-000"), (OPEN_ID[:8], f"/incidents/{OPEN_ID[:8]}"),
        ("ns/job/odd", "/jobs/ns%2Fjob%2Fodd"),
        (HOSTILE, f"/nodes/{NODE}"), ("sim-", "/nodes?q=sim-"),
    ):  # fmt: skip
        page.locator("body").press("/")
        page.keyboard.type(text)
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url, path=path: url == serving.url + path)


def test_the_theme_is_kept(visit: Visit, serving: Serving) -> None:
    """The switch goes auto, light, dark, and the next page is written in the chosen one."""
    page = visit(serving, "read")
    for _ in range(2):
        page.get_by_role("button", name="Theme").click()
    page.goto(serving.url + "/incidents")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
