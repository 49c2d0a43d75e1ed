"""The dashboards' JSON and the files of a file-based set-up."""

from __future__ import annotations

import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_panels import INFINITY, PROMETHEUS, Json, panels, queries

from graynode.service import dashboards_export
from graynode.service.config import ConfigError
from graynode.service.dashboards_files import files

UIDS = {f"graynode-{n}" for n in ("fleet", "node", "incident", "links", "ecc", "job", "cost", "health")}
SOURCES = {"graynode-api": INFINITY, "graynode-prometheus": PROMETHEUS}
BUILT_IN = {"__from", "__to", "__interval", "__rate_interval", "__url_time_range"}


@pytest.fixture(scope="module")
def exported() -> dict[str, str]:
    """All files by path."""
    return files()


def test_json_goes_through_the_sdk_and_comes_back_the_same(boards: dict[str, Json]) -> None:
    """Nothing is in it that the SDK's types do not hold, and nothing is lost."""
    from graynode.dashboards.grafana import sdk

    for dashboard in boards.values():
        assert json.loads(sdk.text(sdk.read(dashboard))) == dashboard


def test_an_unknown_field_does_not_come_back(boards: dict[str, Json]) -> None:
    """The test above, tried: the SDK drops what it does not know; a query of ours refuses it."""
    from graynode.dashboards.grafana import sdk

    made = json.loads(json.dumps(boards["node"]))
    made["pannels"] = []
    assert json.loads(sdk.text(sdk.read(made))) != made
    del made["pannels"]
    next(panels(made))["targets"][0]["parsr"] = "backend"
    with pytest.raises(ValueError, match="is none that graynode makes"):
        sdk.read(made)


def test_ids_are_set_and_places_do_not_overlap(boards: dict[str, Json]) -> None:
    """Of panels and rows; uids and schema version as Grafana wants them."""
    assert {d["uid"] for d in boards.values()} == UIDS
    for dashboard in boards.values():
        assert dashboard["schemaVersion"] >= 41
        assert dashboard["tags"] == ["graynode"]
        ids = [p["id"] for p in dashboard["panels"]]
        assert len(set(ids)) == len(ids)
        assert all(isinstance(i, int) and i > 0 for i in ids)
        assert [p["id"] for p in dashboard["panels"] if p["type"] != "row"] == [p["id"] for p in panels(dashboard)]
        places = [p["gridPos"] for p in dashboard["panels"]]
        assert all(p["x"] >= 0 and p["x"] + p["w"] <= 24 and p["h"] > 0 for p in places)
        for a, b in itertools.combinations(places, 2):
            apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            assert apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], dashboard["uid"]


