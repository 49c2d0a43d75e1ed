"""A Kubernetes API server on loopback: lists in pages, watches, single objects, and every way to fail.

The shapes are those of the API's reference. ``objects`` are by collection path; a change is also sent to the watches
that run, and to those that begin at an older version. ``trouble`` decides, per request, whether it fails instead.
"""

from __future__ import annotations

import json
import queue
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Json = dict[str, Any]
PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
SYSTEM_UUID = "4C4C4544-0042-3510-8052-B4C04F564231"


@dataclass
class Trouble:
    """An answer that is none: a status with a ``Status`` object, or bytes as they are, or silence."""

    status: int = 500
    message: str = "trouble"
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    hang_s: float = 0.0


@dataclass
class Asked:
    """A request as it came."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]

    @property
    def watch(self) -> bool:
        return self.query.get("watch") == "1"


class KubeApi:
    """Context manager. ``url`` once entered. With certificate and key files it speaks TLS."""

    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        self.objects: dict[str, dict[str, Json]] = {PODS: {}, NODES: {}}
        self.singles: dict[str, Json] = {}
        self.asked: list[Asked] = []
        self.trouble: Callable[[Asked], Trouble | None] = lambda _: None
        self.page = 500
        self.version = 1000
        self._watches: list[tuple[str, queue.Queue[bytes | None]]] = []
        self._history: list[tuple[str, int, bytes]] = []
        self._lock = threading.Lock()
        self._end = threading.Event()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                stub._serve(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: object) -> None:
                """A client that hung up is no news."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._scheme = "https" if tls else "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def put(self, collection: str, item: Json) -> Json:
        """Make or change an object, and tell the watches."""
        with self._lock:
            self.version += 1
            item["metadata"]["resourceVersion"] = str(self.version)
            known = self.objects.setdefault(collection, {})
            type_ = "MODIFIED" if item["metadata"]["uid"] in known else "ADDED"
            known[item["metadata"]["uid"]] = item
            self._happened(collection, type_, item)
        return item

    def drop(self, collection: str, uid: str, **changed: Any) -> None:
        """Delete an object; its last state may be another."""
        with self._lock:
            self.version += 1
            item = {**self.objects[collection].pop(uid), **changed}
            item["metadata"] = {**item["metadata"], "resourceVersion": str(self.version)}
            self._happened(collection, "DELETED", item)

    def tell(self, collection: str, type_: str, item: Json) -> None:
        """A line to the watches of a collection."""
        self.say(collection, json.dumps({"type": type_, "object": item}).encode() + b"\n")

    def say(self, collection: str, line: bytes | None) -> None:
        """Bytes to the watches of a collection; ``None`` cuts them."""
        with self._lock:
            self._send(collection, line)

    def watching(self, collection: str) -> int:
        """Watches of a collection that run."""
        with self._lock:
            return sum(of == collection for of, _ in self._watches)

    def of(self, path: str) -> list[Asked]:
        """Requests of a path."""
        return [a for a in self.asked if a.path == path]

    def _happened(self, collection: str, type_: str, item: Json) -> None:
        line = json.dumps({"type": type_, "object": item}).encode() + b"\n"
        self._history.append((collection, self.version, line))
        self._send(collection, line)

    def _send(self, collection: str, line: bytes | None) -> None:
        for of, lines in self._watches:
            if of == collection:
                lines.put(line)

    # --- serving ------------------------------------------------------------------------------------------

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        asked = Asked(unquote(parts.path), query, {k.lower(): v for k, v in handler.headers.items()})
        self.asked.append(asked)
        trouble = self.trouble(asked)
        if trouble is not None:
            self._fail(handler, trouble)
        elif asked.watch:
            self._stream(handler, asked)
        elif asked.path in self.singles:
            self._json(handler, 200, self.singles[asked.path])
        elif asked.path in self.objects:
            self._json(handler, 200, self._list(asked))
        else:
            self._json(handler, 404, _status(404, "the server could not find the requested resource"))

    def _list(self, asked: Asked) -> Json:
        with self._lock:
            items = list(self.objects[asked.path].values())
            version = str(self.version)
        items = [i for i in items if _matches(i, asked.query)]
        start = int(asked.query.get("continue", "0"))
        limit = min(self.page, int(asked.query.get("limit", len(items) or 1)))
        more = {"continue": str(start + limit)} if start + limit < len(items) else {}
        return {"kind": "List", "metadata": {"resourceVersion": version, **more}, "items": items[start : start + limit]}

    def _stream(self, handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        lines: queue.Queue[bytes | None] = queue.Queue()
        entry = (asked.path, lines)
        since = int(asked.query.get("resourceVersion", "0"))
        with self._lock:
            for collection, version, line in self._history:
                if collection == asked.path and version > since:
                    lines.put(line)
            self._watches.append(entry)
        try:
            handler.send_response(200)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            for line in self._lines(lines):
                handler.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                handler.wfile.flush()
        except OSError:
            pass
        finally:
            with self._lock:
                self._watches.remove(entry)
            handler.close_connection = True

    def _lines(self, lines: queue.Queue[bytes | None]) -> Iterator[bytes]:
        while not self._end.is_set():
            try:
                line = lines.get(timeout=0.05)
            except queue.Empty:
                continue
            if line is None:
                return
            yield line

    def _fail(self, handler: BaseHTTPRequestHandler, trouble: Trouble) -> None:
        if trouble.hang_s:
            self._end.wait(trouble.hang_s)
        if trouble.raw is not None:
            handler.wfile.write(trouble.raw)
            handler.wfile.flush()
            handler.close_connection = True
            return
        self._json(handler, trouble.status, _status(trouble.status, trouble.message), trouble.headers)

    def _json(
        self, handler: BaseHTTPRequestHandler, status: int, body: Json, headers: dict[str, str] | None = None
    ) -> None:
        data = json.dumps(body).encode()
        try:
            handler.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data)
        except OSError:
            handler.close_connection = True

    def __enter__(self) -> KubeApi:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._server.shutdown()
        self._server.server_close()


