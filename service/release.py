"""``graynode agent release`` and ``resume``: ask the agent that runs here to let go of the GPUs, and hear its answer.

Exit codes: 0 done; 1 not done (no answer, or a reader hangs in the driver and holds it still); 2 wrong use or no
permission; 3 nothing to let go of (no agent is running here, or it does not read NVML).
"""

from __future__ import annotations

import contextlib
import errno
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from graynode.collectors.epoch import LOCK
from graynode.collectors.release import ANSWER, LONGEST, REQUEST, Answer, Request, read_answer, write
from graynode.pipeline.lock_file import owner_of
from graynode.service.asker import who
from graynode.service.config import Config, ConfigError
from graynode.service.times import elapsed

_WAIT_S: Final = 20.0
"""A round, and the few seconds that a child in a slow call may take to end."""
_LOOK_S: Final = 0.1
_DISK_FULL: Final = -1
"""The request to come back could not be written."""


def duration(text: str) -> timedelta:
    """``30m``, ``90s``, ``1h30m``; ``ConfigError`` where it is none, or longer than a day."""
    told = elapsed(text, "smh", 3)
    if told is None:
        raise ConfigError(f"--for {text}: not a time; write 30m, 90s or 1h30m")
    if not timedelta(0) < told <= LONGEST:
        raise ConfigError(
            f"--for {text}: between 1s and {LONGEST.total_seconds() / 3600:.0f}h; ask again when it is over"
        )
    return told


def release(config: Config, for_: str, reason: str = "", *, wait_s: float = _WAIT_S) -> int:
    """Ask for it, and say what came of it."""
    until = datetime.now(UTC).replace(microsecond=0) + duration(for_)
    request = Request(uuid.uuid4().hex, until, who(), reason[:200])
    return _ask(config, request, wait_s, lambda answer: _released(answer, until))


def resume(config: Config, *, wait_s: float = _WAIT_S) -> int:
    """Ask the agent to come back before the time is over."""
    code = _ask(config, Request(uuid.uuid4().hex, by=who()), wait_s, _resumed)
    if code == _DISK_FULL:
        # No request can be written: the one in force is taken away, which the agent sees in its next round.
        with contextlib.suppress(FileNotFoundError):
            (config.agent.state_dir / REQUEST).unlink()
        return _say(0, f"{config.agent.state_dir} is full: the release is withdrawn, and the agent reads NVML again")
    return code


def _ask(config: Config, request: Request, wait_s: float, told: Callable[[Answer], int]) -> int:
    folder = config.agent.state_dir
    try:
        owner = _running_agent(folder)
        if owner is None:
            return _say(
                3, f"no agent is running here (agent.state_dir = {folder}); nothing holds the GPUs for graynode"
            )
        if "nvml" not in config.agent.collectors:
            return _say(3, "the agent does not read NVML (agent.collectors); it holds no GPU")
        write(folder / REQUEST, request)
    except PermissionError as error:
        return _say(2, f"{error.filename}: no permission; run as root or as the agent's user")
    except OSError as error:
        if request.until is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _DISK_FULL
        return _say(1, f"{error.filename or folder}: {error.strerror}; nothing was asked of the agent")
    answer = _wait(folder, request.id, wait_s)
    if answer is not None:
        return told(answer)
    with contextlib.suppress(OSError):
        (folder / REQUEST).unlink()
    return _say(
        1,
        f"the agent (process {owner}) did not answer within {wait_s:.0f} s; the request is withdrawn; see its log",
    )


def _released(answer: Answer, until: datetime) -> int:
    if not answer.released:
        return _say(1, "the agent has read the request and reads on; see its log")
    if answer.holding:
        pids = ", ".join(map(str, answer.holding))
        return _say(
            1,
            f"NVML is let go of until {until:%H:%M:%S} UTC, but reader processes {pids} hang in the driver and hold "
            "its device files still; they end when the driver lets them go, or with a reboot",
        )
    return _say(0, f"NVML is let go of until {until:%Y-%m-%d %H:%M:%S} UTC; 'graynode agent resume' ends it earlier")


def _resumed(answer: Answer) -> int:
    return _say(1, "the agent has not come back") if answer.released else _say(0, "NVML is read again")


def _say(code: int, text: str) -> int:
    print(f"graynode: {text}", file=sys.stderr if code else sys.stdout)
    return code


def _wait(folder: Path, id_: str, wait_s: float) -> Answer | None:
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        answer = read_answer(folder / ANSWER)
        if answer is not None and answer.id == id_:
            return answer
        time.sleep(_LOOK_S)
    return None


def _running_agent(state_dir: Path) -> str | None:
    """The process id of the agent that runs over this folder; ``None`` where none does."""
    try:
        return owner_of(state_dir / LOCK)
    except FileNotFoundError:
        return None
