"""Pictures of Vega-Lite specifications: drawn in a kept child process, with a deadline, and remembered.

``svg`` answers markup that can stand inside a page: ``role="img"``, with the title and the description of the
specification as ``<title>`` and ``<desc>``. ``png`` answers an image for chat and mail. Both refuse what nobody should
draw: more than ``MOST_ROWS`` rows (aggregate first), and data that would have to be fetched. Without any font on the
machine the lines are drawn and the words are missing from a PNG; an SVG keeps its words, for the reader has fonts.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any, Final

from graynode.dashboards.pieces import clean
from graynode.dashboards.render_child import write_frame

Spec = Mapping[str, Any]

MOST_ROWS: Final = 5000
"""Altair's own limit: beyond it the picture is slow and no longer says anything."""
DEADLINE_S: Final = 20.0
"""The first picture takes a second (the engine starts), others a tenth; a busy machine ten times that."""
_KEPT: Final = 128
_KEPT_BYTES: Final = 32 << 20
_CHILD: Final = (sys.executable, "-P", "-m", "graynode.dashboards.render_child")
_FETCH: Final = frozenset({"url", "href"})


class RenderError(Exception):
    """There is no picture; the text says why, for a person."""


class Renderer:
    """Draws one picture at a time. ``command`` is what draws; a test gives one that never answers."""

    def __init__(
        self, *, deadline_s: float = DEADLINE_S, command: tuple[str, ...] = _CHILD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._deadline_s, self._command, self._clock = deadline_s, command, clock
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def svg(self, spec: Spec, title: str = "") -> str:
        """The picture as SVG with its alternative text; ``RenderError`` where there is none."""
        named = clean(title or spec.get("title") or "Chart")
        return _with_words(self._picture("svg", spec, 1.0).decode(), named, clean(spec.get("description") or named))

    def png(self, spec: Spec, *, scale: float = 2.0) -> bytes:
        """The picture as PNG, ``scale`` pixels a point; ``RenderError`` where there is none."""
        return self._picture("png", spec, scale)

    def close(self) -> None:
        """End the child process; the next picture starts another."""
        with self._lock:
            self._end()

    def _picture(self, kind: str, spec: Spec, scale: float) -> bytes:
        _check(spec)
        request = json.dumps({"kind": kind, "spec": spec, "scale": scale}, sort_keys=True, default=str).encode()
        key = hashlib.sha256(request).hexdigest()
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
            answer = self._ask(request)
            self._keep(key, answer)
            return answer

    def _keep(self, key: str, picture: bytes) -> None:
        self._kept[key] = picture
        self._bytes += len(picture)
        while len(self._kept) > _KEPT or self._bytes > _KEPT_BYTES:
            self._bytes -= len(self._kept.popitem(last=False)[1])

    def _ask(self, request: bytes) -> bytes:
        for _ in range(2):  # a child that had ended (idle, killed for memory) is started again, once
            child = self._started()
            assert child.stdin is not None  # noqa: S101 (opened as a pipe)
            assert child.stdout is not None  # noqa: S101 (opened as a pipe)
            try:
                write_frame(child.stdin.fileno(), request)
                answer = self._answer(child.stdout.fileno())
            except BrokenPipeError:
                answer = None
            if answer is not None:
                if answer[:1] == b"+":
                    return answer[1:]
                raise RenderError(f"the chart cannot be drawn: {clean(answer[1:].decode(errors='replace'))}")
            self._end()
        raise RenderError("the chart cannot be drawn: the drawing process ends by itself (too little memory?)")

    def _answer(self, fd: int) -> bytes | None:
        """The next frame before the deadline; none where the child ended."""
        until, got = self._clock() + self._deadline_s, bytearray()
        while len(got) < 4 or len(got) < 4 + int.from_bytes(got[:4], "big"):
            left = until - self._clock()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                self._end()
                raise RenderError(f"the chart was not drawn within {self._deadline_s:g} s; ask for less, or again")
            part = os.read(fd, 1 << 20)
            if not part:
                return None
            got += part
        return bytes(got[4:])

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._end()
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self._child

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
            self._child = None


_RENDERER: Final = Renderer()
"""The process's own: nothing is started before the first picture."""
atexit.register(_RENDERER.close)


def svg(spec: Spec, title: str = "") -> str:
    """``Renderer.svg`` of the process's own renderer."""
    return _RENDERER.svg(spec, title)


def png(spec: Spec, *, scale: float = 2.0) -> bytes:
    """``Renderer.png`` of the process's own renderer."""
    return _RENDERER.png(spec, scale=scale)


def note(title: str, why: str) -> str:
    """What stands where a picture could not be drawn: an SVG of two lines of text."""
    words = (clean(title) or "Chart", clean(why)[:160])
    lines = "".join(f'<text x="8" y="{20 + 20 * i}" fill="#57606a">{escape(w)}</text>' for i, w in enumerate(words))
    plain = f'<svg xmlns="http://www.w3.org/2000/svg" width="620" height="52" font-size="12">{lines}</svg>'
    return _with_words(plain, words[0], words[1])


def _with_words(markup: str, title: str, words: str) -> str:
    """The SVG with role, title and description; what its own groups say of themselves is for no reader."""
    mark = hashlib.sha256(f"{title}\0{words}\0{markup}".encode()).hexdigest()[:10]
    said = f'<title id="t{mark}">{escape(title)}</title><desc id="d{mark}">{escape(words)}</desc>'
    quiet = re.sub(r' (?:role="graphics-[a-z]+"|aria-(?:hidden|label|roledescription)="[^"]*")', "", markup)
    head = f'<svg role="img" aria-labelledby="t{mark}" aria-describedby="d{mark}"'
    return re.sub(r"^<svg([^>]*)>", lambda m: f"{head}{m[1]}>{said}", quiet, count=1)


def _check(spec: Spec) -> None:
    rows = 0
    for key, value in _walk(spec):
        if key in _FETCH and isinstance(value, str):
            raise RenderError("the chart cannot be drawn: its data must be in it, not at an address")
        if isinstance(value, list) and value and isinstance(value[0], Mapping) and key not in ("layer", "transform"):
            rows += len(value)
    if rows > MOST_ROWS:
        raise RenderError(f"the chart cannot be drawn: {rows:,} rows, at most {MOST_ROWS:,}; aggregate first")


def _walk(spec: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 (JSON)
    """Keys and values of a specification; rows of data are not looked into, for their names are anybody's."""
    for key, value in spec.items() if isinstance(spec, Mapping) else ():
        yield key, value
        inside = value if isinstance(value, list) and key in ("layer", "hconcat", "vconcat", "concat") else [value]
        for part in inside:
            if key not in ("values", "datasets") and isinstance(part, Mapping):
                yield from _walk(part)
            elif key == "datasets" and isinstance(part, Mapping):
                yield from part.items()
