"""From the configuration to receivers and routes. Every mistake is a ``ConfigError`` that names its key."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from graynode.responders.address import UnsafeUrl
from graynode.responders.base import Incident, Responder
from graynode.responders.message import Links
from graynode.responders.webhook import Webhook
from graynode.service.config import ConfigError
from graynode.service.quiet import Place
from graynode.service.respond_config import check_names, read_secret, read_text
from graynode.service.respond_tables import Alertmanager as AlertmanagerSection
from graynode.service.respond_tables import Chat as ChatSection
from graynode.service.respond_tables import Respond
from graynode.service.respond_tables import Webhook as WebhookSection

Picture = Callable[[Incident], bytes | None]
Made = TypeVar("Made")


class Closable(Responder, Protocol):
    """A responder of this process."""

    def close(self) -> None:
        """Let go of connections."""
        ...


def make_receivers(respond: Respond, place: Place, picture: Picture) -> dict[str, Closable]:
    """All receivers by name."""
    check_names(respond)
    links = Links(respond.page_url, respond.runbook_url)
    made: dict[str, Closable] = {n: make_webhook(n, s) for n, s in respond.webhooks.items()}
    made |= {n: make_alertmanager(n, s, links, place) for n, s in respond.alertmanagers.items()}
    made |= {n: make_chat(n, s, links, place, picture) for n, s in respond.chats.items()}
    return made


def make_webhook(label: str, section: WebhookSection) -> Webhook:
    """The receiver of a section. ``ConfigError`` names the key."""
    key = f"respond.webhooks.{label}"
    check_name(key, label)
    secret = read_secret(section.secret_file, f"{key}.secret_file")

    def make() -> Webhook:
        return Webhook(
            section.url, secret, timeout_s=section.timeout_s, ca_file=section.ca_file, plain_http=section.plain_http
        )

    return _named(key, "url", section.ca_file, make)


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

    posts = _named(key, "urls", section.ca_file, lambda: [post(url) for url in section.urls])
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


def check_name(key: str, label: str) -> None:
    """``ConfigError`` for a name that cannot be a consumer group's."""
    if not label or not all(c.isascii() and (c.isalnum() or c in "._-") for c in label):
        raise ConfigError(f"{key}: a receiver's name is letters, digits, dot, dash and underscore")


def _named(key: str, address: str, ca_file: Path | None, make: Callable[[], Made]) -> Made:
    """What ``make`` gives; what is wrong with its address or CA file as a sentence about the configuration's keys."""
    try:
        return make()
    except UnsafeUrl as error:
        raise ConfigError(f"{key}.{address}: {error}") from error
    except OSError as error:  # the CA file; ssl.SSLError is one too
        raise ConfigError(f"{key}.ca_file = {ca_file}: {error.strerror or error}") from error
