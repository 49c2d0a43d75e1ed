"""Configuration: precedence, and what a person is told when it is wrong."""

from pathlib import Path

import pytest

from graynode.service.config import Config, ConfigError, load, parse
from graynode.service.config_check import find_problems


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"agnt": {}}, ("unknown key agnt", "did you mean agent?")),
        ({"agent": {"bach_s": 1}}, ("unknown key agent.bach_s = 1", "did you mean batch_s?")),
        ({"agent": {"zzz": 1}}, ("unknown key agent.zzz", "known: batch_s")),
        (
            {"detect": {"xid_severity": {"31": "loud"}}},
            ("detect.xid_severity", "'loud'", "allowed are page, ticket, digest"),
        ),
        ({"detect": {"xid_severity": {"abc": "page"}}}, ("detect.xid_severity = {'abc': 'page'}", "^[0-9]{1,4}$")),
        ({"agent": {"batch_s": "soon"}}, ("agent.batch_s = 'soon'", "expected a number")),
        ({"agent": {"batch_s": -1}}, ("agent.batch_s = -1", "> 0")),
        ({"bus": {"kind": "kafak"}}, ("bus.kind = 'kafak'", "allowed are spool, kafka")),
        ({"bus": {"kafka": {"mechanism": "MD5"}}}, ("bus.kafka.mechanism = 'MD5'", "SCRAM-SHA-512")),
        ({"cluster": "a b"}, ("cluster = 'a b'",)),
        ({"respond": {"webhooks": {"x": {"url": "http://h"}}}}, ("secret_file",)),
        ({"detect": 3}, ("detect = 3",)),
        ({"agent": {"nvlink_watch_s": 5}}, ("agent.nvlink_watch_s = 5", "allowed are 1, 10")),
        ({"slurm": {"work": {"debug": 5}}}, ("slurm.work", "{'debug': 5}", "expected a text")),
        ({"fields": {"off": ["power_w", 5]}}, ("fields.off[1]", "['power_w', 5]", "expected a text")),
        ({"detect": {"xid_severity": {"79": "pge"}}}, ("detect.xid_severity", "'79': 'pge'", "'pge'")),
    ],
)
def test_wrong_setting(settings: dict[str, object], words: tuple[str, ...]) -> None:
    """A wrong key or value is refused with the key, what was given and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        parse(settings, "graynode.toml")
    assert str(caught.value).startswith("graynode.toml: ")
    for word in words:
        assert word in str(caught.value)


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    """The nearest source wins, and every one is typed."""
    file = tmp_path / "g.toml"
    file.write_text("[agent]\nbatch_s = 2\ndeadline_s = 3\n")
    env = {"GRAYNODE_AGENT__BATCH_S": "4", "GRAYNODE_AGENT__DEADLINE_S": "5", "PATH": "/bin"}
    config = load(file, {"agent.batch_s": 6, "lake.path": None}, env)
    assert (config.agent.batch_s, config.agent.deadline_s) == (6, 5)
    assert load(file, {}, {}).agent.batch_s == 2
    assert config.lake.path == Config().lake.path


def test_environment_of_others_is_passed_over() -> None:
    """What Kubernetes gives a pod beside a Service named graynode stops no role, and is no setting."""
    env = {
        "GRAYNODE_PORT": "tcp://10.0.0.1:80", "GRAYNODE_SERVICE_HOST": "10.0.0.1", "GRAYNODE_AGENT_PORT_9401_TCP": "x",
        "GRAYNODE_CLUSTER": "ours",
    }  # fmt: skip
    assert load(None, {"agent.batch_s": 1}, env) == parse({"cluster": "ours", "agent": {"batch_s": 1}}, "test")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("GRAYNODE_AGENT__BACH_S", "environment: unknown key agent.bach_s = '4'; did you mean batch_s?"),
        ("GRAYNODE_AGENT_BATCH_S", "unknown GRAYNODE_AGENT_BATCH_S; did you mean GRAYNODE_AGENT__BATCH_S?"),
        ("GRAYNODE_BUS_KAFKA_BOOTSTRAP", "did you mean GRAYNODE_BUS__KAFKA__BOOTSTRAP?"),
        ("GRAYNODE_AGENT", "environment: agent = '4'"),
        ("GRAYNODE_CLUSTER__X", "environment: cluster = "),
    ],
)
def test_misspelt_environment(name: str, said: str) -> None:
    """A setting that is misspelt guards nothing: it stops the start and says where it was, and what is right."""
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {name: "4"})
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["[agent", "\xff\xfe"])
def test_file_that_is_not_toml(tmp_path: Path, text: str) -> None:
    """A broken file is named, with what is wrong in it."""
    file = tmp_path / "g.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="not TOML"):
        load(file, {}, {})


def test_file_that_is_absent(tmp_path: Path) -> None:
    """A named file that is not there is an error, with the way out."""
    with pytest.raises(ConfigError, match="--config"):
        load(tmp_path / "none.toml", {}, {})


def test_folder_below_a_file_is_a_problem(tmp_path: Path) -> None:
    """``config check`` finds a folder that can never be made and a secret that is not there."""
    (tmp_path / "file").write_text("")
    config = parse(
        {
            "agent": {"state_dir": str(tmp_path / "file" / "state")},
            "bus": {"spool_dir": str(tmp_path / "bus")},
            "lake": {"path": str(tmp_path / "lake")},
            "respond": {"webhooks": {"ops": {"url": "https://h", "secret_file": str(tmp_path / "none")}}},
        },
        "g",
    )
    problems = list(find_problems(config))
    assert len(problems) == 2
    assert problems[0].startswith("respond.webhooks.ops.secret_file")
    assert problems[1].startswith("agent.state_dir")


def test_what_cannot_work_is_found_before_the_start(tmp_path: Path) -> None:
    """Names that are none, programs, sockets, addresses and files of the sources: a line each, with key and value."""
    (tmp_path / "file").write_text("")
    said: list[tuple[dict[str, dict[str, object]], str]] = [
        ({"agent": {"collectors": ["host", "nvlm"]}}, "agent.collectors: there is no 'nvlm'; there are nvml"),
        ({"detect": {"detectors": ["rulez"]}}, "detect.detectors: there is no 'rulez'; there are rules"),
        ({"slurm": {"bin": str(tmp_path)}}, f"slurm.bin = {tmp_path}: no scontrol in it"),
        ({"steps": {"socket": "steps.sock"}}, "steps.socket = steps.sock: not an absolute path"),
        ({"steps": {"socket": str(tmp_path / "file")}}, f"steps.socket = {tmp_path}/file: is there and no socket"),
        ({"steps": {"socket": str(tmp_path / ("x" * 120))}}, f"steps.socket = {tmp_path}/xxx"),
        ({"kubernetes": {"cluster": True, "api": "http://10.0.0.1"}}, "kubernetes.api = 'http://10.0.0.1'"),
        ({"kubernetes": {"api": "https://h:1", "token_file": "/none"}}, "kubernetes.token_file = /none: no such file"),
        ({"dcgm": {"ca_file": "/none"}}, "dcgm.ca_file = /none: no such file"),
        ({"simulated": {"faults": "/none"}}, "simulated.faults = /none: no such file"),
        ({"agent": {"kmsg": "/none"}}, "agent.kmsg = /none: no such file"),
        ({"services": {"units": [" "]}}, "services.units: an empty name"),
        ({"detect": {"metrics_listen": "127.0.0.1:99999"}}, "detect.metrics_listen = '127.0.0.1:99999': not host:port"),
        ({"agent": {"metrics_listen": "9401"}}, "agent.metrics_listen = '9401': not host:port"),
        ({"lake": {"path": ""}}, "lake.path = ''"),
        ({"lake": {"path": "s3:/bucket/lake"}}, "lake.path = 's3:/bucket/lake': neither a folder nor an address"),
        ({"lake": {"path": "s3://"}}, "lake.path = 's3://': neither"),
    ]
    well = {"bus": {"spool_dir": str(tmp_path / "bus")}, "lake": {"path": str(tmp_path / "lake")}}
    state = {"state_dir": str(tmp_path / "state")}
    for settings, words in said:
        config = parse({**well, **settings, "agent": state | settings.get("agent", {})}, "g")
        assert any(line.startswith(words) for line in find_problems(config)), words
    for lake in ({}, {"lake": {"path": "s3://bucket/lake"}}):
        config = parse({**well, "agent": state, "kubernetes": {"cluster": True, "api": "off"}, **lake}, "g")
        assert list(find_problems(config)) == []


def test_a_path_that_no_system_takes() -> None:
    """Said where it is read, not where it is used."""
    with pytest.raises(ConfigError, match=r"agent\.state_dir = .*: a path cannot hold the character NUL"):
        parse({"agent": {"state_dir": "/var/lib/x\0y"}}, "g")
