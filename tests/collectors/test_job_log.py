"""Telling lines of job outputs: which lines, whose, redacted, through rotation and restarts, in bounded time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import node_files
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graynode.collectors.base import NoSource, Row
from graynode.collectors.context import JobContext
from graynode.collectors.job_log import JobLog
from graynode.collectors.job_log_files import BEHIND_BYTES, FIRST_BYTES, Pattern
from graynode.collectors.job_log_lines import KEPT, MAX_LINE, Telling, clean, may_tell, rank_of, redact

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 88, in <module>
    raise RuntimeError("CUDA error: in code that is shown")
  File "/home/ada/model.py", line 3, in forward
    x = y
        ^
{last}
"""


class Logs:
    """A folder of outputs and the collector over it."""

    def __init__(self, folder: Path, name: str = "slurm-%j.out") -> None:
        self.folder = folder / "logs"
        self.folder.mkdir()
        self.machine, self.context = node_files.node(folder), JobContext()
        self.paths = [f"{self.folder}/{name}"]
        self.second = -60
        self.open()

    def open(self) -> None:
        self.collector = JobLog(self.machine, self.paths, self.context)

    def write(self, name: str, text: str, mode: str = "a") -> Path:
        with (self.folder / name).open(mode) as file:
            file.write(text)
        return self.folder / name

    def rows(self, after_s: int = 60) -> dict[str, list[Row]]:
        self.second += after_s
        found = node_files.checked(self.collector.collect(node_files.round_at(self.second)), JobLog.tables)
        return {table: list(some) for table, some in found.items()}

    def told(self, after_s: int = 60) -> list[tuple[Any, ...]]:
        return [(row["job_id"], row["kind"], row["line"]) for row in self.rows(after_s).get("job_log", [])]


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (
            "oom",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79 GiB",
        ),
        (
            "oom",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
        ),
        ("oom", "RuntimeError: [enforce fail at alloc_cpu.cpp:114] Cannot allocate memory"),
        (
            "nccl",
            "[rank3]:[E1130 12:00:00 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout",
        ),
        ("nccl", "gpu-7:81:99 [3] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.7<41> failed"),
        (
            "nccl",
            "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1275, unhandled system error",
        ),
        ("cuda", "RuntimeError: CUDA error: an illegal memory access was encountered"),
        ("cuda", "CUDA error: uncorrectable ECC error encountered"),
        ("cuda", "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss: device-side assert triggered"),
        ("cuda", "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: CUDA_ERROR_LAUNCH_FAILED"),
        ("nan", "step 120 loss: nan grad_norm: 3.2"),
        ("nan", "{'loss': nan, 'learning_rate': 1e-05}"),
        ("nan", "FloatingPointError: Loss is inf, stopping"),
        ("signal", "Segmentation fault (core dumped)"),
        ("signal", "srun: error: gpu-7: task 3: Exited with exit code 137"),
        ("signal", "slurmstepd: error: *** JOB 7 ON gpu-7 CANCELLED AT 2026-11-30T12:00:00 DUE TO NODE FAILURE ***"),
        ("signal", "traceback : Signal 9 (SIGKILL) received by PID 4711"),
        (None, "step 120 loss: 2.31 grad_norm: 0.8"),
        (None, "NCCL version 2.27.3+cuda12.9"),
        (None, "Using CUDA device 0 (NVIDIA H100), information: signal handlers installed"),
        (None, "eval/nanotime: 12, config.json, banana"),
        (None, ""),
    ],
)
def test_which_lines_tell(kind: str | None, line: str) -> None:
    """The vendor's and the frameworks' own words; banners and figures that only look alike tell nothing."""
    assert Telling().of(line) == kind
    assert kind is None or may_tell(line.encode())


