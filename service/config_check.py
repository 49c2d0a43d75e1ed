"""``graynode config check``: the configuration in force, and what in it cannot work here."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from graynode.collectors import COLLECTORS
from graynode.detectors import NAMES
from graynode.service.agent_jobs import kubernetes_settings
from graynode.service.config import Config, ConfigError
from graynode.service.config_tables import Agent
from graynode.service.process import is_address
from graynode.service.respond_config import files_of, make_routes, unrouted

_URL_CUT: Final = re.compile(r"(s3a?|gs|az|abfss?|https?):/?", re.IGNORECASE)
_SOCKET_PATH: Final = 107
"""Linux: ``sun_path`` without its end, unix(7)."""


def run(config: Config) -> int:
    """Print the configuration; 1 if a named file or folder cannot be used."""
    print(msgspec.json.format(msgspec.json.encode(config, enc_hook=str)).decode())
    problems = list(find_problems(config))
    for problem in problems:
        print(f"graynode: {problem}", file=sys.stderr)
    return 1 if problems else 0


def find_problems(config: Config) -> Iterator[str]:
    """One line per key that cannot work here, with the way out."""
    yield from _files(config)
    for key, folder in (("agent.state_dir", config.agent.state_dir), ("bus.spool_dir", config.bus.spool_dir)):
        yield from _unwritable(key, folder)
    if (config.dcgm.targets or config.dcgm.fleet or config.dcgm.fleet_files) and "dcgm" not in config.agent.collectors:
        yield "dcgm: targets are named, but agent.collectors has no 'dcgm': nothing reads them; add it there"
    if config.agent.kmsg != Agent().kmsg and not config.agent.kmsg.exists():
        yield f"agent.kmsg = {config.agent.kmsg}: no such file; name this machine's kernel log"
    yield from _names(config)
    yield from _jobs(config)
    yield from _kubernetes(config)
    yield from _listens(config)
    yield from _routes(config)
    yield from _lake(config.lake.path)


def _files(config: Config) -> Iterator[str]:
    named: dict[str, Path | None] = {"simulated.faults": config.simulated.faults}
    named["detect.places_file"] = config.detect.places_file
    for key in ("ca_file", "cert_file", "key_file", "password_file"):
        named[f"bus.kafka.{key}"] = getattr(config.bus.kafka, key)
    for key in ("ca_file", "authorization_file"):
        named[f"dcgm.{key}"] = getattr(config.dcgm, key)
    named |= dict(files_of(config.respond))
    for key, path in named.items():
        if path is not None:
            yield from _unreadable(key, path)


def _routes(config: Config) -> Iterator[str]:
    try:
        make_routes(config.respond)
    except ConfigError as error:
        yield str(error)
    for name in unrouted(config.respond):
        yield f"respond.routes: none names the receiver {name!r}: it hears only pages that no route fits"


def _listens(config: Config) -> Iterator[str]:
    for role in ("agent", "pipeline", "detect", "respond"):
        listen = getattr(config, role).metrics_listen
        if listen and not is_address(listen):
            yield f"{role}.metrics_listen = {listen!r}: not host:port; choose another, or '' for none"


def _lake(path: str) -> Iterator[str]:
    scheme, there, rest = path.partition("://")
    if there and rest.strip("/"):
        return
    if not path or there or _URL_CUT.match(scheme):
        yield f"lake.path = {path!r}: neither a folder nor an address such as s3://bucket/lake"
    else:
        yield from _unwritable("lake.path", Path(path))


def _names(config: Config) -> Iterator[str]:
    for key, given, there in (
        ("agent.collectors", config.agent.collectors, tuple(name for name, _ in COLLECTORS)),
        ("detect.detectors", config.detect.detectors, NAMES),
        ("detect.shadow_detectors", config.detect.shadow_detectors, NAMES),
    ):
        for name in given:
            if name not in there:
                yield f"{key}: there is no {name!r}; there are {', '.join(there)}"


def _kubernetes(config: Config) -> Iterator[str]:
    """Where a cluster is asked: an address that is one, and what lets us in."""
    said = config.kubernetes
    if said.api == "off" or not (said.api or said.cluster):
        return
    try:
        kubernetes_settings(config).connect(os.environ)
    except ValueError as error:
        yield str(error)
    yield from _unreadable("kubernetes.token_file", said.token_file)
    yield from _unreadable("kubernetes.ca_file", said.ca_file)


def _jobs(config: Config) -> Iterator[str]:
    for key in ("conf", "completion_log"):
        path: Path | None = getattr(config.slurm, key)
        if path is not None:
            yield from _unreadable(f"slurm.{key}", path)
    if config.slurm.job_mapping_dir is not None and not config.slurm.job_mapping_dir.is_dir():
        yield f"slurm.job_mapping_dir = {config.slurm.job_mapping_dir}: no such folder; a prolog has to make it"
    if config.slurm.bin is not None and not (config.slurm.bin / "scontrol").is_file():
        yield f"slurm.bin = {config.slurm.bin}: no scontrol in it; name the folder of Slurm's programs"
    if config.steps.socket is not None:
        yield from _socket(config.steps.socket)
    for unit in (*config.services.units, *config.services.ignore):
        if not unit.strip():
            yield "services.units: an empty name is no unit's; take it out"
    for pattern in config.job_log.paths:
        if not pattern.startswith("/"):
            yield f"job_log.paths = {pattern!r}: not an absolute path; begin it with /"


def _socket(path: Path) -> Iterator[str]:
    if not path.is_absolute():
        yield f"steps.socket = {path}: not an absolute path; training loops would look elsewhere; begin it with /"
    elif len(os.fsencode(path)) > _SOCKET_PATH:
        yield f"steps.socket = {path}: longer than the {_SOCKET_PATH} bytes that a socket's path may have"
    elif path.exists() and not path.is_socket():
        yield f"steps.socket = {path}: is there and no socket; name another path"
    else:
        yield from _unwritable("steps.socket", path.parent)


def _unreadable(key: str, path: Path) -> Iterator[str]:
    if not path.is_file():
        yield f"{key} = {path}: no such file"
    elif not os.access(path, os.R_OK):
        yield f"{key} = {path}: this user may not read it"


def _unwritable(key: str, folder: Path) -> Iterator[str]:
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield f"{key} = {folder}: this user cannot write there ({nearest}); create it, or name another"
