"""``[kubernetes]``: from the configuration to the collectors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from agent_fakes import until
from kube_api_stub import PODS, KubeApi, Trouble
from node_files import node, round_at

from graynode.collectors.context import JobContext
from graynode.collectors.health import Health
from graynode.collectors.kubernetes.workload import PLURALS
from graynode.service.agent_parts import make_collectors
from graynode.service.config import ConfigError, parse

BOTH = ["kubernetes", "kubernetes_cluster"]


def test_collectors_are_made_from_the_configuration(tmp_path: Path) -> None:
    """Address, token and CA come from ``[kubernetes]``; the node asks for its own pods alone."""
    (tmp_path / "token").write_text("secret")
    with KubeApi() as api:
        api.trouble = lambda asked: Trouble(403)
        said = {
            "api": api.url,
            "token_file": str(tmp_path / "token"),
            "node_name": "n7",
            "socket": f"{tmp_path}/k.sock",
        }
        config = parse({"agent": {"collectors": BOTH[:1]}, "kubernetes": said | {"cluster": True}}, "test")
        made = make_collectors(config, node(tmp_path), Health(lambda: 0.0), JobContext())
        assert [c.name for c in made] == BOTH
        for collector in made:
            collector.collect(round_at(60))
        assert until(lambda: len(api.asked) >= 3)
        for collector in made:
            collector.close()
        assert {a.headers["authorization"] for a in api.asked} == {"Bearer secret"}
        (pods,) = api.of(PODS)
        assert pods.query["fieldSelector"] == "spec.nodeName=n7"


def test_the_shipped_roles_permit_what_is_asked() -> None:
    """Each kind of owner that is looked up may be got; nothing may be written and no secret read."""
    text = (Path(__file__).parents[2] / "deploy/kubernetes/rbac.yaml").read_text(encoding="utf-8")
    rule = re.compile(r"apiGroups: \[([^]]*)\],?\s+resources: \[([^]]*)\],?\s+verbs: \[([^]]*)\]")
    may = [
        (group.strip('"'), set(what.split(", ")), set(verbs.split(", "))) for group, what, verbs in rule.findall(text)
    ]
    assert len(may) == text.count("verbs:")
    for (group, kind), plural in PLURALS.items():
        assert any(group == g and plural in what and "get" in verbs for g, what, verbs in may), kind
    assert set.union(*(verbs for _, _, verbs in may)) == {"get", "list", "watch"}
    assert "secrets" not in text


def test_an_address_that_is_none_is_named(tmp_path: Path) -> None:
    """The start stops with key, value and what is allowed."""
    config = parse({"agent": {"collectors": BOTH}, "kubernetes": {"api": "10.0.0.1:6443"}}, "test")
    with pytest.raises(ConfigError, match=r"kubernetes\.api = '10\.0\.0\.1:6443': must be https://host:port"):
        make_collectors(config, node(tmp_path), Health(lambda: 0.0), JobContext())
    config = parse({"agent": {"collectors": BOTH}, "kubernetes": {"api": "https://10.0.0.1:port"}}, "test")
    with pytest.raises(ConfigError, match=r"kubernetes\.api = 'https://10\.0\.0\.1:port'.* the port a number"):
        make_collectors(config, node(tmp_path), Health(lambda: 0.0), JobContext())


def test_a_machine_without_kubernetes_leaves_them_out(tmp_path: Path) -> None:
    """Configured everywhere, absent where there is none."""
    said = {"api": "off", "socket": str(tmp_path / "none/kubelet.sock")}
    config = parse({"agent": {"collectors": BOTH}, "kubernetes": said}, "test")
    assert make_collectors(config, node(tmp_path), Health(lambda: 0.0), JobContext()) == []
