"""A webhook receiver on loopback that checks every signature: what ``graynode up`` shows has come this way."""

from __future__ import annotations

import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import msgspec
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

_MAX_BYTES: Final = 1 << 20


class Receiver:
    """Listens on a free loopback port. ``incidents`` holds the payloads' data in order of arrival."""

    def __init__(self, secret: str, port: int = 0) -> None:
        self.incidents: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.refused = 0
        self._webhook = Webhook(secret)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            """Takes POSTs and nothing else."""

            def do_POST(self) -> None:
                """Answer 204 to a payload whose signature is right, 401 to any other."""
                length = int(self.headers.get("content-length") or 0)
                good = 0 < length <= _MAX_BYTES and receiver.take(self.rfile.read(length), dict(self.headers))
                self.send_response(204 if good else 401)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing: the terminal belongs to the summary."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/incidents"

    def take(self, body: bytes, headers: dict[str, str]) -> bool:
        """Keep the payload's incident if the signature is right."""
        try:
            self._webhook.verify(body, {key.lower(): value for key, value in headers.items()})
            self.incidents.put(msgspec.json.decode(body)["data"])
        except (WebhookVerificationError, UnicodeDecodeError, msgspec.DecodeError, KeyError, TypeError):
            self.refused += 1
            return False
        return True

    def start(self) -> None:
        """Listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
