"""Starts graynode's roles as a unit file would: real processes, one configuration, logs in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self


def to_toml(table: dict[str, Any], prefix: str = "") -> str:
    """A nested dict as TOML: plain values first, then a section per dict."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"[{prefix}]"] if prefix and plain else []
    lines += [f"{key} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            lines.append(to_toml(value, f"{prefix}.{key}" if prefix else key))
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return repr(value) if isinstance(value, int | float) else f'"{value}"'


class Roles:
    """A folder with a configuration, and the roles that run over it. Leaving the block ends them all."""

    def __init__(self, folder: Path, settings: dict[str, Any], env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.config = folder / "graynode.toml"
        base: dict[str, dict[str, Any]] = {
            "agent": {"state_dir": str(folder / "state"), "metrics_listen": "", "batch_s": 1},
            "bus": {"spool_dir": str(folder / "bus")},
            "lake": {"path": str(folder / "lake")},
            "pipeline": {"metrics_listen": "", "commit_s": 1, "maintain": False},
            "detect": {"metrics_listen": ""},
            "respond": {"metrics_listen": ""},
        }
        for key, value in settings.items():
            base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
        plain = {key: value for key, value in base.items() if not isinstance(value, dict)}
        self.config.write_text(to_toml({**plain, **{k: v for k, v in base.items() if k not in plain}}))
        self._env = {**os.environ, **(env or {})}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, role: str) -> subprocess.Popen[bytes]:
        """Start a role; its output is in ``<role>.log``."""
        with (self.folder / f"{role}.log").open("ab") as log:
            self._running[role] = subprocess.Popen(
                [sys.executable, "-m", "graynode.service.cli", role, "--config", str(self.config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, cwd=self.folder,
            )  # fmt: skip
        return self._running[role]

    def log(self, role: str) -> str:
        """What a role has said."""
        return (self.folder / f"{role}.log").read_text(errors="replace")

    def kill(self, role: str) -> None:
        """Kill -9."""
        self._running[role].kill()
        self._running.pop(role).wait()

    def stop(self, role: str, timeout_s: float = 30) -> int:
        """SIGTERM, and the exit code."""
        process = self._running.pop(role)
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout_s)

    def until(self, true: Callable[[], Any], timeout_s: float = 60.0) -> Any:
        """Wait for something; a role that dies meanwhile, or the time, ends the test with the logs."""
        end = time.monotonic() + timeout_s
        while not (value := true()):
            dead = [role for role, process in self._running.items() if process.poll() is not None]
            if dead or time.monotonic() > end:
                logs = "\n".join(f"--- {role}\n{self.log(role)[-3000:]}" for role in self._running)
                raise AssertionError(f"{dead or 'time'} ended it\n{logs}")
            time.sleep(0.1)
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
