"""What a person says goes to the bus as rows of the topic ``people``; and whom or what the words are about.

A spool's topic has one writer at a time, so a command holds this one just long enough to write, and waits for another
command that does. The pipeline lands the rows; ``detect`` and ``respond`` hear them at once.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from graynode.collectors.base import utc_now
from graynode.pipeline.bus import BusRefused, BusUnavailable
from graynode.pipeline.codec import Origin, encode
from graynode.pipeline.lake import LakeError, LakeTooNew
from graynode.pipeline.queries import Queries, QueryError, quoted
from graynode.pipeline.schema import PEOPLE
from graynode.service.config import Config, ConfigError
from graynode.service.explain import find, latest
from graynode.service.wiring import make_bus, make_lake

Row = Mapping[str, Any]
_WAIT_S: Final = 10.0
_LOOK_S: Final = 0.1
_SENDER: Final = "people"
_SHOWN: Final = 8


def say(
    config: Config,
    rows: Sequence[tuple[str, Row]],
    *,
    now: datetime | None = None,
    wait_s: float = _WAIT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Send rows (table and columns; ``cluster`` is added). ``ConfigError`` with the way out where that cannot be."""
    _check_bus(config)
    sent, epoch = now or utc_now(), time.time_ns()
    origin = Origin(config.cluster, _SENDER, epoch)
    messages = [
        encode(table, [{**row, "cluster": config.cluster}], origin, number, sent)
        for number, (table, row) in enumerate(rows, 1)
    ]
    end = time.monotonic() + wait_s
    while True:
        try:
            bus = make_bus(config)
            with contextlib.closing(bus.producer()) as producer:
                producer.send(PEOPLE, messages)
            break
        except BusUnavailable as error:
            if config.bus.kind != "spool" or "writes this topic already" not in str(error):
                raise ConfigError(f"the bus cannot be told: {error}") from error
            if time.monotonic() > end:
                raise ConfigError(f"another command is writing for {wait_s:.0f} s already: {error}") from error
            sleep(_LOOK_S)
        except BusRefused as error:
            raise ConfigError(f"the bus refuses it: {error}") from error
    _give_to_owner(config)


def _check_bus(config: Config) -> None:
    folder = config.bus.spool_dir
    if config.bus.kind == "spool" and not folder.is_dir():
        raise ConfigError(
            f"bus.spool_dir = {folder}: no bus is there, so nobody would hear it; name the configuration of the roles "
            "that run, with --config"
        )
    topic = folder / PEOPLE
    where = topic if topic.exists() else folder
    if config.bus.kind == "spool" and not os.access(where, os.W_OK | os.X_OK):
        raise ConfigError(f"{where}: no permission to write; run it as the user of the roles (or with sudo)")


def _give_to_owner(config: Config) -> None:
    """What root writes into the roles' spool stays theirs: they could not go on with it."""
    if config.bus.kind != "spool" or os.geteuid() != 0:
        return
    owner = config.bus.spool_dir.stat()
    for path in (config.bus.spool_dir / PEOPLE, *(config.bus.spool_dir / PEOPLE).rglob("*")):
        with contextlib.suppress(OSError):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def one_incident(config: Config, prefix: str) -> dict[str, Any]:
    """The latest revision of the incident whose id begins so. ``ConfigError`` where there is none or more than one."""
    found, notes = find(config, prefix.strip().lower())
    if len(found) == 1:
        revisions = next(iter(found.values()))
        return revisions[max(revisions)]
    if found:
        ids = ", ".join(sorted(found)[:_SHOWN])
        raise ConfigError(f"{len(found)} incidents begin with {prefix!r}: {ids}; give more of the id")
    known = ", ".join(f"{row['incident_id'][:8]} ({row['node'] or row['node_id']})" for row in latest(config))
    there = f"; the latest are {known}" if known else "; there is none at all yet"
    asked = "".join(f"; {note}" for note in notes)
    raise ConfigError(f"no incident begins with {prefix[:60]!r}{there}{asked}")


def one_node(config: Config, name: str) -> tuple[str, str | None]:
    """``node_id`` and host name of a node, by either, or by what Slurm or Kubernetes call it now.

    ``ConfigError`` for a name that the lake does not know, or that two machines have.
    """
    wanted, cluster = quoted(name), quoted(config.cluster)
    named = f"""SELECT node_id, name FROM machine_names WHERE cluster = {cluster} AND until IS NULL
        UNION SELECT DISTINCT node_id, node FROM incident_now WHERE cluster = {cluster}
        UNION SELECT DISTINCT node_id, node FROM node_day WHERE cluster = {cluster}
        UNION SELECT DISTINCT node_id, node FROM host_30s WHERE cluster = {cluster}
        UNION SELECT DISTINCT node_id, node FROM gpu_1h WHERE cluster = {cluster}"""  # noqa: S608 (quoted)
    rows = ask(
        config,
        f"SELECT node_id, any_value(name) AS name FROM ({named}) WHERE node_id = {wanted} OR name = {wanted} "  # noqa: S608
        "GROUP BY node_id ORDER BY node_id",
    )
    if len(rows) == 1:
        return str(rows[0]["node_id"]), rows[0]["name"]
    if rows:
        ids = ", ".join(str(row["node_id"]) for row in rows)
        raise ConfigError(f"{len(rows)} machines are called {name!r}; name one by its node_id: {ids}")
    known = ask(config, f"SELECT DISTINCT name FROM ({named}) WHERE name IS NOT NULL ORDER BY name LIMIT {_SHOWN}")  # noqa: S608
    some = ", ".join(str(row["name"]) for row in known)
    hint = f"it knows {some}" + (" and more" if len(known) == _SHOWN else "") if some else "it knows no node at all yet"
    raise ConfigError(f"the lake {config.lake.path} knows no node {name[:60]!r} in cluster {config.cluster!r}; {hint}")


def known_gpu(config: Config, node_id: str, node: str | None, gpu: str) -> str:
    """The UUID, if the node has or had such a GPU, or none of its GPUs is known. ``ConfigError`` shows what it has."""
    rows = ask(
        config,
        f"SELECT gpu_uuid, any_value(slot) AS slot FROM gpu_homes WHERE node_id = {quoted(node_id)} "  # noqa: S608
        f"AND cluster = {quoted(config.cluster)} GROUP BY gpu_uuid ORDER BY slot, gpu_uuid",
    )
    if not rows or gpu in [row["gpu_uuid"] for row in rows]:
        return gpu
    there = "".join(f"\n  {row['gpu_uuid']}  {row['slot'] or ''}".rstrip() for row in rows)
    raise ConfigError(f"--gpu {gpu[:60]}: {node or node_id} has no such GPU; it has{there}")


def ask(config: Config, sql: str) -> list[dict[str, Any]]:
    """Rows of a question to the lake. ``ConfigError`` where it cannot be asked."""
    try:
        queries = Queries(make_lake(config))
        try:
            return queries.rows(sql)
        finally:
            queries.close()
    except (QueryError, LakeError, LakeTooNew, OSError) as error:
        raise ConfigError(f"the lake {config.lake.path} cannot be asked: {error}") from error
