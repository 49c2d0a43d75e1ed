"""From the command line's words to ``graynode init``: so that ``init`` itself is called with a checked question."""

from __future__ import annotations

from typing import Any

from graynode.service import init
from graynode.service.config import ConfigError


def run(said: dict[str, Any]) -> int:
    """``ConfigError`` where a choice is for another role than the one asked for."""
    asked = init.Asked(**said)
    if asked.role == "agent" and "lake.path" in asked.chosen:
        raise ConfigError("--lake is the server's; an agent knows no lake")
    for user in (asked.agent_user, asked.server_user):
        if user and not user.startswith("User:"):
            raise ConfigError(f"{user!r} is no user of a broker; it is written as User:{user}")
    return init.run(asked)
