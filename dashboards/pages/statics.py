"""Style sheets, scripts and the icon: read once, served from memory by name, so that no path is ever put together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).with_name("static")
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Static:
    """One file: its bytes, its media type, and twelve hex digits of its content."""

    content: bytes
    media_type: str
    digest: str


def _read() -> dict[str, Static]:
    found = {}
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            found[path.name] = Static(content, _TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:12])
    return found


STATICS: Final[Mapping[str, Static]] = _read()
"""By file name."""
