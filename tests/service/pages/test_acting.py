"""Signing in, saying something from the page, keys alone, live updates and a restart: by a real browser."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pages_site import OPEN_ID, Serving, Visit, incident, write_rows
from playwright.sync_api import expect

pytestmark = pytest.mark.early


def test_an_incident_is_opened_and_labelled_by_clicking(visit: Visit, serving: Serving) -> None:
    """From the fleet to the incident to a verdict; the row is on the bus, signed with the token's name."""
    page = visit(serving, "act")
    page.get_by_role("link", name="Slow GPU on").first.click()
    page.wait_for_url(f"**/incidents/{OPEN_ID}")
    page.get_by_label("Yes, it was").check()
    page.get_by_label("Why, in a few words").fill("probe was 8 % slow <b>")
    page.get_by_role("button", name="Label").click()
    expect(page.locator("form .outcome.good")).to_contain_text("true")
    said = [row for row in serving.said("label") if row["why"] == "probe was 8 % slow <b>"]
    assert [(row["incident_id"], row["verdict"], row["who"]) for row in said] == [(OPEN_ID, "true", "act")]


def test_acknowledging_and_muting_say_their_outcome_in_place(visit: Visit, serving: Serving) -> None:
    """Each form tells what came of it; what was refused stays typed."""
    page = visit(serving, "act", f"/incidents/{OPEN_ID}", expected=("400",))
    form = page.locator("form[data-api$='/ack']")
    form.get_by_label("What you are doing").fill("on my way")
    form.get_by_role("button").click()
    expect(form.locator(".outcome.good")).to_contain_text("taken by act")
    form = page.locator("form[data-api$='/mute']")
    form.get_by_label("How long").fill("100d")
    form.get_by_label("Why").fill("being moved")
    form.get_by_role("button").click()
    expect(form.locator(".outcome.bad")).to_contain_text("90d")
    assert form.get_by_label("Why").input_value() == "being moved"
    form.get_by_label("How long").fill("2h")
    form.get_by_role("button").click()
    expect(form.locator(".outcome.good")).to_contain_text("muted until")
    assert [row["until"] is not None for row in serving.said("mute") if row["why"] == "being moved"] == [True]


def test_a_reason_is_needed(visit: Visit, serving: Serving) -> None:
    """Without one nothing is sent."""
    page = visit(serving, "act", f"/incidents/{OPEN_ID}")
    form = page.locator("form[data-api$='/label']")
    form.get_by_label("Unsure").check()
    form.get_by_role("button").click()
    assert form.get_by_label("Why").evaluate("e => e.validity.valueMissing")
    assert form.locator(".outcome").inner_text() == ""


def test_a_token_that_may_read_is_shown_no_form_and_refused(visit: Visit, serving: Serving) -> None:
    """The page says what is needed; the server refuses whoever asks anyway, and whoever has no CSRF token."""
    post = """async ([path, csrf]) => (await fetch(path, {
        method: 'POST', body: JSON.stringify({verdict: 'true', why: 'x'}),
        headers: {'Content-Type': 'application/json', 'X-CSRF-Token': csrf}})).status"""
    path = f"/api/v1/incidents/{OPEN_ID}/label"
    reader = visit(serving, "read", f"/incidents/{OPEN_ID}", expected=("403",))
    assert reader.locator("form[data-api]").count() == 0
    assert "graynode token create" in reader.locator("main").inner_text()
    csrf = reader.locator("meta[name=graynode-csrf]").get_attribute("content")
    assert reader.evaluate(post, [path, csrf]) == 403
    actor = visit(serving, "act", f"/incidents/{OPEN_ID}", expected=("403",))
    assert actor.evaluate(post, [path, ""]) == 403


def test_a_wrong_token_is_said_and_the_page_that_was_asked_for_is_opened_after_a_right_one(
    visit: Visit, serving: Serving
) -> None:
    """Typed, wrong, then right; the token is neither in the address nor in the page afterwards."""
    page = visit(serving, None, "/jobs?state=failed", expected=("401",))
    assert "/signin" in page.url
    page.get_by_label("Token").fill("graynode_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".outcome.bad")).to_contain_text("wrong")
    page.get_by_label("Token").fill(serving.tokens["read"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/jobs?state=failed")
    assert serving.tokens["read"] not in page.content()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/signin")
    page.goto(serving.url + "/")
    assert "/signin" in page.url


def test_keys_alone_lead_from_the_fleet_to_an_incident(visit: Visit, serving: Serving) -> None:
    """Skip link, one stop in the grid, arrows to the sick node, Enter; there the incident's link, Enter."""
    page = visit(serving, "read")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('.cells') !== null"):
            break
    sick = page.locator(".cells a.s").first.get_attribute("href")
    for _ in range(10):
        if page.evaluate("document.activeElement.getAttribute('href')") == sick:
            break
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{sick}")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("(document.activeElement.getAttribute('href') ?? '').startsWith('/incidents/')"):
            break
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/incidents/{OPEN_ID}")


def test_the_grid_is_one_stop_of_the_tab_key_and_arrows_move_in_it(visit: Visit, serving: Serving) -> None:
    """Only one cell can be tabbed to; End and Home, right and left go where they say."""
    page = visit(serving, "read")
    expect(page.locator(".cells a[tabindex='0']")).to_have_count(1)
    page.locator(".cells a").first.focus()
    hrefs = [page.locator(".cells a").nth(i).get_attribute("href") for i in range(page.locator(".cells a").count())]
    for key, at in (("End", -1), ("Home", 0), ("ArrowRight", 1), ("ArrowLeft", 0)):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.getAttribute('href')") == hrefs[at]


def test_a_change_arrives_on_an_open_page_and_after_a_restart(visit: Visit, serving: Serving) -> None:
    """A new incident appears without a reload and is said to screen readers; serve restarts; another one appears."""
    page = visit(serving, "read", expected=("ERR_", "503"))
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    at = datetime.now(UTC)
    of = {"node_id": "id-new", "node": "sim-000"}
    write_rows(serving.lake, "incident", [incident("cccc0000-0000-4000-8000-000000000003", at, of, title="First news")])
    expect(page.locator("#open")).to_contain_text("First news", timeout=30_000)
    expect(page.locator("#news")).to_contain_text("pages open")
    serving.stop()
    expect(page.locator("#live")).to_have_attribute("data-state", "behind", timeout=30_000)
    at = datetime.now(UTC)
    write_rows(
        serving.lake, "incident", [incident("dddd0000-0000-4000-8000-000000000004", at, of, title="Second news")]
    )
    serving.start()
    expect(page.locator("#open")).to_contain_text("Second news", timeout=60_000)
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    for id_ in ("cccc0000-0000-4000-8000-000000000003", "dddd0000-0000-4000-8000-000000000004"):
        done = {"state": "resolved", "revision": 1, "resolved_ts": datetime.now(UTC), "ts": datetime.now(UTC)}
        write_rows(serving.lake, "incident", [incident(id_, at, of) | done])
