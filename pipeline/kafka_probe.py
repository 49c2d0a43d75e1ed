"""Why a Kafka broker cannot be used, found by asking it step by step.

To the client library a refused connection, an unknown CA, a missing client certificate and a wrong password
are all one timeout. A person needs to know which, so after a timeout the same way is gone once more by hand:
name, connection, TLS, Kafka's own greeting, SASL. Message formats: Kafka protocol guide, ApiVersions v0,
SaslHandshake v1, SaslAuthenticate v0.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Final

from graynode.pipeline.bus import BusRefused, BusUnavailable
from graynode.pipeline.kafka_settings import KafkaSettings

_API_VERSIONS: Final = (18, 0)
_SASL_HANDSHAKE: Final = (17, 1)
_SASL_AUTHENTICATE: Final = (36, 0)
_UNSUPPORTED_MECHANISM: Final = 33
_MOST: Final = 1 << 20
_NOT_TLS: Final = "this port may not speak TLS: correct bus.kafka.security or the port"


def diagnose(settings: KafkaSettings, timeout_s: float = 5.0) -> BusUnavailable | BusRefused | None:
    """What is wrong with the first bootstrap server that has something wrong, or ``None`` if all answer."""
    for host, port in settings.addresses():
        problem = _try(settings, host, port, timeout_s)
        if problem:
            return problem
    return None


def must_be_welcome(settings: KafkaSettings, timeout_s: float = 5.0) -> None:
    """``BusRefused`` now, and not after a timeout, if every bootstrap server refuses us. One that is away may come."""
    problems = [_try(settings, host, port, timeout_s) for host, port in settings.addresses()]
    if problems and all(isinstance(problem, BusRefused) for problem in problems):
        assert problems[0] is not None  # noqa: S101 (for the type checker)
        raise problems[0]


def _try(settings: KafkaSettings, host: str, port: int, timeout_s: float) -> BusUnavailable | BusRefused | None:
    where = f"Kafka at {host}:{port}"
    try:
        with socket.create_connection((host, port), timeout_s) as plain:
            return _talk(settings, plain, host, where)
    except socket.gaierror as error:
        return BusUnavailable(f"{where}: the name cannot be resolved ({error.strerror}); check bus.kafka.bootstrap")
    except ConnectionRefusedError:
        return BusUnavailable(
            f"{where}: connection refused: nothing listens there; start the broker or correct bus.kafka.bootstrap"
        )
    except TimeoutError:
        return BusUnavailable(f"{where}: no answer in {timeout_s:.0f} s; check the network, the firewall, the port")
    except OSError as error:
        return BusUnavailable(f"{where}: {error.strerror or error}")


def _talk(settings: KafkaSettings, plain: socket.socket, host: str, where: str) -> BusRefused | None:
    if not settings.tls:
        return _greet(settings, plain, where)
    try:
        with settings.tls_context().wrap_socket(plain, server_hostname=host) as encrypted:
            return _greet(settings, encrypted, where)
    except ssl.SSLCertVerificationError as error:
        return BusRefused(
            f"{where}: its certificate is not trusted ({error.verify_message}); bus.kafka.ca_file ="
            f" {settings.ca_file or '(the system)'} must hold the CA that signed it, for this host name"
        )
    except ssl.SSLError as error:
        return BusRefused(f"{where}: {_tls_reason(settings, error)}")
    except ConnectionResetError:
        return BusRefused(f"{where}: closed the connection at the TLS handshake; {_NOT_TLS}")


def _tls_reason(settings: KafkaSettings, error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "certificate" in reason or "unknown ca" in reason or "handshake failure" in reason:
        if settings.cert_file is None:
            return f"it asks for a client certificate ({reason}); set bus.kafka.cert_file and bus.kafka.key_file"
        return f"it refused our certificate {settings.cert_file} ({reason}); use one that its CA has signed"
    if "wrong version" in reason or "record layer" in reason or "eof" in reason:
        return f"{_NOT_TLS} ({reason})"
    return f"TLS failed ({reason})"


def _greet(settings: KafkaSettings, link: socket.socket, where: str) -> BusRefused | None:
    try:
        _ask(link, _API_VERSIONS, b"")
    except _Closed:
        if settings.tls:
            # TLS 1.3 says that a client certificate is missing only after the handshake, if at all.
            return BusRefused(
                f"{where}: closed the connection after the TLS handshake;"
                " it may ask for a client certificate: bus.kafka.cert_file and bus.kafka.key_file"
            )
        return BusRefused(f"{where}: does not answer as Kafka does without TLS; correct bus.kafka.security or the port")
    return _log_in(settings, link, where) if settings.sasl else None


def _log_in(settings: KafkaSettings, link: socket.socket, where: str) -> BusRefused | None:
    try:
        answer = _ask(link, _SASL_HANDSHAKE, _text(settings.mechanism))
        (code,) = struct.unpack_from(">h", answer)
        if code == _UNSUPPORTED_MECHANISM:
            return BusRefused(
                f"{where}: bus.kafka.mechanism = {settings.mechanism}: the broker offers"
                f" {', '.join(_texts(answer, 2)) or 'none'}"
            )
        if code:
            return BusRefused(f"{where}: this port wants no user (error {code}); correct bus.kafka.security")
        return _authenticate(settings, link, where)
    except _Closed:
        return BusRefused(
            f"{where}: closed the connection at log-in; this port may want no user: check bus.kafka.security"
        )


def _authenticate(settings: KafkaSettings, link: socket.socket, where: str) -> BusRefused | None:
    from kafka.net.sasl.plain import SaslMechanismPlain
    from kafka.net.sasl.scram import SaslMechanismScram

    kind = SaslMechanismPlain if settings.mechanism == "PLAIN" else SaslMechanismScram
    exchange = kind(
        sasl_mechanism=settings.mechanism,
        sasl_plain_username=settings.user,
        sasl_plain_password=settings.password(),
        security_protocol="SASL_SSL",  # only silences the library's warning, which bus.kafka.security already answers
    )
    while not exchange.is_done():
        token = exchange.auth_bytes()
        answer = _ask(link, _SASL_AUTHENTICATE, struct.pack(">i", len(token)) + token)
        (code,) = struct.unpack_from(">h", answer)
        if code:
            return BusRefused(
                f"{where}: user {settings.user!r} or the password in {settings.password_file} was refused"
                f" ({settings.mechanism}): correct them, or add the user on the broker"
            )
        (length,) = struct.unpack_from(">h", answer, 2)
        at = 4 + max(length, 0)
        (size,) = struct.unpack_from(">i", answer, at)
        exchange.receive(answer[at + 4 : at + 4 + size])
    return None


class _Closed(Exception):
    """The other side closed, or says what Kafka never says."""


def _ask(link: socket.socket, api: tuple[int, int], body: bytes) -> bytes:
    request = struct.pack(">hhi", *api, 1) + _text("graynode") + body
    try:
        link.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _receive(link, 4))
        if not 4 <= size <= _MOST:
            raise _Closed
        return _receive(link, size)[4:]
    except (ConnectionResetError, BrokenPipeError) as error:
        raise _Closed from error


def _receive(link: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        some = link.recv(size - len(got))
        if not some:
            raise _Closed
        got += some
    return got


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def _texts(answer: bytes, at: int) -> list[str]:
    (count,) = struct.unpack_from(">i", answer, at)
    at += 4
    found = []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", answer, at)
        found.append(answer[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return found
