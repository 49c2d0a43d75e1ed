"""Whether the server lives, and whether it can answer: for a supervisor, without a token, and telling nothing else."""

from __future__ import annotations

from typing import Any, Final

from litestar import Response, get

from graynode.service.api.state import Served


@get("/healthz", opt={"public": True}, sync_to_thread=False, media_type="text/plain")
def healthz() -> str:
    """The process answers."""
    return "ok\n"


@get("/readyz", opt={"public": True}, sync_to_thread=False, media_type="text/plain")
def readyz(served: Served) -> Response[str]:
    """The first picture of the fleet has been made and the lake could be read. 503 until then."""
    now = served.fleet.now()
    if now.problem:
        return Response("not ready\n", status_code=503, media_type="text/plain")
    return Response("ready\n", media_type="text/plain")


ROUTES: Final[tuple[Any, ...]] = (healthz, readyz)
