"""Tokens of the HTTP API: a file of names, scopes, ends and SHA-256 hashes. A token is printed once and kept nowhere.

A token has 256 random bits, so a plain hash is as good as a slow one: there is nothing to guess. The file is mode 600
and is replaced as a whole; ``serve`` reads it again when it changes: what is revoked is refused at the next request.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

import msgspec

from graynode.pipeline.lock_file import LockFile, Taken
from graynode.service.config import Config, ConfigError
from graynode.service.times import elapsed

Scope = Literal["read", "act"]
SCOPES: Final[tuple[Scope, ...]] = ("read", "act")
PREFIX: Final = "graynode_"
"""Begins every token, so that scanners for leaked secrets find it."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_LONGEST: Final = timedelta(days=3660)
_MODE: Final = 0o600


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One token as the file has it. ``act`` includes ``read``; ``ends`` is null for one that does not end."""

    name: str
    scope: Scope
    sha256: str
    created: datetime
    ends: datetime | None = None

    def valid(self, now: datetime) -> bool:
        """Whether it has not ended."""
        return self.ends is None or now < self.ends


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[Token] = []


def digest(token: str) -> str:
    """What the file keeps of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(slots=True)
class Tokens:
    """The file, read again whenever it has changed. Without a file there is no token, and nobody is let in."""

    path: Path
    _seen: tuple[int, int, int] | None = None
    _held: list[Token] = field(default_factory=list)

    def all(self) -> list[Token]:
        """Tokens of the file now. ``ConfigError`` where it cannot be read, or others could."""
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            self._seen, self._held = None, []
            return []
        except OSError as error:
            raise ConfigError(f"serve.tokens_file = {self.path}: cannot be read: {error.strerror}") from error
        seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if seen != self._seen:
            if stat.st_mode & 0o077:
                raise ConfigError(f"serve.tokens_file = {self.path}: others can read it; chmod 600 {self.path}")
            self._held, self._seen = _read(self.path), seen
        return self._held

    def named(self, name: str, now: datetime) -> Token | None:
        """The token of that name, if it has not ended."""
        return next((token for token in self.all() if token.name == name and token.valid(now)), None)

    def find(self, token: str, now: datetime) -> Token | None:
        """Whose token this is, if it has not ended. Every hash is compared in constant time, and all of them are."""
        asked, found = digest(token), None
        for known in self.all():
            if hmac.compare_digest(known.sha256, asked) and known.valid(now):
                found = known
        return found

    def create(self, name: str, scope: str, ends: datetime | None, now: datetime) -> str:
        """Make a token, keep its hash, give the token. ``ConfigError`` for a name that is taken or none."""
        if scope not in SCOPES:
            raise ConfigError(f"--scope {scope}: one of {', '.join(SCOPES)}")
        if not _NAME.fullmatch(name):
            raise ConfigError(f"--name {name[:70]!r}: letters, digits and . _ @ -, at most 64; it signs what it does")
        with self._alone():
            held = [token for token in self.all() if token.name != name or token.valid(now)]
            if any(token.name == name for token in held):
                raise ConfigError(f"--name {name}: is taken; graynode token revoke {name}, or choose another")
            made = PREFIX + secrets.token_urlsafe(32)
            self._write([*held, Token(name, scope, digest(made), now, ends)])
        return made

    def revoke(self, name: str) -> None:
        """Take a token away. ``ConfigError`` where there is none of that name."""
        with self._alone():
            held = self.all()
            left = [token for token in held if token.name != name]
            if len(left) == len(held):
                known = ", ".join(token.name for token in held) or "none at all"
                raise ConfigError(f"no token is called {name[:70]!r}; there is {known}")
            self._write(left)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Only one process at a time changes the file."""
        try:
            with LockFile(self.path.with_name(f"{self.path.name}.lock")):
                yield
        except Taken as taken:
            raise ConfigError(f"{self.path}: process {taken.owner} changes it just now; once more") from taken
        except OSError as error:
            raise ConfigError(f"serve.tokens_file = {self.path}: cannot be written: {error.strerror}") from error

    def _write(self, tokens: list[Token]) -> None:
        """Replace the file as a whole. What root writes belongs to the folder's owner, as whom ``serve`` runs."""
        data = msgspec.json.format(msgspec.json.encode(_File(tokens)), indent=2) + b"\n"
        new = self.path.with_name(f"{self.path.name}.new")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE), "wb") as sink:
            sink.write(data)
            sink.flush()
            os.fsync(sink.fileno())
            if os.geteuid() == 0:
                owner = self.path.parent.stat()
                os.fchown(sink.fileno(), owner.st_uid, owner.st_gid)
        new.replace(self.path)
        self._seen = None


def _read(path: Path) -> list[Token]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).tokens
    except OSError as error:
        raise ConfigError(f"serve.tokens_file = {path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"serve.tokens_file = {path}: is not a file of tokens: {error}") from error


def create(config: Config, name: str, scope: str, for_: str = "", now: datetime | None = None) -> int:
    """Make a token and print it; it is shown this once."""
    moment = now or datetime.now(UTC)
    ends = moment + _length(for_) if for_ else None
    made = Tokens(config.serve.tokens_file).create(name, scope, ends, moment)
    until = f"until {ends:%Y-%m-%d %H:%M} UTC" if ends else "until it is revoked"
    print(
        f"token {name}, scope {scope}, {until}; it is shown this once, {config.serve.tokens_file} keeps its hash only:"
    )
    print(made)
    return 0


def show(config: Config, now: datetime | None = None) -> int:
    """Print names, scopes and ends. 1 where there is no token: then nobody can ask ``serve`` anything."""
    moment, held = now or datetime.now(UTC), Tokens(config.serve.tokens_file).all()
    if not held:
        print(f"no token in {config.serve.tokens_file}: graynode token create --name NAME --scope read|act")
        return 1
    width = max(len(token.name) for token in held)
    for token in held:
        until = f"until {token.ends:%Y-%m-%d %H:%M} UTC" if token.ends else "until it is revoked"
        ended = "" if token.valid(moment) else "  (has ended)"
        print(f"{token.name:<{width}}  {token.scope:<4}  since {token.created:%Y-%m-%d}  {until}{ended}")
    return 0


def revoke(config: Config, name: str) -> int:
    """Take a token away: refused from the next request on, and its sessions with it."""
    Tokens(config.serve.tokens_file).revoke(name)
    print(f"token {name} is refused from now on")
    return 0


def _length(text: str) -> timedelta:
    told = elapsed(text, "smhdw", 4)
    if told is None or not timedelta(0) < told <= _LONGEST:
        raise ConfigError(f"--for {text}: a time such as 90d or 12h, at most ten years; leave it out for no end")
    return told
