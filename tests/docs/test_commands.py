"""Commands and SQL that the documents show are real: they parse, and the SQL runs."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import command_line
import pytest

from graynode.detectors.advice import ADVICE
from graynode.pipeline.lake import Lake
from graynode.pipeline.queries import Queries
from graynode.pipeline.schema import CAUSES, TABLES
from graynode.service.config import parse

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PREFIX = re.compile(r"^(?:\$ |sudo )?(?:\S*/)?graynode (?!is |finds |watches )")
_EXEC = re.compile(r"^kubectl .* -- (graynode .*)$")


def blocks(page: Path, *kinds: str) -> Iterator[str]:
    """Fenced blocks of these languages."""
    for kind, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        if kind in kinds:
            yield text


def lines(page: Path) -> Iterator[str]:
    """Command lines of graynode in fenced and indented blocks, continuation lines joined."""
    text = page.read_text(encoding="utf-8")
    said = [*blocks(page, "sh", "bash", "console", "text", ""), *re.findall(r"^    (graynode .*)$", text, re.MULTILINE)]
    for block in said:
        for line in block.replace("\\\n", " ").splitlines():
            line = line.strip()
            if inside := _EXEC.match(line):
                line = inside[1]
            if _PREFIX.match(line):
                yield _PREFIX.sub("graynode ", line)


COMMANDS = sorted({(str(page.relative_to(ROOT)), line) for page in PAGES for line in lines(page)})


def plain(line: str) -> list[str]:
    """The words, with stand-ins of the text replaced by values of the right kind."""
    if "[--" in line:  # an option that may be left out
        line = line.replace("[", "").replace("]", "")
    return command_line.words_of(line.replace("…", "x"))


@pytest.mark.parametrize("page", sorted({page for page, _ in COMMANDS}))
def test_commands_parse(page: str) -> None:
    """Each names a command and options that there are, with values of their kind."""
    wrong = {line: said for at, line in COMMANDS if at == page and (said := command_line.problem(plain(line)))}
    assert wrong == {}


_LEFT_OUT = ("Missing", "requires an argument", " is not ")
"""How the parser says that a value is missing, or is a stand-in."""


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_commands_in_the_text_exist(page: Path) -> None:
    """Commands named within a sentence may leave something out, but name no command and no option that is none."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for said in re.findall(r"(?<!`)`(graynode [a-z][^`\n]*)`", text):
        if not any(sign in said for sign in "[]<>*{}|="):
            wrong = command_line.problem(plain(said.replace("COMMAND", "sql")))
            assert not wrong or any(short in wrong for short in _LEFT_OUT), (said, wrong)


def test_the_checker_finds_what_is_wrong() -> None:
    """A misspelt command, an option that is none, a value that is none, a missing one: each is seen."""
    for line in (
        "graynode explian x",
        "graynode sql --formt csv",
        "graynode report --format pdf",
        "graynode label x maybe",
    ):
        assert command_line.problem(plain(line)), line
    for line in (
        "graynode sql",
        "graynode agent release --for 5m",
        "graynode thresholds",
        "graynode config check | less",
    ):
        assert command_line.problem(plain(line)) == "", line


def test_every_command_is_documented() -> None:
    """Somewhere in the documents each command is shown or named."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    leaves = {c for c in command_line.commands() if not any(o.startswith(f"{c} ") for o in command_line.commands())}
    assert sorted(c for c in leaves if f"graynode {c}" not in text) == []


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    """Every table, empty."""
    path = str(tmp_path_factory.mktemp("lake"))
    lake = Lake(path)
    for name in TABLES:
        lake.create(name)
    made = Queries(lake)
    yield made
    made.close()


def test_sql_of_commands_runs(queries: Queries) -> None:
    """What stands behind ``graynode sql -c`` is SQL over tables and columns that there are."""
    ran = 0
    for _, line in COMMANDS:
        words = shlex.split(line.replace("…", "x"), comments=True)
        if words[1] == "sql" and "-c" in words:
            queries.arrow(words[words.index("-c") + 1])
            ran += 1
    assert ran > 15


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_configuration_examples_parse(page: Path) -> None:
    """Every TOML block that looks like our configuration is one."""
    for text in blocks(page, "toml"):
        settings = tomllib.loads(text)
        if set(settings) & {
            "agent",
            "bus",
            "lake",
            "detect",
            "respond",
            "serve",
            "slurm",
            "cost",
            "steps",
            "kubernetes",
        }:
            parse(settings, str(page))


# --- runbooks, detectors -------------------------------------------------------------------------------------------

_PARTS = ("What it means", "How sure it is", "Look yourself", "Next step", "When it is a false alarm", "How it ends")


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_has_a_runbook(cause: str) -> None:
    """With every part, filled, and commands to look for oneself."""
    page = DOCS / "runbooks" / f"{cause}.md"
    text = page.read_text(encoding="utf-8")
    assert f"Cause `{cause}`." in text
    found = dict(re.findall(r"^## ([^\n]+)\n\n(.+?)(?=\n## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert tuple(found) == _PARTS
    assert all(len(part) > 30 for name, part in found.items() if name != "How it ends")
    assert any(line.startswith("graynode explain") for line in "\n".join(blocks(page, "sh")).splitlines())


def test_no_runbook_is_left_over() -> None:
    """Pages are those of the closed enumeration, and the first page lists them all."""
    assert {p.stem for p in (DOCS / "runbooks").glob("*.md")} - {"index"} == set(CAUSES) == set(ADVICE)
    index = (DOCS / "runbooks" / "index.md").read_text()
    assert all(f"({cause}.md)" in index for cause in CAUSES)


def test_each_detector_has_a_section() -> None:
    """What it sees, its false alarms, and how to tune it."""
    from graynode.detectors import NAMES

    text = (DOCS / "detectors.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\S+)\n(.+?)(?=\n## |\Z)", text, re.MULTILINE | re.DOTALL))
    for name in NAMES:
        assert "**False alarms.**" in sections[name], name
        assert "**Tune.**" in sections[name], name
