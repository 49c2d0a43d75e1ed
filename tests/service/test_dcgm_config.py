"""``[dcgm]`` in the configuration, and the agent's process over exporters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import agent_fakes
import exporter_standin
import pytest
from agent_process import AgentProcess
from exporter_standin import uuid_of

from graynode.collectors.context import JobContext
from graynode.collectors.dcgm.collector import Dcgm
from graynode.collectors.health import Health
from graynode.pipeline.schema import stable_id
from graynode.service.agent_parts import make_collectors, probes
from graynode.service.config import Config, ConfigError, parse
from graynode.service.config_check import find_problems


def _config(**dcgm: Any) -> Config:
    return parse({"agent": {"collectors": ["dcgm"]}, "dcgm": dcgm}, "test")


def _made(config: Config, folder: Path) -> list[Any]:
    return list(make_collectors(config, agent_fakes.machine(folder), Health(lambda: 0.0), JobContext()))


def test_default_reads_nothing(tmp_path: Path) -> None:
    """No targets, nothing listens or connects; asked for without targets it is left out, as any absent source."""
    assert Config().dcgm.targets == Config().dcgm.fleet == Config().dcgm.fleet_files == ()
    assert "dcgm" not in Config().agent.collectors
    assert _made(_config(), tmp_path) == []


def test_targets_become_a_collector(tmp_path: Path) -> None:
    """All keys arrive; its count of GPUs goes into this node's host row where NVML does not give it."""
    authorization = tmp_path / "authorization"
    authorization.write_text("Bearer abc\n")
    config = _config(
        targets=["http://127.0.0.1:9400/metrics"], fleet=["n1:9400"], fleet_files=[str(tmp_path / "*.json")],
        interval_s=15, timeout_s=4, authorization_file=str(authorization),
    )  # fmt: skip
    (dcgm,) = _made(config, tmp_path)
    assert isinstance(dcgm, Dcgm)
    assert [target.instance for target in dcgm.scraper.fixed] == ["127.0.0.1:9400", "n1:9400"]
    (probe,) = probes([dcgm])
    assert probe(frozenset({10})) == {}
    dcgm.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"targets": ["127.0.0.1:9400"]}, "wanted is http://host:port/metrics"),
        ({"fleet": ["http://u:p@n1:9400"]}, "no credentials in an address"),
        ({"targets": ["http://n1:9400"], "authorization_file": "/nowhere/secret"}, "No such file"),
        ({"targets": ["https://n1:9400"], "ca_file": "/nowhere/ca.pem"}, "No such file"),
    ],
)
def test_wrong_settings_stop_the_start(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Key, value and what is wanted, before anything runs."""
    with pytest.raises(ConfigError, match=says) as raised:
        _made(_config(**settings), tmp_path)
    assert str(raised.value).startswith("dcgm: ")


@pytest.mark.parametrize("interval", [0.5, 120])
def test_interval_has_bounds(interval: float) -> None:
    """A second to a minute: below is a burden for exporters, above windows would be empty."""
    with pytest.raises(ConfigError, match=r"dcgm\.interval_s"):
        _config(interval_s=interval)


def test_targets_that_nobody_reads_are_found_by_the_check() -> None:
    """Named, but the collector is not in the list: said with the way out."""
    config = parse({"dcgm": {"targets": ["http://127.0.0.1:9400"]}}, "test")
    assert any("agent.collectors has no 'dcgm'" in line for line in find_problems(config))
    assert not any("dcgm" in line for line in find_problems(_config(targets=["http://127.0.0.1:9400"])))


def test_agent_over_its_own_exporter_and_a_fleet(tmp_path: Path) -> None:
    """The real process: this node's GPUs under its own identity, another node's under its own."""
    exporters = exporter_standin.shared()
    settings: dict[str, Any] = {"targets": [exporters.url()], "fleet": [exporters.url("/other")], "interval_s": 1.0}
    with AgentProcess(tmp_path, {"collectors": ["dcgm", "host"]}, dcgm=settings) as agent:
        agent.start()
        other = stable_id("exporter", "test", f"127.0.0.1:{exporters.port}/other")

        def whose(table: str) -> Callable[[], bool]:
            return lambda: {row["node_id"] for row in agent.rows(table)} >= {"machine-1", other}

        agent.until(whose("gpu"))
        agent.until(whose("host"))
        assert agent.stop() == 0
        rows = agent.rows("gpu")
    assert {row["gpu_uuid"] for row in rows} == {uuid_of(0), uuid_of(1)}
    assert all("boot_id" in row for row in rows if row["node_id"] == "machine-1")
    assert not any("boot_id" in row for row in rows if row["node_id"] == other)
    assert "Traceback" not in agent.log
