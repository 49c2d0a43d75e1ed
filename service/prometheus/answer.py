"""Answers of Prometheus' query API, parsed: bytes in, series out. No network, no clock.

The same form is given by Prometheus, VictoriaMetrics, Thanos, Mimir and Cortex: ``{"status": "success", "data": …}``,
``warnings`` and, of VictoriaMetrics, ``isPartial`` beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SHOWN: Final = 300
_MOST: Final = 20_000
_MARKUP: Final = re.compile(rb"^\s*(<!doctype|<html|<\?xml|<head)", re.IGNORECASE)


class NotAnAnswer(ValueError):
    """The bytes are no answer of this API; the text says what they look like."""


class ServerError(ValueError):
    """The server says in so many words that it will not answer this; the text is its own."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a range query: its labels, evaluation times (epoch seconds) and values; NaN is a NaN of theirs."""

    labels: Mapping[str, str]
    ts: Floats
    values: Floats


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered. ``partial`` says why some of it is missing, in the server's words; empty: it is whole."""

    series: list[Series] = field(default_factory=list)
    partial: str = ""

    @property
    def samples(self) -> int:
        """Values in all series."""
        return sum(len(s.values) for s in self.series)


class _Result(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Matrix(msgspec.Struct, rename="camel"):
    result_type: str
    result: list[_Result]


class _Head(msgspec.Struct, rename="camel"):
    status: str
    error: str = ""
    warnings: list[str] | None = None
    is_partial: bool = False


class _Range(_Head):
    data: _Matrix | None = None


class _Names(_Head):
    data: list[str] | None = None


_Told = TypeVar("_Told", _Range, _Names)
_RANGE: Final = msgspec.json.Decoder(_Range)
_NAMES: Final = msgspec.json.Decoder(_Names)
_HEAD: Final = msgspec.json.Decoder(_Head)


def matrix(body: bytes) -> Answer:
    """A range query's answer. ``NotAnAnswer``; ``ServerError`` where it holds an error instead of data."""
    told = _decoded(_RANGE, body)
    if told.data is None or told.data.result_type != "matrix":
        raise NotAnAnswer("the answer holds no matrix, which a range query gives")
    return Answer([_series(result) for result in told.data.result], _partial(told))


def names(body: bytes) -> tuple[list[str], str]:
    """The values of a label, and why some are missing (empty: none). Raises as ``matrix``."""
    told = _decoded(_NAMES, body)
    return list(told.data or ()), _partial(told)


def error_text(body: bytes) -> str:
    """What an answer that is no success says of itself, one line for a person."""
    try:
        told = _HEAD.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _looks_like(body)
    return plain(told.error) or f"status {plain(told.status)!r} without a reason"


def plain(text: str) -> str:
    """A server's words on one line: nothing in them moves the cursor, and there is an end to them.

    What is long is cut in the middle: VictoriaMetrics repeats the query several times before it comes to the reason.
    """
    line = "".join(c if c.isprintable() else " " for c in text[:_MOST])
    line = " ".join(line.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN // 3]} … {line[-2 * _SHOWN // 3 :]}"


def _decoded(decoder: msgspec.json.Decoder[_Told], body: bytes) -> _Told:
    try:
        told = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotAnAnswer(f"{_looks_like(body)} ({plain(str(error))})") from error
    if told.status != "success":
        raise ServerError(plain(told.error) or f"status {plain(told.status)!r} without a reason")
    return told


def _series(result: _Result) -> Series:
    try:
        values = np.array([value for _, value in result.values], dtype=np.float64)
    except ValueError as error:
        raise NotAnAnswer(f"a value is no number: {plain(str(error))}") from error
    return Series(result.metric, np.array([ts for ts, _ in result.values], dtype=np.float64), values)


def _partial(told: _Head) -> str:
    if told.warnings:
        return plain("; ".join(told.warnings))
    return "isPartial: some of its storage nodes did not answer" if told.is_partial else ""


def _looks_like(body: bytes) -> str:
    if not body.strip():
        return "an empty answer"
    if _MARKUP.match(body):
        return "a web page, not JSON: a login page, a proxy, or another program"
    return f"not this API's JSON: {plain(body[:60].decode('utf-8', 'replace'))!r}"
