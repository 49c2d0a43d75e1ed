"""``deploy/alerts.yml``, the rules that watch graynode itself, by the real promtool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "alerts.yml"
CASES = ROOT / "tests" / "responders" / "alerts_test.yml"


def promtool(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("promtool not found: apt-get install -y --no-install-recommends prometheus")
    return subprocess.run(["promtool", *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    """As they are shipped."""
    done = promtool("check", "rules", str(RULES), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    """A lost heartbeat, a receiver away, lag, an old lake, dead letters, silent agents, shedding, clocks, disk."""
    shutil.copy(RULES, tmp_path / "alerts.yml")
    shutil.copy(CASES, tmp_path / "cases.yml")
    done = promtool("test", "rules", "cases.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_that_never_fires_is_noticed(tmp_path: Path) -> None:
    """The cases above would fail."""
    (tmp_path / "alerts.yml").write_text(RULES.read_text().replace("age_seconds > 660", "age_seconds > 66000"))
    shutil.copy(CASES, tmp_path / "cases.yml")
    assert promtool("test", "rules", "cases.yml", cwd=tmp_path).returncode != 0


def test_every_metric_of_a_rule_is_one_that_we_give() -> None:
    """A rule over a metric that was renamed would be silent for ever."""
    expressions = re.findall(r"expr: (.*)", RULES.read_text())
    wanted = {m for text in expressions for m in re.findall(r"\bgraynode_[a-z_]+", text)}
    sources = [p for folder in ("pipeline", "service", "collectors") for p in (ROOT / folder).rglob("*.py")]
    given = {m for p in sources for m in re.findall(r'"(graynode_[a-z_]+)"', p.read_text())}
    assert {m for m in wanted if m not in given and m.removesuffix("_total") not in given} == set()
    assert len(wanted) > 15


def test_every_rule_says_what_it_is_and_has_its_line_in_the_documentation() -> None:
    """Summary and description for whoever is called, a line of docs/alerts.md for what to do."""
    text, page = RULES.read_text(), (ROOT / "docs" / "alerts.md").read_text()
    names = re.findall(r"- alert: (\w+)", text)
    assert len(names) == len(set(names)) == text.count("summary:") == text.count("description:")
    assert [name for name in names if f"`{name}`" not in page] == []
