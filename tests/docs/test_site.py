"""The documentation site: builds strictly, loads nothing from elsewhere, forgets no page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
_LOADS = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; strict, so a broken link or a forgotten page has ended it."""
    folder = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-I", "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder


class _Loaded(HTMLParser):
    """Addresses that a browser would fetch by itself; what a person clicks is not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.images_without_words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        address = said.get(_LOADS.get(tag, ""), "")
        if address and not (tag == "link" and said.get("rel") in ("canonical", "prev", "next")):
            self.found.append(address)
        if tag == "img" and not said.get("alt"):
            self.images_without_words.append(address or "?")


def pages(site: Path) -> Iterator[tuple[Path, _Loaded]]:
    """Every page, read."""
    for page in sorted(site.rglob("*.html")):
        read = _Loaded()
        read.feed(page.read_text(encoding="utf-8"))
        yield page, read


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """Every script, style, font and picture is the site's own, and is there; each picture has words."""
    count = 0
    for page, read in pages(site):
        count += 1
        assert read.images_without_words == [], page
        for address in read.found:
            assert not re.match(r"([a-z]+:)?//", address), f"{page}: {address}"
            if not address.startswith("data:"):
                target = site / address.lstrip("/") if address.startswith("/") else page.parent / address
                assert Path(str(target).partition("?")[0].partition("#")[0]).exists(), f"{page}: {address}"
    assert count > 60
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import\s+)['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_no_page_needs_the_script_that_material_would_fetch(site: Path) -> None:
    """Its diagrams come from elsewhere: so there are none, but pictures of our own."""
    assert not any('class="mermaid"' in page.read_text(encoding="utf-8") for page in site.rglob("*.html"))


def test_settings_stay_portable() -> None:
    """No plugin but search, no font, no template of our own: the theme's successor reads the same file."""
    assert SETTINGS["plugins"] == ["search"]
    assert SETTINGS["theme"]["font"] is False
    assert "custom_dir" not in SETTINGS["theme"]
    assert not {"extra_javascript", "extra_css", "hooks"} & set(SETTINGS)
    assert SETTINGS["strict"] is True


def _named(entry: object) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for inner in entry.values():
            yield from _named(inner)
    elif isinstance(entry, list):
        for inner in entry:
            yield from _named(inner)


def test_every_page_is_in_the_navigation() -> None:
    """Once, and nothing else is. A new page is one line in mkdocs.yml."""
    there = sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md"))
    assert sorted(_named(SETTINGS["nav"])) == there


@pytest.mark.parametrize("picture", sorted(DOCS.rglob("*.svg")), ids=lambda p: p.name)
def test_drawings_say_what_they_show(picture: Path) -> None:
    """A title and a description inside, and nothing that is fetched or run."""
    text = picture.read_text(encoding="utf-8")
    root = ET.fromstring(text)  # noqa: S314 (our own file)
    names = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert {"title", "desc"} <= set(names)
    assert not {"script", "image", "use", "foreignObject"} & set(names)
    assert not re.findall(r'(?:href|src)="(?!#)', text)
