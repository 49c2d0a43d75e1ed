"""``graynode init``: a place for graynode on this machine, and at its broker. Shows the plan; with ``--yes`` does it.

Twice is as good as once: what is there is left, said to be well, and never written over. ``--force`` writes a new
configuration and keeps the old one beside it. Codes: 0 nothing is left to a person; 1 something failed or is a
person's, and the text says what; 2 wrong use.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from graynode.pipeline.bus import BusRefused
from graynode.service.config import DEFAULT_PATH, Config, ConfigError, load, parse
from graynode.service.init_config import Role, render
from graynode.service.init_steps import Step, carry_out, folder_steps, give, owner, user_steps

_PATIENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What the person said. ``chosen`` are configuration keys; users are the broker's, such as ``User:graynode``."""

    path: Path | None = None
    role: Role = "all"
    chosen: dict[str, Any] = field(default_factory=dict)
    agent_user: str = ""
    server_user: str = ""
    yes: bool = False
    force: bool = False


def run(
    asked: Asked,
    *,
    say: Callable[[str], None] = print,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    owner: Callable[[], tuple[int, int] | None] = owner,
) -> int:
    """Plan, and with ``yes`` act. ``owner`` gives user and group of the units.

    ``ConfigError`` where the file that is there cannot be used, or a choice is wrong.
    """
    path = asked.path or DEFAULT_PATH
    first, config = _file(asked, path, clock)
    steps = [first, *user_steps(owner()), *_steps(asked, config)]
    for step in steps:
        say(f"  {'make' if step.state == 'make' else 'HAND' if step.state == 'hand' else 'well'}  {_line(step)}")
        if step.way_out:
            say(f"{'':18}→ {step.way_out}")
    hand, due = (sum(step.state == state for step in steps) for state in ("hand", "make"))
    if not asked.yes:
        say(
            f"{due} to make, {hand} by hand. Nothing was changed; with --yes it is done."
            if due or hand
            else "All well."
        )
        return 1 if hand else 0
    failed = 0
    for done in carry_out(steps):
        say(f"  {'FAILED' if done.failed else 'made'}  {_line(done.step)}{f': {done.said}' if done.failed else ''}")
        failed += done.failed
    say(f"{due - failed} made, {failed} failed, {hand} by hand." if due or hand else "All well.")
    say(_next(asked, path))
    return 1 if failed or hand else 0


def _line(step: Step) -> str:
    return f"{step.about:<12}{step.said}"


def _file(asked: Asked, path: Path, clock: Callable[[], datetime]) -> tuple[Step, Config]:
    """The step that writes the configuration, and the configuration that the others are made with."""
    there = path.exists()
    if there and not asked.force:
        config = load(path)
        for key, value in asked.chosen.items():
            if _value(config, key) != value:
                raise ConfigError(
                    f"{path} is there and says {key} = {_value(config, key)!r}, not {value!r}; correct it there, or "
                    "--force writes a new one and keeps this beside it"
                )
        return Step("config", "well", f"{path}, kept as it is"), config
    text = render(asked.role, asked.chosen)
    config = parse(tomllib.loads(text), "the command line")
    kept = path.with_name(f"{path.name}.before-{clock():%Y%m%dT%H%M%SZ}") if there else None
    said = f"{path}: every key with its meaning" + (f"; the old one goes to {kept.name}" if kept else "")
    return Step("config", "make", said, do=lambda: _write(path, text, kept)), config


def _value(config: Config, key: str) -> Any:  # noqa: ANN401 (any key's)
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _write(path: Path, text: str, kept: Path | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kept is not None:
        os.link(path, kept)  # never over one that is there
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.chmod(0o640)
    give(new)
    if kept is not None:
        new.replace(path)
        return
    try:
        os.link(new, path)  # refuses where somebody was quicker
    finally:
        new.unlink()


def _steps(asked: Asked, config: Config) -> Iterator[Step]:
    yield from folder_steps(config, asked.role)
    if asked.role == "agent":
        return
    yield from _lake(config)
    if config.bus.kind == "kafka":
        yield from _broker(asked, config)


def _lake(config: Config) -> Iterator[Step]:
    from graynode.service.init_lake import lake_steps
    from graynode.service.wiring import make_lake

    yield from lake_steps(make_lake(config))


def _broker(asked: Asked, config: Config) -> Iterator[Step]:
    from graynode.pipeline.kafka_probe import diagnose
    from graynode.service.init_acls import acl_steps
    from graynode.service.init_topics import topic_steps
    from graynode.service.wiring import kafka_settings

    settings = kafka_settings(config)
    try:
        problem: Exception | None = diagnose(settings, _PATIENCE_S)
    except BusRefused as error:  # an address that is none
        problem = error
    if problem is not None:
        yield Step("broker", "hand", str(problem), "start the broker or correct bus.kafka, then this again")
        return
    yield from topic_steps(settings, config.bus.kafka)
    user = f"User:{config.bus.kafka.user}" if config.bus.kafka.user else ""
    yield from acl_steps(settings, asked.agent_user, asked.server_user or user)


def _next(asked: Asked, path: Path) -> str:
    named = "" if path == DEFAULT_PATH else f" --config {path}"
    return f"Next: graynode config check{named}, then graynode doctor --role {asked.role}{named}"
