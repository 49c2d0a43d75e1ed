"""The collectors that know jobs, each with something to read, for the contract suite."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import node_files
from proc_files import Processes, v2

from graynode.collectors.base import Collector, Round, Rows
from graynode.collectors.context import GpuKey, JobContext
from graynode.collectors.job_log import JobLog
from graynode.collectors.slurm.cluster import Settings, SlurmCluster
from graynode.collectors.slurm.collector import Slurm
from graynode.collectors.step_socket import Settings as StepSettings
from graynode.collectors.step_socket import StepSocket
from graynode.collectors.steps import Reporter

CAPTURED = node_files.FIXTURES / "slurm"


def on_a_node(folder: Path) -> Collector:
    """Two jobs on two GPUs."""
    machine, context = node_files.node(folder), JobContext()
    (folder / "etc/slurm").mkdir(parents=True)
    processes = Processes(machine.proc)
    processes.start(100, v2(7), SLURM_JOB_ID="7", SLURM_PROCID="3", SLURM_JOB_USER="ada")
    processes.start(101, SLURM_JOB_ID="8")
    context.set_pids({GpuKey("GPU-a"): [100], GpuKey("GPU-b"): [101]})
    return Slurm(machine, context, etc=folder / "etc")


def of_a_cluster(folder: Path) -> Collector:
    """Captured answers, given by programs of the test's own."""
    bin_ = folder / "bin"
    programs(bin_)
    return _Patient(node_files.node(folder), Settings(every_s=0.05, bin=bin_))


class _Patient(SlurmCluster):
    """A round that gives its programs a moment, as a second between two rounds does."""

    def collect(self, round_: Round) -> Rows:
        rows = super().collect(round_)
        for _ in range(20):
            if rows:
                break
            time.sleep(0.01)
            rows = super().collect(round_)
        return rows


def programs(bin_: Path) -> None:
    """``squeue`` and ``scontrol`` that give what a real Slurm wrote."""
    bin_.mkdir(parents=True)
    captured = {"node": "nodes", "partition": "parts", "reservation": "res", "job": "jobs"}
    for what, file in captured.items():
        (bin_ / what).write_text((CAPTURED / f"{file}-22.05.8.txt").read_text())
    (bin_ / "config").write_text("ClusterName = c1\nAccountingStorageType = accounting_storage/none\n")
    (bin_ / "queue").write_text((CAPTURED / "squeue-22.05.8.json").read_text())
    for name, script in {
        "scontrol": f'for last; do :; done\nexec cat "{bin_}/$last"',
        "squeue": f'exec cat "{bin_}/queue"',
    }.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin_ / name).chmod(0o755)


class _Reporting(StepSocket):
    """The collector with a training loop beside it: each round finds a step."""

    def __init__(self, *arguments: Any, path: Path) -> None:
        super().__init__(*arguments)
        self._reporter = Reporter(str(path), env={"SLURM_JOB_ID": "7", "RANK": "0"})

    def collect(self, round_: Round) -> Rows:
        self._reporter.report(int(round_.ts.timestamp()), 1.0, busy_s=0.5)
        return super().collect(round_)

    def close(self) -> None:
        self._reporter.close()
        super().close()


def steps(folder: Path) -> Collector:
    """A step a round."""
    path = folder / "run/steps.sock"
    return _Reporting(node_files.node(folder), JobContext(), StepSettings(path), path=path)


def job_log(folder: Path) -> Collector:
    """An output with a traceback and a CUDA error, and one that tells nothing."""
    logs = folder / "logs"
    logs.mkdir()
    lines = ["Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: no", "CUDA error: nope"]
    (logs / "slurm-7.out").write_text("\n".join(lines) + "\n")
    (logs / "slurm-8.out").write_text(json.dumps({"loss": 1.0}) + "\n")
    return JobLog(node_files.node(folder), [f"{logs}/slurm-%j.out"])
