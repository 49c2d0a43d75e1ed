"""A file as captures: XML documents, ``-q`` logs and CSV tables, one after the other and mixed, read line by line.

People keep what ``nvidia-smi -l`` wrote for weeks, and bug reports hold several of its outputs with titles between
them. So the beginnings are looked for, and lines that are of none of the three forms are counted as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, TextIO

from graynode.service.imports.smi_capture import LONGEST, Capture
from graynode.service.imports.smi_csv import CsvReader, canonical, names_of
from graynode.service.imports.smi_ledger import Ledger
from graynode.service.imports.smi_text import BEGIN, TextReader, ends
from graynode.service.imports.smi_xml import XmlReader

_TITLE: Final = re.compile(r"^# (.{1,60}?) :: (.{1,60}?)(?: \(.*)?$")
"""A title of a collected report; its commands are told apart in what is refused."""
OUTSIDE: Final = "a line that is neither XML, -q nor CSV of --query-gpu"
LOST: Final = "a line that says that a GPU is lost, without its UUID"
_LOST: Final = re.compile(r"GPU is lost|Unable to determine the device handle")
WRONG: Final = "a line after XML that went wrong"
_XML: Final = re.compile(r"\s*(<\?xml|<!DOCTYPE nvidia_smi_log|<nvidia_smi_log)")
_NEXT_XML: Final = re.compile(r"\s*<\?xml")


class Splitter:
    """The file's state between two lines. ``query`` are the names of a CSV query without header."""

    def __init__(self, ledger: Ledger, query: Sequence[str] = ()) -> None:
        self._ledger = ledger
        self._query = [canonical(name) for name in query]
        self._xml: XmlReader | None = None
        self._text: TextReader | None = None
        self._csv: CsvReader | None = None
        self._title = ""

    def captures(self, lines: TextIO) -> Iterator[Capture]:
        """All captures of the file, in its order."""
        long = False
        while piece := lines.readline(LONGEST):
            whole = piece.endswith("\n")
            if self._xml is not None:
                yield from self._in_xml(piece)
            elif long or (not whole and len(piece) >= LONGEST):
                if not long:
                    self._ledger.refuse(f"a line longer than {LONGEST >> 20} million characters")
                long = not whole
            else:
                yield from self._line(piece.rstrip("\r\n"), cut=not whole)
        yield from self._end()

    def _in_xml(self, piece: str) -> Iterator[Capture]:
        if _NEXT_XML.match(piece):  # also where the document before was cut
            yield from self._end()
        reader = self._xml = self._xml or XmlReader(self._ledger)
        if reader.over and piece.strip():
            self._ledger.refuse(WRONG)
        reader.feed(piece)
        if reader.whole or (reader.over and "</nvidia_smi_log>" in piece):
            self._xml = None
            yield reader.capture

    def _line(self, line: str, *, cut: bool) -> Iterator[Capture]:
        if _XML.match(line):
            yield from self._end()
            yield from self._in_xml(line + "\n")
        elif BEGIN.match(line):
            yield from self._end()
            self._text = TextReader(self._ledger)
        elif line.startswith("####"):
            yield from self._end()
        elif self._text is not None and not ends(line):
            self._in_text(line, cut=cut)
        elif self._text is not None:
            yield from self._end()
            yield from self._in_table(line, cut=cut)
        else:
            yield from self._in_table(line, cut=cut)

    def _in_text(self, line: str, *, cut: bool) -> None:
        assert self._text is not None  # noqa: S101 (the caller looked; narrows the type)
        if cut and line.strip():
            self._ledger.refuse("the last value of a file that ends without a line end: it may be cut")
        else:
            self._text.line(line)

    def _in_table(self, line: str, *, cut: bool) -> Iterator[Capture]:
        title = _TITLE.match(line)
        if title is not None:
            self._title = title[2]
            return
        if not line.strip():
            return
        names = None if line.startswith("#") else names_of(line)
        if names is not None or (self._csv is None and self._query and not line.startswith("#")):
            yield from self._end()
            self._csv = CsvReader(names or self._query, self._ledger)
            if names is not None:
                return
        if self._csv is not None:
            capture = self._csv.row(line, cut=cut)
            if capture is not None:
                yield capture
        else:
            self._outside(line)

    def _outside(self, line: str) -> None:
        self._ledger.refuse(LOST if _LOST.search(line) else OUTSIDE)
        self._ledger.sections[self._title or "no title"] += 1

    def _end(self) -> Iterator[Capture]:
        if self._xml is not None:
            self._xml.close()
            yield self._xml.capture
        if self._text is not None:
            yield self._text.capture
        rest = self._csv.rest() if self._csv is not None else None
        if rest is not None:
            yield rest
        self._xml = self._text = self._csv = None
