"""One caller's many questions wait for each other; another's do not wait for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from graynode.service.api.access import COOKIE
from graynode.service.api.turns import ALL, AT_ONCE, Turns

ANN = {"authorization": "Bearer ann"}
BEN = {"authorization": "Bearer ben"}
SESSION = {"cookie": f"theme=dark; {COOKIE}=carl|0|1|x|y"}
SAME_AGAIN = {"cookie": f"{COOKIE}=carl|0|2|z|y"}


def under_way(*asked: dict[str, str], path: str = "/api/v1/cost") -> int:
    """How many of these get through while none has been answered."""
    return asyncio.run(_under_way(asked, path))


async def _under_way(asked: tuple[dict[str, str], ...], path: str) -> int:
    inside, let_go = 0, asyncio.Event()

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        nonlocal inside
        inside += 1
        await let_go.wait()

    turns: Any = Turns(app)
    scopes = [
        {"type": "http", "path": path, "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
        for headers in asked
    ]
    tasks = [asyncio.create_task(turns(scope, None, None)) for scope in scopes]
    await asyncio.sleep(0.05)
    through = inside
    let_go.set()
    await asyncio.gather(*tasks)
    assert inside == len(asked), "whoever waited had no turn"
    assert not turns._lines
    return through


def test_a_caller_has_only_so_many_at_a_time_and_nobody_else_waits() -> None:
    """A hundred of one, one of another."""
    assert under_way(*[ANN] * 100, BEN) == AT_ONCE + 1


def test_four_callers_do_not_fill_the_threads() -> None:
    """They share what there is, so a fifth has a turn at once; and of a hundred callers each has one."""
    callers = [{"authorization": f"Bearer caller-{i}"} for i in range(100)]
    four = [headers for headers in callers[:4] for _ in range(30)]
    assert under_way(*four) == ALL + 1, "the fourth had to have one, for the others came first"
    assert under_way(*four, ANN) == ALL + 2 < 32
    assert under_way(*callers, *callers) == 100


def test_sessions_of_one_token_are_one_caller() -> None:
    """Signing in twice gives no more turns."""
    assert under_way(*[SESSION, SAME_AGAIN] * 50) == AT_ONCE


@pytest.mark.parametrize(("headers", "path"), [({}, "/signin"), (ANN, "/api/v1/stream"), (ANN, "/healthz")])
def test_who_takes_no_thread_is_not_held_up(headers: dict[str, str], path: str) -> None:
    """Unknown callers, who get nothing that takes long, and listeners of the stream, who are bounded apart."""
    assert under_way(*[headers] * 100, path=path) == 100
