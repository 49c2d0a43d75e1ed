"""Which exporters are scraped, and as which node: addresses from the configuration and from ``file_sd`` files.

A target's node is the machine that the agent runs on, or one of its own whose identity nobody has confirmed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from graynode.pipeline.schema import stable_id

_PATH: Final = "/metrics"
_MAX_FILE: Final = 32 << 20
MOST_TARGETS: Final = 20_000
NODE_LABELS: Final = ("node", "nodename", "hostname")
"""Labels of a target that name its node, the first that there is."""
_LITERAL: Final = re.compile(r"[0-9.]+|.*:.*")
_PORTS: Final = {"http": 80, "https": 443}


class WrongTarget(ValueError):
    """An address that cannot be scraped; the text says which, and what is wanted."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a page is."""

    host: str
    port: int
    path: str = _PATH
    tls: bool = False

    @property
    def literal(self) -> bool:
        """Whether the host is an address already: it needs no resolver, and is nobody's name."""
        return _LITERAL.fullmatch(self.host) is not None

    @property
    def host_header(self) -> str:
        """As HTTP wants it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def instance(self) -> str:
        """As Prometheus calls it: host and port, and the path where it is not the usual one."""
        return self.host_header + ("" if self.path == _PATH else self.path)


@dataclass(frozen=True, slots=True)
class Target:
    """One exporter. ``own``: it shows this machine's GPUs. ``node`` is the configured name of another one."""

    address: Address
    instance: str
    own: bool = False
    node: str = ""

    def node_id(self, cluster: str) -> str:
        """The id of a node of which nothing but its exporter's address is known."""
        return exporter_node_id(cluster, self.instance)


def exporter_node_id(cluster: str, instance: str) -> str:
    """The id of the node behind an exporter, the same for rows that are scraped and rows that a Prometheus kept."""
    return stable_id("exporter", cluster, instance)


def own_target(url: str) -> Target:
    """An exporter of this machine. ``WrongTarget`` where the address is none."""
    address = parse_address(url)
    return Target(address, address.instance, own=True)


def fleet_target(text: str, labels: Mapping[str, str] | None = None) -> Target:
    """An exporter of another node: a URL or, as in ``file_sd``, ``host:port`` with labels."""
    told = labels or {}
    scheme, path = told.get("__scheme__", "http"), told.get("__metrics_path__", _PATH)
    address = parse_address(text if "://" in text else f"{scheme}://{text}{path}")
    node = next((told[name] for name in NODE_LABELS if told.get(name)), "")
    return Target(address, told.get("instance") or address.instance, node=node[:256])


def parse_address(url: str) -> Address:
    """``http://host:port/path``; without a path ``/metrics``. ``WrongTarget`` for anything else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise WrongTarget(f"{url[:200]!r}: {error}; wanted is http://host:port/metrics") from error
    if parts.scheme not in _PORTS or not parts.hostname:
        raise WrongTarget(f"{url[:200]!r}: wanted is http://host:port/metrics or https://…")
    if parts.username or parts.password:
        raise WrongTarget(f"{parts.hostname}: no credentials in an address; use dcgm.authorization_file")
    path = (parts.path or _PATH) + (f"?{parts.query}" if parts.query else "")
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise WrongTarget(f"{url[:200]!a}: only printable ASCII without blanks")
    return Address(parts.hostname, port or _PORTS[parts.scheme], path, parts.scheme == "https")


@dataclass(slots=True)
class _Seen:
    stamp: tuple[int, int, int]
    targets: list[Target] = field(default_factory=list)
    trouble: str = ""


class TargetFiles:
    """``file_sd`` files by glob, read again when they change. One that cannot be read keeps its last targets.

    JSON by itself; YAML where PyYAML is installed (extra ``graynode[dcgm]``).
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._seen: dict[str, _Seen] = {}
        self._refused: frozenset[str] = frozenset()

    def read(self) -> tuple[list[Target], list[str]]:
        """All targets, and what has newly gone wrong, a line each."""
        trouble: list[str] = []
        paths = sorted({path for pattern in self._patterns for path in glob(pattern)})  # noqa: PTH207 (patterns may be absolute)
        self._seen = {path: seen for path, seen in self._seen.items() if path in paths}
        for path in paths:
            self._look(path, trouble)
        return [target for path in paths for target in self._seen[path].targets], trouble

    def _look(self, path: str, trouble: list[str]) -> None:
        before = self._seen.get(path)
        try:
            status = Path(path).stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if before is not None and before.stamp == stamp:
                return
            if status.st_size > _MAX_FILE:
                raise WrongTarget(f"{status.st_size} bytes are more than {_MAX_FILE}")
            text = Path(path).read_text(encoding="utf-8")
            self._seen[path] = _Seen(stamp, list(parse_file(text, path)))
        except (OSError, ValueError, RecursionError) as error:
            said = f"{path}: {_reason(error)}"
            held = self._seen.setdefault(path, _Seen((0, 0, 0)))
            if held.trouble != said:
                held.trouble = said
                trouble.append(f"{said}; its last {len(held.targets)} targets stay")


def parse_file(text: str, path: str) -> Iterable[Target]:
    """Targets of one ``file_sd`` file. ``WrongTarget`` names what is wrong with it."""
    groups = _yaml(text) if path.endswith((".yml", ".yaml")) else json.loads(text)
    if not isinstance(groups, list):
        raise WrongTarget("wanted is a list of objects with targets and labels")
    for group in groups:
        yield from _group(group)


def _yaml(text: str) -> Any:  # noqa: ANN401 (any YAML)
    try:
        import yaml
    except ModuleNotFoundError:
        raise WrongTarget("YAML needs PyYAML: pip install 'graynode[dcgm]', or write the same list as JSON") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise WrongTarget(f"not YAML: {' '.join(str(error).split())[:200]}") from error


def _group(group: Any) -> Iterable[Target]:  # noqa: ANN401 (any JSON)
    targets = group.get("targets") if isinstance(group, dict) else None
    labels = group.get("labels", {}) if isinstance(group, dict) else None
    if not isinstance(targets, list) or not isinstance(labels, dict):
        raise WrongTarget("wanted is a list of objects with targets (a list) and labels (an object)")
    if any(isinstance(value, list | dict) for value in labels.values()):
        raise WrongTarget("a label's value is no text")  # nor written out: a few aliases of YAML can be gigabytes
    texts = {str(name): str(value) for name, value in labels.items()}
    for one in targets:
        if not isinstance(one, str):
            raise WrongTarget(f"a target is not a text but {type(one).__name__}")
        shared = texts if len(targets) == 1 else {k: v for k, v in texts.items() if k not in ("instance", *NODE_LABELS)}
        yield fleet_target(one, shared)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    return f"cannot be used: {error}"
