"""Telling lines of job outputs: what a traceback ended in, CUDA and NCCL errors, OOM kills, NaN, signals. Opt-in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from graynode.collectors.base import Machine, NoSource, Round, Row, Rows
from graynode.collectors.context import JobContext
from graynode.collectors.job_log_files import Output, Pattern, find
from graynode.collectors.job_log_lines import Telling, clean, may_tell, rank_of, redact
from graynode.collectors.state_file import StateFile

WATCHED: Final = 5000
"""Files that are looked at every 10 s: those written to last."""
_LINES: Final = 20
"""Telling lines of one file in one look that are told; a thousand ranks say the same."""
_TOTAL_BYTES: Final = 2 << 20
"""Read in one look of all files; who is left goes first in the next."""


class JobLog:
    """``job_log`` rows from the files of ``[job_log] paths``: found every minute, read every 10 s.

    Positions are kept over a restart. After a kill the lines of the last minute may be told again. ``NoSource`` where
    no path is configured.
    """

    name: ClassVar[str] = "job_log"
    tables: ClassVar[tuple[str, ...]] = ("job_log", "quality")

    def __init__(self, machine: Machine, paths: Sequence[str] = (), context: JobContext | None = None) -> None:
        if not paths:
            raise NoSource("job_log.paths is empty; job outputs are read only where somebody asks for it")
        self._machine, self._context = machine, context or JobContext()
        self._patterns = [Pattern.of(path) for path in paths]
        self._state = StateFile(machine.state_dir / "job_log.json")
        self._kept: dict[str, Any] = self._state.load()
        self._files: dict[tuple[int, int], tuple[Output, Telling]] = {}
        self._turn = 0
        self._said: str | None = None

    def collect(self, round_: Round) -> Rows:
        """Telling lines that are new."""
        if 60 in round_.due:
            self._keep()  # what was told a minute ago has been sent
            self._find()
        if 10 not in round_.due and 60 not in round_.due:
            return {}
        rows: dict[str, list[Row]] = {"job_log": [], "quality": []}
        refused: list[str] = []
        left = _TOTAL_BYTES
        order = list(self._files)
        start = self._turn % len(order) if order else 0
        for n, key in enumerate([*order[start:], *order[:start]]):
            if left <= 0:
                self._turn = (start + n) % len(order)
                break
            left -= self._look(key, rows["job_log"], refused)
        if 60 in round_.due:
            rows["quality"] = self._quality(refused)
        return {table: some for table, some in rows.items() if some}

    def close(self) -> None:
        """Keep the positions; twice is as good as once."""
        self._keep()

    def _find(self) -> None:
        """Files there are now, the latest ``WATCHED`` of them; a renamed one goes on where it stood."""
        found: dict[tuple[int, int], tuple[float, str, Pattern]] = {}
        for path, pattern in find(self._patterns):
            try:
                status = os.lstat(path)
            except OSError:
                continue
            found.setdefault((status.st_dev, status.st_ino), (status.st_mtime, path, pattern))
        latest = sorted(found, key=lambda key: found[key][0], reverse=True)[:WATCHED]
        files: dict[tuple[int, int], tuple[Output, Telling]] = {}
        for key in latest:
            _, path, pattern = found[key]
            if key in self._files and self._files[key][0].path == path:
                files[key] = self._files[key]
                continue
            before = self._files[key][0].kept if key in self._files else self._kept.get(f"{key[0]}:{key[1]}")
            files[key] = (Output(path, *pattern.ids(path), before), Telling())
        self._files = files

    def _look(self, key: tuple[int, int], rows: list[Row], refused: list[str]) -> int:
        """Read one file; gives how many bytes were read."""
        output, telling = self._files[key]
        try:
            status = os.lstat(output.path)
            if (status.st_dev, status.st_ino) != key:
                return 0  # another file stands there now: found in a minute
            lines = output.lines(status)
        except PermissionError:
            refused.append(output.path)
            return 0
        except OSError:
            return 0  # it was deleted
        if lines and (telling.inside or may_tell(b"\n".join(lines))):
            rows.extend(self._told(output, telling, lines))
        return sum(map(len, lines)) + 1

    def _told(self, output: Output, telling: Telling, lines: Sequence[bytes]) -> list[Row]:
        job = self._context.job_named(output.job) if output.job else None
        rows: list[Row] = []
        more = 0
        for raw in lines:
            text = clean(raw)
            kind = telling.of(text)
            if kind is None:
                continue
            if len(rows) >= _LINES:
                more += 1
                continue
            rank = rank_of(text)
            rank = output.rank if rank is None else rank
            rows.append({"job_id": job, "rank": rank, "kind": kind, "line": redact(text)})
        if more:
            rows[-1]["line"] = f"{rows[-1]['line'][:900]} (and {more} more telling lines)"
        return rows

    def _quality(self, refused: Sequence[str]) -> list[Row]:
        skipped = sum(output.skipped for output, _ in self._files.values())
        if refused:
            state, said = "not_permitted", f"{len(refused)} files may not be read, such as {redact(refused[0])}"
        elif skipped:
            state, said = "stale", "outputs grew faster than they are read; what is between was passed over"
        else:
            state, said = "measured", ""
        if said == self._said or (self._said is None and not said):
            return []
        self._said = said
        who = {"table_name": "job_log", "entity": self._machine.node_id, "field": "*", "state": state}
        return [who | {"reason": said or "all outputs are read again"}]

    def _keep(self) -> None:
        if self._files:
            kept = {f"{key[0]}:{key[1]}": output.kept for key, (output, _) in self._files.items() if output.kept}
            self._kept = kept
            self._state.save(kept)
