"""Track ``host``: the measure against its authors' package, the reader, the score, and the track."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graynode.benchmarks.detection import host, vus
from graynode.benchmarks.detection.host import run
from graynode.benchmarks.detection.host_data import read
from graynode.benchmarks.detection.result import DataError
from graynode.detectors import host_modes

GOLDEN = json.loads((Path(__file__).parent.parent / "fixtures" / "vus" / "golden.json").read_text())


def labels_of(case: dict[str, Any]) -> vus.Bools:
    labels = np.zeros(case["n"], dtype=bool)
    for first, last in case["ranges"]:
        labels[first : last + 1] = True
    return labels


# --- the measure ---


@pytest.mark.parametrize("case", GOLDEN, ids=[f"{c['kind']}-{c['longest']}" for c in GOLDEN])
def test_the_volume_is_its_authors(case: dict[str, Any]) -> None:
    """Both volumes equal what the authors' package gives, with ties, ranges at the edges and ranges that touch."""
    volume = vus.vus(labels_of(case), np.array(case["score"]), case["longest"])
    assert volume.pr == pytest.approx(case["vus_pr"], abs=1e-12)
    assert volume.roc == pytest.approx(case["vus_roc"], abs=1e-12)


def slow_area(labels: vus.Bools, score: vus.FloatArray, buffer: int) -> float:
    """Area under precision over range recall, threshold by threshold and sample by sample, from the definition."""
    n, reach, spans = len(labels), buffer // 2, vus.ranges(labels).tolist()
    weight = labels.astype(float)
    for i in np.flatnonzero(~labels):
        near = [d for a, b in spans for d in (a - i, i - b) if 0 < d <= reach]
        weight[i] = min(sum(np.sqrt(1 - d / buffer) for d in near), 1.0)
    wide: list[list[int]] = []
    for a, b in spans:
        if wide and a - reach <= wide[-1][1]:
            wide[-1][1] = b + reach
        else:
            wide.append([a - reach, b + reach])
    area, before = 0.0, 0.0
    for k in np.linspace(0, n - 1, vus.THRESHOLDS).astype(int):
        alarm = score >= -np.sort(-score)[k]
        hit = float((weight * alarm).sum())
        positive = labels.sum() + (weight * alarm)[~labels].sum() / 2
        met = np.mean([alarm[max(a, 0) : b + 1].any() for a, b in wide])
        recall = min(hit / positive, 1.0) * met
        area += (recall - before) * hit / alarm.sum()
        before = recall
    return area


@settings(max_examples=40, deadline=None)
@given(data=st.data(), buffer=st.integers(0, 12))
def test_the_area_is_that_of_the_definition(data: st.DataObject, buffer: int) -> None:
    """Vectorised and counted one by one agree on any labels and scores."""
    n = data.draw(st.integers(5, 40))
    labels = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    score = np.array(data.draw(st.lists(st.integers(0, 6), min_size=n, max_size=n)), dtype=float)
    if labels.any() and not labels.all():
        assert vus.range_auc(labels, score, buffer).pr == pytest.approx(slow_area(labels, score, buffer), abs=1e-9)


def test_a_perfect_score_and_a_constant_one() -> None:
    """All ranges first: precision near 1 without buffer; all alike: the share of anomalous samples."""
    labels = labels_of({"n": 1000, "ranges": [[100, 149], [600, 649]]})
    assert vus.range_auc(labels, labels.astype(float), 0).pr == pytest.approx(1.0)
    assert vus.range_auc(labels, np.zeros(1000), 0).pr == pytest.approx(0.1)
    assert vus.average_precision(labels, np.zeros(1000)) == pytest.approx(0.1)
    assert vus.average_precision(labels, labels.astype(float)) == pytest.approx(1.0)


def test_no_credit_for_a_hit_elsewhere_in_the_range() -> None:
    """One loud sample in a range of fifty is not the range found (no point-adjust)."""
    labels = labels_of({"n": 1000, "ranges": [[100, 149]]})
    score = np.random.default_rng(1).random(1000)
    score[120] = 2.0
    assert vus.vus(labels, score, 20).pr < 0.2


@pytest.mark.parametrize(
    ("labels", "score"),
    [([True, False], [1.0]), ([True, True], [1.0, 2.0]), ([False, False], [1.0, 2.0]), ([True, False], [np.nan, 1.0])],
)
def test_what_cannot_be_judged_is_refused(labels: list[bool], score: list[float]) -> None:
    """Lengths that differ, labels all alike, scores that are not finite."""
    with pytest.raises(ValueError, match=r"length|alike|finite"):
        vus.vus(np.array(labels), np.array(score), 2)


