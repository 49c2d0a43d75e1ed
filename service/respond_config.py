"""What the table ``[respond]`` says, checked: routes, names, files. ``ConfigError`` names the key of each mistake.

Light: an agent's ``graynode config check`` reads it too, so no responder and none of their libraries is imported.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path

import structlog

from graynode.responders.hours import QuietHours, clock_time, zone
from graynode.responders.routes import MATCHED, Route, Routes
from graynode.service.config import ConfigError
from graynode.service.respond_tables import Receiver, Respond
from graynode.service.respond_tables import Route as RouteSection


def make_routes(respond: Respond) -> Routes:
    """The routes of the configuration."""
    receivers = respond.receivers
    for name, section in receivers.items():
        _check_times(name, section)
    routes = [_route(number, section, receivers) for number, section in enumerate(respond.routes, 1)]
    at_once = frozenset({*respond.webhooks, *respond.alertmanagers})
    return Routes(routes, {name: section.least for name, section in receivers.items()}, at_once)


def unrouted(respond: Respond) -> list[str]:
    """Receivers that no route names: they hear only pages that no route fits."""
    named = {name for route in respond.routes for name in route.receivers}
    return sorted(set(respond.receivers) - named) if respond.routes else []


def files_of(respond: Respond) -> Iterator[tuple[str, Path]]:
    """Keys and paths of all files that the table names."""
    for kind, sections in _kinds(respond).items():
        for name, section in sections.items():
            for key in ("secret_file", "urls_file", "authorization_file", "ca_file"):
                path = getattr(section, key, None)
                if path is not None:
                    yield f"respond.{kind}.{name}.{key}", path


def read_secret(path: Path, key: str) -> str:
    """The ``whsec_…`` secret of a file; a warning where others may read it. ``ConfigError`` where it is none."""
    secret = read_text(path, key, "make it with a whsec_ secret")
    try:
        long_enough = len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) >= 24
    except binascii.Error:
        long_enough = False
    if not secret.startswith("whsec_") or not long_enough:
        raise ConfigError(f"{key} = {path}: not a secret: whsec_ and the base64 of 24 bytes or more")
    return secret


def read_text(path: Path, key: str, way_out: str = "put the secret there") -> str:
    """What a secret file holds; a warning where others may read it. ``ConfigError`` where it cannot be read."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{key} = {path}: cannot be read: {error.strerror}; {way_out}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key} = {path}: not text; {way_out}") from error
    if mode & 0o077:
        structlog.get_logger().warning("others may read a secret", key=key, file=str(path), way_out="chmod 600")
    return secret


def _kinds(respond: Respond) -> Mapping[str, Mapping[str, Receiver]]:
    return {"webhooks": respond.webhooks, "alertmanagers": respond.alertmanagers, "chats": respond.chats}


def check_names(respond: Respond) -> None:
    """``ConfigError`` where two receivers of different kinds have one name."""
    seen: dict[str, str] = {}
    for kind, sections in _kinds(respond).items():
        for name in sections:
            if name in seen:
                raise ConfigError(
                    f"respond.{kind}.{name}: respond.{seen[name]}.{name} has this name too; routes need one each"
                )
            seen[name] = kind


def _check_times(name: str, section: Receiver) -> None:
    try:
        zone(section.timezone)
        if section.digest_at != "hourly":
            clock_time(section.digest_at)
    except ValueError as error:
        raise ConfigError(f"respond: receiver {name}: {error}, or hourly for digest_at") from error


def _route(number: int, section: RouteSection, receivers: Mapping[str, Receiver]) -> Route:
    name = section.name or f"route {number}"
    key = f"respond.routes: {name}"
    unknown = [r for r in section.receivers if r not in receivers]
    if unknown:
        there = ", ".join(sorted(receivers)) or "none"
        raise ConfigError(f"{key}: there is no receiver {unknown[0]!r}; there are {there}")
    try:
        quiet = QuietHours.parse(section.quiet_hours, section.timezone, section.quiet_days)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
    wanted = {k: patterns for k in MATCHED if (patterns := getattr(section, k))}
    return Route(name, section.receivers, wanted, section.deliver, quiet, section.quiet_pages, section.go_on)
