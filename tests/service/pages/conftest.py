"""A real browser and a real ``graynode serve`` over one small simulated lake, each started once for these suites."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pages_site import CHROMIUM, Serving, Visit, small_lake
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from graynode.pipeline.lake import Lake


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The server over the small lake."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "bus").mkdir()
    made = Serving(folder, small_lake(folder / "lake"))
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def barren(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The server over a lake that is not there yet."""
    folder = tmp_path_factory.mktemp("barren")
    (folder / "bus").mkdir()
    made = Serving(folder, Lake(str(folder / "lake")))
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for a module: while playwright runs, this thread has an event loop, and other tests start theirs."""
    if not Path(CHROMIUM).exists():
        reason = f"{CHROMIUM} is missing: apt-get install chromium"
        pytest.fail(reason, pytrace=False) if os.environ.get("CI") == "true" else pytest.skip(reason)
    expect.set_options(timeout=60_000)  # a busy machine is not a fault
    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """``visit(serving, "act")``: a page that is signed in with a token of that scope, or none.

    At the end nothing may have been said on the console (but what ``expected`` names), no script may have
    failed, and nobody but the server may have been asked for anything.
    """
    wrong: list[str] = []
    with _closing_all() as contexts:

        def go(serving: Serving, scope: str | None = "act", path: str = "/", expected: Sequence[str] = ()) -> Page:
            context = browser.new_context(reduced_motion="reduce")
            contexts.append(context)
            page = context.new_page()
            page.set_default_timeout(60_000)

            def outside(request: Request) -> None:
                if not request.url.startswith((serving.url, "data:")):
                    wrong.append(f"asked {request.url}")

            def console(kind: str, text: str) -> None:
                if kind in ("error", "warning") and not any(word in text for word in expected):
                    wrong.append(f"{kind}: {text}")

            page.on("request", outside)
            page.on("console", lambda m: console(m.type, m.text))
            page.on("pageerror", lambda e: wrong.append(str(e)))
            page.on("dialog", lambda d: wrong.append(f"dialog {d.message}"))
            if scope is not None:
                page.goto(f"{serving.url}/#token={serving.tokens[scope]}")
                page.wait_for_selector("body[data-signed-in]")
            if scope is None or path != "/":
                page.goto(serving.url + path)
            return page

        yield go
    assert wrong == []


@contextmanager
def _closing_all() -> Iterator[list[Any]]:
    made: list[Any] = []
    try:
        yield made
    finally:
        for one in made:
            one.close()
