"""``graynode cost``, ``capacity`` and ``user`` on the command line: empty lake, wrong options, alerts."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from http_receiver import Answer, HttpReceiver
from owned_gpus import H100
from people_site import Site

from graynode.pipeline.codec import to_batch
from graynode.pipeline.queries import Queries
from graynode.pipeline.schema import TABLES

HOUR = datetime(2026, 10, 30, 12, tzinfo=UTC)
AT = ("--until", HOUR.isoformat())


def _site(folder: Path, budget: float) -> Site:
    """A site whose one GPU worked for account ``a=1`` in the two hours before ``HOUR``; the budget is in GPU-hours."""
    site = Site(folder)
    text = site.file.read_text() + f'\n[cost.budgets]\n"a=1" = {budget}\n'
    site.file.write_text(text)
    since = HOUR - timedelta(hours=2)
    who = {"cluster": "prod", "node_id": "m", "node": "n"}
    seen = {"samples": 3600, "samples_expected": 3600}
    busy = {"gpu_uuid": "g", "gpu_model_last": H100, "sm_active_ratio_mean": 0.5}
    hours = [since, since + timedelta(hours=1)]
    job = {"job_id": "7", "user": "ada", "account": "a=1", "state": "running", "allocated_ts": since, "gpus": 1}
    rows = {
        "inventory": [{**who, "ts": since, "kind": "gpu", "entity": "g", "model": H100, "slot": "0"}],
        "gpu_1h": [{**who, "ts": ts, **seen, **busy} for ts in hours],
        "host_1h": [{**who, "ts": ts, **seen} for ts in hours],
        "job": [{**who, "ts": since, "gpu_uuids": '["g"]', "nodes": 1, **job}],
    }
    for table, told in rows.items():
        frame = pl.from_arrow(to_batch(TABLES[table], told))
        assert isinstance(frame, pl.DataFrame)
        site.lake.write(table, frame)
    return site


def test_an_empty_lake_is_said(tmp_path: Path) -> None:
    """Each command: no traceback, code 1, and why there is nothing."""
    site = Site(tmp_path)
    for words in (("cost",), ("capacity",), ("user", "ada"), ("cost", "--jobs"), ("cost", "--budgets")):
        ended = site.run(*words)
        assert ended.returncode == 1
        assert ended.stdout
    assert "no GPU was owned then" in site.run("cost").stdout
    assert json.loads(site.run("cost", "--format", "json").stdout)["rows"] == []
    assert site.run("cost", "--format", "csv").stdout == ""


def test_a_wrong_option_is_named(tmp_path: Path) -> None:
    """What was given, and what is wanted."""
    site = Site(tmp_path)
    for words, said in (
        (("cost", "--since", "soon"), "--since soon: a date or time such as"),
        (("cost", "--since", "2026-02-01", "--until", "2026-01-01"), "is not before"),
        (("cost", "--by", "colour"), "colour"),
        (("cost", "--tell"), "--tell goes with --budgets"),
        (("cost", "--budgets", "--send"), "--send goes with --budgets --tell"),
        (("cost", "--budgets", "--tell", "--send", *AT), "report.urls_file"),
        (("capacity", "--at", "x"), "--at x"),
        (("capacity", "--at", "2999-01-01"), "is still to come"),
        (("cost", "--budgets", "--until", "2999-01-01"), "is still to come"),
    ):
        ended = site.run(*words)
        assert ended.returncode == 2
        assert said in ended.stderr


def test_a_budget_is_told_once(tmp_path: Path) -> None:
    """Both levels as events in the lake; asked again there is nothing to tell."""
    site = _site(tmp_path, budget=0.5)
    first = site.run("cost", "--budgets", "--tell", *AT)
    assert first.returncode == 0
    assert first.stdout.count("told: account a=1 has used") == 2
    queries = Queries(site.lake)
    rows = queries.rows("SELECT code, message FROM event WHERE kind = 'budget' ORDER BY code")
    queries.close()
    assert [row["code"] for row in rows] == [80, 100]
    assert "told:" not in site.run("cost", "--budgets", "--tell", *AT).stdout


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
def test_alerts_that_nobody_took_come_again(tmp_path: Path) -> None:
    """A real receiver refuses, then takes: both levels arrive in one message, and only then they are told."""
    site = _site(tmp_path, budget=0.5)
    words = ("cost", "--budgets", "--tell", "--send", *AT)
    with HttpReceiver(lambda number, _: Answer(503 if number == 0 else 200)) as receiver:
        port = receiver.url.rsplit(":", 1)[1].split("/")[0]
        (tmp_path / "urls").write_text(f"json://127.0.0.1:{port}/hook\n")
        site.file.write_text(site.file.read_text() + f'\n[report]\nurls_file = "{tmp_path / "urls"}"\n')
        refused = site.run(*words)
        assert refused.returncode == 2
        assert "no address took the alerts" in refused.stderr
        taken = site.run(*words)
        assert taken.returncode == 0
        assert taken.stdout.count("told: account a=1 has used") == 2
        site.run(*words)
    told = [request.data for request in receiver.requests]
    assert len(told) == 2
    assert told[1]["message"].count("account a=1 has used") == 2
    assert told[1]["title"] == "Budgets of GPU-hours, prod"


@pytest.mark.parametrize(
    ("until", "month", "used"),
    [
        ("2026-11-01T00:00Z", "2026-10", 2.0),
        ("2026-11-01T00:20Z", "2026-11", 0.0),
        ("2026-11-02T00:00Z", "2026-11", 0.0),
        ("2026-10-30T11:00Z", "2026-10", 1.0),
    ],
)
def test_the_month_of_a_budget(tmp_path: Path, until: str, month: str, used: float) -> None:
    """At midnight the month that ended, whole; in a month's first hour nothing is used yet, and the budget is shown."""
    site = _site(tmp_path, budget=4.0)
    told = json.loads(site.run("cost", "--budgets", "--until", until, "--format", "json").stdout)
    (row,) = told["rows"]
    assert (told["period"], row["account"], row["used"], row["share"]) == (month, "a=1", used, used / 4.0)


def test_the_csv_of_the_command_is_a_table(tmp_path: Path) -> None:
    """Notes go to standard error, so that the file stays a table."""
    site = _site(tmp_path, budget=1000.0)
    ended = site.run("cost", "--by", "account", "--format", "csv", *AT)
    keys = {row["key"] for row in csv.DictReader(io.StringIO(ended.stdout))}
    assert "a=1" in keys
    assert "no price is configured" in ended.stderr
