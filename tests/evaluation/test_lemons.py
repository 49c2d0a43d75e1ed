"""Track ``lemons``: the reader, prospective ranking, probation and re-fault figures."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graynode.benchmarks.detection import lemons_baselines as others
from graynode.benchmarks.detection import lemons_probation as back
from graynode.benchmarks.detection.lemons import ours, run
from graynode.benchmarks.detection.lemons_ranking import Setting, grid, held, looked_at, share_of
from graynode.benchmarks.detection.lemons_trace import read
from graynode.benchmarks.detection.result import DataError
from graynode.detectors.fault_history import Faults

FIXTURE = Path(__file__).parent.parent / "fixtures" / "infinitehbd" / "fault_trace.json.gz"


def event(node: str, day: float, start: bool, kind: str = "GPU") -> dict[str, Any]:
    what = "fault_start" if start else "fault_end"
    return {"node_id": node, "event_time": day, "event_type": what, "fault_type": {"Class": kind, "Desc": kind}}


def write(folder: Path, events: list[Any], nodes: int | None = 20) -> Path:
    (folder / "fault_trace.json").write_text(json.dumps(events))
    if nodes is not None:
        (folder / "fleet.json").write_text(json.dumps({"nodes": nodes}))
    return folder


def made(seed: int, nodes: int = 20, days: float = 150.0, again: float = 0.6) -> list[dict[str, Any]]:
    """Faults at random nodes, each followed within two days by another with probability ``again``."""
    rng, told = np.random.default_rng(seed), []
    for day in np.arange(1.0, days - 5, 1.5):
        node, at = f"n{rng.integers(nodes)}", float(day + rng.random())
        while at < days:
            told += [event(node, round(at, 4), True), event(node, round(at + 0.2, 4), False)]
            at += 0.2 + 2 * rng.random()
            if rng.random() > again:
                break
    return sorted(told, key=lambda e: e["event_time"])


def faults(nodes: int, *rows: tuple[int, float, float]) -> Faults:
    ordered = sorted(rows, key=lambda r: r[1])
    node, start, end = (np.array([r[i] for r in ordered], dtype=np.float64) for i in range(3))
    return Faults(nodes, node.astype(np.int64), start, end, np.zeros(len(ordered), dtype=np.int64))


# --- reading ---


def test_the_published_trace_is_read_whole(tmp_path: Path) -> None:
    """584 faults on 231 nodes, none open, none stray; the README's number of servers is taken."""
    (tmp_path / "fault_trace.json").write_bytes(gzip.decompress(FIXTURE.read_bytes()))
    (tmp_path / "README.md").write_text("trace data from **400** GPU servers, impacting **231 distinct servers**")
    trace = read(tmp_path)
    assert (len(trace.faults), len(trace.names), trace.faults.nodes, trace.notes) == (584, 231, 400, [])
    assert trace.days == pytest.approx(348.9798)
    assert np.isfinite(trace.faults.end_d).all()


def test_open_faults_strays_and_repeats_are_said(tmp_path: Path) -> None:
    """An end without a start is left out, a fault without end stays open, an exact repeat counts once."""
    told = [event("a", 1, False), event("b", 2, True), event("b", 2, True), event("c", 3, True), event("c", 4, False)]
    trace = read(write(tmp_path, told))
    assert len(trace.faults) == 2
    assert np.isinf(trace.faults.end_d).tolist() == [True, False]
    assert len(trace.notes) == 3


