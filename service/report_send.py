"""``graynode report --send``: the first page as a message, the whole as a file, to addresses as apprise has them.

Addresses hold passwords: they come from a file (``report.urls_file``), and what is said of them names their number and
kind only. Services that take no file get the message alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import apprise
from apprise.attachment.memory import AttachMemory

from graynode.dashboards.report import html
from graynode.dashboards.report.model import Report
from graynode.responders.address import UnsafeUrl, check_host, user_agent
from graynode.service.config import Config, ConfigError

_MOST_UNKNOWN: Final = 6
_LOCAL: Final = frozenset({"blink1", "dbus", "qt", "kde", "glib", "gio", "gnome", "macosx", "windows", "syslog"})
"""Services that act on this machine, where nobody looks."""


def send(config: Config, report: Report) -> int:
    """Send to every address, whatever becomes of the others. 0 all took it, 1 some did not; each is said."""
    title, body = f"Weekly report, {report.title}", message(report)
    name = f"graynode-{report.week}.html"
    content = html.write(report).encode()
    page = AttachMemory(content=content, name=name, mimetype="text/html")  # type: ignore[no-untyped-call]
    failed = 0
    for shown, service in addresses(config):
        attach = page if service[0].attachment_support else None
        told = service.notify(body=body, title=title, body_format=apprise.NotifyFormat.TEXT, attach=attach)
        failed += not told
        if told:  # an object whose truth counts
            print(f"{shown}: sent" + ("" if attach else ", without the file: it takes none"))
        else:
            print(f"graynode report: {shown}: did not take it", file=sys.stderr)
    return 1 if failed else 0


def message(report: Report) -> str:
    """The first page in plain text."""
    lines = [f"{line.title}: {line.value}" + (f" ({line.beside})" if line.beside else "") for line in report.headlines]
    unknown = list(report.unknown[:_MOST_UNKNOWN])
    more = len(report.unknown) - len(unknown)
    lines += ["", "Not known:", *(f"- {line}" for line in unknown)] if unknown else []
    return "\n".join(lines + ([f"- and {more} more"] if more else []))


def addresses(config: Config) -> list[tuple[str, apprise.Apprise]]:
    """The services to send to, each with what may be said of it; ``ConfigError`` where one is wrong, or none there."""
    path = config.report.urls_file
    if path is None:
        raise ConfigError("--send: name a file of addresses, one a line: report.urls_file (docs/report.md)")
    return list(_services(path, config.report.timeout_s, plain_http=config.report.plain_http))


def _services(path: Path, timeout_s: float, *, plain_http: bool) -> Iterator[tuple[str, apprise.Apprise]]:
    try:
        urls = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"report.urls_file {path}: cannot be read: {getattr(error, 'strerror', error)}") from error
    urls = [url for url in urls if url and not url.startswith("#")]
    if not urls:
        raise ConfigError(f"report.urls_file {path}: holds no address")
    for number, url in enumerate(urls, 1):
        scheme = url.partition("://")[0][:20] if "://" in url else "?"
        shown = f"address {number} ({scheme}://…)"
        try:
            yield shown, _service(url, shown, timeout_s, plain_http=plain_http)
        except UnsafeUrl as error:
            raise ConfigError(f"report.urls_file {path}: {error}") from error


def _service(url: str, shown: str, timeout_s: float, *, plain_http: bool) -> apprise.Apprise:
    if url.partition("://")[0].lower() in _LOCAL:
        raise UnsafeUrl(f"{shown}: acts on this machine only; name a service that people read")
    asset = apprise.AppriseAsset(
        async_mode=False, storage_mode="memory", allow_templates=False, service_timeout=2 * timeout_s,
        app_id=user_agent(), app_desc="graynode", app_url="",
    )  # fmt: skip
    asset.http_redirects = False
    plugin: Any = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    if plugin is None or isinstance(plugin, str):
        raise UnsafeUrl(f"{shown}: is none that apprise knows; its list of services shows how each is written")
    plugin.redirects = False
    plugin.socket_connect_timeout = plugin.socket_read_timeout = timeout_s
    if "host" in plugin.template_tokens:
        host = str(getattr(plugin, "smtp_host", "") or plugin.host or "")
        check_host(host, encrypted=bool(plugin.secure), plain_http=plain_http, shown=shown)
    service = apprise.Apprise(asset=asset)
    service.add(plugin)
    return service
