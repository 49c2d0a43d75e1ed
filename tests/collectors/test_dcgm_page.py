"""The line parser, held against ``prometheus_client.parser`` on captured, generated and drawn pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import exporter_standin as standin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from graynode.collectors.dcgm.page import MAX_LINE, PageReader, whole_lines

CAPTURED = sorted(standin.FIXTURES.glob("*.prom"))
Read = list[tuple[str, dict[str, str], str, int | None]]


def ours(page: bytes, reader: PageReader[str, Mapping[str, str]] | None = None) -> Read:
    got = (reader or PageReader(str, dict)).read(page)
    return [
        (name.removesuffix("_total"), dict(labels), repr(value), stamp)
        for name, labels, value, stamp in got.samples
        if not isinstance(value, bytes)
    ]


def theirs(page: bytes) -> Read:
    found = []
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            stamp: Any = sample.timestamp
            name = sample.name.removesuffix("_total")  # they add it to every counter
            found.append(
                (name, dict(sample.labels), repr(sample.value), None if stamp is None else round(stamp * 1000))
            )
    return found


@pytest.mark.parametrize("path", CAPTURED, ids=lambda path: path.name)
def test_captured_pages_read_as_the_reference_parser_reads_them(path: Path) -> None:
    """Every line of real pages: name, labels, value, at the first reading and from memory."""
    page = path.read_bytes()
    reader: PageReader[str, Mapping[str, str]] = PageReader(str, dict)
    expected = theirs(page)
    assert len(expected) >= 3
    assert ours(page, reader) == expected
    assert ours(page, reader) == expected


def test_generated_page_reads_as_the_reference_parser_reads_it() -> None:
    """Eight GPUs with pod labels, a mixture of whole and broken values: nothing is lost or changed."""
    page = standin.page(8, more={"namespace": "ml", "pod": "train-0", "container": "main"})
    assert ours(page) == theirs(page)
    assert len(ours(page)) == 8 * len(standin.DEFAULT)


names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,20}", fullmatch=True).filter(lambda n: not n.endswith("_total"))
label_names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,10}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.sampled_from(
        ["NaN", "+Inf", "-Inf", "1e5", "1E+06", "-0", "+7", "0.000000", "9.223372036854776e+18", ".5", "5."]
    ),
)
blanks = st.sampled_from([" ", "  ", "\t"])


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@st.composite
def lines(draw: st.DrawFn) -> str:
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from(["", "  ", "# a comment } { with braces", "# HELP up it is up {", "#", "# EOF"]))
    found = draw(st.dictionaries(label_names, texts, max_size=4))
    comma = draw(st.sampled_from([",", ", ", " , "]))
    inside = comma.join(f'{name}="{escaped(value)}"' for name, value in found.items())
    if inside and draw(st.booleans()):
        inside += ","
    labels = f"{{{inside}}}" if inside or draw(st.booleans()) else ""
    stamp = draw(st.one_of(st.just(""), st.integers(0, 2**45).map(lambda ms: f" {ms}")))
    gap = " " if not labels else draw(st.sampled_from([" ", "  "]))
    return f"{draw(names)}{labels}{gap}{draw(numbers)}{stamp}"


@settings(max_examples=80, deadline=None)
@given(st.lists(lines(), max_size=8), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_well_formed_page_reads_as_the_reference_parser_reads_it(drawn: list[str], end: str, last: bool) -> None:
    """Escapes, timestamps, NaN and infinities, exponents, comments, CRLF, labels with braces and commas inside; from
    memory as at the first time."""
    page = (end.join(drawn) + (end if last else "")).encode()
    reader: PageReader[str, Mapping[str, str]] = PageReader(str, dict)
    expected = theirs(page)
    assert ours(page, reader) == expected
    assert ours(page, reader) == expected


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass"))))
def test_any_bytes_are_survived(page: bytes) -> None:
    """Whatever an endpoint sends: lines are read or counted as bad, nothing is raised."""
    got = PageReader(str, dict).read(page)
    assert len(got.samples) + got.bad <= page.count(b"\n") + 1


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 400))
def test_page_that_was_cut_keeps_what_is_whole(end: int) -> None:
    """Cut anywhere: the lines before the cut are as in the whole page, the broken one is left out."""
    page = standin.page(1)
    cut = whole_lines(page[: len(page) * end // 400])
    whole, got = ours(page), ours(cut)
    assert got == whole[: len(got)]
    assert len(got) == sum(not line.startswith(b"#") for line in cut.splitlines())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'a{b="c" 1', "not closed"),
        (b'a{b="c} 1', "not a label set"),
        (b'a{b="c",b="d"} 1', "label b twice"),
        (b'a{b="c"}', "no value"),
        (b"a", "no value"),
        (b'1a{b="c"} 1', "not a metric name"),
        (b'a{b="c"} 1 soon', "timestamp"),
        (b'a{b="' + b"x" * MAX_LINE + b'"} 1', f"line of {MAX_LINE + 9} bytes"),
    ],
)
def test_bad_line_costs_itself(line: bytes, says: str) -> None:
    """It is counted with its reason and its beginning; the lines around it are read, also from memory."""
    page = b'a{b="c"} 1\n' + line + b'\na{b="d"} 2\n'
    reader: PageReader[str, Mapping[str, str]] = PageReader(str, dict)
    for _ in range(2):
        got = reader.read(page)
        assert [value for _, _, value, _ in got.samples] == [1, 2]
        assert got.bad == 1
        assert says in got.first_bad
        assert len(got.first_bad) < 800


def test_what_is_no_number_is_given_back_as_it_stands() -> None:
    """N/A, DCGM's texts and Python's own spellings are for the field to judge; 1_000 is no number in Go."""
    page = b'a{b="c"} N/A\na{b="c"} <<<NOT_SUPPORTED>>>\na{b="c"} FAILED TO CONVERT\na{b="c"} 1_000\na{b="c"} 0x10\n'
    values = [value for _, _, value, _ in PageReader(str, dict).read(page).samples]
    assert values == [b"N/A", b"<<<NOT_SUPPORTED>>>", b"FAILED TO CONVERT", b"1_000", b"0x10"]


def test_memory_is_bounded() -> None:
    """An endpoint that invents label sets and names with every scrape fills nothing."""
    reader: PageReader[str, Mapping[str, str]] = PageReader(str, dict)
    for turn in range(30):
        reader.read("".join(f'n{turn}_{n}{{l="{turn}_{n}"}} 1\n' for n in range(1000)).encode())
    assert len(reader._names) <= 4096
    assert len(reader._series) <= 8192
    assert ours(b'up{a="b"} 3\n', reader) == [("up", {"a": "b"}, "3", None)]