def test_without_a_number_of_nodes_the_named_ones_count(tmp_path: Path) -> None:
    """And it is said."""
    trace = read(write(tmp_path, made(1), nodes=None))
    assert trace.faults.nodes == len(trace.names)
    assert "number of nodes" in trace.notes[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "JSON"), ("{}", "array"), ("[]", "array"), ("[1]", "event 0"), ('[{"node_id": ""}]', "node_id"),
        (json.dumps([event("a", -1, True)]), "event_time"),
        (json.dumps([event("a", 1, True) | {"event_type": "x"}]), "event_type"),
        ('[{"node_id": "a", "event_time": NaN, "event_type": "fault_start"}]', "event_time"),
        (json.dumps([event("a", 1, False)]), "no fault_start"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_said(tmp_path: Path, content: str, said: str) -> None:
    """File, place, and what was expected."""
    (tmp_path / "fault_trace.json").write_text(content)
    with pytest.raises(DataError, match=r"fault_trace\.json.*" + said):
        read(tmp_path)


def test_no_data_is_said(tmp_path: Path) -> None:
    """Without --data, and with a folder that has no trace."""
    with pytest.raises(DataError, match="--data"):
        run(None, 1)
    with pytest.raises(DataError, match="is not there"):
        run(tmp_path, 1)


# --- ranking ---


def test_ties_are_drawn_by_chance() -> None:
    """Places that equal scores compete for are shared in expectation, whatever the order of nodes."""
    assert looked_at(np.array([3.0, 1.0, 1.0, 0.0]), 0.5).tolist() == [1.0, 0.5, 0.5, 0.0]
    assert looked_at(np.zeros(40), 0.1).tolist() == [0.1] * 40
    rng = np.random.default_rng(1)
    score = rng.integers(0, 3, 37).astype(float)
    chosen, order = looked_at(score, 0.1), rng.permutation(37)
    assert chosen.sum() == pytest.approx(3.7)
    assert np.allclose(looked_at(score[order], 0.1), chosen[order])


def test_the_known_answer() -> None:
    """One node faults every week, nine never: the count finds all of its faults, chance a tenth."""
    told = faults(10, *[(0, 7.0 * i + 1, 7.0 * i + 2) for i in range(20)])
    setting = Setting(grid(140.0, 7.0, 60.0, 7.0), 7.0, 0.1)
    for scorer, share in ((others.count(28.0), 1.0), (ours, 1.0), (others.chance, 0.1)):
        one = held(told, scorer, setting)
        assert one.hits.sum() / one.faults.sum() == pytest.approx(share)


def test_faults_at_random_give_chance() -> None:
    """Where the past says nothing, nobody finds more than a tenth (within its spread)."""
    rng = np.random.default_rng(3)
    rows = [(int(n), d, d + 0.1) for n, d in zip(rng.integers(0, 100, 2000), rng.uniform(0, 200, 2000), strict=True)]
    one = held(faults(100, *rows), ours, Setting(grid(200.0, 28.0, 60.0, 28.0), 28.0, 0.1))
    assert one.hits.sum() / one.faults.sum() == pytest.approx(0.1, abs=0.035)


def test_a_scorer_sees_nothing_of_the_future() -> None:
    """No start at or after the moment and no end after it is ever handed over, merged or not."""
    told = read_made()
    seen: list[tuple[float, Faults]] = []

    def spy(past: Faults, at_d: float, horizon_d: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        seen.append((at_d, past))
        return np.zeros(past.nodes)

    for apart in (None, 1.0):
        held(told, spy, Setting(grid(150.0, 7.0, 60.0, 7.0), 7.0, 0.1, apart))
    assert len(seen) == 2 * 12
    for at_d, past in seen:
        assert (past.start_d < at_d).all()
        assert (past.end_d[np.isfinite(past.end_d)] <= at_d).all()


def read_made() -> Faults:
    rng = np.random.default_rng(9)
    rows = [
        (int(n), d, d + 3 * w)
        for n, d, w in zip(rng.integers(0, 20, 150), rng.uniform(0, 150, 150), rng.random(150), strict=True)
    ]
    return faults(20, *rows)


# --- probation and re-faults ---


def test_probation_holds_what_it_must() -> None:
    """One of three faults comes within a week of a return; two returns of a week in 100 days of two nodes."""
    told = faults(2, (0, 10, 11), (0, 13, 14), (1, 50, 51))
    figures = back.probation(told, 100.0, 7.0, np.random.default_rng(1), 50)
    assert figures["share_of_faults"].value == pytest.approx(1 / 3)
    assert figures["share_of_node_days"].value == pytest.approx((2 + 7 + 7) / 200)


def test_a_refault_is_foretold_from_what_was_known() -> None:
    """Returns with a known outcome only; the constant is the share of earlier ones; a future fault changes no p."""
    told = faults(3, *[(i % 3, 5.0 * i, 5.0 * i + 1) for i in range(25)])
    one = back.foretell(told, 130.0, 60.0, 7.0, {"ours": back.ours(7.0), "constant": back.constant(7.0)})
    assert [case.at_d for case in one.cases] == [5.0 * i + 1 for i in range(12, 25)]
    assert not one.y.any()
    assert one.p["constant"][0] < 0.2
    more = faults(3, *[(i % 3, 5.0 * i, 5.0 * i + 1) for i in range(25)], (0, 122.5, 123))
    other = back.foretell(more, 130.0, 60.0, 7.0, {"ours": back.ours(7.0)})
    assert other.p["ours"][: len(one.cases)].tolist() == one.p["ours"].tolist()
    assert other.y.sum() == 1


# --- the track ---


@pytest.mark.early
def test_the_track_runs_and_repeats_itself(tmp_path: Path) -> None:
    """Same data and seed, same result; all figures to reach are there, and unfinished repairs beat the count."""
    write(tmp_path, made(2, days=105.0))
    one, other = run(tmp_path, 1), run(tmp_path, 1)
    assert one == other
    for variant in ("all", "apart"):
        for name in ("next_28d.gain_over_count_28d", "next_7d.faults_in_top_10pct", "probation_7d.share_of_faults",
                     "probation_7d.share_of_node_days", "refault_7d.brier"):  # fmt: skip
            figure = one.figures[f"{variant}.{name}"]
            assert figure.value is not None
            assert figure.ci_low is not None
            assert figure.ci_low <= figure.value <= figure.ci_high  # type: ignore[operator]
    assert {"count_28d", "count_all", "chance", "poisson_bh", "logit", "gradient_boosting"} <= set(one.baselines)
    assert one.data_sha256
    assert one.thresholds_sha256


def test_a_short_trace_has_no_figure_but_a_note(tmp_path: Path) -> None:
    """Forty days: nothing can be ranked from day 60 on; that is said, and nothing fails."""
    result = run(write(tmp_path, made(4, days=40.0)), 1)
    figure = result.figures["all.next_28d.gain_over_count_28d"]
    assert figure.value is None
    assert "too short" in figure.note
    assert result.figures["all.refault_7d.brier"].value is None


def test_node_names_may_be_numbers(tmp_path: Path) -> None:
    """Another site numbers its nodes; what is neither name nor number is refused with the value."""
    numbered = [
        {**e, "node_id": int(str(e["node_id"])[1:] or 0)} for e in [event("n3", 1.0, True), event("n3", 2.0, False)]
    ]
    assert read(write(tmp_path, numbered)).names == ["3"]
    with pytest.raises(DataError, match=r"node_id None is no name or number"):
        read(write(tmp_path, [{**numbered[0], "node_id": None}]))


def test_two_nodes_with_faults_carry_no_interval() -> None:
    """The share is what it is; how sure one may be of it two nodes do not tell."""
    history = faults(20, (0, 70.0, 71.0), (1, 80.0, 81.0))
    one = held(history, ours, Setting((60.0, 67.0, 74.0), 28.0, 0.1))
    figure = share_of(one, np.random.default_rng(1), 50)
    assert (figure.n, figure.ci_low, figure.ci_high) == (2, None, None)
    assert "too few" in figure.note


def test_a_large_trace_is_foretold_at_evenly_taken_returns() -> None:
    """At most so many returns, over the whole trace; all of them where nothing limits it."""
    history = faults(40, *((n, 60.0 + 2 * n, 60.5 + 2 * n) for n in range(40)))
    methods = {"constant": back.constant(7.0)}
    every = back.foretell(history, 200.0, 60.0, 7.0, methods)
    some = back.foretell(history, 200.0, 60.0, 7.0, methods, most=10)
    assert len(every.cases) == 40
    assert len(some.cases) == 10
    assert (some.cases[0], some.cases[-1]) == (every.cases[0], every.cases[-1])