@pytest.mark.parametrize("prefix", ["", "3: ", "[rank3]: ", "[default3]:"])
@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ("ValueError: shapes do not match", "traceback"),
        ("RuntimeError: CUDA error: nope", "cuda"),
        ("KeyboardInterrupt", "traceback"),
    ],
)
def test_the_last_line_of_a_traceback(prefix: str, last: str, kind: str) -> None:
    """The code that a traceback shows tells nothing, whatever it names; the exception does, with the rank before it."""
    telling = Telling()
    told = [(line, k) for line in TRACEBACK.format(last=last).splitlines() if (k := telling.of(prefix + line))]
    assert told == [(last, kind)]
    assert rank_of(prefix + last) == (3 if prefix else None)


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("error: git clone https://ada:ghp_abcDEF123456789@host/x failed", "ghp_abc"),
        ("error https://ada:p@ss@host.example/x", "p@ss"),
        ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567 error", "0123456789abcdef"),
        ("error: {'hf_token': 'hf_AbCdEfGhIjKlMnOp', 'x': 1}", "hf_AbC"),
        ("Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc error", "eyJhbGci"),
        ("password: hunter2 error", "hunter2"),
        ("error AWS AKIAIOSFODNN7EXAMPLE", "AKIAIOS"),
        ("error sending to ada.lovelace@example.org", "lovelace"),
        ("FileNotFoundError: /home/ada/secret-project/x.py", "ada/"),
        ("error GET https://s3/x?X-Amz-Signature=0123456789abcdef0123", "0123456789abcdef"),
        ("error id 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "9f86d0"),
    ],
)  # fmt: skip
def test_secrets_stay_on_the_node(line: str, secret: str) -> None:
    """Tokens, passwords, credentials in URLs, mail addresses, names in home paths; the rest of the line stays."""
    said = redact(line)
    assert secret not in said
    assert "rror" in said


def test_what_the_line_is_for_stays() -> None:
    """Which peer a collective lost, which node, which tensor: addresses and numbers are no secrets."""
    line = "NCCL WARN NET/IB : Got completion from peer 10.0.12.7<51234> with status=12 opcode=1 len=0 vendor err 129"
    assert redact(line) == line


def test_lines_are_cleaned_and_short() -> None:
    """Colours, progress bars that overwrite themselves, control and direction characters; at most 1 kB."""
    assert clean(b"\x1b[31mCUDA error\x1b[0m\r\n") == "CUDA error"
    assert clean(b"  5%|#  | 5/100\r 10%|## | 10/100 CUDA error") == " 10%|## | 10/100 CUDA error"
    assert clean("CUDA error \u202ereversed\x00\x07".encode()) == "CUDA error reversed"
    assert len(redact(clean(b"CUDA error " * 10_000))) <= KEPT
    assert clean(b"\xff\xfe CUDA error").endswith("CUDA error")


