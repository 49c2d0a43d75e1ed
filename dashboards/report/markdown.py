"""The report as Markdown: tables with escaped cells, pictures by their words, statements in code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from graynode.dashboards.pieces import clean
from graynode.dashboards.report.model import Report, Section, Table
from graynode.dashboards.report.words import value

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>|#~!@]|:(?=//))")


def write(report: Report) -> str:
    """The whole text."""
    return "\n".join(_parts(report)) + "\n"


def escaped(text: object) -> str:
    """A text that stays what it is: no markup, no link, no new cell or line; addresses are not made links of."""
    return _SPECIAL.sub(r"\\\1", clean(text))


def _parts(report: Report) -> Iterator[str]:
    yield f"# {escaped(report.title)}\n"
    span = f"{value(report.since)} to {value(report.until)} UTC" + ("" if report.whole else "; the week is not over")
    yield f"{span}. Made {value(report.made)} UTC by graynode {report.version}.\n"
    if report.headlines:
        yield "| | | |\n| --- | --- | --- |"
        for line in report.headlines:
            yield f"| {escaped(line.title)} | **{escaped(line.value)}** | {escaped(line.beside)} |"
        yield ""
    yield "## What we do not know\n"
    yield from (f"- {escaped(line)}" for line in report.unknown or ("Nothing that this report would tell.",))
    for section in report.sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    yield f"\n## {escaped(section.title)}\n"
    yield from (f"{escaped(line)}\n" for line in section.says)
    yield from (f"*Picture: {escaped(f.spec.get('description'))}*\n" for f in section.figures)
    for table in section.tables:
        yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    yield f"### {escaped(table.title)}\n"
    if table.rows:
        yield "| " + " | ".join(escaped(c.head) for c in table.columns) + " |"
        yield "| " + " | ".join("---" for _ in table.columns) + " |"
        for row in table.rows:
            yield "| " + " | ".join(escaped(value(row.get(c.name), c.unit)) for c in table.columns) + " |"
    else:
        yield f"{escaped(table.empty)}"
    reckoned = [f"{c.title}: {c.reckoned}" for c in table.columns if c.reckoned]
    if reckoned:
        yield f"\n{escaped('Reckoned: ' + '; '.join(reckoned) + '.')}"
    fence = "`" * max(3, 1 + max((len(m) for m in re.findall("`+", table.sql)), default=0))
    yield f"\n{fence}sql\n{clean_lines(table.sql)}\n{fence}\n"


def clean_lines(sql: str) -> str:
    """A statement without control characters but its line ends."""
    return "\n".join(clean(line) for line in sql.splitlines())
