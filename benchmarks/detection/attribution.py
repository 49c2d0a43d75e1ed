"""Track ``attribution``: is the slow rank hardware, application or unknown, and is it the right one.

Operation traces: hardware faults on every worker and node, application causes that must give no hardware flag. Step
times: a worker is located, and the cause stays unknown. The formats: ``attribution_trace``, ``attribution_steps``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import polars as pl

from graynode.benchmarks.detection import attribution_hardware as hardware
from graynode.benchmarks.detection import attribution_located as located
from graynode.benchmarks.detection import attribution_steps as step_times
from graynode.benchmarks.detection import attribution_trace as op_trace
from graynode.benchmarks.detection.attribution_job import Trace
from graynode.benchmarks.detection.attribution_made import FULL, Sizes
from graynode.benchmarks.detection.frozen import frozen
from graynode.benchmarks.detection.result import DataError, Result, digests
from graynode.detectors.straggler import Limits
from graynode.detectors.work import Work

_ENDINGS: Final = (".parquet", ".csv")


@dataclass(slots=True)
class Jobs:
    """What a folder holds, by the name of the file."""

    traces: list[Trace] = field(default_factory=list)
    steps: dict[str, Work] = field(default_factory=dict)
    variations: dict[str, pl.DataFrame] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)


def run(data: Path | None, seed: int, *, full: bool = False) -> Result:
    """Evaluate on all traces and step times in ``data`` or one level below it."""
    if data is None:
        raise DataError(
            "track attribution has no data of its own: give --data a folder with operation traces "
            f"({', '.join(op_trace.NEEDED)}) or step times (worker, time, batch_time_norm)"
        )
    values, digest = frozen("attribution")
    limits = Limits(**values["limits"])
    jobs = find(data)
    result = Result(
        track="attribution",
        seed=seed,
        n=sum(len(t.rank) for t in jobs.traces) + sum(len(w) for w in jobs.steps.values()),
        figures={},
        thresholds_sha256=digest,
        data_sha256=digests(jobs.files),
        notes=[f"not of a known format, left out: {', '.join(jobs.ignored)}"] if jobs.ignored else [],
    )
    for place, trace in enumerate(jobs.traces):
        hardware.evaluate(trace, limits, (seed, place), result, FULL if full else Sizes())
    located.evaluate(jobs.steps, jobs.variations, limits, seed, result)
    return result


def find(data: Path) -> Jobs:
    """All files of the two formats. ``DataError`` where there is none, or one of them cannot be used."""
    jobs = Jobs()
    files = list(_files(data))
    for file, name in zip(files, _names(files), strict=True):
        _take(jobs, file, name)
    if not (jobs.traces or jobs.steps or jobs.variations):
        seen = ", ".join(jobs.ignored) or "no .parquet or .csv file"
        raise DataError(
            f"{data}: {seen}; expected operation traces ({', '.join(op_trace.NEEDED)}) or step times "
            "(worker, time, batch_time_norm), in the folder or one level below"
        )
    return jobs


def _files(data: Path) -> Iterable[Path]:
    places: Sequence[Path] = [data, *sorted(p for p in data.iterdir() if p.is_dir())]
    return [f for place in places for f in sorted(place.iterdir()) if f.is_file() and f.suffix in _ENDINGS]


def _names(files: Sequence[Path]) -> list[str]:
    """What the figures of each file begin with: its stem, and where files share it, folder and whole name."""
    stems = Counter(file.stem for file in files)
    return [file.stem if stems[file.stem] == 1 else f"{file.parent.name}/{file.name}" for file in files]


def _take(jobs: Jobs, file: Path, name: str) -> None:
    columns = _columns(file)
    if "optype" in columns or {"rank", "step"} <= set(columns):
        jobs.traces.append(op_trace.parse(op_trace.read(file), name))
    elif "worker" in columns:
        jobs.steps[name] = step_times.parse(step_times.read(file), file.name)
    elif step_times.is_variation(columns):
        jobs.variations[name] = step_times.read(file)
    else:
        jobs.ignored.append(file.name)
        return
    jobs.files.append(file)


def _columns(file: Path) -> list[str]:
    try:
        if file.suffix == ".parquet":
            return list(pl.read_parquet_schema(file))
        with file.open(encoding="utf-8-sig") as lines:
            return [c.strip().strip('"') for c in lines.readline().rstrip("\r\n").split(",")]
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); expected parquet, or CSV in UTF-8") from error
