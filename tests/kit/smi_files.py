"""What the tests of nvidia-smi imports share: captured files, a small CSV log, and an import into a lake in memory."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

from kept_lake import KeptLake

from graynode.pipeline.lake import Lake
from graynode.service.imports.smi import Asked, Outcome, import_files

FIXTURES = Path(__file__).parents[1] / "fixtures"
XML = sorted((FIXTURES / "telegraf_smi").glob("*.xml"))
REPORTS = sorted((FIXTURES / "nvidia_smi").glob("*.txt.gz"))
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
HEAD = "timestamp, index, uuid, power.draw [W], temperature.gpu, utilization.gpu [%], clocks_throttle_reasons.active\n"


def csv_row(second: int, power: str, *rest: str, gpu: int = 0) -> str:
    cells = [f"2026/07/14 09:00:{second:02d}.500", str(gpu), f"GPU-{gpu}", power, *rest]
    return ", ".join([*cells, "40", "7 %", "0x0000000000000001"][: 7 - 0]) + "\n"


def import_smi(path: Path, asked: Asked | None = None, lake: Lake | None = None, **kw: int) -> tuple[Outcome, Lake]:
    lake = lake or KeptLake()
    return import_files(lake, "c", [path], asked or Asked(node="n1"), now=NOW, **kw), lake


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "smi.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def unpacked(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def make(folder: Path, text: str) -> Path:
    folder.mkdir()
    return write(folder, text)
