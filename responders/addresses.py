"""Addresses as apprise writes them, made services that can be told: one way for incidents, reports and budgets.

Errors name an address by its line and scheme: the rest of it is a secret.
"""

from __future__ import annotations

import warnings
from typing import Any, Final

import apprise

from graynode.responders.address import UnsafeUrl, check_host, user_agent

_LOCAL: Final = frozenset({"blink1", "dbus", "qt", "kde", "glib", "gio", "gnome", "macosx", "windows", "syslog"})
"""These act on this machine, where nobody looks."""


def shown(url: str, number: int) -> str:
    """What may be said of an address."""
    scheme, there, _ = url.partition("://")
    return f"address {number} ({scheme[:20]}://…)" if there else f"address {number}"


def service(url: str, number: int, *, timeout_s: float, plain_http: bool) -> apprise.Apprise:
    """The address as apprise takes it: no redirects, no templates, no files of its own. ``UnsafeUrl`` where it is none.

    ``plain_http`` permits what is not encrypted beyond this machine.
    """
    said = shown(url, number)
    if url.partition("://")[0].lower() in _LOCAL:
        raise UnsafeUrl(f"{said}: acts on this machine only; name a service that people read")
    asset = apprise.AppriseAsset(
        async_mode=False, storage_mode="memory", allow_templates=False, service_timeout=2 * timeout_s,
        app_id=user_agent(), app_desc="graynode", app_url="",
    )  # fmt: skip
    asset.http_redirects = False
    with warnings.catch_warnings():  # it loads its plugins now, which warn of themselves in other libraries' names
        warnings.simplefilter("ignore", DeprecationWarning)
        plugin: Any = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    if plugin is None or isinstance(plugin, str):
        raise UnsafeUrl(f"{said}: is none that apprise knows; its list of services shows how each is written")
    plugin.redirects = False
    plugin.socket_connect_timeout = plugin.socket_read_timeout = timeout_s
    if "host" in plugin.template_tokens:
        host = str(getattr(plugin, "smtp_host", "") or plugin.host or "")
        check_host(host, encrypted=bool(plugin.secure), plain_http=plain_http, shown=said)
    made = apprise.Apprise(asset=asset)
    made.add(plugin)
    return made
