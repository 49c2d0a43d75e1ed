"""``graynode thresholds`` over a site's own days: shown, fitted, refused, accepted, taken up, drifted."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from people_site import NOW, Site, node_days

from graynode.detectors.thresholds import shipped
from graynode.service import thresholds
from graynode.service.config import ConfigError
from graynode.service.site_thresholds import accepted, drift, standing

LAST = date(2026, 11, 29)
BUDGET = 2e-3


def site(folder: Path, **detect: object) -> Site:
    return Site(folder, **{"budget_per_node_day": BUDGET, **detect})


def with_days(folder: Path, nodes: int = 120, days: int = 30, **more: object) -> Site:
    made = site(folder, **{k: v for k, v in more.items() if k != "odd"})
    made.lake.write("node_day", node_days(nodes, days, last=LAST, odd=more.get("odd")))  # type: ignore[arg-type]
    return made


def test_an_empty_lake_is_said_with_what_is_needed(tmp_path: Path) -> None:
    """Nothing has ended yet: the shipped thresholds are shown, the site is in shadow, and a fit says why it cannot."""
    s = site(tmp_path)
    shown = s.run("thresholds")
    assert shown.returncode == 0, shown.stderr
    assert f"in force: shipped {shipped().version}" in shown.stdout
    assert "in shadow" in shown.stdout
    assert "0 healthy node-days of 1,497 that certify the budget" in shown.stdout
    assert "no healthy node-day has ended yet" in shown.stdout
    fitted = s.run("thresholds", "fit")
    assert fitted.returncode == 2
    assert "has no whole node-day" in fitted.stderr


def test_a_fit_becomes_a_candidate_then_the_set_in_force_and_the_shadow_ends(tmp_path: Path) -> None:
    """The whole way by the command line: fit, accept by the beginning of the id, show."""
    s = with_days(tmp_path)
    fitted = s.run("thresholds", "fit", "--json", "--until", "2026-11-30")
    told = json.loads(fitted.stdout)
    assert fitted.returncode == 0, fitted.stderr
    assert told["accepted"]
    assert told["kept"] == ""
    assert told["judged"]["upper"] <= BUDGET
    s.land()
    done = s.run("thresholds", "accept", told["set_id"][:6], "--why", "four calm weeks", "--by", "Kim")
    assert done.returncode == 0, done.stderr
    s.land()
    shown = json.loads(s.run("thresholds", "--json").stdout)
    assert shown["accepted"] == told["set_id"]
    assert not shown["shadow"]
    assert "accepted by Kim" in shown["because"]
    clock = next(t for t in shown["thresholds"] if (t["detector"], t["signal"], t["window_s"]) == ("slow", "clock", 30))
    assert clock["value"] == next(
        v["value"] for v in told["values"] if (v["detector"], v["signal"]) == ("slow", "clock")
    )
    assert not clock["provisional"]
    row = s.lake.read("threshold").filter(pl.col("state") == "accepted").row(0, named=True)
    assert (row["who"], row["why"], row["hash"], row["budget"]) == ("Kim", "four calm weeks", told["hash"], BUDGET)


def test_too_few_node_days_say_how_many_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """About 3 / budget of them judge; with fewer nothing is proposed, and accepting refuses as well."""
    s = with_days(tmp_path, nodes=40)
    assert thresholds.fit(s.config, now=NOW) == 1
    said = capsys.readouterr().out
    assert "1,200 healthy node-days are too few: 1,497 without a false finding certify the budget" in said
    assert "297 more are needed at least" in said
    assert thresholds.fit(s.config, as_json=True, now=NOW) == 1
    assert json.loads(capsys.readouterr().out) == {"accepted": False, "healthy_node_days": 1200, "needed": 1497}
    with pytest.raises(ConfigError, match="297 more are needed"):
        thresholds.accept(s.config, fitted=True, why="now", now=NOW)


def test_over_the_budget_is_not_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Later days that are worse than those that proposed: the fit says so, names them, and accepting refuses."""
    s = with_days(tmp_path, odd={(n, 28): 1.1 for n in range(6)})
    assert thresholds.fit(s.config, now=NOW) == 1
    said = capsys.readouterr().out
    assert "over the budget" in said
    assert "graynode label n000@2026-11-28 true" in said
    s.land()
    (candidate,) = {row["set_id"] for row in s.lake.read("threshold").to_dicts()}
    with pytest.raises(ConfigError, match=r"is not accepted: up to .* over its budget"):
        thresholds.accept(s.config, candidate, why="I like it", now=NOW)


