"""TLS, client certificates, SCRAM and permissions at a real broker; what a person hears when they are wrong."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bus_traffic
import certificates
import kafka_broker
import pytest

from graynode.pipeline.bus import BusRefused, BusUnavailable
from graynode.pipeline.kafka import KafkaBus, KafkaSettings

pytestmark = pytest.mark.kafka
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="plain-secret";'


@dataclass(frozen=True)
class Secured:
    """A broker with a listener of each kind, and what a client needs for it."""

    broker: kafka_broker.Broker
    authority: certificates.Authority
    folder: Path

    def settings(self, listener: str, **changes: Any) -> KafkaSettings:
        plain: dict[str, Any] = {"bootstrap": self.broker.address(listener), "connect_timeout_s": 4.0}
        if listener == "SCRAM":
            plain |= {"security": "SASL_SSL", "ca_file": self.authority.ca_file, "mechanism": "SCRAM-SHA-512"}
            plain |= {"user": "carol", "password_file": self.secret("carol-secret\n")}
        if listener == "MTLS":
            cert_file, key_file = self.authority.issue("agent")
            plain |= {"security": "SSL", "ca_file": self.authority.ca_file}
            plain |= {"cert_file": cert_file, "key_file": key_file}
        if listener == "PLAIN":
            plain |= {"security": "SASL_PLAINTEXT", "mechanism": "PLAIN", "user": "alice"}
            plain |= {"password_file": self.secret("plain-secret")}
        return KafkaSettings(**{**plain, **changes})

    def secret(self, text: str) -> Path:
        path = self.folder / f"secret{abs(hash(text))}"
        path.write_text(text)
        return path


@pytest.fixture(scope="module")
def secured(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = certificates.Authority(folder / "ca")
    cert_file, key_file = authority.issue("broker", server=True)
    store = folder / "broker-store.pem"
    store.write_bytes(key_file.read_bytes() + cert_file.read_bytes())
    broker = kafka_broker.Broker(
        kafka_jars,
        folder / "broker",
        listeners={"PLAINTEXT": "PLAINTEXT", "SCRAM": "SASL_SSL", "MTLS": "SSL", "PLAIN": "SASL_PLAINTEXT"},
        settings={
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.ca_file),
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.scram.scram-sha-256.sasl.jaas.config": _SCRAM,
            "listener.name.scram.scram-sha-512.sasl.jaas.config": _SCRAM,
            "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.plain.plain.sasl.jaas.config": _PLAIN,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:carol;User:alice;User:CN=agent",
        },
        format_options=[
            part
            for user in ("carol", "guest")
            for digest in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for part in ("--add-scram", f"{digest}=[name={user},password={user}-secret]")
        ],
    )
    broker.create()
    KafkaBus(KafkaSettings(bootstrap=broker.address())).create_topics(1, 1, ["secure"])
    yield Secured(broker, authority, folder)
    broker.stop()


@pytest.mark.parametrize(
    ("listener", "changes"),
    [("SCRAM", {}), ("SCRAM", {"mechanism": "SCRAM-SHA-256"}), ("MTLS", {}), ("PLAIN", {})],
    ids=["TLS and SCRAM-512", "TLS and SCRAM-256", "client certificate", "PLAIN"],
)
def test_messages_pass(secured: Secured, listener: str, changes: dict[str, Any]) -> None:
    """Over every kind of secured listener messages go out and come back."""
    bus = KafkaBus(secured.settings(listener, session_timeout_s=3, **changes))
    with closing(bus.producer()) as producer, closing(bus.consumer(["secure"], f"g{listener}{changes}")) as consumer:
        producer.send("secure", bus_traffic.numbered(3))
        assert len(bus_traffic.read(consumer, 3)) >= 3
    assert len(bus.partitions("secure")) == 1


def _said(settings: KafkaSettings) -> BusRefused | BusUnavailable:
    """What is said when a message is to be sent; a consumer must say the same."""
    with closing(KafkaBus(settings).producer()) as producer, pytest.raises((BusRefused, BusUnavailable)) as sending:
        producer.send("secure", bus_traffic.numbered(1))
    with pytest.raises(type(sending.value)) as reading:
        KafkaBus(settings).consumer(["secure"], "g")
    assert str(reading.value) == str(sending.value)
    return sending.value


def test_wrong_password(secured: Secured) -> None:
    """User, the file of the password and the mechanism are named; the password is not."""
    error = _said(secured.settings("SCRAM", password_file=secured.secret("wrong-secret")))
    assert isinstance(error, BusRefused)
    assert "user 'carol' or the password in" in str(error)
    assert "(SCRAM-SHA-512)" in str(error)
    assert "wrong-secret" not in str(error)


def test_wrong_password_of_plain(secured: Secured) -> None:
    """The same over PLAIN."""
    error = _said(secured.settings("PLAIN", password_file=secured.secret("wrong-secret")))
    assert isinstance(error, BusRefused)
    assert "user 'alice' or the password in" in str(error)


def test_mechanism_that_the_broker_lacks(secured: Secured) -> None:
    """What it offers is named."""
    error = _said(secured.settings("SCRAM", mechanism="PLAIN"))
    assert isinstance(error, BusRefused)
    assert "mechanism = PLAIN: the broker offers SCRAM-SHA-" in str(error)


def test_unknown_authority(secured: Secured, tmp_path: Path) -> None:
    """A broker whose certificate another CA has signed is refused, with the file that was used."""
    other = certificates.Authority(tmp_path, "Other CA").ca_file
    error = _said(secured.settings("SCRAM", ca_file=other))
    assert isinstance(error, BusRefused)
    assert "its certificate is not trusted" in str(error)
    assert str(other) in str(error)


def test_client_certificate_missing(secured: Secured) -> None:
    """A broker that wants one is not "away": the keys to set are named."""
    error = _said(secured.settings("MTLS", cert_file=None, key_file=None))
    assert isinstance(error, BusRefused)
    assert "client certificate" in str(error)
    assert "bus.kafka.cert_file and bus.kafka.key_file" in str(error)


def test_client_certificate_of_another_authority(secured: Secured, tmp_path: Path) -> None:
    """The refused certificate is named."""
    cert_file, key_file = certificates.Authority(tmp_path, "Other CA").issue("agent")
    error = _said(secured.settings("MTLS", cert_file=cert_file, key_file=key_file))
    assert isinstance(error, BusRefused)
    assert f"refused our certificate {cert_file}" in str(error)


def test_tls_to_a_plain_port(secured: Secured) -> None:
    """The port and ``bus.kafka.security`` are in question, not the CA."""
    error = _said(secured.settings("SCRAM", bootstrap=secured.broker.address("PLAINTEXT")))
    assert isinstance(error, (BusRefused, BusUnavailable))
    assert "bus.kafka.security" in str(error)


def test_plain_to_a_tls_port(secured: Secured) -> None:
    """The other way round too."""
    error = _said(secured.settings("PLAINTEXT", bootstrap=secured.broker.address("SCRAM")))
    assert isinstance(error, BusRefused)
    assert "bus.kafka.security" in str(error)


def test_user_without_permission(secured: Secured) -> None:
    """A user who may not write or read hears that it is permission, and which user; it is no fault of a message."""
    settings = secured.settings("SCRAM", user="guest", password_file=secured.secret("guest-secret"))
    bus = KafkaBus(settings)
    with closing(bus.producer()) as producer, pytest.raises(BusRefused, match="user guest is not permitted"):
        producer.send("secure", bus_traffic.numbered(1))
    with (
        pytest.raises(BusRefused, match="user guest is not permitted"),
        closing(bus.consumer(["secure"], "guests")) as consumer,
    ):
        consumer.poll(5.0)


def test_nothing_listens() -> None:
    """Address and reason, and that the broker may not run."""
    port = kafka_broker.free_port()
    error = _said(KafkaSettings(bootstrap=f"127.0.0.1:{port}", connect_timeout_s=1))
    assert isinstance(error, BusUnavailable)
    assert f"127.0.0.1:{port}: connection refused: nothing listens there" in str(error)


def test_name_that_does_not_resolve() -> None:
    """The name is named."""
    error = _said(KafkaSettings(bootstrap="no-such-host.invalid:9092", connect_timeout_s=1))
    assert isinstance(error, BusUnavailable)
    assert "no-such-host.invalid:9092: the name cannot be resolved" in str(error)


def test_port_of_something_else() -> None:
    """A server that closes at once is not Kafka; that is said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def close_all() -> None:
            server.settimeout(0.1)
            while not ended.is_set():
                try:
                    server.accept()[0].close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=close_all)
        thread.start()
        try:
            error = _said(KafkaSettings(bootstrap=f"127.0.0.1:{server.getsockname()[1]}", connect_timeout_s=1))
        finally:
            ended.set()
            thread.join()
    assert isinstance(error, BusRefused)
    assert "does not answer as Kafka does" in str(error)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bootstrap": "localhost"}, "bus.kafka.bootstrap = 'localhost': 'localhost' is not host:port"),
        (
            {"security": "SSL", "ca_file": "missing.pem"},
            "ca_file = missing.pem: cannot be used: No such file",
        ),
        ({"security": "SASL_SSL"}, "needs bus.kafka.user and bus.kafka.password_file"),
        (
            {"security": "SASL_PLAINTEXT", "user": "u", "password_file": "missing"},
            "bus.kafka.password_file = missing: cannot be used: No such file",
        ),
    ],
)
def test_settings_that_cannot_work(changes: dict[str, Any], text: str) -> None:
    """What is wrong before anything connects stops the start, with key and value."""
    files = {name: Path(value) for name, value in changes.items() if name.endswith("_file")}
    with pytest.raises(BusRefused) as refused:
        KafkaBus(dataclasses.replace(KafkaSettings(), **{**changes, **files}))
    assert text in str(refused.value)


def test_key_that_does_not_fit_its_certificate(tmp_path: Path) -> None:
    """Both files are named."""
    authority = certificates.Authority(tmp_path)
    cert_file, _ = authority.issue("one")
    _, key_file = authority.issue("two")
    with pytest.raises(BusRefused, match="cert_file and key_file"):
        KafkaBus(KafkaSettings(security="SSL", ca_file=authority.ca_file, cert_file=cert_file, key_file=key_file))
