"""The webhook responder against a real HTTP receiver on loopback."""

import base64
import json
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from finding_rows import T0, event
from http_receiver import Answer, HttpReceiver, Request
from standardwebhooks.webhooks import Webhook as Verifier

from graynode.detectors.event_rules import from_events
from graynode.detectors.incidents import Incidents
from graynode.responders.address import UnsafeUrl, checked_url
from graynode.responders.answers import judge, retry_after
from graynode.responders.webhook import Webhook
from graynode.service.incident_bus import from_message, to_message

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes long").decode()


def incident(**other: Any) -> dict[str, Any]:
    """An incident as it comes off the bus."""
    told = Incidents("test").add(from_events([event(0, code=79)]), T0)[0]
    return from_message(to_message(told | other, 1, 1, T0))


def always(answer: Answer) -> Callable[[int, Request], Answer]:
    return lambda *_: answer


def test_a_told_incident_carries_a_signature_that_verifies() -> None:
    """Any Standard Webhooks library verifies what arrives; the body is type, timestamp and incident.v1."""
    with HttpReceiver() as receiver:
        told = incident()
        assert Webhook(receiver.url, SECRET).respond(told).outcome == "done"
        request = receiver.requests[0]
    payload = Verifier(SECRET).verify(request.body, request.headers)
    assert payload["type"] == "incident.opened"
    assert payload["timestamp"] == told["ts"] == "2026-11-30T12:00:00Z"
    assert payload["data"]["pci_bus_id"] == "0000:9b:00.0"
    assert payload["data"]["evidence"][0]["signal"] == "xid_79"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("graynode/")


@pytest.mark.parametrize(("state", "type_"), [("open", "opened"), ("updated", "updated"), ("resolved", "resolved")])
def test_types(state: str, type_: str) -> None:
    """A receiver can tell apart beginning, change and end without knowing our states."""
    with HttpReceiver() as receiver:
        Webhook(receiver.url, SECRET).respond(incident(state=state))
        assert receiver.requests[0].data["type"] == f"incident.{type_}"


def test_reminders_bundles_and_heartbeats_have_types_and_ids_of_their_own() -> None:
    """A program can tell them apart, and drops what it has by the same rule."""
    with HttpReceiver(secret=SECRET) as receiver:
        webhook, first = Webhook(receiver.url, SECRET), incident()
        webhook.respond({**first, "reminder": 2}, "reminder")
        webhook.bundle([first, incident(revision=1)], "the digest")
        webhook.respond({"canary_id": "c1", "ts": T0, "cluster": "test"}, "canary")
        reminder, bundle, canary = receiver.requests
    assert reminder.data["type"] == "incident.reminder"
    assert reminder.headers["webhook-id"] == f"{first['incident_id']}_0_r2"
    assert bundle.data["type"] == "incident.bundle"
    assert bundle.data["data"]["why"] == "the digest"
    assert [i["revision"] for i in bundle.data["data"]["incidents"]] == [0, 1]
    assert bundle.headers["webhook-id"].startswith("bundle_")
    assert canary.data["type"] == "graynode.canary"
    assert canary.data["timestamp"] == "2026-11-30T12:00:00Z"
    assert canary.headers["webhook-id"] == "canary_c1"


def test_the_id_stays_over_attempts_and_changes_with_the_revision() -> None:
    """A receiver can drop what it has; each attempt is signed anew for its own time."""
    now = [datetime.now(UTC)]
    with HttpReceiver(lambda n, _: Answer(503 if n == 0 else 204), SECRET) as receiver:
        webhook = Webhook(receiver.url, SECRET, clock=lambda: now[0])
        webhook.respond(incident())
        now[0] += timedelta(seconds=90)
        webhook.respond(incident())
        webhook.respond(incident(revision=1))
        first, second, third = (r.headers for r in receiver.requests)
    assert first["webhook-id"] == second["webhook-id"] != third["webhook-id"]
    assert "." not in first["webhook-id"]
    assert int(second["webhook-timestamp"]) - int(first["webhook-timestamp"]) == 90
    assert first["webhook-signature"] != second["webhook-signature"]


