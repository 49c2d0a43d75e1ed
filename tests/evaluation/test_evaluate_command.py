"""``graynode evaluate`` itself: where the result goes, and what is refused before time is spent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graynode.benchmarks.detection.result import digests
from graynode.service import evaluate
from graynode.service.config import ConfigError


def trace(folder: Path) -> Path:
    """Two nodes with a fault each; numbers as their names."""
    events = [
        {"node_id": node, "event_time": day, "event_type": kind, "fault_type": {"Class": "NIC", "Desc": "down"}}
        for node in (7, 8)
        for day, kind in ((node, "fault_start"), (node + 1.5, "fault_end"))
    ]
    (folder / "fault_trace.json").write_text(json.dumps(events))
    return folder


def test_a_place_that_cannot_be_written_is_refused_before_the_track_runs(tmp_path: Path) -> None:
    """A folder that is not there, a folder in the file's place, a file that is no folder: the way out, no traceback."""
    (tmp_path / "file").write_text("")
    for place, said in ((tmp_path / "no" / "x.json", "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(ConfigError, match=said):
            evaluate.run("lemons", tmp_path, 1, place)
    with pytest.raises(ConfigError, match="does not exist"):
        evaluate.run("lemons", tmp_path, 1, tmp_path / "file" / "x.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        evaluate.run("lemons", tmp_path, 1, tmp_path / ("x" * 300))


def test_a_failed_run_leaves_no_file_and_spoils_none(tmp_path: Path) -> None:
    """No data: an old result stays as it was, and no empty new one is left."""
    old = tmp_path / "old.json"
    old.write_text("{}")
    for place in (old, tmp_path / "new.json"):
        with pytest.raises(ConfigError, match="fault_trace"):
            evaluate.run("lemons", tmp_path, 1, place)
    assert old.read_text() == "{}"
    assert not (tmp_path / "new.json").exists()


def test_the_json_holds_what_the_page_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Track, seed, n, every figure with value and bounds, baselines alike, hashes, command; no NaN in it."""
    place = tmp_path / "out.json"
    assert evaluate.run("lemons", trace(tmp_path), 5, place) == 0
    told = json.loads(place.read_text(), parse_constant=lambda word: pytest.fail(f"{word} in the JSON"))
    assert (told["track"], told["seed"], told["n"]) == ("lemons", 5, 2)
    tables = [told["figures"], *told["baselines"].values(), *told["ablations"].values()]
    assert len(tables) > 5
    for table in tables:
        for name, figure in table.items():
            assert {"value", "ci_low", "ci_high", "n", "note"} <= set(figure), name
            assert figure["value"] is not None or figure["note"], name
    assert {"data_sha256", "thresholds_sha256", "seconds", "command", "libraries"} <= set(told)
    assert "track lemons, seed 5" in capsys.readouterr().out


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    """Each file has a hash of its own."""
    for name in ("a/x/m.txt", "b/x/m.txt", "b/n.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    files = [tmp_path / n for n in ("a/x/m.txt", "b/x/m.txt", "b/n.txt")]
    assert set(digests(files)) == {"a/x/m.txt", "b/x/m.txt", "n.txt"}