# --- the score ---


def series(rows: int, seed: int, modes: int = 3) -> vus.FloatArray:
    """Six metrics that follow two causes, around one of a few states for a hundred rows each."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(0, 5, (modes, 6))
    causes = rng.normal(0, 1, (rows, 2)) @ np.random.default_rng(98).normal(0, 1, (2, 6))
    state = np.repeat(rng.integers(0, modes, rows // 100 + 1), 100)[:rows]
    return np.asarray(centres[state] + causes + rng.normal(0, 0.1, (rows, 6)))


def test_a_broken_relation_is_odd_though_every_metric_is_in_its_range() -> None:
    """A metric that leaves its relation by a little scores above all normal rows of another time."""
    fitted = host_modes.fit(series(3000, 1), 1)
    healthy = series(1000, 2)
    odd = healthy[:50].copy()
    odd[:, 3] = healthy[50:100, 3] + np.where(np.arange(50) % 2, 2.0, -2.0)
    assert np.median(fitted.score(odd)) > np.quantile(fitted.score(healthy), 0.99)


def test_missing_and_constant_metrics() -> None:
    """A row without any value cannot be scored; a metric that never moved says nothing; some values are enough."""
    train = np.column_stack([series(500, 1), np.full(500, 7.0), np.full(500, np.nan)])
    fitted = host_modes.fit(train, 1)
    rows = train[:4].copy()
    rows[0], rows[1, :3], rows[2, 6] = np.nan, np.nan, 1e9
    score = fitted.score(rows)
    assert np.isnan(score).tolist() == [True, False, False, False]
    assert score[2] == pytest.approx(fitted.score(train[2:3])[0])


@pytest.mark.parametrize("rows", [0, 1])
def test_too_little_history(rows: int) -> None:
    """It is said how many rows there were."""
    with pytest.raises(ValueError, match=f"{rows} rows"):
        host_modes.fit(np.zeros((rows, 3)), 1)


def test_identical_history_and_any_first_move() -> None:
    """A history of one and the same row: that row scores 0, another more, all finite."""
    fitted = host_modes.fit(np.full((200, 4), 3.0), 1)
    score = fitted.score(np.array([[3.0, 3, 3, 3], [3, 3, 4, 3], [1e12, 3, 3, 3]]))
    assert score[0] == pytest.approx(0.0, abs=1e-6)
    assert (np.diff(score) > 0).all()
    assert np.isfinite(score).all()


# --- reading and the track ---


def machine(folder: Path, name: str, seed: int, *, text: bool = False, odd: bool = True) -> None:
    """A machine whose test has three ranges in which relations break."""
    train, test = series(800, seed), series(800, seed + 1)
    labels = np.zeros(800, dtype=int)
    for first in (150, 350, 600) if odd else ():
        labels[first : first + 40] = 1
        test[first : first + 40, 2] += 4.0
    if not text:
        np.savez(folder / f"{name}.npz", train=train, test=test, test_label=labels)
        return
    for part, values in (("train", train), ("test", test), ("test_label", labels)):
        (folder / part).mkdir(exist_ok=True)
        np.savetxt(folder / part / f"{name}.txt", values, delimiter=",", fmt="%.17g")


def test_both_layouts_are_the_same(tmp_path: Path) -> None:
    """The set's own folders and npz give the same machine, also below ``ServerMachineDataset``."""
    one, other = tmp_path / "npz", tmp_path / "txt"
    below = other / "ServerMachineDataset"
    one.mkdir(), below.mkdir(parents=True)
    machine(one, "machine-1-1", 1)
    machine(below, "machine-1-1", 1, text=True)
    (a,), (b,), (c,) = read(one), read(other), read(below)
    assert a.name == b.name == c.name == "machine-1-1"
    assert np.array_equal(a.train, b.train)
    assert np.array_equal(a.test, c.test)
    assert np.array_equal(a.labels, b.labels)


