"""What became of an nvidia-smi file, for a person: every value read is stored, or refused with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from graynode.pipeline.schema import TABLES
from graynode.service.imports.smi import Asked, Outcome

_SHOWN: Final = 20


def lines(cluster: str, done: Outcome, asked: Asked, now: datetime) -> Iterator[str]:
    """The account: of several files a line each, and then all together."""
    ledger = done.ledger
    captures = "; ".join(f"{count:,} of {form}" for form, count in ledger.captures.most_common()) or "none"
    for path, (stored, refused) in done.values.items():
        yield f"{path}: {stored + refused:,} values read: {stored:,} stored, {refused:,} refused"
    yield f"captures: {captures}"
    if done.first is not None and done.last is not None:
        yield f"  from {done.first:%Y-%m-%d %H:%M:%S} to {done.last:%Y-%m-%d %H:%M:%S} UTC, zone taken as {asked.zone}"
    yield f"{ledger.read:>9,} values read, cluster {cluster!r}"
    for table, count in sorted(ledger.stored.items()):
        yield f"{count:>9,} in rows of {table}"
    for reason, count in ledger.refused.most_common():
        yield f"{count:>9,} refused: {reason}"
    yield from _details(done)
    yield from _rows(done)
    if not ledger.captures:
        yield "  nothing of nvidia-smi was found in it; CSV without a header needs --query, with what --query-gpu asked"
    if done.first is not None:
        yield from _retention(done.first, now)


def _details(done: Outcome) -> Iterator[str]:
    ledger = done.ledger
    if ledger.new_names:
        names = ", ".join(_plain(name) for name in list(ledger.new_names)[:_SHOWN])
        more = len(ledger.new_names) - _SHOWN
        yield f"  new names: {names}{f' and {more} more' if more > 0 else ''}"
    if ledger.sections:
        told = ", ".join(f"{_plain(title)} {count:,}" for title, count in ledger.sections.most_common(_SHOWN))
        yield f"  lines of no such form, by title: {told}"
    for note in ledger.notes:
        yield f"  note: {note}"


def _rows(done: Outcome) -> Iterator[str]:
    parts = []
    for table, landed in done.landed.items():
        there = f" ({landed.there:,} were there already)" if landed.there else ""
        parts.append(f"{table} {landed.stored:,}{there}")
    yield f"  rows stored: {', '.join(parts)}"


def _retention(first: datetime, now: datetime) -> Iterator[str]:
    """Old samples go with the next maintenance: that should surprise nobody."""
    for table in ("gpu", "gpu_1h"):
        days = TABLES[table].retention_d
        if days is not None and first < now - timedelta(days=days):
            yield f"  note: {table} keeps {days} days; maintenance takes what is older"


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else "�" for c in text)[:100]
