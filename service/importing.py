"""``graynode import``: data that is there already, into the lake; twice is as good as once.

Rows pass the same check as an agent's and go straight into the lake, not over the bus: the transaction that stores
them also holds the hash of the file they came from (application id ``import/<format>/…``), so a kill leaves whole
pieces only. Over the bus no transaction would span a piece of a file, and rows that are years old would pass the
windows' watermarks of machines that are alive. ``docs/import.md`` has the formats.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from graynode.pipeline import fleet_hours
from graynode.pipeline.lake import Lake, LakeError, LakeTooNew, SecondWriter
from graynode.service.config import Config, ConfigError
from graynode.service.imports import datasets as import_datasets
from graynode.service.imports import map as import_map
from graynode.service.imports import smi as import_smi
from graynode.service.imports import smi_say as import_smi_say
from graynode.service.imports.formats import FORMATS, NotThisFormat
from graynode.service.imports.windows import Brought, fill_windows
from graynode.service.simulate import progress_bar
from graynode.service.wiring import make_lake

MAPPED: Final = ("parquet", "csv")
KNOWN: Final = ("nvidia-smi", *MAPPED, *FORMATS)
_One = Callable[[Path], int]


def run(
    config: Config,
    format: str,  # noqa: A002 (the flag's name)
    paths: Path | Sequence[Path],
    lake: Lake | None = None,
    *,
    map_path: Path | None = None,
    asked: import_smi.Asked | None = None,
    now: datetime | None = None,
) -> int:
    """Import files, say what became of every value. 0: all is in the lake; 1: of one none was readable; 2: one failed.

    One file that cannot be used is a ``ConfigError``; of several it costs itself, and is said on stderr.
    """
    if format not in KNOWN:
        raise ConfigError(f"--format {format}: known: {', '.join(KNOWN)}")
    files = [paths] if isinstance(paths, Path) else list(paths)
    if not files:
        raise ConfigError(f"--format {format}: reads files: name at least one")
    into, when = lake or make_lake(config), now or datetime.now(UTC)
    plan = _plan(config, format, into, map_path, asked or import_smi.Asked(), when)
    code = plan.all(files)
    _windows(into, config.cluster, plan, when)
    return code


def run_asked(
    config: Config,
    format_: str,
    paths: Sequence[Path],
    *,
    map_path: Path | None,
    node: str,
    node_id: str,
    zone: str,
    at: str | None,
    query: str,
    step: float | None,
) -> int:
    """``run`` with the command line's options as they are."""
    return run(config, format_, paths, map_path=map_path, asked=import_smi.Asked(node, node_id, zone, at, query, step))


@dataclass(slots=True)
class _Plan:
    """How the files are imported, and what of them becomes windows afterwards."""

    all: Callable[[Sequence[Path]], int]
    table: str = ""
    brought: Brought = field(default_factory=Brought)
    step_s: float | None = None


def _plan(
    config: Config, format_: str, lake: Lake, map_path: Path | None, asked: import_smi.Asked, now: datetime
) -> _Plan:
    if map_path is not None and (format_ in FORMATS or format_ == "nvidia-smi"):
        raise ConfigError(f"--format {format_}: takes no --map; its columns are known")
    if format_ in FORMATS:
        return _Plan(_each(format_, lambda path: import_datasets.import_file(lake, config, format_, path)))
    brought = Brought()
    if format_ == "nvidia-smi":
        return _Plan(lambda paths: _smi(lake, config.cluster, paths, asked, brought, now), "gpu", brought, asked.step_s)
    if map_path is None:
        raise ConfigError(f"--format {format_}: needs --map FILE, which says what each column is (docs/import.md)")
    wanted = import_map.read(map_path)

    def one(path: Path) -> int:
        return import_map.import_file(lake, config.cluster, format_, path, wanted, brought, now=now)

    return _Plan(_each(format_, one), wanted.table, brought, wanted.step_s or asked.step_s)


def _each(format_: str, one: _One) -> Callable[[Sequence[Path]], int]:
    """One file after the other; a bad one of several costs itself."""

    def all_(paths: Sequence[Path]) -> int:
        if len(paths) == 1:
            return _import(one, paths[0], format_)
        code, failed = 0, []
        for path in paths:
            try:
                code = max(code, _import(one, path, format_))
            except ConfigError as error:
                failed.append(str(error))
        return _failed(failed) or code

    return all_


def _failed(failed: Sequence[str]) -> int:
    for text in failed:
        print(f"graynode: {text}", file=sys.stderr)
    return 2 if failed else 0


def _import(one: _One, path: Path, format_: str) -> int:
    try:
        return one(path)
    except NotThisFormat as error:
        raise ConfigError(f"{path}: is not {format_}: {error}") from error
    except (LakeError, LakeTooNew) as error:
        raise ConfigError(str(error)) from error
    except SecondWriter as error:
        raise ConfigError(f"{path}: is being imported by another process: {error}") from error


def _smi(
    lake: Lake, cluster: str, paths: Sequence[Path], asked: import_smi.Asked, brought: Brought, now: datetime
) -> int:
    try:
        with progress_bar(f"importing {len(paths)} files of nvidia-smi") as told:
            done = import_smi.import_files(lake, cluster, paths, asked, now=now, told=told)
    except (LakeError, LakeTooNew) as error:
        raise ConfigError(str(error)) from error
    except SecondWriter as error:
        raise ConfigError(f"these files are being imported by another process: {error}") from error
    brought.add(done.brought)
    if done.values:
        print("\n".join(import_smi_say.lines(cluster, done, asked, now)))
    if len(paths) == 1 and done.failed:
        raise ConfigError(next(iter(done.failed.values())))
    return _failed(list(done.failed.values())) or (0 if done.ledger.stored.total() else 1)


def _windows(lake: Lake, cluster: str, plan: _Plan, now: datetime) -> None:
    """Windows of what all files brought together: an hour's is made once, and does not change after."""
    if not plan.brought.hours:
        return
    try:
        with progress_bar("making windows") as told:
            made = fill_windows(lake, cluster, plan.brought, plan.step_s, table=plan.table, now=now, told=told)
            fleet_hours.fill(lake)
    except LakeError as error:
        raise ConfigError(f"{error}; the samples are stored, import again for their windows") from error
    for name, count in made.stored.items():
        print(f"windows: {count:,} of {name} stored")
    if made.there:
        print(f"windows: {made.there:,} were there already; samples that came after stay out of them")
    if made.unfinished:
        print(f"windows: {made.unfinished:,} samples are of an hour that is not over: import again later")
    if made.unscheduled:
        print(f"windows: none of {made.unscheduled:,} samples: too few to tell their spacing; say it with --step")