def test_wrong_files_are_said(tmp_path: Path) -> None:
    """An empty folder, a lacking array, other lengths, words, labels other than 0 and 1."""
    with pytest.raises(DataError, match="no machine"):
        read(tmp_path)
    good = {"train": np.zeros((200, 3)), "test": np.zeros((200, 3)), "test_label": np.zeros(200)}
    for change, said in (
        ({"test_label": np.zeros(9)}, "9 labels"), ({"test": np.zeros((200, 4))}, "same metrics"),
        ({"test_label": np.full(200, 2)}, "other than 0 and 1"), ({"train": np.zeros((3, 3))}, "least"),
        ({"train": np.array([["a"] * 3] * 200)}, "numbers"),
    ):  # fmt: skip
        np.savez(tmp_path / "m.npz", **(good | change))
        with pytest.raises(DataError, match=said):
            read(tmp_path)
    np.savez(tmp_path / "m.npz", train=good["train"])
    with pytest.raises(DataError, match="no array"):
        read(tmp_path)
    (tmp_path / "m.npz").write_bytes(b"not a zip")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.early
def test_the_track_runs_and_repeats_itself(tmp_path: Path) -> None:
    """Ours is above chance and repeats; labels move no score; a machine without anomalies is named and left out."""
    machine(tmp_path, "machine-1-1", 1)
    machine(tmp_path, "machine-1-2", 5)
    machine(tmp_path, "machine-9-9", 7, odd=False)
    one, other = run(tmp_path, 3), run(tmp_path, 3)
    assert one == other
    assert one.n == 3
    mean, chance = one.figures["mean.vus_pr"].value, one.baselines["chance"]["mean.vus_pr"].value
    assert mean is not None
    assert chance is not None
    assert mean > chance + 0.2
    assert {"pca", "kmeans", "isolation_forest", "mahalanobis", "three_sigma"} <= set(one.baselines)
    assert "machine-9-9.vus_pr" not in one.figures
    assert any("machine-9-9" in note for note in one.notes)
    assert one.figures["alarm.ranges_found"].value is None  # its held-out training rows are 160


def test_without_data_it_says_what_to_give() -> None:
    """There is no simulation behind this track."""
    with pytest.raises(DataError, match="--data"):
        run(None, 1)


def test_too_little_training_sets_no_alarm_threshold(tmp_path: Path) -> None:
    """A share of a thousandth cannot be read off 160 held-out rows: no alarm figure, and the machine and need said."""
    machine(tmp_path, "m", 1)
    result = run(tmp_path, 1)
    assert result.figures["mean.vus_pr"].value is not None
    for name in ("alarm.ranges_found", "alarm.false_per_machine_day", "alarm.median_delay_min"):
        assert result.figures[name].value is None
        assert "no machine" in result.figures[name].note
    assert any("m: 800 training rows" in note and "4995" in note for note in result.notes)
    values = {"held_out": 0.2, "false_share": 0.001}
    (short,) = read(tmp_path)
    long = replace(short, train=series(5000, 3))
    assert host._alarm(short, 1, values) is None
    alarm = host._alarm(long, 1, values)
    assert alarm is not None
    assert alarm[short.labels].mean() > 0.5
    assert alarm[~short.labels].mean() < 0.05


def test_labels_all_alike_give_figures_without_values(tmp_path: Path) -> None:
    """Nothing to tell apart: the headline is there, without a value and with the reason."""
    machine(tmp_path, "m", 1, odd=False)
    figure = run(tmp_path, 1).figures["mean.vus_pr"]
    assert figure.value is None
    assert figure.note


def test_every_file_of_a_machine_has_its_hash(tmp_path: Path) -> None:
    """train, test and labels have one name; all three are in the result."""
    machine(tmp_path, "m", 1, text=True, odd=False)
    assert set(run(tmp_path, 1).data_sha256) == {"train/m.txt", "test/m.txt", "test_label/m.txt"}


def test_missing_and_infinite_values_in_a_machine(tmp_path: Path) -> None:
    """Infinite is missing; every method still scores; a training series without numbers is refused."""
    rng = np.random.default_rng(1)
    train, test = series(800, 1), series(800, 2)
    labels = np.arange(800) // 40 == 5
    train[rng.random(train.shape) < 0.1] = np.nan
    test[rng.random(test.shape) < 0.1] = np.inf
    train[:, 4] = np.nan
    np.savez(tmp_path / "m.npz", train=train, test=test, test_label=labels)
    result = run(tmp_path, 1)
    chance = float(labels.mean())
    for name, figures in result.baselines.items():
        assert figures["mean.average_precision"].value != pytest.approx(chance, abs=1e-12), name
    np.savez(tmp_path / "m.npz", train=np.full(train.shape, np.nan), test=test, test_label=labels)
    with pytest.raises(DataError, match=r"m\.npz: 0 rows of the first half of train"):
        run(tmp_path, 1)
