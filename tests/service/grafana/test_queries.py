"""Every query of every panel, variable and annotation, asked of the real API over a simulated lake."""

from __future__ import annotations

import copy
import re
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from grafana_lake import NOW, OPEN_ID
from grafana_panels import INFINITY, PROMETHEUS, Json, Query, Viewer, Wrong, panels, queries
from litestar.testing import TestClient

NAMES = ("fleet", "node", "incident", "links", "ecc", "job", "cost", "health")
UNITS = {
    "MHz": "rotmhz", "W": "watt", "mW": "mwatt", "°C": "celsius", "%": "percent", "bytes": "bytes", "Gb/s": "Gbits",
    "s": "s", "ms": "ms", "ns": "ns", "mJ": "suffix: mJ", "ticks": "suffix: ticks",
}  # fmt: skip
"""Written once more, so that a slip in the mapping is seen."""
ENDINGS = (
    (r"_mhz$", "rotmhz"), (r"_gpu_h$|gpu_hours(_lost)?$", "suffix: GPU-h"), (r"_per_node_day$", "suffix: per node-day"),
    (r"_percent$", "percent"), (r"_bytes$", "bytes"), (r"_kwh$", "kwatth"), (r"_gbps$", "Gbits"),
    (r"_ratio$|^share$|^availability$|^confidence$|^p_fault_7d$", "percentunit"),
    (r"_mw$", "mwatt"), (r"_w$", "watt"), (r"_c$", "celsius"), (r"_h$", "h"), (r"_s$", "s"),
)  # fmt: skip
NULL_HERE = {
    "domain", "gpus_expected", "down_reason", "exit_code", "link", "state", "resume_s", "median_s", "p90_s", "why",
    "crc_errors", "fec_uncorrected_blocks", "module_temp_c", "module_rx_power_min_mw", "since", "confidence", "code",
    "last_kind", "user", "job_id", "mttd_h", "mttr_h", "resolved_ts", "cost_per_day",
    "gpu_hours_lost", "verdict", "verdict_message", "end_ts", "run_s",
}  # fmt: skip
"""Fields that the API has and that this lake leaves empty: no optics, no MIG, few repairs, one job on
the node that is looked at and none that ended there."""


ANSWERS: dict[str, Any] = {}
"""What the API said, by URL: dashboards ask much of the same, and the lake does not change."""


def viewer(client: TestClient[Any], dashboard: Json) -> Viewer:
    """Somebody who looks at the node with the incident, the incident, and a job that has ended."""
    node = client.get(f"/api/v1/incidents/{OPEN_ID}").json()["node_id"]
    ended = [row for row in client.get("/api/v1/jobs").json()["rows"] if row["state"] == "failed"]
    seen = Viewer(client, NOW, {"node": node, "incident": OPEN_ID, "job": ended[0]["job_id"]}, answers=ANSWERS)
    seen.open(dashboard)
    return seen


def faults(client: TestClient[Any], dashboard: Json) -> list[str]:
    """What is wrong with a dashboard's queries."""
    try:
        seen = viewer(client, dashboard)
    except Wrong as error:
        return [str(error)]
    told = []
    for query in queries(dashboard):
        if query.target["datasource"]["type"] == INFINITY:
            try:
                told += _shows(seen, query)
            except Wrong as error:
                told.append(str(error))
    return told


def _shows(seen: Viewer, query: Query) -> list[str]:
    rows = seen.picked(query)
    if not rows:
        return [f"{query.of}: shows nothing"]
    wanted = [text for selector, text, _ in query.columns if selector not in NULL_HERE]
    dark = [text for text in wanted if all(row[text] is None for row in rows)]
    told = [f"{query.of}: {text} is null in all {len(rows)} rows" for text in dark]
    return told + (_wrong_units(seen, query) if query.panel else [])


def _wrong_units(seen: Viewer, query: Query) -> list[str]:
    panel = query.panel or {}
    said = panel["fieldConfig"]["defaults"].get("unit")
    if query.target["url"].endswith("/series"):
        answer = seen.answer(query)
        name = answer["metric"]
        wanted = UNITS.get(answer["unit"], "percentunit" if name.endswith("_ratio") else "short")
        return [] if said == wanted else [f"{query.of}: unit {said}, {name} is in {answer['unit']!r}: {wanted}"]
    told = []
    for selector, text, kind in query.columns:
        wanted = next((unit for ending, unit in ENDINGS if re.search(ending, selector)), "short")
        own = _override(panel, text).get("unit", said)
        if kind == "number" and own != wanted and not (own == "short" and query.target["url"].endswith("/band")):
            told.append(f"{query.of}: {text} has unit {own}, {selector} is {wanted}")
    return told


