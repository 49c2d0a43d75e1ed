"""Configuration to the collectors that know jobs: which run, made from what, and what is said when they cannot."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import node_files
import pytest
from agent_fakes import Sink, until

from graynode.collectors.agent import Agent, Settings
from graynode.collectors.context import GpuKey, JobContext, Placement
from graynode.collectors.health import Health
from graynode.collectors.steps import Reporter
from graynode.service.agent_jobs import wanted
from graynode.service.agent_parts import make_collectors
from graynode.service.config import Config, ConfigError, load, parse
from graynode.service.config_check import find_problems


def config(**sections: Any) -> Config:
    return parse({"agent": {"collectors": []}, **sections}, "the test")


def made(folder: Path, chosen: Config, context: JobContext | None = None) -> list[Any]:
    return list(make_collectors(chosen, node_files.node(folder), Health(lambda: 0.0), context))


def test_a_section_that_asks_for_a_collector_gets_it() -> None:
    """Slurm's node side runs by itself; the cluster's, the socket and the outputs where their section says so."""
    assert "slurm" in wanted(Config())
    assert not {"slurm_cluster", "steps", "job_log"} & set(wanted(Config()))
    asked = config(slurm={"cluster": True}, steps={"socket": "/x"}, job_log={"paths": ["/x/%j.out"]})
    assert wanted(asked) == ("slurm_cluster", "steps", "job_log")
    by_env = load(None, env={"GRAYNODE_SLURM__CLUSTER": "true"})
    assert "slurm_cluster" in wanted(by_env)


def test_collectors_are_made_from_their_sections(tmp_path: Path) -> None:
    """Paths, modes and limits arrive; a cluster's collector without Slurm's programs is left out and said."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    chosen = parse(
        {
            "agent": {"collectors": ["slurm"]},
            "slurm": {"cluster": True, "bin": str(bin_), "node_name": "n7", "work": {"gpu": "training"}},
            "steps": {"socket": str(tmp_path / "run/s.sock"), "mode": "660", "rate": 5.0},
            "job_log": {"paths": [f"{tmp_path}/%j.out"]},
        },
        "the test",
    )
    collectors = made(tmp_path, chosen)
    assert [c.name for c in collectors] == ["slurm", "slurm_cluster", "steps", "job_log"]
    assert oct((tmp_path / "run/s.sock").stat().st_mode)[-3:] == "660"
    (row,) = collectors[0].collect(node_files.round_at(0))["inventory"]
    assert json.loads(row["attributes"])["name"] == "n7"
    for each in collectors:
        each.close()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"job_log": {"paths": ["logs/%j.out"]}}, "job_log.paths: 'logs/%j.out' is not an absolute path"),
        ({"steps": {"socket": "/x", "mode": "999"}}, "steps.mode"),
        ({"slurm": {"clusters": True}}, "unknown key slurm.clusters = True; did you mean cluster"),
        ({"slurm": {"every_s": 0}}, "slurm.every_s = 0"),
    ],
)
def test_wrong_settings_stop_the_start(tmp_path: Path, sections: dict[str, Any], said: str) -> None:
    """By key and value."""
    with pytest.raises(ConfigError) as wrong:
        made(tmp_path, config(**sections))
    assert said in str(wrong.value)


def test_config_check_names_what_cannot_work(tmp_path: Path) -> None:
    """Files that are not there, folders that cannot be written, paths that are none."""
    chosen = config(
        slurm={"conf": str(tmp_path / "none"), "job_mapping_dir": str(tmp_path / "map")},
        steps={"socket": "/proc/x/steps.sock"},
        job_log={"paths": ["x"]},
        agent={"state_dir": str(tmp_path)},
        bus={"spool_dir": str(tmp_path)},
        lake={"path": str(tmp_path)},
    )
    keys = [problem.partition(" ")[0] for problem in find_problems(chosen)]
    expected = ["slurm.conf", "slurm.job_mapping_dir", "job_log.paths"]
    assert [key for key in keys if key != "steps.socket"] == expected


def test_a_step_gives_the_gpu_rows_their_role(tmp_path: Path) -> None:
    """One agent: a training loop reports, and rows of its GPU carry job, role and rank."""
    path = tmp_path / "steps.sock"
    context = JobContext()
    context.set_pids({GpuKey("GPU-a"): [os.getpid()]})
    collectors = made(tmp_path, config(steps={"socket": str(path)}), context)
    sink = Sink()
    agent = Agent(node_files.node(tmp_path), collectors, sink, 1, settings=Settings(0.1, 10.0, 0.05), context=context)
    reporter = Reporter(str(path), env={"SLURM_JOB_ID": "7", "RANK": "3", "GRAYNODE_ROLE": "stage-1"})
    reporter.report(1, 1.0, busy_s=0.5)
    assert agent.once()
    assert until(lambda: bool(sink.rows("step")))
    (row,) = sink.rows("step")
    assert (row["job_id"], row["rank"], row["gpu_uuid"], row["node_id"]) == ("7", 3, "GPU-a", "machine-1")
    assert sink.rows("job")[0]["first_step_ts"] == row["ts"]
    reporter.close()


def test_the_context_forgets_what_an_agent_that_ended_said(tmp_path: Path) -> None:
    """Closing withdraws placements."""
    context = JobContext()
    context.place("slurm", {GpuKey("GPU-a"): Placement("7")})
    chosen = parse({"agent": {"collectors": ["slurm"]}, "slurm": {"node_name": "n7"}}, "the test")
    (collector,) = made(tmp_path, chosen, context)
    collector.close()
    assert context.of(GpuKey("GPU-a")) is None
