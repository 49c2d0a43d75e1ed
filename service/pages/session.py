"""Sign-in page and what it needs before anybody is known: style sheets, scripts, the icon; and ``/find``."""

# ruff: noqa: S608 (SQL of this module's own words; names are quoted)

from __future__ import annotations

from typing import Annotated, Any, Final

import polars as pl
from litestar import Response, get
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Redirect

from graynode.dashboards.pages import STATICS, render
from graynode.dashboards.pages.words import in_path
from graynode.pipeline.queries import quoted
from graynode.service.api.asked import ServedHere
from graynode.service.api.problems import Problem
from graynode.service.api.state import Served
from graynode.service.pages.frame import AnyRequest, frame, page_at

_FOR_EVER: Final = "public, max-age=31536000, immutable"
_PREFIX_AT_LEAST: Final = 6
"""Characters of an incident's id that name one: shorter ones are words or numbers just as well."""
_HEX: Final = frozenset("0123456789abcdef-")


@get("/signin", opt={"public": True}, media_type="text/html", sync_to_thread=True, include_in_schema=False)
def signin(
    served: ServedHere, request: AnyRequest, next_: Annotated[str, QueryParameter(name="next")] = "/"
) -> Response[bytes]:
    """Asks for a token; says nothing of the fleet, not even its name."""
    values = {**frame(served, None, request), "cluster": "", "at": None}
    body = render("signin.html", **values, next=next_[:500] if _inside(next_) else "/")
    return Response(body.encode(), media_type="text/html", headers={"Cache-Control": "no-store"})


def _inside(address: str) -> bool:
    """Whether it is a path here. To a browser a backslash is a slash and a tab is nothing: both can lead away."""
    return address.startswith("/") and not address.startswith("//") and "\\" not in address and address.isprintable()


@get("/static/{name:str}", opt={"public": True}, sync_to_thread=False, include_in_schema=False)
def static(name: FromPath[str], v: FromQuery[str] = "") -> Response[bytes]:
    """A file of the page by its name, kept for ever where it is asked for by its content."""
    found = STATICS.get(name)
    if found is None:
        raise Problem(404, "no such file")
    keep = _FOR_EVER if v == found.digest else "public, no-cache"
    return Response(
        found.content, media_type=found.media_type, headers={"Cache-Control": keep, "ETag": f'"{found.digest}"'}
    )


@page_at("/find")
def find(served: ServedHere, q: Annotated[str, QueryParameter(max_length=300)] = "") -> Redirect:
    """To whatever is called so: a node, a GPU, an incident, a job, a user; else to the nodes with it in their name."""
    return Redirect(where(served, q.strip()), status_code=303)


def where(served: Served, text: str) -> str:
    """The address of what is called ``text``."""
    if not text:
        return "/"
    now = served.fleet.now()
    if _has(now.nodes, ("node", "node_id"), text):
        return f"/nodes/{in_path(text)}"
    gpu = now.gpus.filter(pl.col("gpu_uuid") == text)
    if gpu.height:
        return f"/nodes/{in_path(gpu['node_id'][0])}#gpu-{in_path(text)}"
    return _in_lake(served, text) or f"/nodes?q={in_path(text)}"


def _in_lake(served: Served, text: str) -> str | None:
    word, cluster = quoted(text), quoted(served.cluster())
    if len(text) >= _PREFIX_AT_LEAST and set(text.lower()) <= _HEX:
        prefix = quoted(text.lower())
        if served.rows(
            f"SELECT 1 FROM incident WHERE starts_with(incident_id, {prefix}) AND cluster = {cluster} LIMIT 1"
        ):
            return f"/incidents/{in_path(text.lower())}"
    jobs = f"SELECT job_id FROM job WHERE (job_id = {word} OR job_alias = {word}) AND cluster = {cluster} LIMIT 1"
    found = served.rows(jobs)
    if found:
        return f"/jobs/{in_path(found[0]['job_id'])}"
    if served.rows(f'SELECT 1 FROM job WHERE "user" = {word} AND cluster = {cluster} LIMIT 1'):
        return f"/users/{in_path(text)}"
    return None


def _has(frame_: pl.DataFrame, columns: tuple[str, ...], text: str) -> bool:
    return bool(frame_.select(pl.any_horizontal(*(pl.col(c) == text for c in columns)).any()).item())


ROUTES: Final[tuple[Any, ...]] = (signin, static, find)
