"""Configuration: one TOML file, a table per role, every key typed and with a default that is safe.

Order of precedence: command-line flag, ``GRAYNODE_<TABLE>__<KEY>`` in the environment, file, default. A wrong
key or value stops the start and says which key, what was given and what is allowed.
"""

# ruff: noqa: ANN401 (a TOML value is any value until it has been checked)
from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, field

from graynode.service.config_tables import (
    Agent,
    Bus,
    Cost,
    Dcgm,
    Detect,
    Fields,
    JobLog,
    Kubernetes,
    LakeSection,
    Pipeline,
    Replay,
    Report,
    Section,
    Serve,
    Services,
    Simulated,
    Slurm,
    Steps,
)
from graynode.service.respond_tables import Respond

DEFAULT_PATH: Final = Path("/etc/graynode/graynode.toml")
_ENV_PREFIX: Final = "GRAYNODE_"
_TYPES: Final = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


class ConfigError(Exception):
    """The configuration cannot be used; the text names key, value and what is allowed."""


class Config(Section, frozen=True):
    """The whole file."""

    cluster: Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._-]+$")] = "default"
    agent: Agent = field(default_factory=Agent)
    bus: Bus = field(default_factory=Bus)
    lake: LakeSection = field(default_factory=LakeSection)
    pipeline: Pipeline = field(default_factory=Pipeline)
    detect: Detect = field(default_factory=Detect)
    cost: Cost = field(default_factory=Cost)
    respond: Respond = field(default_factory=Respond)
    serve: Serve = field(default_factory=Serve)
    report: Report = field(default_factory=Report)
    slurm: Slurm = field(default_factory=Slurm)
    steps: Steps = field(default_factory=Steps)
    job_log: JobLog = field(default_factory=JobLog)
    simulated: Simulated = field(default_factory=Simulated)
    replay: Replay = field(default_factory=Replay)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)
    services: Services = field(default_factory=Services)
    fields: Fields = field(default_factory=Fields)
    dcgm: Dcgm = field(default_factory=Dcgm)


def load(
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> Config:
    """The configuration in force. ``flags`` are dotted keys (``{"agent.batch_s": 1}``).

    Without ``path`` the default file is read if it exists. ``ConfigError`` where anything is wrong.
    """
    settings, source = _read(path), str(path or DEFAULT_PATH)
    for name, text in (os.environ if env is None else env).items():
        if _is_ours(name):
            _put(settings, name[len(_ENV_PREFIX) :].lower().split("__"), text)
            source = f"{path or DEFAULT_PATH} and the environment"
    for key, value in (flags or {}).items():
        if value is not None:
            _put(settings, key.split("."), value)
    return parse(settings, source)


def parse(settings: Mapping[str, Any], source: str) -> Config:
    """Settings as read from TOML, checked. Texts are taken for numbers where a number is wanted (environment)."""
    _check_keys(settings, Config, "", source)
    try:
        config = msgspec.convert(settings, Config, strict=False, dec_hook=_path)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at ")
        key = where.rpartition("`$.")[2].strip("`") or "the file"  # of a mapping's key: "`key` in `$.detect.…`"
        raise ConfigError(f"{source}: {_named(settings, key)}: {_allowed(key, message)}") from error
    if config.fields.off or config.fields.every:
        _check_switches(config.fields, source)
    if config.cost != Cost():
        _check_cost(config.cost, source)
    return config


def _check_cost(cost: Cost, source: str) -> None:
    from graynode.service.cost_prices import WrongPrice, check
    from graynode.service.cost_work import WrongRule, check_rules

    try:
        check(cost)
        check_rules(cost.work)
    except (WrongPrice, WrongRule) as error:
        raise ConfigError(f"{source}: {error}") from error


def _check_switches(fields: Fields, source: str) -> None:
    from graynode.collectors.switches import switches

    try:
        switches(fields.off, fields.every)
    except ValueError as error:
        raise ConfigError(f"{source}: fields.{error}") from error


def _is_ours(name: str) -> bool:
    """Whether a variable of the environment is a setting.

    Others use our prefix too (Kubernetes gives each pod ``<SERVICE>_PORT``), so one without ``__`` is passed over,
    unless it is a key of ours with the underscores of its tables too few: that is an error.
    """
    key = name.removeprefix(_ENV_PREFIX).lower()
    if not name.startswith(_ENV_PREFIX):
        return False
    if "__" in key or key in Config.__struct_fields__:
        return True
    for dotted in _dotted(Config):
        if dotted.replace(".", "_") == key:
            right = _ENV_PREFIX + dotted.replace(".", "__").upper()
            raise ConfigError(f"the environment: unknown {name}; did you mean {right}?")
    return False


def _dotted(section: Any, prefix: str = "") -> Iterator[str]:
    for field_ in msgspec.structs.fields(section):
        if _is_section(field_.type):
            yield from _dotted(field_.type, f"{prefix}{field_.name}.")
        else:
            yield prefix + field_.name


def _path(type_: type, value: Any) -> Path:
    if type_ is Path and isinstance(value, str | Path):
        if "\0" in str(value):
            raise ValueError("a path cannot hold the character NUL")
        return Path(value)
    raise ValueError(f"expected a path, got {type(value).__name__}")


def _allowed(key: str, message: str) -> str:
    """What the key takes: msgspec's words, or the list of values where there is one."""
    type_: Any = Config
    for part in key.removesuffix("[...]").split("."):
        fields = {f.name: f.type for f in msgspec.structs.fields(type_)} if _is_section(type_) else {}
        type_ = fields.get(part)
    if key.endswith("[...]") and get_origin(type_) is dict:
        type_ = get_args(type_)[1]
    if get_origin(type_) is Literal:
        return f"allowed are {', '.join(map(str, get_args(type_)))}"
    return _plainly(f"{message[0].lower()}{message[1:]}")


def _plainly(message: str) -> str:
    """msgspec's words with a person's names of the types, and TOML's of a table."""
    said = re.sub(r"`([a-z]+)( \| null)?`", lambda type_: _TYPES.get(type_[1], type_[0]), message)
    return said.replace("of length >= 1", "that is not empty").replace("matching regex", "of the form")


def _is_section(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, Section)


def _read(path: Path | None) -> dict[str, Any]:
    if path is None and not DEFAULT_PATH.exists():
        return {}
    chosen = path or DEFAULT_PATH
    try:
        return tomllib.loads(chosen.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{chosen}: cannot be read: {error.strerror}; name another file with --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{chosen}: not TOML: {error}") from error


def _put(settings: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = settings.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{'.'.join(keys)}: {key} is a value, not a table")
        settings = inner
    settings[keys[-1]] = value


def _check_keys(settings: Mapping[str, Any], section: Any, prefix: str, source: str) -> None:
    known = {f.name: f for f in msgspec.structs.fields(section)}
    for key, value in settings.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            raise ConfigError(f"{source}: unknown key {prefix}{key} = {value!r}; {hint}")
        inner = known[key].type
        if isinstance(value, Mapping) and _is_section(inner):
            _check_keys(value, inner, f"{prefix}{key}.", source)


def _named(settings: Mapping[str, Any], key: str) -> str:
    """``key = value``. Inside of a list or of a table with free keys the path says no key: then all of it is shown."""
    whole = key.partition("[")[0]
    return f"{key} in {whole} = {_at(settings, whole)!r}" if whole != key else f"{key} = {_at(settings, key)!r}"


def _at(settings: Mapping[str, Any], key: str) -> Any:
    value: Any = settings
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return value if not isinstance(value, Mapping) else "(absent)"
        value = value[part]
    return value
