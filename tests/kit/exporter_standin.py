"""Exporters on loopback that answer as they are told, and pages as dcgm-exporter writes them."""

from __future__ import annotations

import atexit
import functools
import gzip
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/dcgm_exporter"
MODEL = "NVIDIA H100 80GB HBM3"

DEFAULT: Mapping[str, int | float] = {
    "DCGM_FI_DEV_SM_CLOCK": 1980, "DCGM_FI_DEV_MEM_CLOCK": 2619, "DCGM_FI_DEV_MEMORY_TEMP": 45,
    "DCGM_FI_DEV_GPU_TEMP": 41, "DCGM_FI_DEV_POWER_USAGE": 113.611, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 5551899580,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0, "DCGM_FI_DEV_GPU_UTIL": 99, "DCGM_FI_DEV_MEM_COPY_UTIL": 41,
    "DCGM_FI_DEV_ENC_UTIL": 0, "DCGM_FI_DEV_DEC_UTIL": 0, "DCGM_FI_DEV_XID_ERRORS": 0, "DCGM_FI_DEV_FB_FREE": 22563,
    "DCGM_FI_DEV_FB_USED": 58541, "DCGM_FI_DEV_FB_RESERVED": 470, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 123456,
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": 0, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0,
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 0, "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.987654, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.412345,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.312345, "DCGM_FI_PROF_PCIE_TX_BYTES": 112603, "DCGM_FI_PROF_PCIE_RX_BYTES": 17544,
}  # fmt: skip
"""The shipped ``default-counters.csv`` of dcgm-exporter 4."""


def uuid_of(gpu: int, node: int = 0) -> str:
    """A GPU's UUID."""
    return f"GPU-{node:08x}-7953-256e-8f33-{gpu:012x}"


def labels(gpu: int = 0, node: int = 0, **more: str) -> str:
    """A label set, in dcgm-exporter's order."""
    base = {
        "gpu": str(gpu), "UUID": uuid_of(gpu, node), "pci_bus_id": f"00000000:{0x31 + gpu:02X}:00.0",
        "device": f"nvidia{gpu}", "modelName": MODEL, "Hostname": f"gpu-node-{node}",
        "DCGM_FI_DRIVER_VERSION": "580.105.08",
    }  # fmt: skip
    return ",".join(f'{name}="{value}"' for name, value in {**base, **more}.items())


def line(name: str, value: object, gpu: int = 0, node: int = 0, **more: str) -> str:
    """One line."""
    return f"{name}{{{labels(gpu, node, **more)}}} {value}\n"


def page(
    gpus: int = 1,
    values: Mapping[str, Any] | None = None,
    *,
    node: int = 0,
    more: Mapping[str, str] | None = None,
    each: Callable[[str, int, Any], Any] = lambda _name, _gpu, value: value,
) -> bytes:
    """A whole page. ``each`` gives a GPU's value of a metric."""
    text = []
    for name, value in (DEFAULT if values is None else values).items():
        text.append(f"# HELP {name} as shipped\n# TYPE {name} gauge\n")
        text += [line(name, each(name, gpu, value), gpu, node, **(more or {})) for gpu in range(gpus)]
    return "".join(text).encode()


@dataclass
class Answer:
    """How one request is answered. ``cut`` ends the connection after so many bytes of the body; ``drip_s`` passes
    before each of its bytes; ``hang_s`` before anything."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    how: str = "length"
    """length, chunked, close (no length, the end says it) or raw (the body is all there is)."""
    cut: int | None = None
    drip_s: float = 0.0
    hang_s: float = 0.0


class Exporters:
    """Any number of exporters behind one port, by path; ``answer`` decides. Context manager."""

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        self.answer = answer
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.connections = 0
        self.closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer.connections += 1

            def do_GET(self) -> None:
                outer.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
                try:
                    outer.give(self, outer.answer(self.path))
                except OSError:
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def url(self, path: str = "/metrics") -> str:
        """An exporter's address."""
        return f"http://127.0.0.1:{self.port}{path}"

    def give(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        """Answer."""
        self.closing.wait(answer.hang_s) if answer.hang_s else None
        if answer.how == "raw":
            handler.wfile.write(answer.body)
            handler.close_connection = True
            return
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        sent = answer.body
        if answer.how == "chunked":
            handler.send_header("Transfer-Encoding", "chunked")
            half = len(sent) // 2
            sent = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (sent[:half], sent[half:], b""))
        elif answer.how == "length":
            handler.send_header("Content-Length", str(len(sent)))
        if answer.how == "close" or answer.cut is not None:
            handler.close_connection = True
        handler.end_headers()
        self._write(handler, sent[: answer.cut], answer.drip_s)

    def _write(self, handler: BaseHTTPRequestHandler, sent: bytes, drip_s: float) -> None:
        if not drip_s:
            handler.wfile.write(sent)
            return
        for at in range(0, len(sent), 64):
            if self.closing.wait(drip_s):
                return
            handler.wfile.write(sent[at : at + 64])

    def __enter__(self) -> Exporters:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@functools.cache
def shared() -> Exporters:
    """One that answers a page of two GPUs until the tests end; energy grows with time."""
    made = Exporters(lambda _path: Answer(page(2, each=_growing)))
    made.__enter__()
    atexit.register(made.__exit__)
    return made


def _growing(name: str, _gpu: int, value: Any) -> Any:
    return value + int(time.monotonic() * 1e6) if name.endswith("ENERGY_CONSUMPTION") else value


def packed(body: bytes) -> Answer:
    """The same, gzip although nobody asked."""
    return Answer(gzip.compress(body, 1), headers={"Content-Encoding": "gzip"})
