"""Every failed job is judged within minutes, and any job on request, from the lake alone."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from agent_fakes import until
from finding_rows import PCI, at, event
from structlog.testing import capture_logs

from graynode.pipeline.bus import BusUnavailable
from graynode.pipeline.codec import Message, Origin, decode, encode
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.schema import EVENTS, SAMPLES
from graynode.pipeline.spool import SpoolBus
from graynode.service import detect, explain_job, pipeline
from graynode.service.attribution import FINAL, SETTLE, Attribution
from graynode.service.attribution_read import Reader
from graynode.service.config import Config, parse

END = 3600.0
WATCHDOG = "[Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9) ran for 600060 milliseconds"


class Site:
    """A lake, and what the role that judges has said to the bus."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(str(folder / "lake"))
        self.now = at(END + 90)
        self.sent: list[dict[str, Any]] = []
        self.findings: list[Mapping[str, Any]] = []
        self.away = False
        self.role = self.started()

    def started(self) -> Attribution:
        return Attribution(self.lake, "test", self, self.findings.extend, clock=lambda: self.now)

    def send(self, topic: str, messages: Sequence[Message]) -> None:
        """As a producer."""
        if self.away:
            raise BusUnavailable("the broker is away")
        for message in messages:
            assert message.headers["table"] == "attribution"
            self.sent += decode(message).to_pylist()

    def close(self) -> None:
        """Nothing is held."""

    def put(self, table: str, *rows: Mapping[str, Any]) -> None:
        same = {"cluster": "test"}
        self.lake.write(table, pl.DataFrame([{**same, **r} for r in rows], schema=frame_schema(table), orient="row"))

    def job(
        self, state: str | None = "failed", job_id: str = "7", nodes: int = 4, end: float = END, **more: Any
    ) -> None:
        """A job on machines n1 …, running from the start."""
        rows: list[dict[str, Any]] = []
        for n in range(1, nodes + 1):
            who = {"node_id": f"n{n}", "node": f"gpu-{n:02d}", "job_id": job_id, "nodes": nodes, "requeues": 0}
            who |= {"user": "ada", "work": "training", **more}
            rows.append({**who, "ts": at(0), "state": "running", "allocated_ts": at(0)})
            if state is not None:
                rows.append({**who, "ts": at(end), "state": state, "end_ts": at(end)})
        self.put("job", *rows)

    def land(self) -> None:
        """What the pipeline does with what was sent."""
        self.put("attribution", *self.sent)

    def xid(self, node: int, seconds: float, code: int, **more: Any) -> None:
        self.put("event", event(seconds, code=code, node_id=f"n{node}", node=f"gpu-{node:02d}", **more))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_failed_job_is_judged_a_minute_after_its_end_and_once(site: Site) -> None:
    """Not before what its machines had to say has landed; then again only if the whole window says something else."""
    site.job()
    site.xid(2, END - 30, 79)
    site.now = at(END) + SETTLE - timedelta(seconds=1)
    assert site.role.step() == 0
    site.now = at(END) + SETTLE
    assert site.role.step() == 1
    (told,) = site.sent
    assert (told["verdict"], told["kind"], told["confidence"], told["node_id"]) == (
        "infrastructure",
        "gpu",
        "high",
        "n2",
    )
    assert (told["ts"] - told["end_ts"]) <= timedelta(minutes=5)
    assert [f["cause"] for f in site.findings] == ["gpu_lost"]
    for minutes in (2, 7, 60):
        site.now = at(END) + timedelta(minutes=minutes)
        assert site.role.step() == 0
    assert len(site.sent) == len(site.findings) == 1


def test_what_comes_later_in_the_window_changes_the_answer_once(site: Site) -> None:
    """The log named nobody; four minutes later the machine's Xid arrives: a second revision of the same judgement."""
    site.job()
    site.put("job_log", {"ts": at(END), "node_id": "n1", "job_id": "7", "kind": "nccl", "line": WATCHDOG, "rank": 0})
    site.now = at(END + 70)
    assert site.role.step() == 1
    site.xid(3, END - 20, 119)
    site.now = at(END + 200)
    assert site.role.step() == 0
    site.now = at(END) + FINAL
    assert site.role.step() == 1
    first, second = site.sent
    assert first["attribution_id"] == second["attribution_id"]
    assert [(r["revision"], r["verdict"]) for r in site.sent] == [(0, "unknown"), (1, "infrastructure")]
    assert {f["node_id"] for f in site.findings if f["severity"] == "digest"} == {"n1", "n2", "n3", "n4"}
    assert [f["node_id"] for f in site.findings if f["severity"] == "page"] == ["n3"]


