"""``graynode cost``, ``capacity`` and ``user`` over one small fleet: sums, money, phases, budgets, hostile names."""

import csv
import io
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from owned_gpus import Owned, at

from graynode.service import capacity, cost, cost_budgets, cost_jobs, cost_print, cost_text, user_view
from graynode.service.config import Config, ConfigError, parse
from graynode.service.cost_days import Days

END = 30
EVIL = '=cmd|"/c calc"!A0'
ESCAPE = "bob\x1b[2J<script>alert(1)</script>"
COST = {
    "currency": "EUR", "owned": {"H100": {"purchase_per_gpu": 35064, "life_years": 4}}, "tariff_per_kwh": 0.2,
    "pue": 1.5, "restart_h": 1.0, "teams": {"physics": "science"}, "work": {"partition:serve*": "inference"},
    "budgets": {"physics": 50.0, "chemistry": 1000.0},
}  # fmt: skip
SPAN = {"since": at(0), "until": at(END)}


def _fleet(fleet: Owned) -> None:
    for node in ("n1", "n2"):
        for i in range(4):
            fleet.gpu(f"{node}-{i}", node)
    four = [f"n1-{i}" for i in range(4)]
    for gpu in four:
        fleet.hours(gpu, 0, 20, "n1", sm=0.8)
        fleet.hours(gpu, 20, END, "n1")
    fleet.hours("n2-0", 0, END, "n2", mem_used_bytes_mean=64 << 30, processes_mean=1.0)
    fleet.hours("n2-1", 0, END, "n2", sm=0.3)
    fleet.hours("n2-2", 0, END, "n2")
    fleet.hours("n2-3", 0, END, "n2")
    first = {"requeues": 0, "first_step_ts": at(1.5), "exit_code": 1, "queued_ts": at(0)}
    fleet.put("job", 0, "head", job_id="big", state="queued", queued_ts=at(0), user="ada", account="physics", gpus=4)
    fleet.job("big", four, 1, **first)
    fleet.put("job", 9, "n1", job_id="big", state="node_fail", end_ts=at(9), requeues=0, user="ada", gpus=4, nodes=1)
    fleet.job("big", four, 10, 20, requeues=1, first_step_ts=at(11), queued_ts=at(9))
    fleet.job("idle", ["n2-0"], 0, node="n2", user=EVIL, account="chemistry", partition="desk", work="notebook")
    fleet.job("serve", ["n2-1"], 0, node="n2", user=ESCAPE, account="chemistry", partition="serve-a", work=None)
    fleet.put("job", 28, "head", job_id="w1", state="queued", queued_ts=at(28), partition="train", gpus=8, nodes=2,
              user="ada", account="physics", reason="Resources")  # fmt: skip
    fleet.put("job", 29, "head", job_id="w2", state="queued", queued_ts=at(29), partition="train", gpus=4, user="ada")
    said = {"incident_id": "i1", "revision": 0, "severity": "page", "subject": "gpu", "cause": "gpu_lost",
            "title": "GPU 2 is lost", "since": at(8.9)}  # fmt: skip
    fleet.put("incident", 9, "n1", state="open", **said)
    judged = {"attribution_id": "a", "revision": 0, "job_id": "big", "attempt": 0, "phase": "ended"}
    fleet.put("attribution", 9.1, "n1", verdict="infrastructure", owner="platform", action="restart it",
              message="GPU 2 fell off the bus", **judged)  # fmt: skip


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owned]:
    made = Owned(tmp_path_factory.mktemp("lake"))
    _fleet(made)
    made.write()
    yield made
    made.queries.close()


@pytest.fixture(scope="module")
def days() -> Days:
    return Days()


@pytest.fixture
def config() -> Config:
    return parse({"cluster": "c", "cost": COST}, "test")


@pytest.fixture
def ask(fleet: Owned, config: Config, days: Days) -> Any:
    return lambda by: cost.read(fleet.queries, config, **SPAN, by=by, days=days)


def _by(answer: dict[str, Any]) -> dict[str, float]:
    return {row["key"]: round(row["gpu_hours"], 6) for row in answer["rows"]}


def test_every_sum_is_of_the_same_hours(ask: Any) -> None:
    """By whatever it is asked: eight GPUs for thirty hours, and users' hours without those of no job."""
    for by in cost.BY:
        answer = ask(by)
        assert answer["total"]["gpu_hours"] == pytest.approx(8 * END)
        assert sum(row["gpu_hours"] for row in answer["rows"]) == pytest.approx(8 * END)
        assert sum(row["cost"] for row in answer["rows"]) == pytest.approx(answer["total"]["cost"])
        assert sum(row["share"] for row in answer["rows"]) == pytest.approx(1)
    assert _by(ask("user")) == {"ada": 72, EVIL: END, ESCAPE: END, cost.NO_JOB: 108}
    assert _by(ask("team"))["science"] == 72


