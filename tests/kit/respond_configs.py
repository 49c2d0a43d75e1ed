"""Configurations of ``respond`` for tests, and the secrets that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graynode.service.config import Config, parse

SECRET = "whsec_YSBzZWNyZXQgb2YgMjQgYnl0ZXMgbG9uZw=="  # noqa: S105 (a test's own)


def secret(folder: Path, name: str, text: str) -> str:
    """A file that only its owner may read, as the configuration wants it."""
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def config(folder: Path, respond: dict[str, Any]) -> Config:
    """A site whose ``[respond]`` is this."""
    told = {
        "cluster": "test", "bus": {"spool_dir": str(folder / "bus")}, "lake": {"path": str(folder / "lake")},
        "respond": {"metrics_listen": "", **respond},
    }  # fmt: skip
    return parse(told, "test")