def _status(code: int, message: str) -> Json:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


def _matches(item: Json, query: dict[str, str]) -> bool:
    name, _, wanted = query.get("fieldSelector", "").partition("=")
    if name == "spec.nodeName" and item.get("spec", {}).get("nodeName") != wanted:
        return False
    label, _, value = query.get("labelSelector", "").partition("=")
    return not label or item["metadata"].get("labels", {}).get(label) == value


# --- objects ----------------------------------------------------------------------------------------------


def owner(kind: str, name: str, uid: str, group: str = "batch/v1") -> Json:
    return {"apiVersion": group, "kind": kind, "name": name, "uid": uid, "controller": True}


def pod(
    name: str,
    *,
    uid: str = "",
    namespace: str = "team",
    node: str = "host-1",
    phase: str = "Running",
    gpus: int = 1,
    labels: Json | None = None,
    owned_by: Json | None = None,
    created: str = "2026-03-01T11:00:00Z",
    ended: Json | None = None,
    restarts: int = 0,
    **status: Any,
) -> Json:
    """A pod as the API gives it, with much that nobody reads."""
    limits = {"nvidia.com/gpu": str(gpus), "memory": "64Gi"} if gpus else {"memory": "1Gi"}
    state = {"terminated": ended} if ended else {"running": {"startedAt": "2026-03-01T11:00:20Z"}}
    return {
        "metadata": {
            "name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "creationTimestamp": created,
            "resourceVersion": "1", "labels": labels or {}, "annotations": {"kubernetes.io/config.seen": "x"},
            **({"ownerReferences": [owned_by]} if owned_by else {}),
        },
        "spec": {
            "nodeName": node, "priorityClassName": "high",
            "containers": [{"name": "main", "image": "train:1", "resources": {"limits": limits},
                            "env": [{"name": "SECRET", "value": "never read"}]}],
        },
        "status": {
            "phase": phase, "startTime": "2026-03-01T11:00:10Z",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-01T11:00:05Z"}],
            "containerStatuses": [{
                "name": "main", "imageID": "registry/train@sha256:" + "ab" * 32, "restartCount": restarts,
                "state": state, "lastState": {},
            }],
            **status,
        },
    }  # fmt: skip


def node(name: str = "host-1", *, ready: str = "True", boot_id: str = "boot", **spec: Any) -> Json:
    """A node as the kubelet keeps it."""
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": {"zone": "a"}},
        "spec": {"providerID": f"kind://{name}", **spec},
        "status": {
            "conditions": [
                {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"},
                {"type": "Ready", "status": ready, "reason": "KubeletReady" if ready == "True" else "KubeletNotReady"},
            ],
            "nodeInfo": {"machineID": "m" * 32, "systemUUID": SYSTEM_UUID, "bootID": boot_id},
            "images": [{"names": ["x" * 200], "sizeBytes": 1}] * 5,
        },
    }  # fmt: skip


def bare(kind: str, name: str, uid: str, *, owned_by: Json | None = None, labels: Json | None = None) -> Json:
    """An object of which the metadata are asked."""
    meta = {"name": name, "namespace": "team", "uid": uid, "creationTimestamp": "2026-03-01T10:00:00Z"}
    return {
        "kind": kind,
        "metadata": {**meta, "labels": labels or {}, **({"ownerReferences": [owned_by]} if owned_by else {})},
    }


def workload(name: str, job: Json, *, count: int = 2, gpus: int = 8, **conditions: Json) -> Json:
    """A Kueue Workload; conditions by type, each with status, reason and time."""
    template = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]}}
    return {
        "metadata": {
            "name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "1",
            "creationTimestamp": "2026-03-01T09:00:00Z", "ownerReferences": [job],
            "labels": {"kueue.x-k8s.io/job-uid": job["uid"]},
        },
        "spec": {"queueName": "gpu-queue", "podSets": [{"name": "main", "count": count, "template": template}]},
        "status": {"conditions": [{"type": t, **c} for t, c in conditions.items()]},
    }  # fmt: skip