def test_kind_of_work_is_the_jobs_own_or_the_sites_rules(ask: Any) -> None:
    """Serving by its partition; what neither says would stay unknown."""
    assert _by(ask("work")) == {"training": 72, "notebook": END, "inference": END, cost.NO_JOB: 108}


def test_owned_hours_cost_their_life_and_measured_energy(ask: Any) -> None:
    """An idle GPU costs its purchase and what it draws."""
    (idle,) = [row for row in ask("user")["rows"] if row["key"] == EVIL]
    assert idle["energy_kwh"] == pytest.approx(END * 0.1)
    assert idle["cost"] == pytest.approx(END * (1.0 + 0.1 * 0.2 * 1.5))


def test_utilisation_stands_beside_what_it_hides(ask: Any) -> None:
    """SM and tensor activity and power of the same hours."""
    (busy,) = [row for row in ask("category")["rows"] if row["key"] == "busy_useful"]
    assert busy["util_percent"] == pytest.approx(99)
    assert busy["sm_active_ratio"] == pytest.approx((72 * 0.8 + END * 0.3) / (72 + END), rel=0.05)
    assert busy["tensor_active_ratio"] < 0.5
    assert busy["power_w"] > 200


def test_a_wrong_word_or_stretch_is_refused(fleet: Owned, config: Config, days: Days) -> None:
    """With what is allowed."""
    with pytest.raises(ConfigError, match="category, user"):
        cost.read(fleet.queries, config, by="colour", days=days)
    with pytest.raises(ConfigError, match="is not before"):
        cost.read(fleet.queries, config, since=at(5), until=at(5), days=days)


def test_without_a_price_there_is_no_money_and_it_is_said(fleet: Owned, days: Days) -> None:
    """Nor where a part of the hours has none: a sum that is too small is worse than none."""
    none = cost.read(fleet.queries, parse({"cluster": "c"}, "t"), **SPAN, days=days)
    assert none["total"]["cost"] is None
    assert "no price is configured" in none["notes"][0]
    other = parse({"cluster": "c", "cost": {"per_gpu_hour": {"A100": 1.0}}}, "t")
    some = cost.read(fleet.queries, other, **SPAN, days=days)
    assert some["total"]["cost"] is None
    assert "no price for 240 GPU-hours of NVIDIA H100" in some["notes"][0]


def test_ten_years_and_no_data_answer_at_once(fleet: Owned, config: Config, days: Days) -> None:
    """Only days that have data are computed."""
    long = cost.read(fleet.queries, config, since=at(-24 * 3650), until=at(24 * 3650), days=days)
    assert long["total"]["gpu_hours"] == pytest.approx(8 * END)
    empty = cost.read(fleet.queries, config, since=at(-100), until=at(-50), days=days)
    assert empty["rows"] == []
    assert "no GPU was owned then" in empty["notes"][-1]


def test_phases_retries_and_what_is_owed(fleet: Owned, config: Config, days: Days) -> None:
    """Waited one hour, prepared half, worked; the node failed, an hour of work and the next preparation are lost."""
    told = cost_jobs.read(fleet.queries, config, **SPAN, job_id="big", days=days)
    first, second = told["rows"]
    hour = 3600.0
    assert (first["wait_s"], first["preparation_s"], first["work_s"]) == (hour, hour / 2, 7.5 * hour)
    assert (first["resume_s"], first["repeated_s"], first["retries"]) == (2 * hour, hour, 1)
    assert (second["wait_s"], second["preparation_s"], second["work_s"]) == (hour, hour, 9 * hour)
    assert first["lost_gpu_hours"] == pytest.approx(4 * (1 + 1))
    assert second["lost_gpu_hours"] == 0
    assert "assumed" in first["lost_basis"]
    assert told["owed"] == [{"owed_to": "platform", "lost_gpu_hours": 8.0, "failures": 1, "jobs": 1}]
    assert first["cost"] + second["cost"] == pytest.approx(first["job_cost"])
    assert first["gpu_hours"] + second["gpu_hours"] == pytest.approx(72)


def test_the_users_timeline(fleet: Owned, config: Config, days: Days) -> None:
    """Start, the incident, the end that was the machine's, the restart, the end; newest first."""
    told = user_view.read(fleet.queries, config, "ada", **SPAN, days=days)
    kinds = [(row["kind"], row["job_id"]) for row in reversed(told["rows"])]
    assert kinds == [("started", "big"), ("incident", "big"), ("ended", "big"), ("started", "big"), ("ended", "big"),
                     ("waits", "w1"), ("waits", "w2")]  # fmt: skip
    (failed,) = [row for row in told["rows"] if row["kind"] == "ended" and row["side"] == "machine"]
    assert "GPU 2 fell off the bus" in failed["what"]
    assert failed["lost_gpu_hours"] == 8.0
    assert failed["advice"] == "it runs again since 120 min after; nothing to do"
    assert told["totals"]["lost_by_side"] == {"machine": 8.0}
    assert told["totals"]["gpu_hours"] == pytest.approx(72)


