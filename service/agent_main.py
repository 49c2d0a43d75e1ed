"""``python -m graynode.service.agent_main``: the agent's own small entry.

``graynode agent`` hands over to it with ``exec``, so that the command line's libraries do not stay in memory
for months. Everything heavy is imported inside ``main``: a child process that is spawned imports this module
again and must stay small.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_NOT_WANTED: Final = ("numpy", "rich")
"""Others use both if they happen to be installed (Arrow for its arrays, the log for tracebacks), the agent does
not; on a machine that has the server part too they took 14 MiB."""
_NEED_NUMPY: Final = frozenset({"simulated"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent. The exit code is 0, 1 (something could not be sent) or 2 (it could not start)."""
    given = _arguments(argv)
    from graynode.service.config import ConfigError, load

    try:
        config = load(given.config)
    except ConfigError as error:
        print(f"graynode: {error}", file=sys.stderr)
        return 2
    stay_small(numpy=not _NEED_NUMPY.isdisjoint(config.agent.collectors))
    from graynode.service import agent
    from graynode.service.process import set_up_logs, stop_on_signals

    set_up_logs("agent", verbose=given.verbose)
    return agent.run(config, given.once, given.dry_run, stop_on_signals())


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="graynode agent", description="Collect on this node.")
    parser.add_argument("-c", "--config", type=Path, help="TOML file; default /etc/graynode/graynode.toml")
    parser.add_argument("--once", action="store_true", help="one look at everything, then end")
    parser.add_argument("--dry-run", action="store_true", help="print rows, send nothing, change nothing")
    parser.add_argument("-v", "--verbose", action="store_true", help="log more")
    return parser.parse_args(argv)


def stay_small(*, numpy: bool = False) -> None:
    """Before the large imports: no optional libraries, few malloc arenas, no second allocator beside malloc."""
    for name in _NOT_WANTED:
        if not (numpy and name == "numpy"):
            sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: "do not import" (importlib)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # for children: malloc here has read its environment already
    _limit_arenas()


def _limit_arenas() -> None:
    import ctypes

    arena_max = -8  # M_ARENA_MAX of glibc's malloc.h; another C library without mallopt needs no limit
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(arena_max, 2)


if __name__ == "__main__":
    sys.exit(main())