def test_a_restart_tells_nothing_twice_and_forgets_no_second_look(site: Site) -> None:
    """What has landed is remembered; what was judged before its window was whole is looked at again."""
    site.job()
    site.role.step()
    assert [r["verdict"] for r in site.sent] == ["unknown"]
    site.land()
    site.xid(3, END - 20, 119)
    site.role = site.started()
    assert site.role.step() == 0
    site.now = at(END) + FINAL
    assert site.role.step() == 1
    assert site.sent[-1]["revision"] == 1


def test_a_job_that_ended_hours_ago_is_judged_and_opens_no_incident(site: Site) -> None:
    """After a pause its machine may be well again: stored, not told. Older than six hours: when somebody asks."""
    site.job()
    site.xid(2, END - 30, 79)
    site.now = at(END + 4 * 3600)
    assert site.role.step() == 1
    assert [f["live"] for f in site.findings] == [False]
    site.now = at(END + 7 * 3600)
    site.role = site.started()
    assert site.role.step() == 0


def test_jobs_of_one_machine_and_jobs_that_went_well_are_left_alone(site: Site) -> None:
    """They are explained when somebody asks."""
    site.job(job_id="1", nodes=1)
    site.job("completed", job_id="2")
    assert site.role.step() == 0


def test_a_bus_that_is_away_loses_nothing_and_doubles_nothing(site: Site) -> None:
    """The row waits and goes first; the findings go after it."""
    site.job()
    site.xid(2, END - 30, 79)
    site.away = True
    for _ in range(3):
        with pytest.raises(BusUnavailable):
            site.role.step()
    assert site.sent == site.findings == []
    site.away = False
    site.role.step()
    assert (len(site.sent), len(site.findings)) == (1, 1)


def test_a_job_that_cannot_be_judged_costs_itself(site: Site) -> None:
    """A case that breaks the rules is said once; the next job is judged."""
    site.job(job_id="1")
    site.job(job_id="2")
    site.role._reader = Broken(site.lake)
    with capture_logs() as said:
        assert site.role.step() == 1
        assert site.role.step() == 0
    assert [line["job_id"] for line in said if line["event"] == "a job cannot be judged"] == ["1"]


class Broken(Reader):
    """A reader whose case of job 1 is none."""

    def case(self, placed: Any, now: datetime) -> Any:
        """Breaks for one."""
        return None if placed.job_id == "1" else Reader.case(self, placed, now)


def test_a_job_that_stands_still_is_judged_while_it_runs(site: Site) -> None:
    """Ten minutes without a step: unknown, told once; a machine's trouble that is found later changes the answer."""
    site.job(None)
    steps = [
        {"ts": at(10 * i), "node_id": f"n{1 + r // 2}", "job_id": "7", "rank": r, "step": i, "seconds": 10.0}
        for i in range(100) for r in range(8)
    ]  # fmt: skip
    site.put("step", *steps)
    site.now = at(1200)
    assert site.role.step() == 0
    site.now = at(1700)
    assert site.role.step() == 1
    (told,) = site.sent
    assert (told["phase"], told["verdict"], told["kind"], told["end_ts"]) == ("hung", "unknown", "hang", None)
    site.now = at(1800)
    assert site.role.step() == 0
    site.xid(4, 985, 119)
    site.now = at(1900)
    assert site.role.step() == 1
    assert (site.sent[-1]["revision"], site.sent[-1]["verdict"], site.sent[-1]["node_id"]) == (
        1,
        "infrastructure",
        "n4",
    )


def test_gpus_that_spin_hang_a_job_of_training_and_no_other(site: Site) -> None:
    """Busy at a third of the power for ten minutes, on every GPU; a server that waits for requests is no hang."""
    site.job(None)
    site.job(None, job_id="8", work="inference")
    site.put("gpu_30s", *(
        {"ts": at(30 * w), "node_id": f"n{n}", "gpu_uuid": f"GPU-{job}-{n}", "job_id_last": job, "boot_id": "b1",
         "gpu_util_percent_mean": 100.0, "power_w_mean": 600.0 if w < 60 else 220.0}
        for w in range(90) for n in range(1, 5) for job in ("7", "8")
    ))  # fmt: skip
    site.now = at(90 * 30 + 20)
    assert site.role.step() == 1
    (told,) = site.sent
    assert (told["job_id"], told["phase"], told["kind"]) == ("7", "hung", "hang")
    assert "37% of its usual power" in told["notes"]


