"""The configuration file of ``graynode init``: every key, its meaning, its default, and nothing that drifts."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.service.config import Config, parse
from graynode.service.config_words import EXAMPLES, WORDS
from graynode.service.init_config import keys, render, toml, wanted

KEYS = {name: (type_, default) for name, type_, default in keys()}
_LINE = re.compile(r"#?([a-z_0-9]+) = (.+)")
_TABLE = re.compile(r"(#?)(\[\[?)([A-Za-z0-9_.]+)\]\]?")


def shown(text: str) -> dict[str, tuple[str, str]]:
    """Every key of a file, set or not, with its text and the comment before it."""
    table, found, comment = "", {}, ""
    for line in text.splitlines():
        if header := _TABLE.fullmatch(line):
            table = header[3].replace("NAME", "*") + ("." if header[2] == "[" else ".*.")
        elif said := _LINE.fullmatch(line):
            found[table + said[1]] = (said[2], comment)
        comment = f"{comment} {line[2:]}" if line.startswith("# ") else ""
    return found


def uncommented(text: str) -> str:
    """The file with every ``#key = value`` of a default taken in; examples and their tables stay out."""
    kept, example, skip = [], False, False
    for line in text.splitlines():
        if header := _TABLE.fullmatch(line):
            skip = header[1] == "#"
        if _LINE.fullmatch(line) and not example and not skip:
            line = line.removeprefix("#")
        example = "an example)" in line if line.startswith("# ") else False
        kept.append(line)
    return "\n".join(kept)


def test_every_key_has_words() -> None:
    """A key that nobody explains is none; words for a key that is gone are wrong. One line in config_words.py."""
    assert sorted(set(KEYS) - set(WORDS)) == []
    assert sorted(set(WORDS) - set(KEYS)) == []
    assert sorted(set(EXAMPLES) - set(KEYS)) == []
    unset = {name for name, (_, default) in KEYS.items() if default is None or default is msgspec.NODEFAULT}
    assert sorted(unset - set(EXAMPLES)) == []


def test_every_key_is_in_the_file_with_its_meaning() -> None:
    """All of them, each below its table and behind its words."""
    file = shown(render())
    assert sorted(file) == sorted(KEYS)
    for name, (_, comment) in file.items():
        assert " ".join(WORDS[name].split()) in " ".join(comment.split()), name


def test_the_file_as_written_gives_the_defaults() -> None:
    """As it stands, and with every default line taken in: the same configuration as without a file."""
    assert parse(tomllib.loads(render()), "file") == Config()
    taken_in = uncommented(render())
    assert taken_in.count("\nbatch_s = 10.0") == 1
    settings = tomllib.loads(taken_in)
    assert settings["detect"]["pages_per_shift"] == 1
    assert parse(settings, "file") == Config()


def test_examples_parse() -> None:
    """Every example has its key's type: taken in, the file is still a configuration."""
    text = re.sub(r"^#(?=\[|[a-z_0-9]+ = )", "", render(), flags=re.MULTILINE)
    config = parse(tomllib.loads(text.replace('currency = ""', 'currency = "EUR"')), "file")
    assert list(config.respond.receivers) == ["NAME"]
    assert len(config.respond.routes) == len(config.cost.rented) == 1


def test_what_is_chosen_is_set() -> None:
    """A chosen value stands without #, and the default is said beside it."""
    text = render("all", {"bus.kind": "kafka", "bus.kafka.bootstrap": "k1:9092,k2:9092", "cluster": "alpha"})
    config = parse(tomllib.loads(text), "file")
    assert (config.cluster, config.bus.kind, config.bus.kafka.bootstrap) == ("alpha", "kafka", "k1:9092,k2:9092")
    assert '(default: "spool")' in text
    with pytest.raises(KeyError, match=r"bus\.knd"):
        render("all", {"bus.knd": "kafka"})


def test_a_role_has_its_own_tables() -> None:
    """An agent's file says nothing of the server, and both know the bus; together they are all."""
    agent, server = wanted("agent"), wanted("server")
    assert "bus" in agent and "bus" in server  # noqa: PT018 (one thought)
    assert not {"pipeline", "detect", "respond", "serve", "lake"} & set(agent)
    assert {"lake", "pipeline", "detect", "respond", "serve", "cost"} <= set(server)
    assert {*agent, *server} == set(wanted("all"))
    for role in ("agent", "server"):
        assert parse(tomllib.loads(render(role)), "file") == Config()  # type: ignore[arg-type]


_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"))
_KEYS = st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), min_size=1)
_NUMBERS = st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(_NUMBERS | _TEXTS, lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner), max_leaves=8)


@given(_VALUES)
def test_values_come_back_from_toml(value: Any) -> None:
    """Whatever is written is read as the same value."""
    assert tomllib.loads(f"key = {toml(value)}")["key"] == value
