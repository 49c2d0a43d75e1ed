"""The configuration file that ``graynode init`` writes: every key with meaning and default, made from the structs.

A line ``#key = value`` is a default, to be changed by taking off the ``#``: what stays behind one follows a newer
version's defaults. Keys without a default are shown with an example. What the site has chosen stands without ``#``.
"""

# ruff: noqa: ANN401 (a TOML value is any value)
from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec

from graynode.service.config import Config
from graynode.service.config_tables import Section
from graynode.service.config_words import EXAMPLES, WORDS

Role = Literal["all", "agent", "server"]
_AGENT: Final = frozenset(
    {"agent", "bus", "slurm", "steps", "job_log", "services", "kubernetes", "fields", "dcgm", "simulated", "replay"}
)
_SHARED: Final = frozenset({"bus"})
_WIDTH: Final = 118
_HEAD: Final = """\
# graynode: one file for every role; each reads its own tables. A flag wins over GRAYNODE_<TABLE>__<KEY> in the
# environment, that over this file, that over the default. "graynode config check" shows what is in force.
# A line that begins with # and a key is the default, or an example: take the # off to change it.
# Secrets are files of mode 0600 that this file names; never values.
"""


def wanted(role: Role) -> list[str]:
    """The tables that a machine of this role needs, in the order of the file."""
    tables = [f.name for f in msgspec.structs.fields(Config) if _section(f.type)]
    if role == "all":
        return tables
    return [name for name in tables if name in _SHARED or (name in _AGENT) == (role == "agent")]


def render(role: Role = "all", chosen: Mapping[str, Any] | None = None) -> str:
    """The file's text. ``chosen`` are dotted keys with values that are set."""
    said = dict(chosen or {})
    lines = [_HEAD, *_key("cluster", "default", said)]
    for table in wanted(role):
        (found,) = (f for f in msgspec.structs.fields(Config) if f.name == table)
        lines += _table(table, found.type, said)
    if said:
        raise KeyError(f"no key {', '.join(sorted(said))} for role {role}")
    return "\n".join(lines).rstrip() + "\n"


def keys(section: Any = Config, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every key: dotted name (``*`` for a name that the site chooses), type, default (``NODEFAULT`` if required)."""
    for f in msgspec.structs.fields(section):
        name = f"{prefix}{f.encode_name}"
        if _section(f.type):
            yield from keys(f.type, f"{name}.")
        elif (inner := _named(f.type)) is not None:
            yield from keys(inner[0], f"{name}.*.")
        else:
            yield name, f.type, _default(f)


def _table(name: str, section: Any, chosen: dict[str, Any], form: str = "[{}]") -> Iterator[str]:
    """A table's header, its keys, then the tables below it. ``form`` of the header says whether it is an example."""
    yield ""
    yield from _comment(_first(section.__doc__ or ""))
    yield form.format(name.removesuffix(".*") if "[[" in form else name.replace("*", "NAME"))
    below: list[tuple[str, Any, str]] = []
    for f in msgspec.structs.fields(section):
        key = f"{name}.{f.encode_name}"
        if _section(f.type):
            below.append((key, f.type, form))
        elif (inner := _named(f.type)) is not None:
            below.append((f"{key}.*", inner[0], "#[[{}]]" if inner[1] else "#[{}]"))
        else:
            yield from _key(key, _default(f), chosen)
    for key, inner_type, inner_form in below:
        yield from _table(key, inner_type, chosen, inner_form)


def _default(field_: Any) -> Any:
    return field_.default_factory() if field_.default_factory is not msgspec.NODEFAULT else field_.default


def _key(key: str, default: Any, chosen: dict[str, Any]) -> Iterator[str]:
    name, words, value, mark = key.rpartition(".")[2], WORDS.get(key, ""), default, "#"
    if key in chosen:
        words += "" if _absent(default) else f" (default: {toml(default)})"
        value, mark = chosen.pop(key), ""
    elif _absent(default):
        words += " (required; an example)" if default is msgspec.NODEFAULT else " (not set by default; an example)"
        value = EXAMPLES.get(key, "")
    yield from _comment(words)
    yield f"{mark}{name} = {toml(value)}"


def _absent(default: Any) -> bool:
    return default is None or default is msgspec.NODEFAULT


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _first(text: str) -> str:
    """The first paragraph of a docstring, as plain text."""
    return " ".join(text.split("\n\n")[0].replace("``", "").split())


def toml(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_bare(k)} = {toml(v)}" for k, v in value.items()) + " }" if value else "{}"
    return "[" + ", ".join(toml(item) for item in value) + "]"


def _bare(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _section(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, Section)


def _named(type_: Any) -> tuple[Any, bool] | None:
    """The struct of a table with free names (``dict[str, Webhook]``), or of a list of tables (then ``True``)."""
    if get_origin(type_) in (Union, UnionType):
        return next((found for part in get_args(type_) if (found := _named(part)) is not None), None)
    if get_origin(type_) in (dict, tuple, list):
        structs = [part for part in get_args(type_) if _section(part)]
        return (structs[0], get_origin(type_) is not dict) if structs else None
    return None
