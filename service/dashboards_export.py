"""``graynode dashboards export``: the files of a file-based set-up of Grafana into a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from graynode.service.config import ConfigError
from graynode.service.dashboards_files import PLACE, files, write


def run(folder: Path, *, place: str = PLACE, sink: TextIO | None = None) -> int:
    """Write them and say which changed. ``ConfigError`` where that cannot be done."""
    sink = sink or sys.stdout
    if not place.startswith("/"):
        raise ConfigError(f"--dashboards-path {place!r}: the whole path on Grafana's machine is wanted")
    made = files(place)
    try:
        changed = write(folder, made)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from error
    print(f"{len(made)} files below {folder}, {len(changed)} of them new or changed", file=sink)
    print(f"{folder / 'README.md'} says what to do with them, in three steps", file=sink)
    return 0
