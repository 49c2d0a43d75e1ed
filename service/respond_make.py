"""From the configuration to receivers and routes. Every mistake is a ``ConfigError`` that names its key."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import structlog

from graynode.responders.address import UnsafeUrl
from graynode.responders.base import Incident, Responder
from graynode.responders.hours import QuietHours, clock_time, zone
from graynode.responders.message import Links
from graynode.responders.routes import MATCHED, Route, Routes
from graynode.responders.webhook import Webhook
from graynode.service.config import ConfigError
from graynode.service.quiet import Place
from graynode.service.respond_tables import Alertmanager as AlertmanagerSection
from graynode.service.respond_tables import Chat as ChatSection
from graynode.service.respond_tables import Receiver, Respond
from graynode.service.respond_tables import Route as RouteSection
from graynode.service.respond_tables import Webhook as WebhookSection

Picture = Callable[[Incident], bytes | None]


class Closable(Responder, Protocol):
    """A responder of this process."""

    def close(self) -> None:
        """Let go of connections."""
        ...


def make_receivers(respond: Respond, place: Place, picture: Picture) -> dict[str, Closable]:
    """All receivers by name."""
    _check_names(respond)
    links = Links(respond.page_url, respond.runbook_url)
    made: dict[str, Closable] = {n: make_webhook(n, s) for n, s in respond.webhooks.items()}
    made |= {n: make_alertmanager(n, s, links, place) for n, s in respond.alertmanagers.items()}
    made |= {n: make_chat(n, s, links, place, picture) for n, s in respond.chats.items()}
    return made


def make_webhook(label: str, section: WebhookSection) -> Webhook:
    """The receiver of a section. ``ConfigError`` names the key."""
    key = f"respond.webhooks.{label}"
    check_name(key, label)
    with_errors = _Keys(key, "url", section.ca_file)
    secret = read_secret(section.secret_file, f"{key}.secret_file")
    return with_errors(
        lambda: Webhook(
            section.url, secret, timeout_s=section.timeout_s, ca_file=section.ca_file, plain_http=section.plain_http
        )
    )  # type: ignore[no-any-return]  # what the lambda gives


def make_alertmanager(label: str, section: AlertmanagerSection, links: Links, place: Place) -> Closable:
    """The Alertmanagers of a section."""
    from graynode.responders.address import make_client
    from graynode.responders.alertmanager import PATH, Alertmanager
    from graynode.responders.post import Post

    key = f"respond.alertmanagers.{label}"
    check_name(key, label)
    secret = ""
    if section.authorization_file is not None:
        secret = read_text(section.authorization_file, f"{key}.authorization_file")

    def post(url: str) -> Post:
        client = make_client(url, section.timeout_s, section.ca_file)
        if secret:
            client.headers["authorization"] = secret
        address = url.rstrip("/") + PATH
        return Post(address, timeout_s=section.timeout_s, plain_http=section.plain_http, client=client)

    posts = _Keys(key, "urls", section.ca_file)(lambda: [post(url) for url in section.urls])
    return Alertmanager(posts, links=links, where=place, hold_s=section.hold_s)


def make_chat(label: str, section: ChatSection, links: Links, place: Place, picture: Picture) -> Closable:
    """The chat, mail or paging service of a section."""
    from graynode.responders.chat import Chat

    key = f"respond.chats.{label}"
    check_name(key, label)
    lines = read_text(section.urls_file, f"{key}.urls_file").splitlines()
    urls = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not urls:
        raise ConfigError(f"{key}.urls_file = {section.urls_file}: no address in it; write one a line")
    logging.getLogger("apprise").addHandler(logging.NullHandler())  # what it would print is in our outcome
    try:
        return Chat(
            urls, links=links, where=place, picture=picture if section.picture else lambda _: None,
            timeout_s=section.timeout_s, plain_http=section.plain_http,
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(f"{key}.urls_file = {section.urls_file}: {error}") from error


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


def check_name(key: str, label: str) -> None:
    """``ConfigError`` for a name that cannot be a consumer group's."""
    if not label or not all(c.isascii() and (c.isalnum() or c in "._-") for c in label):
        raise ConfigError(f"{key}: a receiver's name is letters, digits, dot, dash and underscore")


class _Keys:
    """Turns what making a receiver says into a sentence about the configuration's keys."""

    def __init__(self, key: str, address: str, ca_file: Path | None) -> None:
        self._key, self._address, self._ca_file = key, address, ca_file

    def __call__(self, make: Callable[[], Any]) -> Any:  # noqa: ANN401 (what make gives)
        try:
            return make()
        except UnsafeUrl as error:
            raise ConfigError(f"{self._key}.{self._address}: {error}") from error
        except OSError as error:  # the CA file; ssl.SSLError is one too
            raise ConfigError(f"{self._key}.ca_file = {self._ca_file}: {error.strerror or error}") from error


def _kinds(respond: Respond) -> Mapping[str, Mapping[str, Receiver]]:
    return {"webhooks": respond.webhooks, "alertmanagers": respond.alertmanagers, "chats": respond.chats}


def _check_names(respond: Respond) -> None:
    seen: dict[str, str] = {}
    for kind, sections in _kinds(respond).items():
        for name in sections:
            if name in seen:
                raise ConfigError(
                    f"respond.{kind}.{name}: respond.{seen[name]} has this name too; routes need one each"
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