def test_xids_that_stay_on_one_gpu_are_found_in_the_weeks_before(site: Site) -> None:
    """Two other users' jobs had them on the same GPU of the same machine: the GPU is in doubt, not the program."""
    for job_id, user, began in (("5", "bob", -9e5), ("6", "eve", -5e5)):
        who = {"node_id": "n2", "node": "gpu-02", "job_id": job_id, "nodes": 1, "requeues": 0, "user": user}
        site.put("job", {**who, "ts": at(began), "state": "running", "allocated_ts": at(began)})
        site.put("job", {**who, "ts": at(began + 1000), "state": "failed", "end_ts": at(began + 1000)})
        site.xid(2, began + 990, 31)
    site.job()
    site.xid(2, END - 5, 31)
    site.role.step()
    assert (site.sent[0]["verdict"], site.sent[0]["detail"]) == ("infrastructure", "repeated_on_one_gpu")
    assert json.loads(site.sent[0]["elsewhere"])["other_jobs_failed_here"] == {"gpu-02": 1}


def test_a_lake_that_is_away_is_waited_for_and_the_loop_ends_when_told(site: Site) -> None:
    """One line when it goes, none while it stays away."""
    stop = threading.Event()
    site.away = True
    site.job()
    thread = threading.Thread(target=site.role.run, args=(stop, 0.02))
    with capture_logs() as said:
        thread.start()
        time.sleep(0.5)
        stop.set()
        thread.join(20)
    assert not thread.is_alive()
    assert [line["event"] for line in said].count("attribution waits") == 1


# --- explain --job --------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Config:
    folders = {"bus": {"spool_dir": str(tmp_path / "bus")}, "lake": {"path": str(tmp_path / "lake")}}
    return parse({"cluster": "test", **folders}, "test")


def asked(config: Config, job: str, *, now: float = END + 8e5, **how: Any) -> tuple[int, str]:
    sink = io.StringIO()
    code = explain_job.run(config, job, out=sink, clock=lambda: at(now), **how)
    return code, " ".join(sink.getvalue().split()) if not how.get("as_json") else sink.getvalue()


def test_a_person_reads_why_what_began_it_and_what_to_do(site: Site, config: Config) -> None:
    """Nine days later, when raw rows are gone: one sentence, the evidence in order, the next step, what was missing."""
    site.job("node_fail", job_alias="5_2")
    site.xid(2, END - 30, 79)
    site.xid(3, END - 10, 45)
    for name in ("7", "5_2", " 7 "):
        code, text = asked(config, name)
        assert code == 0
        for said in (
            "INFRASTRUCTURE Job 7 failed because of the machine", "Xid 79", PCI, "gpu-02", "30 s before the end",
            "confidence high", "BEGAN IT", "clean-up", "Run it again on other nodes", "What could not be asked",
            "machines were not heard of", "graynode sql --lake",
        ):  # fmt: skip
            assert said in text, said
        assert text.index("Xid 79") < text.index("clean-up")


def test_an_unknown_end_is_told_as_one_and_fits_the_terminal(site: Site, config: Config) -> None:
    """What is in doubt, by name; what to do; what would have helped. No line is wider than 80 columns."""
    site.job(exit_code=1)
    site.put(
        "job_log", {"ts": at(END), "node_id": "n1", "job_id": "7", "kind": "nccl", "line": WATCHDOG * 9, "rank": 0}
    )
    sink = io.StringIO()
    assert explain_job.run(config, "7", out=sink, clock=lambda: at(END + 900)) == 0
    text = " ".join(sink.getvalue().split())
    for said in (
        "UNKNOWN Job 7 failed, and why is not known",
        "gpu-01, gpu-02, gpu-03, gpu-04",
        "who or why",
        "does not have: event, step",
    ):
        assert said in text, said
    assert max(len(line) for line in sink.getvalue().splitlines()) <= 80


def test_a_job_that_runs_does_not_stand_still(site: Site, config: Config) -> None:
    """Asked about before its end, with nothing that speaks against it: it runs, in text and for a machine."""
    site.job(state=None)
    code, text = asked(config, "7", now=END)
    assert code == 0
    assert "runs, and nothing says that code or machine failed" in " ".join(text.split())
    assert "standing still" not in text
    assert json.loads(asked(config, "7", now=END, as_json=True)[1])["phase"] == "running"