PIECES = (
    "a", " ", "@", ".", ":", "/", "-", "_", "=", "%", "token", "srun: error: ", "loss", "nan", "://", "eyJ", "1", "[",
    "]", '"', "error", "?", "&",
)  # fmt: skip
EVIL = st.lists(st.sampled_from(PIECES), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(EVIL, st.integers(1, 3000))
def test_no_line_takes_long(pieces: list[str], times: int) -> None:
    """Repetitions of what the patterns are made of, as long as a line is looked at: no pattern backtracks for long."""
    raw = ("".join(pieces) * times).encode()[: 4 * MAX_LINE]
    began = time.process_time()
    text = clean(raw)
    Telling().of(text)
    redact(text)
    rank_of(text)
    assert time.process_time() - began < 0.5


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_line(raw: bytes) -> None:
    """What is not text is told as far as it is."""
    text = clean(raw)
    Telling().of(text)
    assert len(redact(text)) <= KEPT


@pytest.mark.parametrize(
    ("pattern", "path", "ids"),
    [
        ("/x/slurm-%j.out", "/x/slurm-123.out", ("123", None)),
        ("/x/%x-%A_%a.out", "/x/my-job-9-123_4.out", ("123_4", None)),
        ("/x/*/log_%A-%a_%t.txt", "/x/ada/log_12-3_7.txt", ("12_3", 7)),
        ("/x/%j/%j.%t.err", "/x/12/12.3.err", ("12", 3)),
        ("/x/%3j_%%.out", "/x/123_%.out", ("123", None)),
        ("/x/*.out", "/x/slurm-123_4.out", ("123_4", None)),
        ("/x/*.out", "/x/train.out", (None, None)),
        ("/x/slurm-%j.out", "/x/other.out", (None, None)),
        ("/x/%u/%N-%n.out", "/x/ada/gpu7-1.out", (None, None)),
    ],
)
def test_ids_in_names(pattern: str, path: str, ids: tuple[str | None, int | None]) -> None:
    """Slurm's own specifiers, as a user wrote them after ``#SBATCH -o``."""
    assert Pattern.of(pattern).ids(path) == ids


def test_a_relative_path_is_refused() -> None:
    """At the start, with its text."""
    with pytest.raises(ValueError, match="'logs/x' is not an absolute path"):
        Pattern.of("logs/x")


def test_lines_of_jobs(logs: Logs) -> None:
    """New lines only, of the job that the file's name says; a line without its end waits for it."""
    logs.write("slurm-7.out", "hello\nCUDA error: a\nCUDA err")
    logs.write("slurm-8.out", "3: " + TRACEBACK.format(last="ValueError: b").replace("\n", "\n3: "))
    assert sorted(logs.told()) == [("7", "cuda", "CUDA error: a"), ("8", "traceback", "3: ValueError: b")]
    assert logs.told(10) == []
    logs.write("slurm-7.out", "or: c\n")
    assert logs.told(10) == [("7", "cuda", "CUDA error: c")]
    assert logs.told(10) == []


def test_what_is_sent_of_a_line_is_redacted(logs: Logs) -> None:
    """From the file to the row: a secret in a telling line does not leave the node."""
    logs.write("slurm-7.out", "CUDA error at https://ada:ghp_abcDEF123456789@host/x\n")
    ((_, _, line),) = logs.told()
    assert line == "CUDA error at https://[redacted]@host/x"


def test_a_traceback_that_is_cut_by_a_look(logs: Logs) -> None:
    """Its last line tells, also when it comes ten seconds later and holds no word that tells by itself."""
    whole = TRACEBACK.format(last="ValueError: b")
    logs.write("slurm-7.out", whole[:60])
    assert logs.told() == []
    logs.write("slurm-7.out", whole[60:-20])
    assert logs.told(10) == []
    logs.write("slurm-7.out", whole[-20:])
    assert logs.told(10) == [("7", "traceback", "ValueError: b")]


def test_an_arrays_task_is_told_by_its_number(tmp_path: Path) -> None:
    """Where Slurm's source knows it; else by its own name."""
    logs = Logs(tmp_path, "slurm-%A_%a.out")
    logs.context.set_aliases("slurm", {"123_4": "126"})
    logs.write("slurm-123_4.out", "CUDA error: a\n")
    logs.write("slurm-123_5.out", "CUDA error: a\n")
    assert sorted(row[0] for row in logs.told()) == ["123_5", "126"]


def test_rotation_truncation_deletion(logs: Logs) -> None:
    """A renamed file goes on where it stood, a new one in its place begins, a cut one begins anew, a deleted one is
    forgotten."""
    path = logs.write("slurm-7.out", "CUDA error: 1\n")
    assert len(logs.told()) == 1
    path.rename(logs.folder / "slurm-77.out")
    logs.write("slurm-77.out", "CUDA error: 2\n")
    logs.write("slurm-7.out", "CUDA error: 3\n")
    assert sorted(logs.told()) == [("7", "cuda", "CUDA error: 3"), ("77", "cuda", "CUDA error: 2")]
    logs.write("slurm-7.out", "CUDA error: 4\n", "w")
    assert logs.told(10) == [("7", "cuda", "CUDA error: 4")]
    logs.write("slurm-7.out", "CUDA error: 5, longer than it was before it was cut\n", "w")
    assert [row[2][:13] for row in logs.told(10)] == ["CUDA error: 5"]
    path.unlink()
    assert logs.told(40) == []
    assert len(logs.collector._files) == 1


def test_a_restart_goes_on(logs: Logs) -> None:
    """Positions are kept at the end; a line that was being written is told whole afterwards."""
    logs.write("slurm-7.out", "CUDA error: 1\nCUDA er")
    assert len(logs.told()) == 1
    logs.collector.close()
    logs.write("slurm-7.out", "ror: 2\n")
    logs.open()
    assert logs.told() == [("7", "cuda", "CUDA error: 2")]


@pytest.mark.parametrize("kept", ["[]", '{"1:2": 5}', "{", '{"x": [1, "zz"]}'])
def test_a_broken_state_file_counts_as_none(tmp_path: Path, kept: str) -> None:
    """Whatever is in it."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state/job_log.json").write_text(kept)
    logs = Logs(tmp_path)
    logs.write("slurm-7.out", "CUDA error: 1\n")
    assert len(logs.told()) == 1


def test_a_large_file_is_read_at_its_end(logs: Logs) -> None:
    """A gigabyte that was there before the agent, and one that is written between two looks, cost a bounded read; what
    was passed over is said."""
    path = logs.folder / "slurm-7.out"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nCUDA error: 1\n")
    began = time.monotonic()
    assert logs.told() == [("7", "cuda", "CUDA error: 1")]
    with path.open("r+b") as file:
        file.truncate((1 << 30) + BEHIND_BYTES + FIRST_BYTES * 9)
        file.seek(0, os.SEEK_END)
        file.write(b"\nCUDA error: 2\n")
    assert logs.told(10) == [("7", "cuda", "CUDA error: 2")]
    assert time.monotonic() - began < 10
    (said,) = logs.rows(50)["quality"]
    assert said["state"] == "stale"


def test_a_thousand_ranks_say_the_same(logs: Logs) -> None:
    """So many lines of one look are told, and how many more there were."""
    logs.write("slurm-7.out", "".join(f"{n}: CUDA error: unspecified launch failure\n" for n in range(1000)))
    told = logs.told()
    assert len(told) == 20
    assert told[-1][2].endswith("(and 980 more telling lines)")


def test_thousands_of_files(logs: Logs) -> None:
    """They cost no descriptors, and a look at files that did not grow costs little."""
    for n in range(2000):
        logs.write(f"slurm-{n}.out", "nothing\n")
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert logs.told() == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    logs.write("slurm-1999.out", "CUDA error: 1\n")
    began = time.monotonic()
    assert len(logs.told(10)) == 1
    assert time.monotonic() - began < 2


def test_links_lead_nowhere(logs: Logs, tmp_path: Path) -> None:
    """Whoever owns a folder of outputs may put a link there: what it leads to is not read. Pipes are not waited for."""
    secret = tmp_path / "secret/x.out"
    secret.parent.mkdir()
    secret.write_text("CUDA error: root's own\n")
    (logs.folder / "slurm-1.out").symlink_to(secret)
    os.mkfifo(logs.folder / "slurm-2.out")
    (logs.folder / "slurm-3.out").mkdir()
    assert logs.told() == []
    deep = Logs(tmp_path / "secret", "*/slurm-%j.out")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/slurm-9.out").write_text("CUDA error: root's own\n")
    (deep.folder / "ada").symlink_to(tmp_path / "elsewhere")
    rows = deep.rows()
    assert "job_log" not in rows
    assert rows["quality"][0]["state"] == "not_permitted"


def test_the_administrators_own_links_are_followed(tmp_path: Path) -> None:
    """/home may be a link to where the disks are: the part of the path before any wildcard is the configuration's."""
    (tmp_path / "disks").mkdir()
    logs = Logs(tmp_path / "disks")
    (tmp_path / "home").symlink_to(tmp_path / "disks")
    logs.write("slurm-7.out", "CUDA error: 1\n")
    logs.paths = [f"{tmp_path}/home/logs/slurm-%j.out"]
    logs.open()
    assert logs.told() == [("7", "cuda", "CUDA error: 1")]


def test_off_until_somebody_asks(tmp_path: Path) -> None:
    """No paths, no source."""
    with pytest.raises(NoSource, match=r"job_log\.paths is empty"):
        JobLog(node_files.node(tmp_path))
