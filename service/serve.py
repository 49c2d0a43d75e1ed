"""``graynode serve``: the HTTP API and the pages, over the lake. Loopback by default; nobody is let in without a token.

Beyond loopback a token must not go over the wire in the clear: ``serve.cert_file`` and ``serve.key_file`` speak TLS
here, or ``serve.plain_http`` says that a proxy in front does.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Final

import h11
import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from graynode.service.api.app import create_app
from graynode.service.api.feed import Feed
from graynode.service.api.state import Served
from graynode.service.api.warm import Warm
from graynode.service.config import Config, ConfigError
from graynode.service.config_tables import Serve
from graynode.service.fleet_now import FleetWatch
from graynode.service.process import is_address
from graynode.service.tokens import Tokens

_log = structlog.get_logger()

_GRACE_S: Final = 5
_BACKLOG: Final = 512
_AT_ONCE: Final = 512
"""Connections; more are told 503. Listeners of the stream are bounded apart, by ``serve.streams``."""
_LOOK_S: Final = 0.2
_THREADS: Final = 32


def run(config: Config, stop: threading.Event, *, ready: Callable[[int], None] | None = None) -> int:
    """Serve until ``stop``. ``ready`` is told the port. ``ConfigError`` where it cannot listen so."""
    check(config.serve)
    listening = _listen(config.serve.listen)
    port = int(listening.getsockname()[1])
    with contextlib.closing(listening), FleetWatch(config, every_s=config.serve.refresh_s) as watch:
        served = Served.open(config, watch)
        app = create_app(served)
        if not _any_token(config):
            _log.warning("nobody is let in: there is no token", make="graynode token create --name NAME --scope read")
        server = _Server(_settings(app, config.serve))
        with Warm(served):
            _log.info("serving", address=f"{config.serve.listen.rpartition(':')[0]}:{port}")
            if ready is not None:
                ready(port)
            asyncio.run(_until(server, listening, stop, app.state.feed, served))
            served.break_off()
        served.close()
    return 0


def check(serve: Serve) -> None:
    """``ConfigError`` for an address that is none, or one beyond loopback in the clear."""
    if not is_address(serve.listen):
        raise ConfigError(f"serve.listen = {serve.listen!r}: not host:port")
    if (serve.cert_file is None) != (serve.key_file is None):
        raise ConfigError("serve.cert_file and serve.key_file: both are needed, or none")
    for key, path in (("cert_file", serve.cert_file), ("key_file", serve.key_file)):
        if path is not None and not path.is_file():
            raise ConfigError(f"serve.{key} = {path}: no such file")
    if serve.cert_file is not None and serve.key_file is not None:
        _check_pair(serve.cert_file, serve.key_file)
    if not _loopback(serve.listen) and serve.cert_file is None and not serve.plain_http:
        raise ConfigError(
            f"serve.listen = {serve.listen!r}: beyond loopback a token would go over the wire in the clear; name "
            "serve.cert_file and serve.key_file, or say serve.plain_http = true where a proxy in front speaks TLS"
        )


def _check_pair(certificate: Path, key: Path) -> None:
    """``ConfigError`` where they cannot be read, are none, or do not belong together."""
    for name, path in (("cert_file", certificate), ("key_file", key)):
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"serve.{name} = {path}: cannot be read: {error.strerror}") from error
        wanted = b"CERTIFICATE-----" if name == "cert_file" else b"PRIVATE KEY-----"
        if wanted not in text:
            raise ConfigError(f"serve.{name} = {path}: holds no {wanted.decode().rstrip('-').lower()} in PEM")
    try:
        # The empty password: a key that wants one must not ask for it on somebody's terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"serve.key_file = {key}: is not the key of serve.cert_file = {certificate}") from error
        said = str(error.reason or "it wants a password, which serve cannot give").lower().replace("_", " ")
        raise ConfigError(f"serve.cert_file = {certificate}, serve.key_file = {key}: cannot be used: {said}") from error


def _loopback(listen: str) -> bool:
    host = listen.rpartition(":")[0].strip("[]")
    if host in ("", "localhost"):
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _listen(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host.strip("[]") or "127.0.0.1", int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, proto)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError as error:
        raise ConfigError(f"serve.listen = {listen!r}: {error.strerror or error}; choose another") from error
    return made


def _any_token(config: Config) -> bool:
    return bool(Tokens(config.serve.tokens_file).all())


def _settings(app: object, serve: Serve) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # an ASGI application
        ssl_certfile=serve.cert_file,
        ssl_keyfile=serve.key_file,
        http=_Connection,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        limit_concurrency=_AT_ONCE,
        backlog=_BACKLOG,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=_GRACE_S,
        h11_max_incomplete_event_size=16 * 1024,
        ws="none",
        lifespan="on",
    )


async def _until(
    server: uvicorn.Server, listening: socket.socket, stop: threading.Event, feed: Feed, served: Served
) -> None:
    """Serve; at ``stop`` listeners of the stream and long questions are let go first, or they would hold the end up."""

    # Some wait for what others make; they must not keep the rest from being answered.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "graynode-answer"))

    async def watch() -> None:
        while not stop.is_set():
            await asyncio.sleep(_LOOK_S)
        feed.close()
        served.break_off()
        server.should_exit = True

    await asyncio.gather(server.serve([listening]), watch())


class _Connection(H11Protocol):
    """Lets go of whoever does not get to the end of its question: connections are counted, and anybody may open one."""

    question_s: ClassVar[float] = 20.0
    """Longest time in which a question, 64 KiB at most, must have come whole."""
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection: its first question is waited for only so long."""
        super().connection_made(transport)
        self._await_question()

    def data_received(self, data: bytes) -> None:
        """A piece: the rest of the question is waited for only so long, from its first piece on."""
        super().data_received(data)
        self._await_question()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more is waited for."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_question(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_waiting()
        elif self._late is None:
            self._late = self.loop.call_later(self.question_s, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Server(uvicorn.Server):
    """Leaves signals alone: they are this process's own business (``stop_on_signals``)."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