def test_sources_are_those_that_are_provisioned(boards: dict[str, Json], exported: dict[str, str]) -> None:
    """Every uid that a panel, query, variable or annotation names, of that type."""
    told = yaml.safe_load(exported["provisioning/datasources/graynode.yaml"])["datasources"]
    assert {s["uid"]: s["type"] for s in told} == SOURCES
    for dashboard in boards.values():
        named = [p["datasource"] for p in panels(dashboard)] + [q.target["datasource"] for q in queries(dashboard)]
        named += [v["datasource"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
        named += [m["datasource"] for m in dashboard["annotations"]["list"]]
        assert all(SOURCES[n["uid"]] == n["type"] for n in named)


def test_variables_that_are_used_are_there(boards: dict[str, Json]) -> None:
    """In queries, titles and links; and none is there for nothing but to be chosen from."""
    for dashboard in boards.values():
        names = {v["name"] for v in dashboard["templating"]["list"]}
        text = json.dumps([dashboard["panels"], dashboard["annotations"], dashboard["templating"]])
        used = set(re.findall(r"\$(\w+)", text)) | set(re.findall(r"\$\{(\w+)(?::\w+)?\}", text))
        assert used - BUILT_IN - {"__all"} == names, dashboard["uid"]


def test_links_lead_to_dashboards_variables_and_columns_that_there_are(boards: dict[str, Json]) -> None:
    """Of every cell that leads on."""
    by_uid = {d["uid"]: d for d in boards.values()}
    found = 0
    for dashboard in boards.values():
        for panel in panels(dashboard):
            names = {c["text"] for t in panel["targets"] for c in t.get("columns", [])}
            for url in re.findall(r'"url": "(/d/[^"]*)"', json.dumps(panel)):
                found += 1
                _check_link(url, names, by_uid)
    assert found > 20


def _check_link(url: str, columns: set[str], by_uid: dict[str, Json]) -> None:
    uid = re.match(r"/d/([^?]+)\?", url)
    assert uid, url
    assert uid[1] in by_uid, url
    variables = {v["name"] for v in by_uid[uid[1]]["templating"]["list"]}
    assert set(re.findall(r"var-(\w+)=", url)) <= variables, url
    assert set(re.findall(r"__data\.fields\.(\w+)", url)) <= columns, url


def test_a_link_to_nowhere_is_seen(boards: dict[str, Json]) -> None:
    """The test above, tried."""
    by_uid = {d["uid"]: d for d in boards.values()}
    for url in (
        "/d/graynode-nod?var-node=${__data.fields.node_id}",
        "/d/graynode-node?var-nod=x",
        "/d/graynode-node?from=${__data.fields.x.numeric}",
    ):
        with pytest.raises(AssertionError):
            _check_link(url, {"node_id"}, by_uid)


def test_colours_are_named_and_never_alone(boards: dict[str, Json]) -> None:
    """Names follow the theme, dark or light; a coloured word is a word, a coloured number has its name beside it."""

    def colors(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {v for k, v in value.items() if k in ("color", "fixedColor", "iconColor") and isinstance(v, str)}
            return own.union(*map(colors, value.values()))
        return set().union(*map(colors, value)) if isinstance(value, list) else set()

    for dashboard in boards.values():
        assert colors(dashboard) <= {"green", "orange", "red", "purple", "yellow", "blue", "text"}
        for panel in panels(dashboard):
            if panel["type"] == "stat":
                assert panel["options"]["textMode"] == "value_and_name"
                # Grafana's own default shows every number of 80 and more in red.
                assert panel["fieldConfig"]["defaults"]["color"] == {"mode": "fixed", "fixedColor": "text"}
            for rule in panel["fieldConfig"].get("overrides") or []:
                for said in (p["value"] for p in rule["properties"] if p["id"] == "mappings"):
                    assert all(o["text"] for m in said for o in m["options"].values())


def test_units_are_such_as_grafana_knows(boards: dict[str, Json]) -> None:
    """An id of the SDK's list, or a suffix of our own."""
    from graynode.dashboards.grafana import sdk
    from graynode.dashboards.grafana.units import GRAFANA

    known = {v for k, v in vars(sdk.units).items() if k[0].isupper() and isinstance(v, str)}
    assert all(u in known or u.startswith("suffix: ") for u in GRAFANA.values())
    for dashboard in boards.values():
        for panel in panels(dashboard):
            rules = [p for rule in panel["fieldConfig"].get("overrides") or [] for p in rule["properties"]]
            said = [
                panel["fieldConfig"]["defaults"].get("unit", "short"),
                *(p["value"] for p in rules if p["id"] == "unit"),
            ]
            assert all(u in known or u.startswith("suffix: ") for u in said), panel["title"]


def test_every_unit_of_the_contract_has_one_of_grafana() -> None:
    """So that a new field can be shown."""
    from graynode.dashboards.grafana.units import grafana_unit
    from graynode.pipeline.series import ENTITIES, metrics

    assert all(grafana_unit(field.unit, field.name) for entity in ENTITIES for _, field in metrics(entity))


def test_files_are_laid_out_as_grafana_reads_them(exported: dict[str, str]) -> None:
    """Two files of provisioning, a dashboard a file named by its uid, and what to do with them."""
    sources = yaml.safe_load(exported["provisioning/datasources/graynode.yaml"])
    providers = yaml.safe_load(exported["provisioning/dashboards/graynode.yaml"])
    assert sources["apiVersion"] == providers["apiVersion"] == 1
    api, prometheus = sources["datasources"]
    assert api["url"] == "$GRAYNODE_URL"
    assert api["jsonData"]["auth_method"] == "bearerToken"
    assert api["jsonData"]["allowedHosts"] == ["$GRAYNODE_URL"]
    assert api["secureJsonData"] == {"bearerToken": "$GRAYNODE_TOKEN"}
    assert prometheus["url"] == "$GRAYNODE_PROMETHEUS_URL"
    (provider,) = providers["providers"]
    assert (provider["type"], provider["folderUid"]) == ("file", "graynode")
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards/graynode"
    names = {name for name in exported if name.startswith("dashboards/")}
    assert names == {f"dashboards/{uid}.json" for uid in UIDS}
    assert all(json.loads(exported[name])["uid"] == Path(name).stem for name in names)
    assert "plugins install yesoreyeram-infinity-datasource" in exported["README.md"]


def test_no_token_is_written(exported: dict[str, str]) -> None:
    """Only names of the environment."""
    assert not [name for name, text in exported.items() if re.search(r"gn_|glsa_|Bearer ", text)]


def test_export_gives_the_same_files_again(tmp_path: Path) -> None:
    """The second run changes none; one that a person damaged comes back."""
    said = io.StringIO()
    assert dashboards_export.run(tmp_path / "out", place="/srv/$x", sink=said) == 0
    assert dashboards_export.run(tmp_path / "out", place="/srv/$x", sink=said) == 0
    (tmp_path / "out/dashboards/graynode-node.json").write_text("{}")
    assert dashboards_export.run(tmp_path / "out", place="/srv/$x", sink=said) == 0
    counts = re.findall(r"(\d+) of them", said.getvalue())
    assert counts == ["11", "0", "1"]
    told = yaml.safe_load((tmp_path / "out/provisioning/dashboards/graynode.yaml").read_text())
    assert told["providers"][0]["options"]["path"] == "/srv/$$x"


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """With its path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        dashboards_export.run(tmp_path / "file")
    with pytest.raises(ConfigError, match="whole path"):
        dashboards_export.run(tmp_path / "out", place="here")
