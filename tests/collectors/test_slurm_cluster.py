"""A Slurm cluster read by its programs: stand-ins that fail, hang, flood and cut their answers."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import node_files
import pytest

from graynode.collectors.base import NoSource, Round, Row, Rows, utc_now
from graynode.collectors.context import JobContext
from graynode.collectors.program import MAX_OUTPUT, Program, ProgramFailed, memory_limit, output_bound
from graynode.collectors.slurm.cluster import Settings, SlurmCluster

CAPTURED = node_files.FIXTURES / "slurm"
CONFIG = "AccountingStorageType   = {storage}\nClusterName             = c1\n"


class Programs:
    """``squeue``, ``scontrol`` and ``sacct`` of the test's own in a folder: shell scripts that give files."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.calls = folder / "bin", folder / "calls"
        self.bin.mkdir(parents=True)
        self.queue([])
        self.say("node", (CAPTURED / "nodes-22.05.8.txt").read_text())
        self.say("partition", (CAPTURED / "parts-22.05.8.txt").read_text())
        self.say("reservation", "No reservations in the system\n")
        self.say("config", CONFIG.format(storage="accounting_storage/none"))
        self.script("scontrol", f'for last; do :; done\nexec cat "{self.bin}/$last"')
        self.script("squeue", f'exec cat "{self.bin}/queue"')
        self.script("sacct", f'exec cat "{self.bin}/ends"')

    def say(self, what: str, text: str) -> None:
        """What the programs answer from now on."""
        (self.bin / what).write_text(text)

    def queue(self, jobs: list[dict[str, Any]]) -> None:
        """What ``squeue --json`` answers."""
        self.say("queue", json.dumps({"jobs": jobs}))

    def script(self, name: str, text: str) -> None:
        """A program; each call is a line in ``calls``."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n{text}\n')
        path.chmod(0o755)

    def count(self, words: str) -> int:
        """How often a program was called with these words."""
        return sum(words in line for line in self.calls.read_text().splitlines()) if self.calls.exists() else 0


def job(number: int, state: str = "RUNNING", **more: Any) -> dict[str, Any]:
    base = {"job_id": number, "job_state": state, "nodes": "n1", "submit_time": 1796045365, "start_time": 1796045365}
    return {**base, "end_time": 1796045369, "exit_code": 0, **more}


class Cluster:
    """The collector over stand-ins. ``cycle`` asks everything once and gives what was told."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.programs = folder, Programs(folder)
        self.settings = Settings(**{"every_s": 1e9, "deadline_s": 5.0, "bin": self.programs.bin, **settings})
        self.context = JobContext()
        self.open()

    def open(self) -> None:
        """Another life of the agent."""
        self.at = 0.0
        self.collector = SlurmCluster(
            node_files.node(self.folder), self.settings, self.context, monotonic=lambda: self.at + time.monotonic()
        )

    def cycle(self, timeout_s: float = 20.0) -> dict[str, list[Row]]:
        rows: dict[str, list[Row]] = {}
        end = time.monotonic() + timeout_s
        self.at += 2e9
        while True:
            self._add(rows, self.collector.collect(Round(utc_now(), frozenset({1}))))
            if not self.collector._running and not self.collector._asks:
                return rows
            assert time.monotonic() < end, "the cycle did not end"
            time.sleep(0.005)

    def _add(self, rows: dict[str, list[Row]], more: Rows) -> None:
        node_files.checked(more, SlurmCluster.tables)
        for table, some in more.items():
            rows.setdefault(table, []).extend(some)


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    made = Cluster(tmp_path)
    yield made
    made.collector.close()


def states(rows: dict[str, list[Row]]) -> list[tuple[str, str | None]]:
    return [(row["job_id"], row["state"]) for row in rows.get("job", [])]


def test_a_cycle_tells_what_there_is_and_the_next_what_changed(cluster: Cluster) -> None:
    """Jobs, nodes, partitions; array names for those who read job outputs."""
    cluster.programs.queue([job(7, array_job_id=5, array_task_id=2)])
    rows = cluster.cycle()
    assert states(rows) == [("7", "running")]
    assert [row["scheduler_state"] for row in rows["node_state"]] == ["MIXED", "MIXED", "IDLE+DRAIN"]
    assert [row["kind"] for row in rows["event"]] == ["partition_state"]
    assert cluster.context.job_named("5_2") == "7"
    assert cluster.cycle() == {}
    cluster.programs.queue([job(7, "COMPLETED")])
    assert states(cluster.cycle()) == [("7", "completed")]


