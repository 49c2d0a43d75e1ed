"""Where incidents may be sent: https anywhere, plain http to this machine only, unless somebody has decided so."""

from __future__ import annotations

import ipaddress
import ssl
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

import httpx


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
    check_host(host, encrypted=parts.scheme == "https", plain_http=plain_http, shown=repr(url))
    return url


def check_host(host: str, *, encrypted: bool, plain_http: bool, shown: str) -> None:
    """``UnsafeUrl`` where a host is none to send to, or only with encryption."""
    address = _address(host)
    if address is not None and (address.is_link_local or address.is_multicast or address.is_unspecified):
        raise UnsafeUrl(f"{host}: link-local, multicast and unspecified addresses are no receivers")
    loopback = host == "localhost" or (address is not None and address.is_loopback)
    if not encrypted and not loopback and not plain_http:
        raise UnsafeUrl(f"{shown}: http beyond this machine can be read and changed on the way; use https")


def make_client(url: str, timeout_s: float, ca_file: Path | None = None) -> httpx.Client:
    """A client that verifies certificates, follows no redirect, and keeps loopback away from proxies."""
    context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    return httpx.Client(
        timeout=httpx.Timeout(timeout_s),
        follow_redirects=False,
        verify=context,
        trust_env=urlsplit(url).scheme == "https",
        headers={"user-agent": user_agent()},
        limits=httpx.Limits(max_connections=2, max_keepalive_connections=1),
    )


def user_agent() -> str:
    """How we name ourselves."""
    try:
        return f"graynode/{version('graynode')}"
    except PackageNotFoundError:
        return "graynode/unknown"


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
