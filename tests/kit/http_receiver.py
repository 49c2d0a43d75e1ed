"""An HTTP receiver on loopback that answers as it is told, remembers what it got, and checks signatures."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks.webhooks import Webhook


@dataclass
class Answer:
    """``delay_s`` passes before the answer; ``drip_s`` between its bytes; ``hang_up``: none at all."""

    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    delay_s: float = 0.0
    drip_s: float = 0.0
    hang_up: bool = False


@dataclass
class Request:
    """What arrived."""

    headers: dict[str, str]
    body: bytes
    path: str

    @property
    def data(self) -> dict[str, Any]:
        """The payload."""
        told: dict[str, Any] = json.loads(self.body)
        return told


class HttpReceiver:
    """``answer`` decides by the request's number (from 0) and the request; context manager."""

    def __init__(self, answer: Callable[[int, Request], Answer] = lambda *_: Answer(), secret: str = "") -> None:
        self.requests: list[Request] = []
        self.answer = answer
        self._secret = secret
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                request = Request({k.lower(): v for k, v in self.headers.items()}, self.rfile.read(length), self.path)
                receiver.take(self, request)

            do_GET = do_POST  # noqa: N815 (a followed redirect would come as GET)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    def take(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        """Remember, then answer."""
        if self._secret:
            Webhook(self._secret).verify(request.body, request.headers)
        with self._lock:
            number = len(self.requests)
            self.requests.append(request)
        answer = self.answer(number, request)
        time.sleep(answer.delay_s)
        if answer.hang_up:
            handler.close_connection = True
            return
        try:
            handler.send_response(answer.status)
            for name, value in answer.headers.items():
                handler.send_header(name, value)
            if answer.status != 204:
                handler.send_header("content-length", str(len(answer.body)))
            handler.end_headers()
            for i in range(len(answer.body)):
                handler.wfile.write(answer.body[i : i + 1])
                handler.wfile.flush()
                time.sleep(answer.drip_s)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True

    def __enter__(self) -> HttpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
