"""Who asks for something on the command line."""

from __future__ import annotations

import contextlib
import getpass
import os


def who(by: str = "") -> str:
    """Who speaks: as named, else the user that became root, else the user."""
    if by:
        return by
    with contextlib.suppress(Exception):
        return os.environ.get("SUDO_USER") or getpass.getuser()
    return f"uid {os.getuid()}"
