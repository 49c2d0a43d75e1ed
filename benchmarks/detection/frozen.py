"""Frozen thresholds: committed before test seeds are drawn, and named by their hash in every result."""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from typing import Any


def frozen(track: str) -> tuple[dict[str, Any], str]:
    """The thresholds of a track and the SHA-256 of their canonical JSON. They are never fitted to test data."""
    text = resources.files(__package__).joinpath("limits", f"{track}.json").read_text("utf-8")
    values: dict[str, Any] = json.loads(text)
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return values, hashlib.sha256(canonical.encode()).hexdigest()
