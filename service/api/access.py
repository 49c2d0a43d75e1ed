"""Who asks, and whether they may. Every route denies unless it says ``opt={"public": True}``.

A caller shows a token (``Authorization: Bearer …``) or the session cookie that ``POST /session`` gave for one. A
session is no row anywhere: its cookie names the token and an end, and a key in the tokens' folder signs it, so it
survives a restart and ends with its token. A change by cookie needs the session's CSRF token in a header as well; one
by bearer token does not, for no browser sends that by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from graynode.service.api.problems import Problem
from graynode.service.config import ConfigError
from graynode.service.tokens import Scope, Token, Tokens

COOKIE: Final = "graynode_session"
CSRF_COOKIE: Final = "graynode_csrf"
CSRF_HEADER: Final = "X-CSRF-Token"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LONGEST_HEADER: Final = 500

Connection = ASGIConnection[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. ``csrf`` is the session's, empty for a bearer token. ``name`` signs what is done (column ``who``)."""

    name: str
    scope: Scope
    csrf: str = ""

    @property
    def may_act(self) -> bool:
        """Whether it may label, acknowledge and mute."""
        return self.scope == "act"


@dataclass(slots=True)
class Gate:
    """Tokens and the sessions that were made of them."""

    tokens: Tokens
    session_length: timedelta = timedelta(hours=12)
    _key: bytes = field(default=b"", repr=False)

    @property
    def key(self) -> bytes:
        """Signs sessions; made at the first need beside the tokens, mode 600. Removing the file ends all sessions."""
        if not self._key:
            self._key = _read_key(self.tokens.path.with_name("serve-sessions.key"))
        return self._key

    def caller(self, connection: Connection, now: datetime) -> Caller:
        """Who asks; ``Problem`` 401 where nobody is known."""
        header = connection.headers.get("authorization", "")
        if header:
            return self._by_token(header, now)
        cookie = connection.cookies.get(COOKIE, "")
        found = self.session(cookie, now) if cookie else None
        if found is None:
            raise _unknown("sign in" if cookie else "a token is needed")
        return found

    def _by_token(self, header: str, now: datetime) -> Caller:
        kind, _, token = header.partition(" ")
        found = self._known(token.strip(), now) if kind.lower() == "bearer" and len(header) < _LONGEST_HEADER else None
        if found is None:
            raise _unknown("this token is wrong, revoked or has ended")
        return Caller(found.name, found.scope)

    def _known(self, token: str, now: datetime) -> Token | None:
        try:
            return self.tokens.find(token, now)
        except ConfigError as error:
            raise Problem(503, "the tokens cannot be read; the log of graynode serve says why") from error

    def open_session(self, token: str, now: datetime) -> tuple[str, Caller, datetime]:
        """Cookie, caller and end of a new session; ``Problem`` 401 for a wrong token."""
        found = self._known(token, now) if len(token) < _LONGEST_HEADER else None
        if found is None:
            raise _unknown("this token is wrong, revoked or has ended")
        ends = min(now + self.session_length, found.ends or datetime.max.replace(tzinfo=UTC))
        told = f"{found.name}|{found.sha256[:16]}|{int(ends.timestamp())}|{secrets.token_urlsafe(16)}"
        return f"{told}|{self._sign(told)}", Caller(found.name, found.scope, self._sign(f"csrf|{told}")), ends

    def session(self, cookie: str, now: datetime) -> Caller | None:
        """Whose session this is; none where it is forged, over, or its token is gone."""
        told, _, signature = cookie.rpartition("|")
        if len(cookie) > _LONGEST_HEADER or not hmac.compare_digest(_bytes(signature), self._sign(told).encode()):
            return None
        name, hash_, ends, _ = told.split("|")
        try:
            token = self.tokens.named(name, now)
        except ConfigError:
            return None
        if token is None or token.sha256[:16] != hash_ or now.timestamp() >= int(ends):
            return None
        return Caller(token.name, token.scope, self._sign(f"csrf|{told}"))

    def _sign(self, text: str) -> str:
        return hmac.new(self.key, text.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _unknown(detail: str) -> Problem:
    return Problem(401, detail, {"WWW-Authenticate": 'Bearer realm="graynode"'})


def _read_key(path: Path) -> bytes:
    """The key of the file, made where there is none; of two that start at once one makes it and both read it."""
    if not path.exists():
        new = path.with_name(f"{path.name}.{os.getpid()}.new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as sink:
            sink.write(secrets.token_bytes(32))
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(new)
        new.unlink()
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"{path}: others can read it; chmod 600 {path}")
    key = path.read_bytes()
    if len(key) < hashlib.sha256().digest_size:
        raise ConfigError(f"{path}: is no key; remove it, and sessions begin anew")
    return key


def guard(connection: Connection, handler: BaseRouteHandler) -> None:
    """Of every route: known callers only, with the scope that the route names (``opt``: ``public``, ``scope``).

    A route that changes something needs ``act``, unless it says otherwise.
    """
    if handler.opt.get("public"):
        return
    served = connection.app.state.served
    caller = connection.app.state.gate.caller(connection, served.clock())
    changes = connection.scope.get("method", "GET") not in _SAFE
    if handler.opt.get("scope", "act" if changes else "read") == "act" and not caller.may_act:
        raise Problem(403, f"token {caller.name} may read; this needs a token of scope act")
    if (
        changes
        and caller.csrf
        and not hmac.compare_digest(_bytes(connection.headers.get(CSRF_HEADER, "")), caller.csrf.encode())
    ):
        raise Problem(403, f"a change by a session needs its CSRF token in the header {CSRF_HEADER}")
    connection.scope["user"] = caller
