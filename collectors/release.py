"""Letting go of the GPUs for a while: what an operator asks for, and what the agent answers.

A GPU reset, a MIG change or a driver upgrade is refused while anybody holds the device files. ``graynode agent
release`` puts a request into the agent's state folder, the collector that holds NVML looks for it every second, closes
NVML and answers. The request is a file so that it survives a restart of the agent, and so that whoever may not write to
that folder may not blind the agent either.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

REQUEST: Final = "nvml_release.json"
ANSWER: Final = "nvml_release_answer.json"
LONGEST: Final = timedelta(hours=24)
"""Longer than any upgrade; a typing error or a clock that was set must not blind a node for a year."""


class Request(msgspec.Struct, frozen=True):
    """What is asked: to let go until then, or with ``until`` null to come back. ``by`` says who, ``why`` what for."""

    id: str
    until: datetime | None = None
    by: str = ""
    why: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What became of the request of that id. ``holding`` are readers that hang in the driver and hold it still."""

    id: str
    released: bool
    until: datetime | None = None
    holding: list[int] = []


def write(path: Path, content: msgspec.Struct) -> None:
    """Put the file in place whole. ``OSError`` where that is not allowed."""
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    # root writes into a folder of the agent's user: a name that nobody can have prepared, and no link is followed
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(content))
            os.fchmod(file.fileno(), 0o644)  # root asks, and the agent is a user of its own
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def read_request(path: Path) -> Request | None:
    """The request, ``None`` where there is none that can be understood."""
    found: Request | None = _read(path, Request)
    return found


def read_answer(path: Path) -> Answer | None:
    """The answer, ``None`` where there is none that can be understood."""
    found: Answer | None = _read(path, Answer)
    return found


def _read(path: Path, type_: Any) -> Any:  # noqa: ANN401 (either of the two)
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(1 << 16), type=type_)
    except (OSError, msgspec.MsgspecError):
        return None


class Release:
    """The agent's side. ``look`` once a round; ``on`` is the request in force.

    The wall clock says how long a request has to run when it is read, and no more: a driver upgrade is when somebody
    also sets the clock. An agent that restarts reads it anew.
    """

    def __init__(self, state_dir: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._end_s = monotonic, 0.0
        self._request, self._answer = state_dir / REQUEST, state_dir / ANSWER
        self._seen: tuple[int, int] | None = None
        self.on: Request | None = None
        self.asked: Request | None = None
        """A request that was read in this look and has not been answered."""

    def look(self, now: datetime) -> None:
        """Read what is new, and see whether the time is over."""
        self.asked = None
        try:
            stat = self._request.stat()
        except OSError:
            self._seen, self.on = None, None
            return
        if (stat.st_mtime_ns, stat.st_ino) != self._seen:
            self._seen = (stat.st_mtime_ns, stat.st_ino)
            self.asked = self.on = read_request(self._request)
            self._end_s = self._monotonic() + _left_s(self.on, now)
        if self.on is not None and self._monotonic() >= self._end_s:
            self.on = None

    def answer(self, *, released: bool, holding: list[int]) -> str | None:
        """Answer what was asked; why it could not be written, if it could not."""
        if self.asked is None:
            return None
        until = self.on.until if self.on is not None else None
        try:
            write(self._answer, Answer(self.asked.id, released, until, holding))
        except OSError as error:
            return f"{self._answer} cannot be written: {error.strerror}"
        return None


def one_line(text: str) -> str:
    """What somebody wrote, as part of a line for others: no control characters, at most 200 characters."""
    return "".join(c if c.isprintable() else " " for c in text[:200]).strip()


def _left_s(request: Request | None, now: datetime) -> float:
    """Seconds that it has to run; 0 where it asks to come back, is over, or asks for longer than is allowed."""
    if request is None or request.until is None or request.until.tzinfo is None:
        return 0.0
    left = request.until.astimezone(UTC) - now
    return left.total_seconds() if left <= LONGEST + timedelta(minutes=1) else 0.0
