"""The container files: few instructions, nobody is root, and what they copy and start is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import command_line
import pytest

from graynode.service.config import DEFAULT_PATH, Config
from graynode.service.process import is_address

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "deploy/containers").glob("*.Containerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}


def instructions(file: Path) -> list[tuple[str, str]]:
    """Instruction and text, lines joined, comments left out."""
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_last_stage_runs_as_nobody_special(file: Path) -> None:
    """A numeric user, so that an orchestrator sees that it is not root; known instructions only; no ADD."""
    said = instructions(file)
    assert {name for name, _ in said} <= _KNOWN
    last = max(i for i, (name, _) in enumerate(said) if name == "FROM")
    users = [text for name, text in said[last:] if name == "USER"]
    assert users
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", users[-1])
    started = [i for i, (name, _) in enumerate(said) if name == "USER"][-1]
    assert not any(name in ("RUN", "COPY") for name, _ in said[started:])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_bases_are_named_by_version(file: Path) -> None:
    """A tag that names Python's version, the same in both stages; no "latest"; the file says why there is no digest."""
    bases = {text.split()[0] for name, text in instructions(file) if name == "FROM"}
    assert len(bases) == 1
    assert re.search(r":3\.\d+-slim-[a-z]+$", bases.pop())
    assert "not by a digest" in file.read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_is_copied_and_installed_is_there(file: Path) -> None:
    """Every folder of the package mapping is copied, nothing that is not there, and the extras exist."""
    said = instructions(file)
    copied = {word for name, text in said if name == "COPY" and "--from" not in text for word in text.split()[:-1]}
    assert {word for word in copied if not (ROOT / word).exists()} == set()
    assert set(PROJECT["tool"]["setuptools"]["package-dir"].values()) <= copied
    assert {"pyproject.toml", "README.md", "LICENSE"} <= copied
    extras = re.search(r'"\.\[([a-z,]+)\]"', file.read_text())
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["project"]["optional-dependencies"])


def test_what_is_started_is_a_command() -> None:
    """The agent's main with the default file; the server's program, whose command the orchestrator names."""
    agent, server = (dict(instructions(file)) for file in FILES)
    assert '"graynode.service.agent_main"' in agent["ENTRYPOINT"]
    assert agent["CMD"] == f'["--config", "{DEFAULT_PATH}"]'
    assert command_line.problem(["agent", "--config", str(DEFAULT_PATH)]) == ""
    assert server["ENTRYPOINT"] == '["/opt/graynode/bin/graynode"]'
    assert command_line.problem(["--help"]) == ""


def test_ports_are_the_configurations() -> None:
    """What is exposed is what the roles listen on by default."""
    c = Config()
    listens = [c.pipeline.metrics_listen, c.detect.metrics_listen, c.respond.metrics_listen, c.serve.listen]
    assert all(map(is_address, [c.agent.metrics_listen, *listens]))
    agent, server = (dict(instructions(file))["EXPOSE"].split() for file in FILES)
    assert agent == [c.agent.metrics_listen.rpartition(":")[2]]
    assert server == [listen.rpartition(":")[2] for listen in listens]


def test_images_carry_the_version() -> None:
    """The tag that the files and manifests name is this version's."""
    version = PROJECT["project"]["version"]
    for file in [*FILES, *(ROOT / "deploy/kubernetes").glob("*.yaml")]:
        assert set(re.findall(r"graynode-(?:agent|server):(\S+)", file.read_text())) <= {version}, file
