"""``/openapi.json`` says what answers look like, and real answers do."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import jsonschema
import pytest
from litestar.testing import TestClient

RANGE = {"from": "2026-11-30T04:00:00Z", "to": "2026-11-30T10:00:00Z"}
ASKED = {
    "/api/v1/series": {"metric": "power_w", "entity": "gpu", "node": "sim-000"},
    "/api/v1/incidents": {"state": "all"},
}
BINARY = {
    "/api/v1/incidents/{incident_id}/picture.svg",
    "/api/v1/incidents/{incident_id}/picture.png",
    "/api/v1/stream",
}
NEEDS_JOBS = {"/api/v1/jobs/{job_id}"}
"""The small lake has no job: an unknown one is a problem, which has a schema too."""


@pytest.fixture(scope="module")
def described(asking: TestClient[Any]) -> dict[str, Any]:
    found: dict[str, Any] = asking.get("/openapi.json").json()
    return found


def schema_of(described: dict[str, Any], path: str, method: str = "get") -> tuple[str, dict[str, Any]]:
    """Media type and schema of the answer, with what it refers to."""
    (content,) = described["paths"][path][method]["responses"]["200"]["content"].items()
    return content[0], {**content[1]["schema"], "components": described["components"]}


def test_every_route_says_what_it_answers(described: dict[str, Any]) -> None:
    """JSON as an object with its properties; every problem as problem+json."""
    jsonschema.Draft202012Validator.check_schema({"$defs": described["components"]["schemas"]})
    for path, item in described["paths"].items():
        for method, told in item.items():
            assert "application/problem+json" in told["responses"]["default"]["content"], path
            media, schema = schema_of(described, path, method)
            jsonschema.Draft202012Validator.check_schema(schema)
            if media == "application/json":
                assert "$ref" in schema or schema["type"] == "object", path


def test_real_answers_are_as_described(described: dict[str, Any], asking: TestClient[Any]) -> None:
    """Every route that is read, over the small lake: each answer fits its schema; lists of the fleet have rows."""
    gpu = asking.get("/api/v1/gpus").json()["rows"][0]["gpu_uuid"]
    names = {"{node}": "sim-000", "{gpu_uuid}": gpu, "{incident_id}": "aaaa0000-0000-4000-8000-000000000001",
             "{user}": "ana", "{job_id}": "1"}  # fmt: skip
    checked, filled = [], []
    for path, item in described["paths"].items():
        if "get" not in item or path in BINARY:
            continue
        media, schema = schema_of(described, path)
        address = path
        for name, value in names.items():
            address = address.replace(name, quote(value))
        answer = asking.get(address, params={**RANGE, **ASKED.get(path, {})})
        if path in NEEDS_JOBS:
            assert answer.status_code == 404
            (problem,) = described["paths"][path]["get"]["responses"]["default"]["content"].values()
            jsonschema.validate(answer.json(), problem["schema"])
            continue
        assert answer.status_code == 200, (path, answer.text)
        if media != "application/json":
            assert answer.headers["content-type"].startswith(media), path
            continue
        told = answer.json()
        jsonschema.validate(told, schema, cls=jsonschema.Draft202012Validator)
        checked.append(path)
        filled += [path] if told.get("rows") else []
    assert len(checked) >= 20
    assert {"/api/v1/nodes", "/api/v1/gpus", "/api/v1/incidents", "/api/v1/series", "/api/v1/fleet"} <= set(filled)


def test_an_answer_that_is_otherwise_does_not_fit(described: dict[str, Any], asking: TestClient[Any]) -> None:
    """The check is one: a missing column and one of another type are found."""
    _, schema = schema_of(described, "/api/v1/nodes")
    told = asking.get("/api/v1/nodes").json()
    without = {**told, "rows": [{k: v for k, v in told["rows"][0].items() if k != "state"}]}
    other = {**told, "rows": [{**told["rows"][0], "gpus": "eight"}]}
    for wrong in (without, other, {"next": None}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema, cls=jsonschema.Draft202012Validator)