def test_a_round_never_waits_for_a_program(cluster: Cluster) -> None:
    """A program that hangs is ended at its deadline with its children; the next begins; quality says it, once, and
    how often it failed when it is well again. There is one at a time: an hour of them piles up nothing."""
    cluster.cycle()
    cluster.programs.script("squeue", "sleep 600 & sleep 600")
    cluster.collector.close()
    cluster.settings = replace(cluster.settings, deadline_s=0.3)
    cluster.open()
    began = time.monotonic()
    (said,) = cluster.cycle()["quality"]
    assert (said["table_name"], said["state"]) == ("job", "error")
    assert "gave no answer within 0.3 s" in said["reason"]
    assert time.monotonic() - began < 10
    assert cluster.cycle() == cluster.cycle() == {}
    assert cluster.collector.failures == {"job": 3}
    cluster.programs.script("squeue", f'exec cat "{cluster.programs.bin}/queue"')
    (said,) = cluster.cycle()["quality"]
    assert (said["state"], said["reason"]) == ("measured", "slurm: Slurm answers again after 3 failures")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
        ("kill -9 $$", "ended by signal 9"),
        ('echo \'{"jobs": [{"job_id": 7, \'', "squeue --json"),
        (":", "squeue --json"),
        ("exit 3", "it said nothing"),
        ("head -c 300000 /dev/zero | tr '\\0' '['", "squeue --json"),
        ("head -c 100000 /dev/urandom", "squeue --json"),
    ],
)
def test_an_answer_that_is_none_costs_its_own_table(cluster: Cluster, script: str, said: str) -> None:
    """Refused, killed, cut, empty, nested without end, binary: jobs are not told and why; nodes are."""
    cluster.programs.queue([job(7)])
    cluster.cycle()
    cluster.programs.script("squeue", script)
    cluster.programs.say("node", (CAPTURED / "nodes-22.05.8.txt").read_text().replace("IDLE+DRAIN", "DOWN"))
    rows = cluster.cycle()
    assert [row["scheduler_state"] for row in rows["node_state"]] == ["DOWN"]
    assert "job" not in rows
    (quality,) = rows["quality"]
    assert (quality["table_name"], quality["state"]) == ("job", "error")
    assert said in quality["reason"]


def test_a_program_that_writes_for_ever_is_ended() -> None:
    """At its bound of output, long before memory is."""
    program = Program(["/bin/sh", "-c", "exec cat /dev/zero"], dict(os.environ), deadline_s=20, most=1 << 20)

    def wait() -> None:
        while program.poll() is None:
            time.sleep(0.01)

    with pytest.raises(ProgramFailed, match="wrote more than 1048576 bytes"):
        wait()
    program.kill()