def test_a_changed_body_does_not_verify() -> None:
    """The signature covers the whole body."""
    with HttpReceiver() as receiver:
        Webhook(receiver.url, SECRET).respond(incident())
        request = receiver.requests[0]
    with pytest.raises(Exception, match="No matching signature"):
        Verifier(SECRET).verify(request.body.replace(b"0000:9b", b"0000:9c"), request.headers)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_receiver_in_trouble_is_asked_for_as_long_as_it_takes(status: int) -> None:
    """After a week of attempts it is still only failed, so that nothing is lost."""
    assert judge(status, "", 5000, 7 * 86400.0, None).outcome == "failed"


@pytest.mark.parametrize("status", [301, 302, 307, 401, 403, 404, 409])
def test_what_somebody_must_repair_is_tried_for_a_day(status: int) -> None:
    """A wrong secret or address can be repaired within a day; then the incident is let go, with its reason."""
    assert judge(status, "", 100, 86_399.0, None).outcome == "failed"
    assert judge(status, "", 101, 86_400.0, None).outcome == "refused"


def test_retry_after_as_a_date() -> None:
    """HTTP dates count from now; one that has passed is no wait."""
    assert retry_after(format_datetime(T0 + timedelta(seconds=90), usegmt=True), T0) == 90.0
    assert retry_after(format_datetime(T0 - timedelta(seconds=90), usegmt=True), T0) == 0.0
    assert retry_after("Mon, 99 Nov", T0) is None


@pytest.mark.parametrize(
    "url",
    [
        "https://alerts.example/hook",
        "https://10.0.0.7:8443/x",
        "http://127.0.0.1:9000/",
        "http://localhost/",
        "http://[::1]/",
    ],
)
def test_addresses_that_are_allowed(url: str) -> None:
    """https anywhere, http to this machine."""
    assert checked_url(url) == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://alerts.example/hook", "use https"),
        ("http://10.0.0.7/", "use https"),
        ("ftp://alerts.example/", "https://host"),
        ("file:///etc/passwd", "https://host"),
        ("alerts.example/hook", "https://host"),
        ("https://", "https://host"),
        ("https://user:pw@alerts.example/", "no password"),
        ("http://169.254.169.254/latest/", "link-local"),
        ("https://[fe80::1%25eth0]/", "link-local"),
        ("https://0.0.0.0/", "unspecified"),
        ("https://host:port/", "no address"),
        ("https://[::1/", "no address"),
    ],
)
def test_addresses_that_are_refused(url: str, said: str) -> None:
    """The text says what is wrong, and passwords are not repeated."""
    with pytest.raises(UnsafeUrl, match=said) as caught:
        checked_url(url)
    assert "pw" not in str(caught.value)


def test_plain_http_where_it_is_permitted() -> None:
    """Somebody may decide otherwise for a closed network."""
    assert checked_url("http://10.0.0.7/", plain_http=True) == "http://10.0.0.7/"


def test_certificates_are_verified(tmp_path: Any) -> None:
    """A receiver with a certificate of nobody's is not told; with its CA given, it is."""
    certificate, key = _certificate(tmp_path)
    with HttpReceiver() as receiver:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
        url = receiver.url.replace("http:", "https:").replace("127.0.0.1", "localhost")
        outcome = Webhook(url, SECRET).respond(incident())
        assert outcome.outcome == "failed"
        assert "certificate" in outcome.reason.lower()
        assert Webhook(url, SECRET, ca_file=certificate).respond(incident()).outcome == "done"
        assert len(receiver.requests) == 1


def _certificate(folder: Any) -> tuple[Any, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    certificate, private = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


def test_the_documented_example_verifies(capsys: pytest.CaptureFixture[str]) -> None:
    """The verification shown in docs/webhook.md accepts what is sent."""
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "webhook.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    with HttpReceiver() as receiver:
        Webhook(receiver.url, SECRET).respond(incident())
        request = receiver.requests[0]
    scope: dict[str, Any] = {}
    exec(code, scope)  # noqa: S102 (our own documentation)
    assert scope["verified"](request.body, request.headers, SECRET) == json.loads(request.body)
    with pytest.raises(ValueError, match="signature"):
        scope["verified"](request.body + b" ", request.headers, SECRET)
