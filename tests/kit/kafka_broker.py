"""A real Apache Kafka broker of one node (KRaft), started by the suite on free loopback ports.

The jars are fetched once by Maven into ``$GRAYNODE_TEST_CACHE`` (default ``~/.cache/graynode-tests``), under a
name that changes with ``kafka/pom.xml``; java and mvn are found by PATH.
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

POM = Path(__file__).with_name("kafka") / "pom.xml"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "message.max.bytes": str(10 << 20),
    # One replica of everything: there is only one node.
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Patience that suits a fleet makes tests slow.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "1000",
    # A small machine.
    "log.cleaner.dedupe.buffer.size": str(2 << 20),
    "log.index.size.max.bytes": str(1 << 20),
    "num.network.threads": "2",
    "num.io.threads": "2",
}


class CannotRun(Exception):
    """The broker cannot be started on this machine; the text says what to install."""


def jars() -> Path:
    """The folder of the broker's jars, fetched if this machine has not got them yet."""
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    if missing:
        raise CannotRun(
            f"{' and '.join(missing)} not found: apt-get install -y --no-install-recommends"
            " openjdk-17-jre-headless maven"
        )
    cache = Path(os.environ.get("GRAYNODE_TEST_CACHE") or Path.home() / ".cache" / "graynode-tests")
    folder = cache / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    command = ["mvn", "-B", "-ntp", "-q", "-f", str(POM), COPY, "-DincludeScope=runtime", f"-DoutputDirectory={new}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if done.returncode:
        raise CannotRun(f"the jars of Kafka could not be fetched: {(done.stdout + done.stderr)[-1000:]}")
    new.rename(folder)


class Broker:
    """One broker in ``root``. ``listeners`` are name → protocol; the first is the broker's own."""

    def __init__(
        self,
        folder: Path,
        root: Path,
        listeners: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        format_options: Sequence[str] = (),
    ) -> None:
        self._jars, self._root = folder, root
        self._listeners = dict(listeners or {"PLAINTEXT": "PLAINTEXT"})
        self._settings = {**SETTINGS, **(settings or {})}
        self._format_options = list(format_options)
        self._process: subprocess.Popen[bytes] | None = None
        self.ports: dict[str, int] = {}
        root.mkdir(parents=True, exist_ok=True)

    def address(self, listener: str = "PLAINTEXT") -> str:
        """``host:port`` of a listener."""
        return f"127.0.0.1:{self.ports[listener]}"

    def create(self) -> None:
        """Format the storage and start for the first time, again if another program takes a port meanwhile."""
        for attempt in range(3):
            shutil.rmtree(self._root / "data", ignore_errors=True)
            self._configure()
            self._run_format()
            try:
                self.start()
            except CannotRun as error:
                if attempt == 2 or "already in use" not in str(error):
                    raise
            else:
                return

    def start(self, timeout_s: float = 60.0) -> None:
        """Start with the storage as it is, and return when the first listener answers."""
        # The kernel sends the signal at the end of the thread that started the broker, not of the process.
        lasting = threading.current_thread() is threading.main_thread()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._config)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent if lasting else None,
            )
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if self._process.poll() is not None:
                raise CannotRun(f"the broker ended at its start:\n{self._log.read_text()[-3000:]}")
            if time.monotonic() > deadline:
                self.kill()
                raise CannotRun(f"the broker did not answer:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it in good order."""
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it as a loss of the machine would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def _config(self) -> Path:
        return self._root / "server.properties"

    @property
    def _log(self) -> Path:
        return self._root / "broker.log"

    def _configure(self) -> None:
        self.ports = {name: free_port() for name in self._listeners}
        controller = free_port()
        urls = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        protocols = ",".join(f"{name}:{protocol}" for name, protocol in self._listeners.items())
        settings = {
            **self._settings,
            "listeners": f"{urls},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": urls,
            "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": next(iter(self._listeners)),
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "log.dirs": str(self._root / "data"),
        }
        self._config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _run_format(self) -> None:
        # An id that begins with "-" would be taken for an option.
        cluster = base64.urlsafe_b64encode(b"\x01" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        options = ["format", "--standalone", "-t", cluster, "-c", str(self._config), *self._format_options]
        command = self._java("kafka.tools.StorageTool", *options)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise CannotRun(f"the storage could not be formatted: {done.stdout}{done.stderr}")

    def _java(self, main: str, *arguments: str) -> list[str]:
        flags = ["-Xms128m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
        flags.append("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        return ["java", *flags, "-cp", f"{self._jars}/*", main, *arguments]

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", next(iter(self.ports.values()))), 0.2).close()
        except OSError:
            return False
        return True


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
