"""What every long-running role shares: stopping on a signal, logging, and a metrics page."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

import structlog

from graynode.service.config import ConfigError

_LAST_PORT: Final = 65_535


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    stop = threading.Event()

    def handle(number: int, _frame: Any) -> None:  # noqa: ANN401 (the signal module's own type)
        if stop.is_set():
            raise SystemExit(128 + number)
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return stop


def set_up_logs(role: str, *, verbose: bool = False) -> None:
    """Logs to stderr: lines for a person at a terminal, JSON otherwise."""
    level = logging.DEBUG if verbose else logging.INFO
    person = sys.stderr.isatty()
    renderer: Any = structlog.dev.ConsoleRenderer() if person else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    structlog.contextvars.bind_contextvars(role=role)


@contextlib.contextmanager
def quiet(level: int) -> Iterator[None]:
    """Only lines of ``level`` and worse are logged: what a command prints says the rest."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    try:
        yield
    finally:
        structlog.configure(**before)


def is_address(listen: str) -> bool:
    """Whether a text is ``host:port``; an empty host is loopback."""
    _, colon, port = listen.rpartition(":")
    return bool(colon) and port.isdecimal() and int(port) <= _LAST_PORT


def serve_metrics(role: str, listen: str) -> None:
    """Serve ``/metrics`` on ``host:port``; empty means none. ``ConfigError`` if the port is taken or is none."""
    if not listen:
        return
    import prometheus_client

    host, _, port = listen.rpartition(":")
    wrong = "not host:port"
    if is_address(listen):
        try:
            prometheus_client.start_http_server(int(port), addr=host or "127.0.0.1")
        except OSError as error:
            wrong = error.strerror or str(error)
        else:
            return
    raise ConfigError(f"{role}.metrics_listen = {listen!r}: {wrong}; choose another, or '' for none")
