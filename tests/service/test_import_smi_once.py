"""nvidia-smi files again, grown, and through a kill: every row once."""

from __future__ import annotations

from pathlib import Path

import pytest
from kept_lake import DyingLake, KeptLake
from smi_files import HEAD, NOW, REPORTS, XML, csv_row, import_smi, unpacked, write

from graynode.pipeline.lake import Lake
from graynode.pipeline.schema import TABLES
from graynode.service.config import Config
from graynode.service.config_tables import LakeSection
from graynode.service.importing import run
from graynode.service.imports.smi import Asked, import_files


def test_twice_is_as_good_as_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second import of a file, packed or not, stores nothing and makes no commit."""
    config = Config(cluster="c", lake=LakeSection(path=str(tmp_path / "lake")))
    lake = Lake(str(tmp_path / "lake"))
    packed = REPORTS[0]
    plain = write(tmp_path, unpacked(packed))
    for path in (packed, packed, plain):
        assert run(config, "nvidia-smi", [path], asked=Asked(node="n1"), now=NOW) == 0
    versions = {t: lake.version(t) for t in ("gpu", "inventory", "quality")}
    assert set(versions.values()) == {1}
    assert "gpu 0 (4 were there already)" in capsys.readouterr().out


def test_a_log_that_has_grown_adds_its_new_rows(tmp_path: Path) -> None:
    """A log that is still being written is imported again and again: only what is new is stored, a half line never."""
    rows = [csv_row(s, f"{s} W", gpu=g) for s in range(12) for g in range(2)]
    lake, stored = KeptLake(), []
    for end in (5, 12, 24):
        text = HEAD + "".join(rows[:end]) + ("" if end == 24 else rows[end][:30])
        done, _ = import_smi(write(tmp_path, text), lake=lake)
        stored.append(done.landed["gpu"].stored)
    assert stored == [5, 7, 12]
    assert lake.read("gpu").select("gpu_uuid", "ts").is_unique().all()
    assert lake.read("inventory").height == 2


def test_many_small_files_are_few_commits(tmp_path: Path) -> None:
    """What a timer wrote, a file each time, lands together; what they all say of a GPU is stored once."""
    xml = next(path for path in XML if path.stem == "tesla-t4").read_text()
    stamp = xml.partition("<timestamp>")[2].partition("</timestamp>")[0]
    paths = []
    for number in range(30):
        paths.append(tmp_path / f"{number:02d}.xml")
        paths[-1].write_text(xml.replace(stamp, f"Tue Jul 14 09:{number:02d}:00 2026"))
    lake = KeptLake()
    done = import_files(lake, "c", paths, Asked(node="n1"), now=NOW)
    assert [len(lake.frames[table]) for table in ("gpu", "inventory", "quality")] == [1, 1, 1]
    assert [lake.read(table).height for table in ("gpu", "inventory")] == [30, 1]
    assert len(set(done.values.values())) == 1
    assert sum(map(sum, done.values.values())) == done.ledger.read == 30 * 256
    assert import_files(lake, "c", paths[10:], Asked(node="n1"), now=NOW).landed["gpu"].stored == 0


@pytest.mark.parametrize("writes", [0, 1, 2, 4])
def test_a_kill_leaves_whole_pieces(tmp_path: Path, writes: int) -> None:
    """Killed at any write, a second run brings what is missing and doubles nothing."""
    text = HEAD + "".join(csv_row(s, "[N/A]" if s % 2 else f"{s} W", gpu=g) for s in range(20) for g in range(3))
    path = write(tmp_path, text)
    dying = DyingLake(str(tmp_path / "lake"))
    dying.left = writes
    with pytest.raises(KeyboardInterrupt):
        import_files(dying, "c", [path], Asked(node="n1"), now=NOW, piece_rows=30)
    _, lake = import_smi(path, lake=Lake(str(tmp_path / "lake")), piece_rows=30)
    whole, full = import_smi(path, piece_rows=30)
    assert whole.landed["gpu"].stored == 60
    for table in ("gpu", "inventory", "quality"):
        order = [*TABLES[table].entity, "ts"]
        assert lake.read(table).sort(order).equals(full.read(table).sort(order))