def test_a_user_that_nobody_knows_gets_the_near_names(fleet: Owned, config: Config, days: Days) -> None:
    """Not an empty page without a word."""
    told = user_view.read(fleet.queries, config, "adda'; --", **SPAN, days=days)
    assert told["rows"] == []
    assert "there are ada" in told["notes"][0]


def test_who_waits_for_what_and_whether_it_could_be_served(fleet: Owned, config: Config) -> None:
    """Two nodes of four are not there; one node of four is; what could be given back, with the evidence."""
    told = capacity.read(fleet.queries, config, at=at(END))
    first, second = told["rows"]
    assert (first["job_id"], first["shape"], first["could_be_served"]) == ("w1", "2 × 4 × NVIDIA H100 80GB HBM3", False)
    assert (second["job_id"], second["could_be_served"]) == ("w2", True)
    assert first["waited_s"] == 2 * 3600
    assert {row["node"]: row["gpus"] for row in told["free"]} == {"n1": 4, "n2": 2}
    (idle,) = told["reclaim"]
    assert (idle["job_id"], idle["user"], idle["idle_h"], idle["at_least"]) == ("idle", EVIL, 24, True)
    assert "64 GiB of memory held" in idle["evidence"]
    assert idle["cost_per_day"] == pytest.approx(24)
    assert told["gap"]["median_s"] is None
    assert "too few" in told["gap"]["note"]
    assert (told["gap"]["gaps"], told["gap"]["open"]) == (4, 4)


def test_the_gap_from_a_release_to_the_next_use() -> None:
    """Of gaps that ended; those still open are counted, not taken for zero."""
    gaps = capacity._gap(pl.DataFrame({"gap_s": [*range(60, 660, 60), None]}))
    assert (gaps["median_s"], gaps["gaps"], gaps["open"], gaps["note"]) == (330.0, 10, 1, "")


def test_budgets_tell_each_level_once(fleet: Owned, config: Config, days: Days) -> None:
    """Over budget is two alerts, the 80 and the 100; asked again they are the same events; the other account none."""
    found = cost_budgets.read(fleet.queries, config, at=at(END), days=days)
    over, under = found["rows"]
    assert (over["account"], over["level"], over["unit"]) == ("physics", 100, "EUR")
    assert (under["account"], under["level"]) == ("chemistry", 0)
    rows = cost_budgets.alerts(found, at(END))
    again = cost_budgets.alerts(found, at(END) + timedelta(days=1))
    assert [row["code"] for row in rows] == [80, 100]
    assert [row["event_id"] for row in rows] == [row["event_id"] for row in again]
    assert json.loads(rows[0]["attributes"])["account"] == "physics"
    assert cost_budgets.untold(fleet.queries, found, rows) == rows


def test_a_spreadsheet_runs_no_name_and_a_terminal_obeys_none(ask: Any) -> None:
    """Formulas get an apostrophe, control characters are taken out, JSON is JSON; numbers stay numbers."""
    answer = ask("user")
    sheet = io.StringIO()
    cost_print.as_csv(answer["rows"], sheet)
    rows = list(csv.DictReader(io.StringIO(sheet.getvalue())))
    assert {row["key"] for row in rows} == {"ada", f"'{EVIL}", ESCAPE, cost.NO_JOB}
    assert all(float(row["gpu_hours"]) > 0 for row in rows)
    text = io.StringIO()
    cost_text.print_cost(answer, text)
    assert "\x1b" not in text.getvalue()
    assert "ada" in text.getvalue()
    plain = io.StringIO()
    cost_print.as_json(answer, plain)
    assert json.loads(plain.getvalue())["total"]["gpu_hours"] == pytest.approx(8 * END)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", " =", "\u00a0=", "＝", "＋", "－", "＠"])
def test_each_way_to_begin_a_formula(start: str) -> None:
    """Also behind blanks, and in wide characters."""
    assert cost_print.cell(f"{start}1+1") == f"'{start}1+1"
    assert cost_print.cell(-1.5) == -1.5


def test_the_other_pages_print(fleet: Owned, config: Config, days: Days) -> None:
    """Each text answer over hostile names, without a control character."""
    sink = io.StringIO()
    cost_text.print_capacity(capacity.read(fleet.queries, config, at=at(END)), sink)
    cost_text.print_jobs(cost_jobs.read(fleet.queries, config, **SPAN, days=days), sink)
    cost_text.print_user(user_view.read(fleet.queries, config, ESCAPE, **SPAN, days=days), sink)
    cost_text.print_budgets(cost_budgets.read(fleet.queries, config, at=at(END), days=days), sink)
    said = sink.getvalue()
    assert "\x1b" not in said
    assert "could be given back" in said
    assert "used up" in said
