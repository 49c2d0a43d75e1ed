"""One suite over every detector: pure, order-free, bounded, repeatable, quiet on healthy GPUs, finds its fault."""

from __future__ import annotations

import functools
import io
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from window_rounds import EMPTY, START, Change, Cluster, Columns

from graynode.detectors import DETECTORS, NAMES, make
from graynode.detectors.base import FINDING_COLUMNS, TOLD, Detector, Learner, Round, State
from graynode.detectors.findings import FINDING_SCHEMA
from graynode.detectors.forest import EVERY
from graynode.pipeline.schema import CAUSES, SEVERITIES

SICK = 11
"""Row of the GPU that a fault is put into: node 1, GPU 3."""
BEGINS = 20


def _power_brake(w: int, c: Columns) -> None:
    if w >= BEGINS:
        c["hw_power_brake_s"][SICK] = 30.0


def _slow(w: int, c: Columns) -> None:
    if w >= BEGINS:
        c["sm_clock_mhz_mean"][SICK] *= 0.94


def _errors(w: int, c: Columns) -> None:
    if w >= BEGINS and w % 60 == 0:
        c["ecc_sbe_volatile_delta"][SICK] = 40.0
    c["ecc_sbe_aggregate_last"][SICK] = 40.0 * max(0, (w - BEGINS) // 60)


def _port(w: int, c: Columns) -> None:
    if w == BEGINS:
        c["down_s_sum"][3], c["outage_s_max"][3], c["downs_sum"][3] = 12.0, 12.0, 1.0


def _lanes(w: int, c: Columns) -> None:
    if w >= BEGINS:
        c["pcie_width_last"][SICK] = 8.0


def _hot(w: int, c: Columns) -> None:
    if w >= BEGINS:
        c["temp_c_mean"][SICK] += 14.0


def _latency(w: int, c: Columns) -> None:
    if w >= BEGINS:
        c["nvml_call_max_ms_mean"][1] *= 6.0


def _busy(w: int, c: Columns) -> None:
    if w >= BEGINS:
        c["cpu_util_percent_mean"][1] *= 3.0


def _odd(w: int, c: Columns) -> None:
    if w >= 200:  # the forest knows a GPU after an hour
        c["dram_active_ratio_mean"][SICK], c["power_w_mean"][SICK] = 0.9, 420.0


def _slow_rank(w: int, c: Columns) -> None:
    if w >= BEGINS:
        c["busy_s"][SICK] *= 1.08


FAULTS: dict[str, tuple[dict[str, Change], int]] = {
    "rules": ({"gpu_fault": _power_brake}, 40),
    "slow": ({"gpu_fault": _slow}, 60),
    "ecc": ({"gpu_fault": _errors}, 490),
    "links": ({"link_fault": _port}, 25),
    "pcie": ({"gpu_fault": _lanes}, 30),
    "thermal": ({"gpu_fault": _hot}, 60),
    "blind": ({"host_fault": _latency}, 60),
    "forest": ({"gpu_fault": _odd}, 440),
    "hosts": ({"host_fault": _busy}, 200),
    "stragglers": ({"step_fault": _slow_rank}, 45),
}
"""Fault and windows until it must have been told, per detector."""
STEPS = {"stragglers": 8}
"""Training steps a window that ranks tell, where the detector looks at them."""
FRAMES = ("gpu", "link", "host", "steps")


def cluster(name: str, faults: dict[str, Change] | None = None) -> Cluster:
    # The forest needs a hundred GPU-days in each half before it says anything, and hosts as many windows of hosts
    if name == "hosts":
        return Cluster(nodes=256, gpus=1, nodes_per_job=8, **(faults or {}))
    nodes = 32 if name == "forest" else 8
    return Cluster(nodes=nodes, nodes_per_job=8, steps=STEPS.get(name, 0), **(faults or {}))


def small(name: str, nodes: int, nodes_per_job: int = 2, **more: Any) -> Cluster:
    return Cluster(nodes=nodes, nodes_per_job=nodes_per_job, steps=STEPS.get(name, 0), **more)


def primed(name: str, c: Cluster) -> State:
    return _primed(name, c.nodes, c.gpus, c.nodes_per_job)


@functools.cache
def _primed(name: str, nodes: int, gpus: int, nodes_per_job: int) -> State:
    detector = make(name)
    return detector.learn(_history(nodes, gpus, nodes_per_job, 35, 12), {}) if isinstance(detector, Learner) else {}


@functools.cache
def _history(nodes: int, gpus: int, nodes_per_job: int, days: int, step_h: int) -> Round:
    return Cluster(nodes, gpus, nodes_per_job=nodes_per_job).history(days, step_h=step_h)


@functools.cache
def _calm(count: int, nodes: int, gpus: int, nodes_per_job: int, steps: int) -> tuple[Round, ...]:
    return tuple(Cluster(nodes, gpus, nodes_per_job=nodes_per_job, steps=steps).rounds(count))


def calm(c: Cluster, count: int) -> tuple[Round, ...]:
    """Windows of such a cluster without faults, made once: detectors change nothing that they are given."""
    return _calm(count, c.nodes, c.gpus, c.nodes_per_job, c.steps)


def every(name: str) -> int:
    """Rounds between these detectors' change nothing (their own tests hold that), so they need not be made."""
    return EVERY if name in ("forest", "hosts") else 1


def play(detector: Detector, rounds: Any, state: State) -> tuple[pl.DataFrame, State]:
    found = []
    for round_ in rounds:
        scored = detector.score(round_, state)
        state = scored.state
        found.append(scored.findings)
    return pl.concat(found), state


@pytest.fixture(params=NAMES)
def healthy(request: pytest.FixtureRequest) -> tuple[str, pl.DataFrame, State, list[State]]:
    """Ninety minutes of healthy windows, the state after them and states on the way."""
    return _healthy(request.param)


@functools.cache  # whatever the order of the tests is; a fixture of the module would be made anew at each change
def _healthy(name: str) -> tuple[str, pl.DataFrame, State, list[State]]:
    detector, c, step = make(name), cluster(name), every(name)
    state, states, found = primed(name, c), [], []
    rounds = calm(c, 180) if step == 1 else (c.round(w, c.start_of(w)) for w in range(0, 180, step))
    for round_ in rounds:
        scored = detector.score(round_, state)
        state = scored.state
        found.append(scored.findings)
        states.append(state)
    return name, pl.concat(found), state, states


@pytest.mark.parametrize("place", DETECTORS)
def test_the_list_names_detectors_that_carry_their_module_s_name(place: str) -> None:
    """The module's last word is the detector's name, as it stands in the configuration and in findings."""
    name = place.partition(":")[0].rpartition(".")[2]
    assert make(name).name == name
    assert make(name).version >= 1


def test_an_unknown_detector_is_refused_with_the_names_there_are() -> None:
    """A misspelt name says what there is."""
    with pytest.raises(KeyError, match="slow"):
        make("slwo")


def test_healthy_gpus_are_left_alone(healthy: tuple[str, pl.DataFrame, State, list[State]]) -> None:
    """Nothing is told in ninety minutes of 64 healthy GPUs with offsets and correlated noise."""
    _, found, _, _ = healthy
    assert found.filter(TOLD).is_empty(), found.filter(TOLD).select("message").head(3).to_series().to_list()


def test_the_memory_is_bounded_by_the_entities(healthy: tuple[str, pl.DataFrame, State, list[State]]) -> None:
    """The state after ninety minutes is no larger than after seventy minutes."""
    name, _, state, states = healthy
    assert {n: f.height for n, f in state.items()} == {n: f.height for n, f in states[140 // every(name)].items()}


@pytest.fixture(params=NAMES)
def faulty(request: pytest.FixtureRequest) -> tuple[str, pl.DataFrame]:
    """All findings of a run with the detector's own fault in it."""
    return request.param, _found(request.param)


@functools.cache
def _found(name: str) -> pl.DataFrame:
    faults, windows = FAULTS[name]
    detector, c = make(name), cluster(name, faults)
    rounds = (c.round(w, c.start_of(w)) for w in range(0, windows, every(name)))
    return play(detector, rounds, primed(name, c))[0]


def test_it_finds_its_fault_and_says_where(faulty: tuple[str, pl.DataFrame]) -> None:
    """The injected fault is told, names the sick entity, and every column a person needs is filled."""
    name, found = faulty
    told = found.filter(TOLD)
    assert told.height
    assert set(told.get_column("node_id")) == {"id-node001"}
    if name not in ("links", "blind", "hosts"):
        assert set(told.get_column("gpu_uuid")) == {"GPU-001-3"}
    assert told.get_column("ts").min() >= START + timedelta(seconds=30 * BEGINS)
    for column in ("message", "since", "severity", "signal", "evidence", "finding_id"):
        assert told.get_column(column).null_count() == 0
    assert set(told.get_column("cause")) <= set(CAUSES)
    assert set(told.get_column("severity")) <= set(SEVERITIES)
    assert set(told.get_column("detector")) == {name}


def test_findings_have_the_contract_s_columns_and_ids_of_their_own(faulty: tuple[str, pl.DataFrame]) -> None:
    """Columns and types are those of table ``finding``; an id never comes twice."""
    _, found = faulty
    assert tuple(found.columns) == FINDING_COLUMNS
    assert found.schema == FINDING_SCHEMA
    assert found.get_column("finding_id").is_unique().all()


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_rows_does_not_matter_and_twice_is_the_same(name: str) -> None:
    """Shuffled rows and a second run give equal findings and an equal state, and change nothing that was passed in."""
    faults, windows = FAULTS[name]
    windows = min(windows, 40)
    c = cluster(name, faults)
    rounds, state = list(c.rounds(windows)), primed(name, c)
    before = {n: f.clone() for n, f in state.items()}
    first, first_state = play(make(name), rounds, state)
    again, again_state = play(make(name), rounds, state)
    shuffled = [_shuffled(r, seed) for seed, r in enumerate(rounds)]
    other, other_state = play(make(name), shuffled, state)
    assert first.equals(again)
    assert first.equals(other)
    for n, frame in first_state.items():
        assert frame.equals(again_state[n])
        assert frame.equals(other_state[n])
    assert all(state[n].equals(f) for n, f in before.items())


def _shuffled(r: Round, seed: int) -> Round:
    return replace(r, **{t: getattr(r, t).sample(fraction=1.0, shuffle=True, seed=seed) for t in FRAMES})


NUMERIC = pl.selectors.numeric()


def _strange(r: Round, change: str) -> Round:
    def made(frame: pl.DataFrame) -> pl.DataFrame:
        if change == "empty" or not frame.width:
            return frame.clear()
        if change == "no columns":
            return EMPTY
        if change == "all null":
            return frame.with_columns(NUMERIC.cast(pl.Float64) * None)
        if change == "infinite":
            return frame.with_columns(pl.lit(float("inf")).alias(c) for c in frame.select(NUMERIC).columns)
        if change == "negative":
            return frame.with_columns(-NUMERIC.cast(pl.Float64) - 1.0)
        if change == "identical":
            return frame.with_columns(pl.lit(1.0).alias(c) for c in frame.select(NUMERIC).columns)
        if change == "half":
            return frame.with_columns(pl.lit(10.0).alias("samples"))
        if change == "no identity":
            return frame.with_columns(
                pl.lit(None, dtype=pl.String).alias(c) for c in ("node_id", "gpu_uuid") if c in frame.columns
            )
        return frame.head(int(change))

    return replace(r, **{t: made(getattr(r, t)) for t in FRAMES})


@pytest.mark.parametrize(
    "change", ["empty", "no columns", "all null", "infinite", "negative", "identical", "half", "no identity", "1", "2"]
)
@pytest.mark.parametrize("name", NAMES)
def test_strange_frames_have_a_defined_answer(name: str, change: str) -> None:
    """Nothing raises, nothing pages, and healthy windows afterwards are quiet, whatever one window looked like."""
    detector, c = make(name), small(name, 4)
    state = primed(name, c)
    rounds = calm(c, 8)
    odd = [_strange(r, change) if 2 <= w < 5 else r for w, r in enumerate(rounds)]
    with np.errstate(all="raise", under="ignore"):
        found, _ = play(detector, odd, state)
    told = found.filter(TOLD)
    assert tuple(found.columns) == FINDING_COLUMNS
    assert "page" not in told.get_column("severity").to_list() or name == "rules"
    assert told.filter(pl.col("ts") >= rounds[6].start).is_empty()


@pytest.mark.parametrize("name", NAMES)
def test_one_gpu_or_two_alone_are_never_told_by_comparison(name: str) -> None:
    """A machine without peers: nobody can say which of two is odd."""
    for gpus in (1, 2):
        detector, c = make(name), small(name, 1, 1, gpus=gpus)
        found, _ = play(detector, calm(c, 30), primed(name, c))
        assert found.filter(TOLD).is_empty()


@pytest.mark.parametrize("name", [n for n in NAMES if "gpu_fault" in FAULTS[n][0] and n != "rules"])
def test_a_shift_of_everything_is_one_finding_and_not_forty(name: str) -> None:
    """The same fault on every GPU of many nodes gives at most one told finding a round, about what they share."""
    faults, windows = FAULTS[name]

    def everywhere(w: int, c: Columns) -> None:
        n = len(c["samples"])
        calm = {k: v.copy() for k, v in c.items()}
        one = {k: v.copy() for k, v in c.items()}
        faults["gpu_fault"](w, one)
        for k in c:
            if one[k][SICK] != calm[k][SICK]:
                share = one[k][SICK] / calm[k][SICK] if calm[k][SICK] else None
                c[k][:] = calm[k] * share if share is not None else np.full(n, one[k][SICK])

    detector, c = make(name), cluster(name, {"gpu_fault": everywhere})
    rounds = (c.round(w, c.start_of(w)) for w in range(0, min(windows, 120), every(name)))
    found, _ = play(detector, rounds, primed(name, c))
    per_round = found.filter(TOLD).group_by("ts").len()
    assert per_round.is_empty() or per_round.get_column("len").max() == 1


def _alone(r: Round) -> Round:
    """Every GPU in a job of its own."""
    job = pl.lit("job of ") + pl.col("gpu_uuid")
    steps = r.steps.with_columns(job_id=job) if r.steps.height else r.steps
    return replace(r, gpu=r.gpu.with_columns(job_id_last=job), steps=steps)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_of_one_rank_has_nobody_to_be_compared_with(name: str) -> None:
    """Sixteen jobs of one GPU, one of them slower, hotter and odd: "cannot tell" is the answer of what compares.

    What needs no comparison (rules, counters, links, the monitoring's own latency) is told as ever.
    """
    faults, windows = FAULTS[name]
    c = small(name, 2, 1, **faults)
    found, _ = play(make(name), (_alone(r) for r in c.rounds(min(windows, 60))), primed(name, c))
    told = found.filter(TOLD)
    assert set(told["node_id"]) <= {"id-node001"}
    if name in ("slow", "forest", "stragglers"):
        assert told.is_empty()


@pytest.mark.parametrize("name", NAMES)
def test_without_history_nobody_is_accused(name: str) -> None:
    """The first forty minutes of a new site, past the half hour that a job is compared with."""
    c = small(name, 2)
    found, state = play(make(name), calm(c, 80), {})
    assert found.filter(TOLD).is_empty()
    assert all(isinstance(frame, pl.DataFrame) for frame in state.values())


@pytest.mark.parametrize(
    "jump",
    [
        timedelta(days=-40),
        timedelta(hours=5),
        pytest.param(timedelta(minutes=-10), marks=pytest.mark.long),
        pytest.param(timedelta(days=400), marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_clock_that_jumps_accuses_nobody(name: str, jump: timedelta) -> None:
    """Windows that go back or far ahead have a defined answer, and what comes after them is quiet."""
    c = small(name, 4)
    found, state = play(make(name), _jumping(jump, c.nodes, c.steps), primed(name, c))
    told = found.filter(TOLD)
    assert "page" not in told["severity"].to_list()
    assert told.filter(pl.col("signal") != "silent").is_empty(), told["message"].to_list()
    again, _ = play(make(name), calm(c, 20)[14:], state)
    assert again.filter(TOLD).filter(pl.col("signal") != "silent").is_empty()


@functools.cache
def _jumping(jump: timedelta, nodes: int, steps: int) -> tuple[Round, ...]:
    """Six windows, and eight more on a clock that has jumped."""
    c = Cluster(nodes=nodes, nodes_per_job=2, steps=steps)
    times = [c.start_of(w) + (jump if w >= 6 else timedelta()) for w in range(14)]
    return tuple(c.round(w, start) for w, start in enumerate(times))


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_other_times_within_a_round_have_a_defined_answer(name: str) -> None:
    """A machine whose clock is ten minutes off, and rows that come twice: nothing raises, and nobody is told."""
    c = small(name, 4)

    def skewed(r: Round) -> Round:
        def made(frame: pl.DataFrame) -> pl.DataFrame:
            here = pl.when(pl.col("node_id") == "id-node002").then(pl.col("ts") - timedelta(minutes=10)).otherwise("ts")
            return pl.concat([frame.with_columns(here.alias("ts")), frame.head(5)])

        return replace(r, **{t: made(getattr(r, t)) for t in FRAMES if getattr(r, t).height})

    found, _ = play(make(name), (skewed(r) for r in calm(c, 12)), primed(name, c))
    assert found.filter(TOLD).is_empty()


@pytest.mark.parametrize(
    "change", ["empty", "no columns", "all null", "infinite", "negative", "identical", "no identity"]
)
@pytest.mark.parametrize("name", [n for n in NAMES if isinstance(make(n), Learner)])
def test_strange_history_teaches_nothing_that_accuses(name: str, change: str) -> None:
    """Whatever the past looks like, healthy windows after it are quiet."""
    detector, c = make(name), Cluster(nodes=2, nodes_per_job=2)
    assert isinstance(detector, Learner)
    state = detector.learn(_strange(_history(c.nodes, c.gpus, c.nodes_per_job, 20, 24), change), {})
    found, _ = play(detector, calm(c, 6), state)
    assert found.filter(TOLD).is_empty()


@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_was_stored_goes_on_as_if_it_had_not_been(name: str) -> None:
    """Through Arrow and back: the next rounds find and remember the same."""
    c = small(name, 4, **FAULTS[name][0])
    rounds = list(c.rounds(26))
    _, state = play(make(name), rounds[:22], primed(name, c))
    stored = {n: pl.read_ipc(io.BytesIO(_ipc(f))) for n, f in state.items()}
    one, after_one = play(make(name), rounds[22:], state)
    other, after_other = play(make(name), rounds[22:], stored)
    assert one.equals(other)
    assert all(after_one[n].equals(after_other[n]) for n in after_one)


def _ipc(frame: pl.DataFrame) -> bytes:
    sink = io.BytesIO()
    frame.write_ipc(sink)
    return sink.getvalue()


@pytest.mark.parametrize("windows", [6_400, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NAMES)
def test_a_million_windows_at_once(name: str, windows: int) -> None:
    """As history and as one round: a defined answer in bounded time, and a memory no larger than the entities."""
    c = Cluster(nodes=8, nodes_per_job=8)
    one = c.round(0, START)
    times = pl.DataFrame({"ts": [START - timedelta(seconds=30 * i) for i in range(windows // c.size + 1)]})
    times = times.with_columns(pl.col("ts").cast(pl.Datetime("us", "UTC")))
    many = replace(one, **{t: getattr(one, t).drop("ts").join(times, how="cross") for t in ("gpu", "link", "host")})
    detector = make(name)
    state = detector.learn(many, {}) if isinstance(detector, Learner) else {}
    scored = detector.score(many, state)
    entities = c.size + c.nodes * c.ports + c.nodes
    assert all(frame.height <= 64 * entities for frame in scored.state.values())
    assert "page" not in scored.findings.filter(TOLD)["severity"].to_list()
