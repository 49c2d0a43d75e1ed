"""A mail server on loopback that takes every message and remembers it; as much of SMTP (RFC 5321) as a client needs."""

from __future__ import annotations

import email
import email.policy
import socketserver
import threading
from email.message import EmailMessage


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self._say("220 here")
        while line := self.rfile.readline():
            verb = line[:4].upper()
            if verb == b"DATA":
                self._say("354 go on")
                self.server.take(self._data())  # type: ignore[attr-defined]  # SmtpReceiver's server
            if verb == b"QUIT":
                self._say("221 bye")
                return
            self._say("250 ok")

    def _data(self) -> bytes:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line[1:] if line.startswith(b"..") else line)
        return b"".join(lines)

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


class SmtpReceiver:
    """Context manager; ``messages`` are those that came."""

    def __init__(self) -> None:
        self.messages: list[EmailMessage] = []
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.take = self._take  # type: ignore[attr-defined]  # for the handler
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def _take(self, data: bytes) -> None:
        message = email.message_from_bytes(data, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        self.messages.append(message)

    def __enter__(self) -> SmtpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