def test_a_label_of_a_sick_day_takes_it_out_and_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a person calls sick is not healthy noise; the fit says how many were left out, and why."""
    s = with_days(tmp_path, odd={(3, 28): 1.1, (4, 28): 1.1, (5, 28): 1.1, (6, 28): 1.1})
    assert thresholds.fit(s.config, now=NOW) == 1
    for node in range(3, 7):
        s.write("label", [{"ts": NOW, "node_id": f"id-n{node:03}", "period": "2026-11-28", "verdict": "true"}])
    capsys.readouterr()
    assert thresholds.fit(s.config, now=NOW) == 0
    assert "left out: 4 for a label that calls it sick" in capsys.readouterr().out


def test_shipped_thresholds_can_be_put_in_force_and_a_set_of_before_again(tmp_path: Path) -> None:
    """Shipped ones need no data, only a person who says why; the latest acceptance counts."""
    s = with_days(tmp_path)
    assert thresholds.fit(s.config, now=NOW) == 0
    s.land()
    first = s.lake.read("threshold")["set_id"][0]
    thresholds.accept(s.config, first, why="calm", now=NOW + timedelta(minutes=1))
    thresholds.accept(s.config, "shipped", why="new kind of work", now=NOW + timedelta(minutes=2))
    s.land()
    found = accepted(s.lake, "prod")
    assert found is not None
    assert found.set_id.startswith("shipped-")
    assert standing(s.config, s.lake, NOW).thresholds is shipped()
    thresholds.accept(s.config, first, why="back", now=NOW + timedelta(minutes=3))
    s.land()
    assert standing(s.config, s.lake, NOW).thresholds.version == f"site {first}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("accept", "--why", "x"), "name a set"),
        (("accept", "beef", "--why", "x"), "no set begins with 'beef'; there are none yet"),
        (("accept", "shipped"), "--why"),
        (("fit", "--since", "soon"), "--since soon"),
        (("fit", "--since", "2999-01-01"), "is still to come"),
    ],
)
def test_wrong_words_are_answered_in_a_sentence(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """Code 2, what is wrong and what is there instead; no traceback."""
    ended = site(tmp_path).run("thresholds", *words)
    assert ended.returncode == 2
    assert said in ended.stderr


def test_a_site_leaves_the_shadow_by_its_own_days_only_when_they_certify_the_budget(tmp_path: Path) -> None:
    """1,497 healthy node-days without a finding do; 1,470 do not, nor do 3,600 of which three were told."""
    assert standing(with_days(tmp_path / "a", 49).config, Site(tmp_path / "a").lake, NOW).shadow
    live = standing(with_days(tmp_path / "b", 50).config, Site(tmp_path / "b").lake, NOW)
    assert not live.shadow
    assert "1,500 healthy node-days certify the budget" in live.because
    noisy = with_days(tmp_path / "c", 120, odd={(7, 3): 0.7, (8, 11): 0.7, (9, 4): 0.7})
    told = standing(noisy.config, noisy.lake, NOW)
    assert told.shadow
    assert "3 findings on 3,600 healthy node-days" in told.because


def test_the_budget_of_a_week_is_shared_by_the_nodes(tmp_path: Path) -> None:
    """One false finding a week for 120 nodes is 1 / 840 a node-day; both are shown."""
    s = with_days(tmp_path, budget_per_week=1.0)
    found = standing(s.config, s.lake, NOW)
    assert found.budget.per_node_day == pytest.approx(1 / 840)
    assert found.budget.text == "0.0012 false findings a node-day, 1 a week for 120 nodes ([detect] budget_per_week)"


def test_drift_is_noticed_against_the_days_behind_the_set_in_force(tmp_path: Path) -> None:
    """A fleet whose maxima have doubled is told; the same fleet as before is not, nor is one odd node."""
    for name, scale, odd in (("same", 1.0, 0), ("more", 2.0, 0), ("one", 1.0, 1)):
        s = with_days(tmp_path / name)
        assert thresholds.fit(s.config, now=NOW) == 0
        s.land()
        thresholds.accept(s.config, s.lake.read("threshold")["set_id"][0], why="calm", now=NOW)
        s.land()
        later = node_days(120, 7, last=date(2026, 12, 8), seed=9, odd={(0, d): 0.4 for d in range(7 * odd)})
        of_clock = pl.when(pl.col("detector") == "slow").then(pl.col("maximum") * scale).otherwise("maximum")
        s.lake.write("node_day", later.with_columns(of_clock.alias("maximum")))
        now = datetime(2026, 12, 9, 2, tzinfo=NOW.tzinfo)
        found = standing(s.config, s.lake, now)
        moved = drift(found.accepted, found.days, now)
        assert [d.key[:2] for d in moved] == ([("slow", "clock")] if name == "more" else []), name
