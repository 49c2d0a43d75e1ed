"""Prometheus text pages, read line by line with a memory of what repeats.

What stands before the value of a line is the same scrape after scrape. So it is parsed once: its name and its label
set are then found in two dictionaries, and of a line known only the value is read. A default dcgm-exporter page of
eight GPUs takes about a tenth of a millisecond (``benchmarks/speed/dcgm_scrape.py``).

A line that cannot be read costs itself and is counted; a page is never refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

Name = TypeVar("Name")
Series = TypeVar("Series")

Sample = tuple[Name, Series, int | float | bytes, int | None]
"""One line: what its name and its label set were made into, its value (bytes where something else than a number
stands in its place) and its timestamp in milliseconds, if it has one."""

MAX_LINE: Final = 32 << 10
"""Bytes of one line. The longest honest ones, with pod labels of 63 characters each, stay below 2 KiB."""
_MOST_LABEL_SETS: Final = 8192
"""Label sets remembered per page source: 64 GPU instances with hundreds of changes of pods."""
_MOST_NAMES: Final = 4096
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')
_ESCAPED: Final = re.compile(r'\\([\\n"])')


class NotText(ValueError):
    """A line that is not of the text format; the text says what is wrong with it."""


@dataclass(slots=True)
class Page(Generic[Name, Series]):
    """What a page holds, in its order; ``bad`` lines could not be read, the first of them is kept as said."""

    samples: list[Sample[Name, Series]] = field(default_factory=list)
    bad: int = 0
    first_bad: str = ""


class PageReader(Generic[Name, Series]):
    """Reads the pages of one source. ``of_name`` and ``of_labels`` make of names and label sets what the caller wants
    to find again with each sample; both are called once for each, as long as it is remembered.

    ``names`` may be shared between readers of sources that have the same names.
    """

    def __init__(
        self,
        of_name: Callable[[str], Name],
        of_labels: Callable[[Mapping[str, str]], Series],
        names: MutableMapping[bytes, Name] | None = None,
    ) -> None:
        self._of_name, self._of_labels = of_name, of_labels
        self._names: MutableMapping[bytes, Name] = {} if names is None else names
        self._series: dict[bytes, Series] = {}

    def read(self, page: bytes) -> Page[Name, Series]:
        """Every line of the page. Comments and blank lines are passed over."""
        got: Page[Name, Series] = Page()
        names, series, add = self._names, self._series, got.samples.append
        for line in page.split(b"\n"):
            if line[:1] == b"#":
                continue
            opening, closing = line.find(b"{"), line.rfind(b"}") + 1
            try:
                name, known = names[line[:opening]], series[line[opening:closing]]
            except KeyError:
                self._met_first(line, got)
                continue
            value = line[closing:].strip()
            if len(value) < 19 and value.isdigit():
                add((name, known, int(value), None))
            else:
                self._add(name, known, value, line, got)
        return got

    def forget(self) -> None:
        """Ask for every label set again."""
        self._series.clear()

    def _met_first(self, line: bytes, got: Page[Name, Series]) -> None:
        """A line of which not everything is known."""
        line = line.strip()
        if not line or line[:1] == b"#":
            return
        try:
            before, labels, rest = _pieces(line)
            name, known = self._name(before), self._known(labels)
        except NotText as error:
            self._refuse(line, error, got)
        else:
            self._add(name, known, rest, line, got)

    def _add(self, name: Name, known: Series, rest: bytes, line: bytes, got: Page[Name, Series]) -> None:
        try:
            value, stamp = parse_value(rest)
        except NotText as error:
            self._refuse(line, error, got)
        else:
            got.samples.append((name, known, value, stamp))

    def _refuse(self, line: bytes, why: NotText, got: Page[Name, Series]) -> None:
        got.bad += 1
        if not got.first_bad:
            got.first_bad = f"{why}: {line[:120].decode('utf-8', 'replace')!a}"

    def _name(self, before: bytes) -> Name:
        try:
            return self._names[before]
        except KeyError:
            name = self._of_name(parse_name(before))
        if len(self._names) < _MOST_NAMES:
            self._names[before] = name
        return name

    def _known(self, labels: bytes) -> Series:
        try:
            return self._series[labels]
        except KeyError:
            known = self._of_labels(parse_labels(labels))
        if len(self._series) >= _MOST_LABEL_SETS:
            self._series.clear()
        self._series[labels] = known
        return known


def _pieces(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Name, label set with its braces, and what follows."""
    if len(line) > MAX_LINE:
        raise NotText(f"line of {len(line)} bytes")
    opening = line.find(b"{")
    if opening >= 0:
        closing = line.rfind(b"}") + 1
        if closing <= opening:
            raise NotText("label set is not closed")
        return line[:opening], line[opening:closing], line[closing:].strip()
    parts = line.split(None, 1)
    if len(parts) < 2:
        raise NotText("no value")
    return parts[0], b"", parts[1]


def parse_name(name: bytes) -> str:
    """A metric name; blanks around it do not count. ``NotText`` for anything else."""
    text = name.decode("utf-8", "replace").strip()
    if not _NAME.fullmatch(text):
        raise NotText("not a metric name")
    return text


def parse_labels(labels: bytes) -> dict[str, str]:
    """A label set as it stands, with or without braces; escapes resolved. ``NotText`` where it is none."""
    text = labels.strip().decode("utf-8", "replace")
    text = text.removeprefix("{").removesuffix("}").strip()
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        label = _LABEL.match(text, at)
        if label is None:
            raise NotText("not a label set")
        if label[1] in found:
            raise NotText(f"label {label[1]} twice")
        found[label[1]] = _unescaped(label[2])
        at = label.end()
    return found


def parse_value(text: bytes) -> tuple[int | float | bytes, int | None]:
    """Value and timestamp. What is no number is given back as it is: some exporters say N/A."""
    words = text.split()
    if not words:
        raise NotText("no value")
    value = number(words[0])
    if value is None or len(words) > 2:
        return text, None
    if len(words) == 1:
        return value, None
    stamp = number(words[1])
    if not isinstance(stamp, int):
        raise NotText("timestamp is not a count of milliseconds")
    return value, stamp


def number(word: bytes) -> int | float | None:
    """A number as Go writes it, whole ones exactly; null for anything else. Python alone would take 1_000 too."""
    if b"_" in word:
        return None
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        return None


def whole_lines(page: bytes) -> bytes:
    """A page that was cut, without its last line if that is not whole."""
    return page[: page.rfind(b"\n") + 1]


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
