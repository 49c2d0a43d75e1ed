"""Real Prometheus and real VictoriaMetrics (Debian packages ``prometheus``, ``victoria-metrics``) on free ports."""

from __future__ import annotations

import ctypes
import json
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kafka_broker import free_port

Labels = Mapping[str, str]
Samples = Sequence[tuple[float, float]]
"""Epoch seconds and value, in order of time."""


class CannotRun(Exception):
    """The server cannot be started on this machine; the text says what to install."""


class Server:
    """One server process that answers Prometheus' query API at ``url``."""

    program = ""
    fixed_port = 0
    """Set for a server that has to come back where it was; else any free one."""

    def __init__(self, root: Path) -> None:
        if shutil.which(self.program) is None:
            raise CannotRun(f"{self.program} not found: apt-get install -y --no-install-recommends {self.program}")
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        root.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *options: str) -> None:
        """Start and return when it answers; again where another program takes the port meanwhile."""
        for attempt in range(3):
            self.port = self.fixed_port or free_port()
            log = self._root / "server.log"
            # The kernel sends the signal at the end of the thread that started the server, not of the process.
            lasting = threading.current_thread() is threading.main_thread()
            with log.open("ab") as out:
                self._process = subprocess.Popen(
                    [self.program, *self._arguments(), *options],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    preexec_fn=_end_with_parent if lasting else None,
                )
            if self._answers(30.0):
                return
            self.stop()
            if attempt == 2 or "address already in use" not in log.read_text():
                raise CannotRun(f"{self.program} did not answer:\n{log.read_text()[-3000:]}")

    def stop(self) -> None:
        """End it in good order, and for good where it does not."""
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def serve(self, series: Iterable[tuple[Labels, Samples]], *options: str) -> None:
        """Start with these series; they can be asked for when this returns."""
        raise NotImplementedError

    def _arguments(self) -> list[str]:
        raise NotImplementedError

    def _ready(self) -> str:
        raise NotImplementedError

    def _answers(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        assert self._process is not None
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(self.url + self._ready(), timeout=1) as answer:  # noqa: S310 (our own http://)
                    if answer.status == 200:
                        return True
            except OSError:
                time.sleep(0.05)
        return False


class VictoriaMetrics(Server):
    """One node of VictoriaMetrics; data may come at any time."""

    program = "victoria-metrics"

    def _arguments(self) -> list[str]:
        return [
            f"-storageDataPath={self._root / 'data'}",
            f"-httpListenAddr=127.0.0.1:{self.port}",
            "-retentionPeriod=100y",
            "-memory.allowedBytes=256MB",
            "-search.latencyOffset=0s",
        ]

    def _ready(self) -> str:
        return "/health"

    def serve(self, series: Iterable[tuple[Labels, Samples]], *options: str) -> None:
        self.start(*options)
        self.load(series)

    def load(self, series: Iterable[tuple[Labels, Samples]]) -> None:
        """Store these series; they can be asked for when this returns."""
        lines = [
            json.dumps(
                {
                    "metric": dict(labels),
                    "values": [value for _, value in samples],
                    "timestamps": [round(ts * 1000) for ts, _ in samples],
                }
            )
            for labels, samples in series
        ]
        self.post("/api/v1/import", "\n".join(lines).encode())
        self.flush()

    def flush(self) -> None:
        """Make what was stored visible to queries now."""
        for path in ("/internal/force_flush", "/internal/resetRollupResultCache"):
            urllib.request.urlopen(self.url + path, timeout=30).close()  # noqa: S310 (our own http://)

    def post(self, path: str, body: bytes) -> None:
        """Send data in one of the forms it takes."""
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})  # noqa: S310 (our own http://)
        urllib.request.urlopen(request, timeout=120).close()  # noqa: S310 (the same)


class Prometheus(Server):
    """One Prometheus; data is made into blocks by promtool before it starts."""

    program = "prometheus"

    def _arguments(self) -> list[str]:
        config = self._root / "prometheus.yml"
        if not config.exists():
            config.write_text("global: {scrape_interval: 1m}\n")
        return [
            f"--config.file={config}",
            f"--storage.tsdb.path={self._root / 'data'}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def _ready(self) -> str:
        return "/-/ready"

    def serve(self, series: Iterable[tuple[Labels, Samples]], *options: str) -> None:
        self.load(series)
        self.start(*options)

    def load(self, series: Iterable[tuple[Labels, Samples]]) -> None:
        """Make blocks of these series; only before it starts."""
        text = self._root / "data.om"
        with text.open("w") as out:
            for labels, samples in series:
                rest = ",".join(f"{k}={json.dumps(v)}" for k, v in labels.items() if k != "__name__")
                out.writelines(f"{labels['__name__']}{{{rest}}} {value!r} {ts:.3f}\n" for ts, value in samples)
            out.write("# EOF\n")
        done = subprocess.run(
            ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(self._root / "data")],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode:
            raise CannotRun(f"promtool could not make blocks: {done.stdout}{done.stderr}")


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
