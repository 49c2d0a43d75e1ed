"""Tells incidents to an HTTP receiver, signed by the Standard Webhooks convention (``docs/webhook.md``).

One call of ``respond`` is one attempt. The answer decides:

- 2xx: told. 410: the receiver is gone for good, refused at once.
- 400, 405, 411, 413, 414, 415, 422: it will never take this body; refused at the third attempt.
- 408, 425, 429, 5xx, no answer in time, no connection: tried again for as long as it takes, so that a receiver that
  was down for a night gets the night's incidents. ``Retry-After`` is honoured.
- any other status, redirects among them (they are never followed: an incident goes where the configuration says and
  nowhere else): somebody has to repair receiver or secret; tried for a day, then refused.
"""

from __future__ import annotations

import email.utils
import ipaddress
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import httpx
import msgspec
from standardwebhooks.webhooks import Webhook as Signer

from graynode.responders.base import Incident, Outcome

TYPES: Final = {"open": "incident.opened", "updated": "incident.updated", "resolved": "incident.resolved"}
_BAD_BODY: Final = frozenset({400, 405, 411, 413, 414, 415, 422})
_PATIENT: Final = frozenset({408, 425, 429})
_GONE: Final = 410
_TRIES_BAD_BODY: Final = 3
_TRIES_OTHER_S: Final = 86_400.0
_MOST_PATIENCE_S: Final = 3600.0
"""A receiver may ask for an hour; more would be a way to silence the alerts."""
_ANSWER_SHOWN: Final = 200


def utc_now() -> datetime:
    """This machine's clock."""
    return datetime.now(UTC)


class UnsafeUrl(ValueError):
    """An address that no incident should be sent to; the text says what is allowed."""


def checked_url(url: str, *, plain_http: bool = False) -> str:
    """The address, if it is https, or http to loopback (anywhere with ``plain_http``). ``UnsafeUrl`` otherwise."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise UnsafeUrl(f"{url!r} is no address: {error}") from error
    if parts.scheme not in ("https", "http") or not host:
        raise UnsafeUrl(f"{url!r}: an address begins with https://host (or http:// to this machine)")
    if parts.username or parts.password:
        raise UnsafeUrl(f"{parts.scheme}://…@{host}: no password in the address; the signature proves who sends")
    address = _address(host)
    if address is not None and (address.is_link_local or address.is_multicast or address.is_unspecified):
        raise UnsafeUrl(f"{host}: link-local, multicast and unspecified addresses are no receivers")
    loopback = host == "localhost" or (address is not None and address.is_loopback)
    if parts.scheme == "http" and not loopback and not plain_http:
        raise UnsafeUrl(f"{url!r}: http beyond this machine can be read and changed on the way; use https")
    return url


class Webhook:
    """One receiver. ``secret`` is ``whsec_`` and base64; ``client`` belongs to the caller if given."""

    name: ClassVar[str] = "webhook"

    def __init__(
        self,
        url: str,
        secret: str,
        *,
        timeout_s: float = 10.0,
        ca_file: Path | None = None,
        plain_http: bool = False,
        client: httpx.Client | None = None,
        clock: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = checked_url(url, plain_http=plain_http)
        self._signer = Signer(secret)
        self._client = client or make_client(url, timeout_s, ca_file)
        self._timeout_s = timeout_s
        self._clock, self._monotonic = clock, monotonic
        self._tries: dict[str, tuple[int, float]] = {}

    def respond(self, incident: Incident) -> Outcome:
        """One attempt. ``failed`` asks to be called again with the same revision; ``refused`` is final."""
        identity = webhook_id(incident)
        number, since = self._tries.get(identity, (0, self._monotonic()))
        number += 1
        self._tries[identity] = (number, since)
        outcome = self._attempt(identity, incident, number, self._monotonic() - since)
        if outcome.outcome != "failed":
            self._tries.pop(identity, None)
        return outcome

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def _attempt(self, identity: str, incident: Incident, number: int, trying_s: float) -> Outcome:
        body = payload(incident)
        now = self._clock()
        headers = {
            "content-type": "application/json",
            "webhook-id": identity,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signer.sign(identity, now.astimezone(UTC), body.decode()),
        }
        try:
            status, answer, asked = self._post(body, headers)
        except httpx.TimeoutException:
            return Outcome("failed", f"no answer within {self._timeout_s:g} s", number)
        except httpx.HTTPError as error:
            return Outcome("failed", f"not reached: {error or type(error).__name__}", number)
        return judge(status, answer, number, trying_s, retry_after(asked, now))

    def _post(self, body: bytes, headers: dict[str, str]) -> tuple[int, str, str]:
        """Status, the beginning of the answer, and ``Retry-After``. Never more of an answer is read than is shown.

        httpx bounds each read; the receiver that sends a byte now and then is bounded here.
        """
        end = self._monotonic() + self._timeout_s
        with self._client.stream("POST", self._url, content=body, headers=headers) as response:
            shown = b""
            if not response.is_success:
                for chunk in response.iter_raw():
                    shown += chunk
                    if len(shown) >= _ANSWER_SHOWN or self._monotonic() > end:
                        break
            return response.status_code, _shown(shown), response.headers.get("retry-after", "")


def make_client(url: str, timeout_s: float, ca_file: Path | None = None) -> httpx.Client:
    """A client that verifies certificates, follows no redirect, and keeps loopback away from proxies."""
    context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    try:
        ours = version("graynode")
    except PackageNotFoundError:
        ours = "unknown"
    return httpx.Client(
        timeout=httpx.Timeout(timeout_s),
        follow_redirects=False,
        verify=context,
        trust_env=urlsplit(url).scheme == "https",
        headers={"user-agent": f"graynode/{ours}"},
        limits=httpx.Limits(max_connections=2, max_keepalive_connections=1),
    )


def webhook_id(incident: Incident) -> str:
    """The same for every attempt at one revision, so that a receiver can drop what it has."""
    return f"{incident['incident_id']}_{incident['revision']}"


def payload(incident: Incident) -> bytes:
    """The body: ``type``, ``timestamp`` (of the revision) and ``data`` (``incident.v1``)."""
    kind = TYPES.get(str(incident.get("state")), "incident.updated")
    told: dict[str, Any] = {"type": kind, "timestamp": incident.get("ts"), "data": incident}
    return msgspec.json.encode(told)


def judge(status: int, answer: str, number: int, trying_s: float, asked_s: float | None) -> Outcome:
    """What an answer means (the module's list)."""
    said = f"HTTP {status}{f': {answer}' if answer else ''}"
    if 200 <= status < 300:
        return Outcome("done", f"HTTP {status}", number)
    if status == _GONE:
        return Outcome("refused", f"{said}; the receiver is gone: take it out of the configuration", number)
    if status in _BAD_BODY and number >= _TRIES_BAD_BODY:
        return Outcome("refused", f"{said}; not taken in {number} attempts", number)
    lasting = status in _PATIENT or status >= 500 or status in _BAD_BODY
    if not lasting and trying_s >= _TRIES_OTHER_S:
        return Outcome("refused", f"{said}; given up after a day", number)
    return Outcome("failed", said, number, asked_s if status in (429, 503) else None)


def retry_after(text: str, now: datetime) -> float | None:
    """Seconds that a ``Retry-After`` header asks for (a number or a date), an hour at most; none if unreadable."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), _MOST_PATIENCE_S)
    try:
        until = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return min(max(0.0, (until - now).total_seconds()), _MOST_PATIENCE_S)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _shown(answer: bytes) -> str:
    text = answer[:_ANSWER_SHOWN].decode("utf-8", "replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
