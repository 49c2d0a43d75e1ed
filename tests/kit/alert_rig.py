"""Real Alertmanagers (Debian package ``prometheus-alertmanager``) on free ports, and what they tell by webhook."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from http_receiver import HttpReceiver
from kafka_broker import free_port
from prometheus_server import CannotRun, Server

_CONFIG = """
route:
  receiver: desk
  group_by: [alertname, cluster]
  group_wait: 0s
  group_interval: 1s
  repeat_interval: {repeat}
receivers:
  - name: desk
    webhook_configs:
      - url: {url}
        send_resolved: true
"""


class Alertmanager(Server):
    """One Alertmanager that tells ``receiver`` at once. ``peers``: addresses of a cluster's members; none: alone."""

    program = "prometheus-alertmanager"

    def __init__(self, root: Path, receiver: HttpReceiver, repeat: str = "1h") -> None:
        super().__init__(root)
        self._gossip = ""
        (root / "alertmanager.yml").write_text(_CONFIG.format(url=receiver.url, repeat=repeat))

    def start_in(self, gossip: int, peers: Sequence[int] = ()) -> None:
        """Start as a member of a cluster on loopback."""
        self._gossip = f"127.0.0.1:{gossip}"
        options = [f"--cluster.advertise-address={self._gossip}", "--cluster.settle-timeout=2s"]
        self.start(*options, *(f"--cluster.peer=127.0.0.1:{peer}" for peer in peers))

    def _arguments(self) -> list[str]:
        return [
            f"--config.file={self._root / 'alertmanager.yml'}",
            f"--storage.path={self._root / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            f"--cluster.listen-address={self._gossip}",
        ]

    def _ready(self) -> str:
        return "/-/ready"

    def alerts(self) -> list[dict[str, Any]]:
        """What it holds now, silenced ones too."""
        return self._get("/api/v2/alerts")

    def silences(self) -> list[dict[str, Any]]:
        """Silences in force."""
        return [s for s in self._get("/api/v2/silences") if s["status"]["state"] == "active"]

    def silence(self, name: str, value: str, by: str = "Kim") -> None:
        """A person silences a label for an hour."""
        now = time.time()
        times = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(t)) for t in (now - 1, now + 3600)]
        matcher = {"name": name, "value": value, "isRegex": False, "isEqual": True}
        told = {"matchers": [matcher], "startsAt": times[0], "endsAt": times[1], "createdBy": by, "comment": "moved"}
        request = urllib.request.Request(  # noqa: S310 (our own http://)
            self.url + "/api/v2/silences", json.dumps(told).encode(), {"content-type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=5).close()  # noqa: S310 (our own http://)

    def _get(self, path: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:  # noqa: S310 (our own http://)
            told: list[dict[str, Any]] = json.load(answer)
        return told


def told(receiver: HttpReceiver) -> list[tuple[str, list[str]]]:
    """Notifications so far: whether they say firing or resolved, and the nodes they are about."""
    seen = [r.data for r in receiver.requests]
    return [(said["status"], sorted(a["labels"].get("node", "") for a in said["alerts"])) for said in seen]


def until(seen: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if seen():
            return True
        time.sleep(0.05)
    return seen()


__all__ = ["Alertmanager", "CannotRun", "free_port", "told", "until"]
