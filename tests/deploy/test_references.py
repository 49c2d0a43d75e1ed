"""Whatever a file of ``deploy/`` names is there: commands, keys, ports, documents, files."""

from __future__ import annotations

import re
from pathlib import Path

import command_line
import pytest

from graynode.service.config import DEFAULT_PATH, Config
from graynode.service.init_config import keys

ROOT = Path(__file__).parents[2]
FILES = [
    path for path in sorted((ROOT / "deploy").rglob("*"))
    if path.is_file() and path.suffix in (".service", ".timer", ".yaml", ".yml", ".Containerfile", ".toml")
]  # fmt: skip
KEYS = {name for name, _, _ in keys()}
_PORTS = {
    listen.rpartition(":")[2]
    for listen in (
        *(getattr(Config(), role).metrics_listen for role in ("agent", "pipeline", "detect", "respond")),
        Config().serve.listen,
    )
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_named_is_there(file: Path) -> None:
    """Documents, other files of deploy/, ports, configuration keys and commands in text and comments alike."""
    text = file.read_text(encoding="utf-8")
    for name in re.findall(r"\b((?:docs|deploy|benchmarks)/[A-Za-z0-9_./-]+\.[A-Za-z]+)\b", text):
        assert (ROOT / name).exists(), name
    assert set(re.findall(r"\b94\d\d\b", text)) <= _PORTS
    for path in re.findall(r"/etc/graynode/[a-z]+\.toml", text):
        assert path == str(DEFAULT_PATH)
    for table, key in re.findall(
        r"(?<![-\w])(agent|bus|lake|pipeline|detect|respond|serve|cost|slurm)\.([a-z_]+)\b", text
    ):
        assert any(k == f"{table}.{key}" or k.startswith(f"{table}.{key}.") for k in KEYS) or key in _FILE_ENDS, key


_FILE_ENDS = {"yaml", "md", "svc", "toml", "service"}
"""What else stands behind a dot: a file, or a name in a cluster."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_commands_in_comments_parse(file: Path) -> None:
    """Lines that a person would copy: those that begin with graynode, or hand it to a container."""
    for line in file.read_text(encoding="utf-8").splitlines():
        found = re.match(r"^#\s+(?:kubectl .* -- )?graynode ([a-z].*)$", line) or re.search(r"-- graynode (.*)$", line)
        if found and found[1].split()[0] in {c.split()[0] for c in command_line.commands()}:
            said = command_line.problem(command_line.words_of(f"graynode {found[1].replace('…', '--name x')}"))
            assert said == "" or ":" in found[1].split()[0], (line, said)
