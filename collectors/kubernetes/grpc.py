"""One gRPC call over a Unix socket, with a deadline and a bound, on the HTTP/2 of ``h2``.

``h2`` (pure Python, 1.1 MB with its two parts, 5 MiB resident) and not ``grpcio`` (19 MB, 21 MiB resident, threads of
its own): the agent is a guest, and one unary call every ten seconds is all that it makes. The framing is that of
``PROTOCOL-HTTP2.md`` of gRPC: a flag byte, four bytes of length, the message; the status is in the trailers.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import hpack

MOST_BYTES: Final = 16 << 20
_UNKNOWN, _DEADLINE, _UNAVAILABLE, _INTERNAL = 2, 4, 14, 13
_PREFIX: Final = struct.Struct(">BI")


class GrpcError(Exception):
    """The call failed; ``code`` is gRPC's status code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def unary(
    path: Path,
    method: str,
    message: bytes = b"",
    *,
    deadline_s: float = 2.0,
    most_bytes: int = MOST_BYTES,
    monotonic: Callable[[], float] = time.monotonic,
) -> bytes:
    """The answer to one message. ``OSError`` where nobody listens or may be asked, ``GrpcError`` for all else."""
    call = _Call(most_bytes)
    end = monotonic() + deadline_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(deadline_s)
        try:
            connection.connect(str(path))
            connection.sendall(call.begin(method, message, deadline_s))
            while not call.ended:
                connection.settimeout(_left(end - monotonic()))
                answer = call.take(connection.recv(65536))
                if answer:
                    connection.sendall(answer)
        except TimeoutError as error:
            raise GrpcError(_DEADLINE, f"no answer within {deadline_s:g} s") from error
        except (BrokenPipeError, ConnectionResetError) as error:
            raise GrpcError(_UNAVAILABLE, "the connection was cut") from error
        except (h2.exceptions.H2Error, hpack.HPACKError) as error:
            raise GrpcError(_INTERNAL, f"no HTTP/2: {type(error).__name__}: {error}"[:200]) from error
    return call.answer()


def _left(seconds: float) -> float:
    if seconds <= 0:
        raise TimeoutError
    return seconds


class _Call:
    """One stream's state; no I/O."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self._body = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self.ended = False

    def begin(self, method: str, message: bytes, deadline_s: float) -> bytes:
        """What to send."""
        http = self._http
        http.initiate_connection()
        http.send_headers(
            1,
            [
                (":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost"),
                ("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "graynode"),
                ("grpc-timeout", f"{max(1, int(deadline_s * 1000))}m"),
            ],
        )  # fmt: skip
        http.send_data(1, _PREFIX.pack(0, len(message)) + message, end_stream=True)
        return http.data_to_send()

    def take(self, data: bytes) -> bytes:
        """Take what was received; what to send in answer. Nothing received means that the server hung up."""
        if not data:
            raise GrpcError(_UNAVAILABLE, "the server hung up in its answer")
        for event in self._http.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                self._keep(event)
            elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                self._headers.update(event.headers)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended = True
            elif isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated) and not self.ended:
                raise GrpcError(_UNAVAILABLE, f"the server broke off: HTTP/2 error {event.error_code}")
        return self._http.data_to_send()

    def answer(self) -> bytes:
        """The message, when the stream has ended."""
        http_status = self._headers.get(b":status", b"")
        status = self._headers.get(b"grpc-status")
        if status is None:
            raise GrpcError(_UNKNOWN, f"no gRPC: HTTP status {http_status[:20]!r} and no grpc-status")
        if status != b"0":
            code = int(status) if status.isdigit() and len(status) < 4 else _UNKNOWN
            said = self._headers.get(b"grpc-message", b"")[:200].decode("utf-8", "replace")
            raise GrpcError(code, said or f"status {code}")
        if len(self._body) < _PREFIX.size:
            raise GrpcError(_INTERNAL, "no message in the answer")
        compressed, size = _PREFIX.unpack_from(self._body)
        if compressed or size != len(self._body) - _PREFIX.size:
            raise GrpcError(_INTERNAL, "not one plain message in the answer")
        return bytes(self._body[_PREFIX.size :])

    def _keep(self, event: h2.events.DataReceived) -> None:
        self._body += event.data
        if len(self._body) > self._most:
            raise GrpcError(_INTERNAL, f"an answer of more than {self._most} bytes")
        if event.flow_controlled_length:
            self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
