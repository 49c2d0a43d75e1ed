"""``graynode doctor --role server``: bus, lake, detection, receivers, tokens, ports and prices, each with the way out.

Reads and tries, never changes: no topic, table or lock is made, no position moved, and nobody is told anything: of a
receiver only the connection is opened (with TLS, its certificate checked) and closed again.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from graynode.collectors.host_files import ClockState, clock_state
from graynode.pipeline.schema import VERSION
from graynode.service.config import Config
from graynode.service.config_tables import Section
from graynode.service.doctor_checks import Check, clock_check, room, secret, secrets
from graynode.service.doctor_lag import lag_checks
from graynode.service.doctor_lake import lake_checks
from graynode.service.doctor_print import as_checks, lines_of
from graynode.service.process import is_address

_CONNECT_S: Final = 5.0
_ROLES: Final = ("pipeline", "detect", "respond")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def run(config: Config, as_json: bool = False, *, say: Callable[[str], None] = print) -> int:
    """Look and tell. 0 where all is well, 1 where something is to mend."""
    checks = list(server_checks(config))
    mend = sum(check.state == "mend" for check in checks)
    if as_json:
        told = {"cluster": config.cluster, "to_mend": mend, "checks": as_checks(checks)}
        say(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        for line in lines_of(checks):
            say(line)
        say(f"{mend} to mend." if mend else "Nothing to mend.")
    return 1 if mend else 0


def server_checks(
    config: Config,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    clock: Callable[[], ClockState | None] = clock_state,
    connect: Callable[[str, float], None] | None = None,
) -> Iterator[Check]:
    """All of them; none raises. ``connect`` opens and closes a connection to an address (``reach``)."""
    said = f"graynode {version('graynode')}, contract {VERSION[0]}.{VERSION[1]}, Python {platform.python_version()}"
    yield Check("versions", "well", said)
    yield clock_check(clock)
    yield from room(config)
    yield from secrets(config)
    yield from more_secrets(config)
    yield from lag_checks(config)
    yield from lake_checks(config, now())
    yield from receivers(config, connect or reach)
    yield from serving(config, now())
    yield from ports(config)


def more_secrets(config: Config) -> Iterator[Check]:
    """Files of the receivers and of the report that hold passwords; those of webhooks are the node's check too."""
    named = {f"respond.chats.{name}.urls_file": chat.urls_file for name, chat in config.respond.chats.items()}
    for name, manager in config.respond.alertmanagers.items():
        if manager.authorization_file is not None:
            named[f"respond.alertmanagers.{name}.authorization_file"] = manager.authorization_file
    if config.report.urls_file is not None:
        named["report.urls_file"] = config.report.urls_file
    for key, path in named.items():
        yield secret(key, path)


# --- receivers -------------------------------------------------------------------------------------------------


def receivers(config: Config, connect: Callable[[str, float], None]) -> Iterator[Check]:
    """Whether each receiver's address takes a connection. Nothing is sent: nobody is told."""
    found = list(addresses(config.respond, "respond"))
    if not found:
        yield Check("receivers", "note", "none: incidents are stored and told to nobody", "add one below [respond]")
    for key, url in found:
        try:
            connect(url, _CONNECT_S)
        except (OSError, ValueError) as error:
            said = f"{key}: {_plainly(error)}"
            yield Check("receivers", "mend", said, "start it or correct the address; incidents wait for it meanwhile")
        else:
            yield Check("receivers", "well", f"{key}: {_host(url)} takes connections; nothing was sent")


def addresses(section: Any, key: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 (any table, list or value)
    """HTTP addresses of a table and those below it, with their keys; addresses of other kinds cannot be tried."""
    if isinstance(section, Section):
        for f in msgspec.structs.fields(section):
            yield from addresses(getattr(section, f.name), f"{key}.{f.name}")
    elif isinstance(section, dict):
        for name, inner in section.items():
            yield from addresses(inner, f"{key}.{name}")
    elif isinstance(section, tuple | list):
        for i, inner in enumerate(section):
            yield from addresses(inner, f"{key}[{i}]")
    elif isinstance(section, str) and section.startswith(("http://", "https://")):
        yield key, section


def reach(url: str, timeout_s: float) -> None:
    """Open a connection and close it, with TLS where the address says so. ``OSError`` where that fails."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if tls else 80)
    with closing(socket.create_connection((host, port), timeout_s)) as plain:
        if tls:
            with ssl.create_default_context().wrap_socket(plain, server_hostname=host):
                pass


def _host(url: str) -> str:
    """Scheme and host of an address: its path may be a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def _plainly(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)) or type(error).__name__


# --- serve -----------------------------------------------------------------------------------------------------


def serving(config: Config, now: datetime) -> Iterator[Check]:
    """Tokens, and the files of TLS."""
    path = config.serve.tokens_file
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        way = "graynode token create --name NAME --scope read"
        yield Check("tokens", "note", f"{path} is not there: serve lets nobody in", way)
    except OSError as error:
        yield Check("tokens", "mend", f"{path}: {error.strerror}", "run this as the user of graynode-serve")
    else:
        if mode & _OTHERS:
            yield Check("tokens", "mend", f"{path}: mode {mode:04o}: serve refuses it", f"chmod 0600 {path}")
        else:
            yield _tokens(config, now)
    for key in ("cert_file", "key_file"):
        file = getattr(config.serve, key)
        if file is not None and not os.access(file, os.R_OK):
            yield Check("serve", "mend", f"serve.{key} = {file}: cannot be read", "put it there, readable for serve")


def _tokens(config: Config, now: datetime) -> Check:
    from graynode.service.config import ConfigError
    from graynode.service.tokens import Tokens

    try:
        tokens = Tokens(config.serve.tokens_file).all()
    except ConfigError as error:
        return Check("tokens", "mend", str(error), "restore the file, or make tokens anew")
    good = [token for token in tokens if token.valid(now)]
    ended = len(tokens) - len(good)
    said = f"{len(good)} in force" + (f", {ended} ended" if ended else "")
    if not good:
        return Check(
            "tokens", "note", f"{said}: serve lets nobody in", "graynode token create --name NAME --scope read"
        )
    return Check("tokens", "well", said)


# --- ports -----------------------------------------------------------------------------------------------------


def ports(config: Config) -> Iterator[Check]:
    """Each role's address: answered by somebody, free, or not to be had here."""
    listens = {f"{role}.metrics_listen": getattr(config, role).metrics_listen for role in _ROLES}
    listens["serve.listen"] = config.serve.listen
    seen: dict[str, str] = {}
    for key, listen in listens.items():
        if not listen:
            continue
        port = listen.rpartition(":")[2]
        if port in seen:
            yield Check("ports", "mend", f"{key} and {seen[port]} are both {listen}", f"give {key} another port")
            continue
        seen[port] = key
        yield _port(key, listen)


def _port(key: str, listen: str) -> Check:
    if not is_address(listen):
        return Check("ports", "mend", f"{key} = {listen!r} is not host:port", "correct it")
    host, _, port = listen.rpartition(":")
    here = "127.0.0.1" if host in ("", "0.0.0.0", "::", "[::]") else host.strip("[]")  # noqa: S104 (it is looked at)
    try:
        socket.create_connection((here, int(port)), 1.0).close()
    except ConnectionRefusedError:
        return Check("ports", "note", f"{key}: nobody listens at {listen}: the role does not run here")
    except OSError as error:
        return Check("ports", "mend", f"{key} = {listen}: {_plainly(error)}", "name an address of this machine")
    return Check("ports", "well", f"{key}: {listen} is listened to")
