"""How far an import is: a bar where a person looks, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, TextIO

from graynode.service.prometheus.plan import Chunk

Told = Callable[[Chunk, float, int], None]
"""Takes the chunk at work, the share that is done (0 to 1) and the samples read so far."""

_EVERY_S: Final = 10.0


@contextmanager
def progress(out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> Iterator[Told]:
    """Tells a person on ``out`` (stderr) while it is open."""
    to = out or sys.stderr
    if to.isatty():
        with _bar(to) as told:
            yield told
    else:
        yield _Lines(to, clock).told


class _Lines:
    def __init__(self, out: TextIO, clock: Callable[[], float]) -> None:
        self._out, self._clock = out, clock
        self._began = self._said = clock()

    def told(self, chunk: Chunk, share: float, samples: int) -> None:
        now = self._clock()
        if now - self._said < _EVERY_S:
            return
        self._said = now
        took = now - self._began
        left = "" if share <= 0 else f", about {took / share * (1 - share) / 60:.0f} min left"
        rate = f"{samples / took:,.0f}" if took > 0 else "?"
        print(f"{_day(chunk)}: {share:.0%}, {samples:,} samples, {rate} a second{left}", file=self._out, flush=True)


@contextmanager
def _bar(out: TextIO) -> Iterator[Told]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[samples]:,} samples"), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(file=out), transient=True) as bar:
        task = bar.add_task("importing", total=1.0, samples=0)

        def told(chunk: Chunk, share: float, samples: int) -> None:
            bar.update(task, completed=share, description=_day(chunk), samples=samples)

        yield told


def _day(chunk: Chunk) -> str:
    return f"{datetime.fromtimestamp(chunk.start_s, UTC):%Y-%m-%d %H:%M}"
