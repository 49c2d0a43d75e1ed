"""``graynode doctor``: what this node gives, what not, why, what it costs, and what a person should mend.

It reads and never changes: no lock is taken, no topic made, no position moved, nothing sent. Rounds are taken with a
state folder of its own, as ``graynode agent --dry-run`` does.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from graynode.collectors import COLLECTORS
from graynode.collectors.identity import NoIdentity, Roots, resolve
from graynode.service.config import Config, ConfigError
from graynode.service.doctor_bus import bus_checks
from graynode.service.doctor_checks import Check, node_checks
from graynode.service.doctor_print import as_object, for_person, to_mend
from graynode.service.doctor_sources import harmless, try_sources
from graynode.service.process import quiet


def run(
    config: Config,
    as_json: bool = False,
    *,
    whose: str = "agent",
    roots: Roots | None = None,
    say: Callable[[str], None] = print,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Look and tell. 0 where all is well, 1 where something is to mend. ``ConfigError`` for an unknown collector.

    ``whose``: ``agent`` is this node, ``server`` the other roles (``doctor_server``), ``all`` both.
    """
    if whose == "server":
        from graynode.service import doctor_server

        return doctor_server.run(config, as_json, say=say)
    unknown = [name for name in config.agent.collectors if name not in dict(COLLECTORS)]
    if unknown:
        raise ConfigError(f"agent.collectors: no collector {unknown[0]!r}; there are {', '.join(dict(COLLECTORS))}")
    at = roots or Roots()
    with tempfile.TemporaryDirectory(prefix="graynode-doctor-") as folder:
        checks = [*node_checks(config, proc=at.proc, dev=at.dev), *bus_checks(config), *_server(config, whose)]
        said = config.agent
        try:
            machine = resolve(
                cluster=config.cluster, state_dir=Path(folder), node_id=said.node_id, node=said.node, roots=at
            )
        except NoIdentity as none:
            checks.append(Check("identity", "mend", str(none), "set agent.node_id"))
            machine = resolve(
                cluster=config.cluster, state_dir=Path(folder), node_id="unknown", node=said.node or "unknown", roots=at
            )
        else:
            checks.insert(0, identity(machine.node_id, machine.node_id_source))
        with quiet(logging.CRITICAL):
            tried = try_sources(harmless(config, Path(folder)), machine, pause=pause)
    if as_json:
        say(json.dumps(as_object(machine, checks, tried), indent=2, default=str, ensure_ascii=False))
    else:
        for line in for_person(machine, checks, tried):
            say(line)
    return 1 if to_mend(checks, tried) else 0


def _server(config: Config, whose: str) -> list[Check]:
    if whose != "all":
        return []
    from graynode.service.doctor_server import server_checks

    said = {"versions", "clock", "spool", "secret"}  # of this machine, by the node's checks
    return [check for check in server_checks(config) if check.about not in said]


def identity(node_id: str, source: str) -> Check:
    """Where the machine's id comes from; one from an image's machine-id may be shared by clones."""
    if source == "machine_id":
        way = "set agent.node_id"
        if os.geteuid() != 0:
            way = f"run as root or with CAP_DAC_READ_SEARCH (the SMBIOS UUID is root's alone), or {way}"
        return Check("identity", "note", f"{node_id} by machine-id, which clones of one image share", way)
    return Check("identity", "well", f"{node_id} by {source}")