def _override(panel: Json, name: str) -> dict[str, Any]:
    for rule in panel["fieldConfig"].get("overrides") or []:
        if rule["matcher"] == {"id": "byName", "options": name}:
            return {p["id"]: p["value"] for p in rule["properties"]}
    return {}


@pytest.mark.parametrize("name", NAMES)
def test_every_query_shows_something(client: TestClient[Any], boards: dict[str, Json], name: str) -> None:
    """No panel, variable or annotation is empty over this lake, asks for what there is not, or has a wrong unit."""
    assert faults(client, boards[name]) == []


def test_a_wrong_query_field_unit_or_variable_is_seen(client: TestClient[Any], boards: dict[str, Json]) -> None:
    """The test above, tried: each of these was made on purpose."""

    def broken(change: Any) -> str:
        made = copy.deepcopy(boards["node"])
        made["panels"] = [p for p in made["panels"] if p["title"] in ("SM clock", "GPUs now")]
        made["annotations"]["list"] = []
        change({p["title"]: p for p in made["panels"]})
        return " ".join(faults(client, made))

    def set_unit(p: Json) -> None:
        p["SM clock"]["fieldConfig"]["defaults"]["unit"] = "rothz"

    def set_metric(p: Json) -> None:
        p["SM clock"]["targets"][0]["url_options"]["params"][0]["value"] = "sm_clok_mhz"

    def set_field(p: Json) -> None:
        p["GPUs now"]["targets"][0]["columns"][0]["selector"] = "gpu_indx"

    def set_variable(p: Json) -> None:
        p["GPUs now"]["targets"][0]["url_options"]["params"][0]["value"] = "$nod"

    def set_filter(p: Json) -> None:
        p["GPUs now"]["targets"][0]["url_options"]["params"].append({"key": "state", "value": "lost"})

    assert broken(lambda _: None) == ""
    assert "sm_clock_mhz is in 'MHz'" in broken(set_unit)
    assert "did you mean sm_clock_mhz?" in broken(set_metric)
    assert "the answer has no gpu_indx" in broken(set_field)
    assert "there is no variable 'nod'" in broken(set_variable)
    assert "shows nothing" in broken(set_filter)


@pytest.mark.parametrize("name", ["fleet", "health"])
def test_prometheus_has_every_metric(client: TestClient[Any], boards: dict[str, Json], name: str) -> None:
    """Names in expressions are on the real page of /metrics; labels that they choose by, too."""
    client.get("/api/v1/fields")  # a server that has answered nothing has counted nothing
    page = client.get("/metrics").text
    known = set(re.findall(r"^([a-z_]+?)(?:\{| )", page, re.MULTILINE))
    asked = [q for q in queries(boards[name]) if q.target["datasource"]["type"] == PROMETHEUS]
    assert asked
    for query in asked:
        names = set(re.findall(r"graynode_[a-z_]+", query.target["expr"]))
        assert names, query.of
        assert names <= known, query.of
        for metric in names:
            for label in re.findall(metric + r"\{(\w+)=", query.target["expr"]):
                assert re.search(rf"^{metric}{{[^}}]*{label}=", page, re.MULTILINE), query.of


@pytest.mark.skipif(which("promtool") is None, reason="promtool is missing: apt-get install prometheus")
def test_prometheus_takes_every_expression(boards: dict[str, Json], tmp_path: Path) -> None:
    """promtool reads them all, as recording rules."""
    found = [q.target["expr"] for b in boards.values() for q in queries(b) if "expr" in q.target]
    expressions = [e.replace("$cluster", "c").replace("$__rate_interval", "5m") for e in found]
    lines = [f"  - record: r{i}\n    expr: '{e}'" for i, e in enumerate(expressions)]
    rules = tmp_path / "rules.yml"
    rules.write_text("groups:\n- name: g\n  rules:\n" + "\n".join(lines) + "\n")
    made = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr


def test_panels_tell_what_to_do_when_there_is_nothing(boards: dict[str, Json]) -> None:
    """A text for no value, and a description, on each."""
    for dashboard in boards.values():
        for panel in panels(dashboard):
            where = f"{dashboard['uid']}: {panel['title']}"
            assert panel["fieldConfig"]["defaults"]["noValue"], where
            assert len(panel["description"]) > 10, where
