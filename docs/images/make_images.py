"""Pictures of the status page for the documentation, of a simulated fleet.

    python docs/images/make_images.py

Simulates 24 nodes over 14 days (seed 7), replays detection over them, puts the incidents beside the history, serves it
as it was at its end and takes ``fleet``, ``incident``, ``node``, ``cost`` and ``dark``. ``--lake`` takes a lake that
is made already.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl
import uvicorn
from playwright.sync_api import Page, sync_playwright

from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.pipeline.queries import Queries
from graynode.service.api.app import create_app
from graynode.service.api.state import Served
from graynode.service.config import load
from graynode.service.fleet_now import FleetWatch
from graynode.service.tokens import Tokens

SEED: Final = 7
_GRAYNODE: Final = (sys.executable, "-m", "graynode.service.cli")
_HERE: Final = Path(__file__).parent
_SIZE: Final = {"width": 1280, "height": 860}
_TOLD: Final = ("incident", "finding")


def make_lake(folder: Path) -> Path:
    """A simulated lake with what detection would have told of it."""
    lake, replay = folder / "lake", folder / "replay"
    wanted = ("--nodes", "24", "--days", "14", "--seed", str(SEED), "--out", str(lake))
    subprocess.run([*_GRAYNODE, "simulate", *wanted], check=True)
    subprocess.run([*_GRAYNODE, "replay", "--from-lake", str(lake), "--out", str(replay)], check=True)
    with closing(Queries(Lake(str(replay / "lake")))) as queries:
        for table in _TOLD:
            rows = queries.frame(f"SELECT * EXCLUDE (date) FROM {table}")  # noqa: S608 (this module's own words)
            Lake(str(lake)).write(table, conform(table, rows.with_columns(pl.lit("simulated").alias("cluster"))))
    return lake


def take(folder: Path, lake: Path) -> None:
    """Serve the lake at its end of time and take the pictures."""
    (folder / "bus").mkdir()
    file = folder / "graynode.toml"
    file.write_text(
        f'cluster = "simulated"\n[lake]\npath = "{lake}"\n[bus]\nspool_dir = "{folder}/bus"\n'
        f'[serve]\ntokens_file = "{folder}/tokens.json"\ndeadline_s = 300.0\n[cost.per_gpu_hour]\n"*" = 2.5\n'
    )
    config = load(file, env={})
    token = Tokens(config.serve.tokens_file).create("on-call", "act", None, datetime.now(UTC))
    watch = FleetWatch(config)
    at = watch.refresh().at or datetime.now(UTC)
    served = Served.open(config, watch, lambda: at + timedelta(seconds=12))
    server = uvicorn.Server(uvicorn.Config(create_app(served), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.05)
        _shoot(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", token)
    finally:
        server.should_exit = True
        thread.join()
        watch.stop()


def _shoot(url: str, token: str) -> None:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_context(viewport=_SIZE, reduced_motion="reduce").new_page()
        page.set_default_timeout(300_000)
        page.goto(f"{url}/#token={token}")
        page.wait_for_selector("#live[data-state=live]")
        _picture(page, "fleet")
        page.emulate_media(color_scheme="dark")
        _picture(page, "dark")
        page.emulate_media(color_scheme="light")
        page.locator("#open th a").last.click()
        _incident(page)
        page.locator("dd a[href^='/nodes/']").first.click()
        page.wait_for_selector("#gpus svg")
        page.locator("#gpus").scroll_into_view_if_needed()
        _picture(page, "node")
        page.goto(f"{url}/cost")
        page.wait_for_selector("svg.stacked")
        _picture(page, "cost")
        browser.close()


def _incident(page: Page) -> None:
    page.wait_for_selector(".picture img")
    page.locator(".picture img").first.scroll_into_view_if_needed()
    page.locator(".picture img").first.evaluate("i => i.decode()")
    page.evaluate("scrollTo(0, 0)")
    _picture(page, "incident")


def _picture(page: Page, name: str) -> None:
    page.wait_for_timeout(300)
    page.screenshot(path=_HERE / f"{name}.png", full_page=name == "incident")


def main() -> None:
    """Make the pictures."""
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    asked.add_argument("--lake", type=Path, help="a lake that is made already")
    told = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        take(Path(folder), told.lake or make_lake(Path(folder)))


if __name__ == "__main__":
    main()