@pytest.mark.parametrize(
    ("said", "files", "limit"),
    [
        ("0::/system.slice/a.service\n", {"system.slice/a.service/memory.max": "268435456"}, 256 << 20),
        ("0::/pod/c\n", {"pod/c/memory.max": "max", "pod/memory.max": "1073741824"}, 1 << 30),
        ("0::/\n", {"memory.max": "134217728"}, 128 << 20),
        ("5:cpu:/x\n4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "268435456"}, 256 << 20),
        ("0::/a\n", {"a/memory.max": "max"}, None),
        ("nonsense\n0::/../../etc\n::\n", {}, None),
        ("", {}, None),
    ],
)  # fmt: skip
def test_a_flood_is_bounded_by_the_memory_that_the_agent_may_use(
    tmp_path: Path, said: str, files: dict[str, str], limit: int | None
) -> None:
    """The output lies in memory, and whoever passes the cgroup's limit is ended by the kernel, the agent too."""
    (tmp_path / "cgroup").write_text(said)
    for name, content in files.items():
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(f"{content}\n")
    assert memory_limit(tmp_path / "cgroup", tmp_path / "sys") == limit
    assert output_bound(limit) == (MAX_OUTPUT if limit is None else min(MAX_OUTPUT, limit // 4))


def test_a_program_that_is_not_there() -> None:
    """Said by its name; nothing stays open."""
    open_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (descriptors)
    with pytest.raises(ProgramFailed, match="/none/squeue: No such file"):
        Program(["/none/squeue"], {}, deadline_s=1)
    assert len(os.listdir("/proc/self/fd")) == open_before  # noqa: PTH208 (descriptors)


def test_a_slurm_without_json_is_read_as_text(cluster: Cluster) -> None:
    """Asked once with JSON, then in the text form."""
    cluster.programs.script("squeue", "echo 'squeue: error: Unable to find plugin serializer/json' >&2; exit 1")
    cluster.programs.say("job", (CAPTURED / "jobs-22.05.8.txt").read_text())
    rows = cluster.cycle()
    assert ("2", "failed") in states(rows)
    assert "quality" not in rows
    cluster.cycle()
    assert cluster.programs.count("squeue") == 1


def test_a_restart_tells_nothing_twice(cluster: Cluster) -> None:
    """Closed in good order: all is kept. Killed: what the last cycle before told is known."""
    cluster.programs.queue([job(7)])
    cluster.cycle()
    cluster.collector.close()
    cluster.open()
    assert cluster.cycle() == {}
    cluster.programs.queue([job(7, "FAILED", exit_code=256)])
    assert states(cluster.cycle()) == [("7", "failed")]
    cluster.cycle()
    cluster.open()  # without close
    assert cluster.cycle() == {}


def test_a_job_that_left_the_queue_is_asked_of_the_accounting(cluster: Cluster) -> None:
    """slurmctld forgets jobs after MinJobAge; the agent was away for longer."""
    cluster.programs.say("config", CONFIG.format(storage="accounting_storage/slurmdbd"))
    cluster.programs.queue([job(7)])
    cluster.cycle()
    cluster.programs.queue([])
    cluster.programs.say("ends", "7|TIMEOUT|0:15|1796045365|1796045365|1796045369|n1|1||ada|a|gpu|7\n")
    (row,) = cluster.cycle()["job"]
    assert (row["state"], row["exit_signal"], row["node_id"]) == ("timeout", 15, "slurm:c1/n1")
    assert cluster.programs.count("--jobs=7") == 1
    assert cluster.cycle() == {}
    assert cluster.programs.count("sacct") == 1


def test_a_job_that_left_the_queue_is_looked_for_in_the_completion_log(tmp_path: Path) -> None:
    """No accounting, but jobcomp/filetxt: its lines tell what the queue no longer shows, each once."""
    log = tmp_path / "jobcomp.txt"
    log.write_text("")
    cluster = Cluster(tmp_path / "c", completion_log=log)
    cluster.programs.queue([job(2)])
    cluster.cycle()
    cluster.programs.queue([])
    log.write_text((CAPTURED / "jobcomp-22.05.8.txt").read_text())
    assert sorted(states(cluster.cycle())) == [
        ("1", "cancelled"),
        ("11", "cancelled"),
        ("2", "failed"),
        ("3", "failed"),
    ]
    cluster.collector.close()
    cluster.open()
    assert cluster.cycle() == {}
    cluster.collector.close()


def test_a_completion_log_of_years_is_begun_near_its_end(tmp_path: Path) -> None:
    """The last megabyte, from the first whole line on."""
    line = (CAPTURED / "jobcomp-22.05.8.txt").read_text().splitlines()[0]
    log = tmp_path / "jobcomp.txt"
    log.write_text("".join(line.replace("JobId=2 ", f"JobId={n} ") + "\n" for n in range(1, 6000)))
    cluster = Cluster(tmp_path / "c", completion_log=log)
    told = {int(row["job_id"]) for row in cluster.cycle()["job"]} | {
        int(row["job_id"]) for row in cluster.cycle().get("job", [])
    }
    assert max(told) == 5999
    assert min(told) > 2000
    cluster.collector.close()


def test_no_programs_is_no_source(tmp_path: Path) -> None:
    """Said with the way out."""
    with pytest.raises(NoSource, match=r"no scontrol in PATH; set slurm\.bin"):
        SlurmCluster(node_files.node(tmp_path), env={"PATH": str(tmp_path)})


def test_thousands_of_jobs(cluster: Cluster) -> None:
    """The answer of a large cluster is taken in seconds, its changes alone are told, and its memory is a small file."""
    cluster.programs.queue([job(n, nodes=f"n{n % 100}") for n in range(1, 3001)])
    assert len(cluster.cycle()["job"]) == 3000
    began = time.monotonic()
    assert cluster.cycle() == {}
    assert time.monotonic() - began < 10
    cluster.collector.close()
    assert (cluster.folder / "state/slurm_cluster.json").stat().st_size < 1 << 20
