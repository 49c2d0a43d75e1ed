"""How to reach a Kafka broker, checked where it can be before anything connects."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from graynode.pipeline.bus import BusRefused

Security = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
MAX_REQUEST_BYTES: Final = 10 << 20
"""One message of the largest size with its key and headers; the brokers' ``message.max.bytes`` must allow it."""


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Addresses, security and patience. Secrets are files, so that they show in no process list or dump.

    ``connect_timeout_s`` bounds the first contact and each question to the broker. ``send_timeout_s`` is how
    long ``send`` itself goes on trying, without doubling anything, before it says ``BusUnavailable``.
    ``session_timeout_s``: a member that died is missed after so long. ``max_in_flight_bytes`` bounds what is
    sent and not yet acknowledged, because the client itself never blocks on memory.
    """

    bootstrap: str = "127.0.0.1:9092"
    security: Security = "PLAINTEXT"
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    mechanism: Mechanism = "SCRAM-SHA-512"
    user: str = ""
    password_file: Path | None = None
    connect_timeout_s: float = 30.0
    send_timeout_s: float = 60.0
    session_timeout_s: float = 10.0
    max_in_flight_bytes: int = 16 << 20

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security in ("SSL", "SASL_SSL")

    @property
    def sasl(self) -> bool:
        """Whether a user and a password are asked for."""
        return self.security.startswith("SASL_")

    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each bootstrap server. ``BusRefused`` where one is not ``host:port``."""
        found = []
        for text in self.bootstrap.split(","):
            host, _, port = text.strip().rpartition(":")
            if not host or not port.isdecimal():
                raise BusRefused(f"bus.kafka.bootstrap = {self.bootstrap!r}: {text.strip()!r} is not host:port")
            found.append((host.strip("[]"), int(port)))
        return found

    def password(self) -> str:
        """The password, without the newline that editors leave. ``BusRefused`` if it cannot be read."""
        if self.password_file is None or not self.user:
            raise BusRefused(f"bus.kafka.security = {self.security}: needs bus.kafka.user and bus.kafka.password_file")
        try:
            return self.password_file.read_text(encoding="utf-8").strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable("password_file", self.password_file, error) from error

    def tls_context(self) -> ssl.SSLContext:
        """A context that trusts ``ca_file`` (or the system's) and shows our certificate if there is one."""
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
        except (OSError, ssl.SSLError) as error:
            raise _unusable("ca_file", self.ca_file, error) from error
        if self.cert_file is None:
            return context
        try:
            context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise _unusable("cert_file and key_file", self.cert_file, error) from error
        return context

    def client(self) -> dict[str, Any]:
        """The settings that every client of kafka-python is made with."""
        config: dict[str, Any] = {
            "bootstrap_servers": [f"{host}:{port}" for host, port in self.addresses()],
            "client_id": "graynode",
            "security_protocol": self.security,
            "bootstrap_timeout_ms": int(self.connect_timeout_s * 1000),
            # The client's own limit of 30 s between tries keeps it away long after the broker is back.
            "reconnect_backoff_max_ms": 500,
        }
        if self.tls:
            config["ssl_context"] = self.tls_context()
        if self.sasl:
            config["sasl_mechanism"] = self.mechanism
            config["sasl_plain_username"] = self.user
            config["sasl_plain_password"] = self.password()
        return config


def _unusable(key: str, path: Path | None, error: Exception) -> BusRefused:
    reason = getattr(error, "strerror", None) or str(error)
    return BusRefused(f"bus.kafka.{key} = {path}: cannot be used: {reason}; it must be a readable PEM file")