def test_json_for_a_machine(site: Site, config: Config) -> None:
    """The row with its arrays read; what was said at the time beside it, where it differs."""
    site.job()
    site.role.step()
    site.land()
    site.xid(2, END - 30, 79)
    code, text = asked(config, "7", as_json=True)
    told = json.loads(text)
    assert code == 0
    assert (told["verdict"], told["then"]["verdict"]) == ("infrastructure", "unknown")
    assert told["evidence"][0]["detail"] == "xid_79"
    assert told["attempts"] == 1


def test_when_lines_are_long_gone_what_was_said_then_is_shown(site: Site, config: Config) -> None:
    """After a hundred days the log is not there any more; the stored verdict is."""
    site.job()
    line = {"node_id": "n1", "job_id": "7", "rank": 0}
    site.put("job_log", {**line, "ts": at(END), "kind": "traceback", "line": "KeyError: 'input_ids'"})
    site.role.step()
    site.land()
    gone = site.lake.table("job_log")
    gone.delete()
    assert asked(config, "7", now=END + 86_400)[1].startswith("UNKNOWN")
    text = asked(config, "7", now=END + 100 * 86_400)[1]
    assert text.startswith("APPLICATION Job 7 failed because of its code")
    assert "KeyError" in text


def test_a_clock_that_was_wrong_is_remarked(site: Site, config: Config) -> None:
    """The order is by the bus's clock; what the machine wrote stands beside it."""
    site.job()
    site.xid(2, END - 10, 79)
    rows = [
        {"ts": at(END - 300 + 30 * w), "node_id": "n2", "boot_id": "b1", "clock_skew_s_mean": 20.0} for w in range(9)
    ]
    site.put("host_30s", *rows)
    assert "its clock is 20 s ahead: it wrote 12:59:50" in asked(config, "7")[1]


def test_a_job_that_is_held_up_by_a_rank_says_so(site: Site, config: Config) -> None:
    """Steps with busy time: the slow rank is named beside the verdict on the end."""
    site.job("completed")
    steps = [
        {"ts": at(10 * i), "node_id": f"n{1 + r // 4}", "job_id": "7", "rank": r, "role": "0", "step": i,
         "seconds": 10.0,
         "busy_s": (9.5 if r == 5 else 7.0) + 0.01 * ((i * 7 + r * 3) % 5), "wait_s": 0.4}
        for i in range(60, 340) for r in range(16)
    ]  # fmt: skip
    site.put("step", *steps)
    text = asked(config, "7")[1]
    assert text.startswith("NEITHER Job 7 ran to its end")
    assert "Its speed" in text
    assert "5" in text.partition("Its speed")[2]


