"""The process that draws: requests on standard input, pictures on standard output, until its input ends.

A frame is a length (four bytes, big endian) and so many bytes. A request is JSON with ``kind`` (``svg`` or ``png``),
``spec`` and ``scale``; the answer begins with ``+`` and the picture, or with ``-`` and what was wrong. Run by
``graynode.dashboards.render`` as ``python -m graynode.dashboards.render_child``: the engine takes some 220 MiB, which
no other process should carry.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any, Final

_IDLE_S: Final = 900.0
"""Nobody wanted a picture for so long: give the memory back; the next request starts a new process."""
_STDIN, _STDOUT = 0, 1


def read_frame(fd: int) -> bytes | None:
    """The next frame; none where the stream has ended."""
    head = _read(fd, 4)
    return None if head is None else _read(fd, int.from_bytes(head, "big"))


def write_frame(fd: int, body: bytes) -> None:
    """A frame, whole."""
    rest = memoryview(len(body).to_bytes(4, "big") + body)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _read(fd: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(fd, size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def draw(request: dict[str, Any]) -> bytes:
    """The picture asked for."""
    import vl_convert

    spec = request["spec"]
    if request["kind"] == "svg":
        return str(vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])).encode()
    return bytes(vl_convert.vegalite_to_png(spec, scale=float(request.get("scale") or 2.0), allowed_base_urls=[]))


def main() -> int:
    """Serve until the input ends or nobody asks for a quarter of an hour."""
    out = os.dup(_STDOUT)
    os.dup2(2, _STDOUT)  # whatever the engine prints must not end up in a picture
    while select.select([_STDIN], [], [], _IDLE_S)[0]:
        frame = read_frame(_STDIN)
        if frame is None:
            break
        try:
            answer = b"+" + draw(json.loads(frame))
        except Exception as error:  # a foreign engine; the text goes to whoever asked
            answer = b"-" + str(error)[:500].encode()
        write_frame(out, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
