"""``graynode report --send``: the first page as a message, the whole as a file, to addresses as apprise has them.

``tell`` sends any message there; budgets use it, too.

Addresses hold passwords: they come from a file (``report.urls_file``), and what is said of them names their number and
kind only. Services that take no file get the message alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apprise
from apprise.attachment.memory import AttachMemory

from graynode.dashboards.report import html
from graynode.dashboards.report.model import Report
from graynode.responders.address import UnsafeUrl
from graynode.responders.addresses import service, shown
from graynode.service.config import Config, ConfigError

_MOST_UNKNOWN: Final = 6


def send(config: Config, report: Report) -> int:
    """Send to every address, whatever becomes of the others. 0 all took it, 1 some did not; each is said."""
    name = f"graynode-{report.week}.html"
    content = html.write(report).encode()
    page = AttachMemory(content=content, name=name, mimetype="text/html")  # type: ignore[no-untyped-call]
    took, asked = tell(config, "report", f"Weekly report, {report.title}", message(report), page)
    return 0 if took == asked else 1


def tell(config: Config, what: str, title: str, body: str, page: AttachMemory | None = None) -> tuple[int, int]:
    """Send a message, with a file where a service takes files. How many addresses took it, of how many there are."""
    took, all_ = 0, addresses(config)
    for name, one in all_:
        attach = page if one[0].attachment_support else None
        told = one.notify(body=body, title=title, body_format=apprise.NotifyFormat.TEXT, attach=attach)
        if told:  # an object whose truth counts
            took += 1
            print(f"{name}: sent" + (", without the file: it takes none" if page and not attach else ""))
        else:
            print(f"graynode {what}: {name}: did not take it", file=sys.stderr)
    return took, len(all_)


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
        try:
            yield shown(url, number), service(url, number, timeout_s=timeout_s, plain_http=plain_http)
        except UnsafeUrl as error:
            raise ConfigError(f"report.urls_file {path}: {error}") from error