@pytest.mark.parametrize("name", ["8", "'; DROP TABLE job", "%", "7" * 500, "", "a\x1b[2J"])
def test_a_job_that_is_not_there(site: Site, config: Config, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Which ids are near, and what the lake has; nothing is asked with what was typed."""
    site.job()
    assert asked(config, name)[0] == 1
    said = capsys.readouterr().err
    assert "the lake has no job" in said
    assert "it has 1 from 2026-11-30 12:00 UTC" in said
    assert "\n  7  ended 2026-11-30 13:00 UTC" in said
    assert "\x1b" not in said


def test_no_lake_at_all(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said, and none is made."""
    assert asked(config, "7")[0] == 1
    assert "no job at all yet" in capsys.readouterr().err
    assert not Path(config.lake.path).exists()


def test_one_id_in_two_clusters(site: Site, config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """The configured cluster's; where it has none, they are listed."""
    site.job()
    other = {"node_id": "x", "node": "x", "job_id": "7", "ts": at(0), "state": "running"}
    site.put(
        "job",
        {**other, "cluster": "b"},
        {**other, "cluster": "c", "job_id": "9"},
        {**other, "cluster": "d", "job_id": "9"},
    )
    assert asked(config, "7")[0] == 0
    assert asked(config, "9")[0] == 1
    assert "2 jobs go by '9'" in capsys.readouterr().err


def test_a_job_of_slurms_runs_on_the_machines_that_bear_its_nodes_names(site: Site, config: Config) -> None:
    """Rows name NodeNames; the machines' own events and windows are found behind them, and other jobs' ends too."""
    for n in (1, 2):
        named = {"kind": "node_name", "entity": "slurm", "attributes": json.dumps({"name": f"gpu-{n:02d}"})}
        site.put("inventory", {"ts": at(-9e5), "node_id": f"n{n}", "node": f"host{n}", **named})
    for job_id, began, end in (("7", 0, END), ("6", -9000, -8000)):
        for n in (1, 2):
            who = {
                "node_id": f"slurm:c1/gpu-{n:02d}",
                "node": f"gpu-{n:02d}",
                "job_id": job_id,
                "nodes": 2,
                "requeues": 0,
            }
            site.put("job", {**who, "ts": at(began), "state": "running", "allocated_ts": at(began)})
            site.put("job", {**who, "ts": at(end), "state": "failed", "end_ts": at(end)})
    site.xid(2, END - 30, 79)
    site.role.step()
    (told,) = [r for r in site.sent if r["job_id"] == "7"]
    assert (told["verdict"], told["node_id"], told["node"]) == ("infrastructure", "n2", "gpu-02")
    assert json.loads(told["elsewhere"])["other_jobs_failed_here"] == {"gpu-01": 1, "gpu-02": 1}
    assert asked(config, "7")[0] == 0


def test_an_incident_or_a_job_and_not_both() -> None:
    """The command says which."""
    for words in ((), ("abc", "--job", "7")):
        done = subprocess.run(
            [sys.executable, "-m", "graynode.service.cli", "explain", *words],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2
        assert "--job ID" in done.stderr
        assert "Traceback" not in done.stderr


# --- the whole path -------------------------------------------------------------------------------------------


def test_from_the_bus_to_the_verdict_and_back_to_the_person(tmp_path: Path) -> None:
    """Pipeline and detect over a spool: rows of a job that lost a GPU arrive; minutes after its end the verdict is in
    the lake, its finding has joined the incident that the kernel line opened, and ``explain --job`` says the same."""
    folders = {"bus": {"spool_dir": str(tmp_path / "bus")}, "lake": {"path": str(tmp_path / "lake")}}
    quick = {"pipeline": {"metrics_listen": "", "commit_s": 1, "maintain": False}, "detect": {"metrics_listen": ""}}
    config = parse({"cluster": "test", **folders, **quick}, "test")
    end = datetime.now(UTC) - SETTLE
    speak(config, end)
    stop = threading.Event()
    roles = [threading.Thread(target=run, args=(config, stop)) for run in (pipeline.run, detect.run)]
    lake = Lake(str(tmp_path / "lake"))

    def landed(table: str, **where: str) -> list[dict[str, Any]]:
        return lake.read(table).filter(**where).to_dicts()

    for role in roles:
        role.start()
    try:
        assert until(lambda: landed("attribution"), 60)
        assert until(lambda: [i for i in landed("incident") if "job 7 ended by it" in i["evidence"]], 60)
    finally:
        stop.set()
        for role in roles:
            role.join(30)
    (told,) = landed("attribution")
    assert (told["verdict"], told["kind"], told["confidence"], told["node_id"]) == (
        "infrastructure",
        "gpu",
        "high",
        "n2",
    )
    assert (told["ts"] - end).total_seconds() <= 300
    assert len({i["incident_id"] for i in landed("incident", cause="gpu_lost")}) == 1
    assert {f["detector"] for f in landed("finding", node_id="n2")} == {"rules", "attribution"}
    sink = io.StringIO()
    assert explain_job.run(config, "7", out=sink) == 0
    assert sink.getvalue().startswith("INFRASTRUCTURE")
    assert "followed" in sink.getvalue()


def speak(config: Config, end: datetime) -> None:
    """What a scheduler, a kernel and a training program say of a job that ended then."""
    producer = SpoolBus(config.bus.spool_dir, 1 << 30).producer()

    def send(topic: str, table: str, *rows: dict[str, Any]) -> None:
        origin = Origin("test", rows[0]["node_id"], 1)
        producer.send(topic, [encode(table, rows, origin, next(numbers), datetime.now(UTC))])

    numbers, began = itertools.count(1), end - timedelta(hours=1)
    for n in range(1, 5):
        who = {"cluster": "test", "node_id": f"n{n}", "node": f"gpu-{n:02d}", "job_id": "7"}
        job = {**who, "nodes": 4, "requeues": 0}
        over = {"ts": end, "state": "failed", "end_ts": end, "exit_code": 1}
        send(EVENTS, "job", {**job, "ts": began, "state": "running", "allocated_ts": began}, {**job, **over})
        line = {"ts": end, "rank": n - 1, "kind": "nccl", "line": WATCHDOG.format(r=n - 1)}
        send(SAMPLES, "job_log", {**who, **line})
    send(EVENTS, "event", event(0, code=79, node_id="n2", node="gpu-02", ts=end - timedelta(seconds=30)))
    producer.close()
