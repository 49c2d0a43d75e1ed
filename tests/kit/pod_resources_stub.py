"""A kubelet's PodResources API on a Unix socket: a real gRPC server that gives the bytes it is told to give.

``Bytes`` writes protobuf by hand, field by field, from the published ``podresources/v1/api.proto``.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

LIST, ALLOCATABLE = "List", "GetAllocatableResources"


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def part(number: int, content: bytes | str) -> bytes:
    """A length-delimited field."""
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    """A varint field."""
    return varint(field << 3) + varint(value)


def devices(resource: str, *ids: str, numa: int | None = None) -> bytes:
    """``ContainerDevices``."""
    topology = b"" if numa is None else part(3, part(1, number(1, numa)))
    return part(1, resource) + b"".join(part(2, id_) for id_ in ids) + topology


def claim(driver: str, pool: str, device: str, *cdi: str) -> bytes:
    """``DynamicResource`` of one claim with one ``ClaimResource``."""
    resource = b"".join(part(1, part(1, name)) for name in cdi)
    resource += part(2, driver) + part(3, pool) + part(4, device)
    return part(2, "claim") + part(3, "team") + part(4, resource)


def container(name: str, held: Sequence[bytes] = (), claims: Sequence[bytes] = ()) -> bytes:
    """``ContainerResources``, with CPUs and memory that a reader passes over."""
    memory = part(4, part(1, "memory") + number(2, 1 << 34))
    return part(1, name) + b"".join(part(2, d) for d in held) + part(3, varint(7)) + memory + b"".join(
        part(5, c) for c in claims
    )  # fmt: skip


def pod(namespace: str, name: str, *containers: bytes) -> bytes:
    """``PodResources``."""
    return part(1, name) + part(2, namespace) + b"".join(part(3, c) for c in containers)


def listing(*pods: bytes) -> bytes:
    """``ListPodResourcesResponse``."""
    return b"".join(part(1, p) for p in pods)


def gpu_pod(namespace: str, name: str, *ids: str, resource: str = "nvidia.com/gpu") -> bytes:
    """A pod of one container with GPUs by the device plugin."""
    return pod(namespace, name, container("main", [devices(resource, *ids, numa=0)]))


class KubeletStub:
    """Serves ``answers`` by method; a callable is asked each time and may raise or sleep. Context manager."""

    def __init__(self, path: Path, package: str = "v1", answers: Mapping[str, Any] | None = None) -> None:
        self.path, self._package = path, package
        self.answers: dict[str, bytes | Callable[[], bytes]] = dict(answers or {LIST: b""})
        self.calls: list[str] = []
        self._server: grpc.Server | None = None

    def _answer(self, method: str) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
            self.calls.append(method)
            given = self.answers[method]
            return given() if callable(given) else given

        return answer

    def __enter__(self) -> KubeletStub:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_send_message_length", -1)])
        handlers = {m: grpc.unary_unary_rpc_method_handler(self._answer(m)) for m in self.answers}
        service = f"{self._package}.PodResourcesLister"
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.stop(None).wait(5)
        self.path.unlink(missing_ok=True)


class RawSocket:
    """A server on a Unix socket that reads what comes and writes ``said``, whatever that is; waits, then hangs up."""

    def __init__(self, path: Path, said: bytes, *, hang_s: float = 0.0) -> None:
        self.path, self._said, self._hang_s = path, said, hang_s
        self._socket = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._end = threading.Event()

    def _serve(self) -> None:
        while not self._end.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(65536)
                    connection.sendall(self._said)
                    self._end.wait(self._hang_s)
                except OSError:
                    continue

    def __enter__(self) -> RawSocket:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._socket.bind(str(self.path))
        self._socket.listen()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            time.sleep(0)
        self._socket.close()
        self.path.unlink(missing_ok=True)
