"""Calls that may hang, apart from the loop: in threads that do not keep the process from ending."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final, TypeVar

_Got = TypeVar("_Got")

_MOST: Final = 64
"""Names being resolved at a time; a resolver that hangs for more keeps further ones waiting, and no kept connection."""
_free = threading.BoundedSemaphore(_MOST)


class Busy(OSError):
    """Too many such calls hang already."""


async def apart(call: Callable[[], _Got]) -> _Got:
    """What the call gives or raises. When nobody waits any more it goes on by itself."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Got] = loop.create_future()

    def run() -> None:
        try:
            got = call()
        except Exception as error:
            _post(loop, future, lambda said=error: future.set_exception(said))  # type: ignore[misc]  # bound now
        else:
            _post(loop, future, lambda: future.set_result(got))

    threading.Thread(target=run, name="apart", daemon=True).start()
    return await future


async def addresses(host: str, port: int) -> list[str]:
    """Addresses of a host, in the resolver's order. ``OSError`` where there are none."""
    if not _free.acquire(blocking=False):
        raise Busy(f"{host}: {_MOST} names are being resolved already")

    def resolve() -> list[str]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        finally:
            _free.release()
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    return await apart(resolve)


def _post(loop: asyncio.AbstractEventLoop, future: asyncio.Future[_Got], put: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
        loop.call_soon_threadsafe(lambda: None if future.done() else put())
