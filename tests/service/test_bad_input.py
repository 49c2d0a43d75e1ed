"""What the world does to real processes: each wrong thing is a clear line with the way out, or a degradation that is
seen and counted; nothing is lost, and nobody is shown a traceback."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import landing_kit
import pytest
from certificates import Authority
from kafka_broker import free_port
from roles import Roles

from graynode.pipeline.codec import Message
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import VERSION_KEY
from graynode.pipeline.queries import Queries
from graynode.pipeline.schema import EVENTS, INCIDENTS, SAMPLES, VERSION
from graynode.pipeline.spool import SpoolBus

pytestmark = pytest.mark.early
ROLES = ("agent", "pipeline", "detect", "respond")
SECRET = "whsec_" + "QUFB" * 8
NOT_ROOT = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-syslog,-sys_admin") if os.geteuid() == 0 else ()
"""Before a command: root without the right to read what is not its own."""


def ask(folder: Path, sql: str) -> list[dict[str, Any]]:
    queries = Queries(Lake(str(folder)))
    try:
        return queries.rows(sql)
    finally:
        queries.close()


def call(roles: Roles, *words: str, prefix: Sequence[str] = (), until: str = "", most_s: float = 30) -> tuple[int, str]:
    """Run a command to its end, or until it has said something and then until SIGTERM has ended it. Its exit code and
    all it said, in which there is no traceback."""
    command = [*prefix, sys.executable, "-m", "graynode.service.cli", *words, "--config", str(roles.config)]
    heard = roles.folder / f"{words[0]}.heard"
    with heard.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            end = time.monotonic() + most_s
            while process.poll() is None and not (until and until in heard.read_text()) and time.monotonic() < end:
                time.sleep(0.05)
            try:
                process.wait(0.5)  # it may be about to end by itself
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait(30)
        finally:
            process.kill()
    said = heard.read_text()
    assert "Traceback" not in said, said
    return process.returncode, said


def webhook(folder: Path, url: str = "http://127.0.0.1:9/") -> dict[str, Any]:
    """A receiver in the configuration, its secret in place."""
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    return {"webhooks": {"ops": {"url": url, "secret_file": str(secret)}}}


def somebody_elses(path: Path) -> None:
    """Nobody but its owner may use it, and that is not who runs the command."""
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        path.chmod(0o700 if path.is_dir() else 0o600)
    else:
        path.chmod(0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root and the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """A file that leaves nothing free."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


# --- disks ------------------------------------------------------------------------------------------------


def test_the_lakes_disk_is_full_for_a_while(small_disk: Path, tmp_path: Path) -> None:
    """The pipeline says the table, the space and the way out once, goes on, and when there is room every second of the
    time between is in the lake, once."""
    settings = {"agent": {"collectors": ["host"], "batch_s": 0.5}, "lake": {"path": str(small_disk / "lake")}}
    seconds = "SELECT count(*) AS c, count(DISTINCT ts) AS d, max(epoch(ts)) - min(epoch(ts)) AS s FROM host"
    with Roles(tmp_path, settings) as roles:
        roles.start("agent")
        roles.start("pipeline")
        roles.until(lambda: ask(small_disk / "lake", seconds)[0]["c"] > 2)
        ballast = fill(small_disk)
        roles.until(lambda: "No space left" in roles.log("pipeline"))
        held = ask(small_disk / "lake", seconds)[0]["c"]
        time.sleep(3)
        ballast.unlink()
        roles.until(lambda: ask(small_disk / "lake", seconds)[0]["c"] > held + 3)
        said = roles.log("pipeline")
        assert roles.stop("agent") == 0
        time.sleep(2)
        assert roles.stop("pipeline") == 0
    found = ask(small_disk / "lake", seconds)[0]
    assert found["c"] == found["d"]
    assert found["c"] >= found["s"]  # a row for every second
    assert said.count("does not take rows") == 1
    assert "free some space there, or move the lake (lake.path)" in said
    assert "the lake takes rows again" in said
    assert "Traceback" not in said
    assert said.count("panicked") <= 1  # by the library, of the write that was under way when the disk filled


def test_the_spools_disk_is_full_for_a_while(small_disk: Path, tmp_path: Path) -> None:
    """The agent holds rows in memory meanwhile, says so with the way out, and loses none."""
    settings = {"agent": {"collectors": ["host"], "batch_s": 0.5}, "bus": {"spool_dir": str(small_disk / "bus")}}
    with Roles(tmp_path, settings) as roles:
        roles.start("agent")
        roles.until(lambda: list((small_disk / "bus").glob("graynode.samples/*")))
        time.sleep(1)
        ballast = fill(small_disk)
        roles.until(lambda: "held in memory" in roles.log("agent"))
        time.sleep(3)
        ballast.unlink()
        roles.until(lambda: "the bus takes messages again" in roles.log("agent"))
        assert roles.stop("agent") == 0
        said = roles.log("agent")
        roles.start("pipeline")
        sql = "SELECT count(*) AS c, count(DISTINCT ts) AS d, max(epoch(ts)) - min(epoch(ts)) AS s FROM host"
        stops = "SELECT 1 FROM event WHERE kind = 'agent_stop'"
        roles.until(lambda: ask(tmp_path / "lake", stops) and ask(tmp_path / "lake", sql)[0]["c"] > 5)
        assert roles.stop("pipeline") == 0
    found = ask(tmp_path / "lake", sql)[0]
    assert found["c"] == found["d"]
    assert found["c"] >= found["s"]
    assert "free space on its file system" in said
    assert "Traceback" not in said


# --- rights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "role", "code", "way_out"),
    [
        ("state", "agent", 2, "agent.state_dir"),
        ("bus", "agent", 1, "move the spool"),
        ("bus", "pipeline", 0, "check its owner"),
        ("bus", "detect", 0, "check its owner"),
        ("bus", "respond", 0, "check its owner"),
        ("lake", "pipeline", 0, "cannot be looked into"),
        ("lake", "detect", 2, "choose another place in the configuration, or run as its owner"),
    ],
)
def test_a_folder_of_somebody_else(tmp_path: Path, folder: str, role: str, code: int, way_out: str) -> None:
    """Its path, that there is no permission, and the way out. What can be put right while a role runs is waited for;
    rows that an agent could not put anywhere are its exit code."""
    roles = Roles(tmp_path, {"agent": {"collectors": ["host"]}, "respond": webhook(tmp_path)})
    (tmp_path / folder).mkdir()
    somebody_elses(tmp_path / folder)
    ends_by_itself = code == 2
    found, said = call(roles, role, prefix=NOT_ROOT, until="" if ends_by_itself else "ermission", most_s=60)
    (tmp_path / folder).chmod(0o700)
    assert found == code, said
    assert str(tmp_path / folder) in said
    assert "ermission" in said
    assert way_out in said


def test_the_kernel_log_may_not_be_read(tmp_path: Path) -> None:
    """The agent goes on with what it may read, and says which right is missing."""
    log = tmp_path / "kmsg"
    log.write_text("")
    somebody_elses(log)
    roles = Roles(tmp_path, {"agent": {"collectors": ["kernel_log", "host"], "kmsg": str(log)}})
    code, said = call(roles, "agent", "--once", prefix=NOT_ROOT)
    assert code == 0
    assert "no permission; add CAP_SYSLOG (kernel.dmesg_restrict) or group adm, or set agent.kmsg" in said
    code, said = call(roles, "agent", "--once", "--dry-run", prefix=NOT_ROOT)
    assert '"table":"host"' in said.replace(" ", "")


@pytest.mark.parametrize("words", [("agent",), ("detect",), ("config", "check"), ("sql", "-c", "SELECT 1")], ids=str)
def test_a_configuration_that_may_not_be_read(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Every command says which file, and ends."""
    roles = Roles(tmp_path, {})
    somebody_elses(roles.config)
    code, said = call(roles, *words, prefix=NOT_ROOT)
    assert code == 2
    assert str(roles.config) in said


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "listen"),
    [*((role, "127.0.0.1:99999") for role in ROLES), ("pipeline", "127.0.0.1:http"), ("respond", "203.0.113.1:9401")],
)
def test_a_metrics_address_that_cannot_be(tmp_path: Path, role: str, listen: str) -> None:
    """The key and the value are named, and the role ends."""
    code, said = call(Roles(tmp_path, {role: {"metrics_listen": listen}}), role)
    assert code in (1, 2)
    assert f"{role}.metrics_listen" in said
    assert listen in said


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda secret: secret.unlink(), "cannot be read: No such file"),
        (somebody_elses, "cannot be read: Permission denied"),
        (lambda secret: secret.write_text("hunter2"), "whsec_"),
    ],
    ids=["missing", "unreadable", "none"],
)
def test_a_receivers_secret_is_not_there(tmp_path: Path, prepare: Callable[[Path], Any], said: str) -> None:
    """Nobody could verify what is sent: the role ends, and names key, file and form, never the secret."""
    roles = Roles(tmp_path, {"respond": webhook(tmp_path)})
    prepare(tmp_path / "secret")
    code, told = call(roles, "respond", prefix=NOT_ROOT)
    assert code == 2
    assert f"respond.webhooks.ops.secret_file = {tmp_path / 'secret'}" in told
    assert said in told
    assert "hunter2" not in told


# --- the broker -------------------------------------------------------------------------------------------


@pytest.fixture
def untrusted(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A TLS port whose certificate was signed by another authority than the one configured."""
    server, client = Authority(tmp_path / "server", "one"), Authority(tmp_path / "client", "two")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server.issue("broker", server=True))
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = listening.accept()
                except OSError:
                    return
                with closing(accepted):
                    accepted.settimeout(5)
                    try:
                        context.wrap_socket(accepted, server_side=True).close()
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        yield {"bootstrap": address, "security": "SSL", "ca_file": str(client.ca_file), "connect_timeout_s": 2}
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.mark.parametrize(("role", "code"), [("agent", 0), ("pipeline", 1), ("detect", 1), ("respond", 1)])
def test_a_broker_with_a_wrong_certificate(tmp_path: Path, untrusted: dict[str, Any], role: str, code: int) -> None:
    """The key of the CA's file and the reason. An agent keeps its rows in the spool; the others end, because no waiting
    puts it right."""
    settings = {"agent": {"collectors": ["host"]}, "respond": webhook(tmp_path)}
    roles = Roles(tmp_path, {**settings, "bus": {"kind": "kafka", "kafka": untrusted}})
    found, said = call(roles, role, until="messages are held in the spool")
    assert found == code, said
    assert "certificate is not trusted" in said
    assert f"bus.kafka.ca_file = {untrusted['ca_file']}" in said
    if role == "agent":
        assert "messages wait in the spool for the next start" in said


@pytest.mark.parametrize("role", ROLES)
def test_nobody_listens_where_the_broker_should(tmp_path: Path, role: str) -> None:
    """Every role waits for it, names the address, and ends with 0 when it is told to."""
    kafka = {"bootstrap": f"127.0.0.1:{free_port()}", "connect_timeout_s": 1}
    settings = {"agent": {"collectors": ["host"]}, "respond": webhook(tmp_path)}
    roles = Roles(tmp_path, {**settings, "bus": {"kind": "kafka", "kafka": kafka}})
    code, said = call(roles, role, until="connection refused")
    assert code == 0, said
    assert f"Kafka at {kafka['bootstrap']}: connection refused" in said
    assert "start the broker or correct bus.kafka.bootstrap" in said


# --- messages ---------------------------------------------------------------------------------------------


def hostile() -> list[tuple[str, Message]]:
    """Messages that no honest sender makes, each with the topic it comes on."""
    good = landing_kit.message([landing_kit.host_row(0)], table="host", sequence=900)
    incident = {"incident_id": "i", "revision": 0, "state": "open", "cluster": "test", "node_id": "n1", "cause": "ecc"}
    dated = {**incident, "ts": "2026-11-02T10:00:00Z", "since": "2026-11-02T10:00:00Z"}
    bomb = b"\x28\xb5\x2f\xfd\xa0" + (1 << 31).to_bytes(4, "little") + b"\x01\x00\x00"
    h = {name: text for name, text in good.headers.items() if name not in ("epoch", "seq")}
    json_ = {"v": "1.0", "table": "incident", "encoding": "json"}
    return [
        (SAMPLES, Message(good.key, good.value[:-20], h)),
        (SAMPLES, Message(good.key, os.urandom(2000), h)),
        (SAMPLES, Message(good.key, b"", {})),
        (SAMPLES, Message(good.key, bomb, {**h, "raw": str(1 << 31)})),
        (SAMPLES, Message(good.key, bomb, {**h, "raw": "100"})),
        (SAMPLES, Message(good.key, good.value, {**h, "rows": "99999999999999999999"})),
        (SAMPLES, Message(good.key, good.value, {**h, "table": "../../etc/passwd"})),
        (SAMPLES, Message(good.key, good.value, {**h, "table": "finding"})),
        (SAMPLES, Message(good.key, good.value, {**h, "v": "9.0"})),
        (SAMPLES, Message("somebody/else", good.value, h)),
        (SAMPLES, Message(good.key, good.value, {**h, "v": "²"})),
        (SAMPLES, Message(good.key, good.value, {**h, "raw": "9" * 5000})),
        (EVENTS, Message(good.key, b"\xff" * 100, {**h, "table": "event"})),
        *((INCIDENTS, Message("test/n1", b"{}", {**json_, "v": version})) for version in ("", "²", "9" * 5000, "2.0")),
        *((INCIDENTS, Message("test/n1", text, json_)) for text in (
            b"", b"{", b"[]", b'{"incident_id": 5}', b"\xff\xfe", b"[" * 5000, b'"' + b"x" * (1 << 20) + b'"')),
        *((INCIDENTS, Message("test/n1", json.dumps({**dated, **wrong}).encode(), json_)) for wrong in (
            {"ts": "yesterday"}, {"ts": 5}, {"revision": 10**30}, {"revision": -(2**31) - 1}, {"since": "never"},
            {"since": "2026-11-02T10:00:00"}, {"severity": 7, "ts": None}, {"peers": float("nan")})),
    ]  # fmt: skip


def test_hostile_messages_go_to_the_dead_letters_and_stop_nobody(tmp_path: Path) -> None:
    """Truncated, random, bombs, wrong tables, a newer major version, another's name, JSON that is none: each is counted
    with its reason, and what honest senders send before, between and after them is in the lake, and no role ends."""
    bad = hostile()
    bus = SpoolBus(tmp_path / "bus", 1 << 30)
    with Roles(tmp_path, {"cluster": landing_kit.CLUSTER, "respond": webhook(tmp_path)}) as roles:
        for role in ("pipeline", "detect", "respond"):
            roles.start(role)
        with closing(bus.producer()) as producer:
            for number, (topic, message) in enumerate(bad):
                honest = landing_kit.message([landing_kit.host_row(number)], table="host", sequence=number)
                producer.send(SAMPLES, [honest])
                producer.send(topic, [message])
        roles.until(lambda: ask(tmp_path / "lake", "SELECT count(*) AS c FROM host")[0]["c"] >= len(bad))
        roles.until(lambda: len(dead(bus)) >= len(bad))
        roles.until(lambda: "detect starts" in roles.log("detect"))
        for role in ("detect", "respond"):  # what they read at their start is no better
            assert roles.stop(role) == 0
            roles.start(role)
        roles.until(lambda: roles.log("detect").count("detect starts") == 2)
        assert "no incident begins with" in call(roles, "explain", "abc")[1]
        time.sleep(1)
        assert {role: roles.stop(role) for role in ("pipeline", "detect", "respond")} == {
            "pipeline": 0, "detect": 0, "respond": 0,
        }  # fmt: skip
        logs = "".join(roles.log(role) for role in ("pipeline", "detect", "respond"))
    assert ask(tmp_path / "lake", "SELECT count(*) AS c FROM host")[0]["c"] == len(bad)
    letters = dead(bus)
    assert len(letters) == len(bad)
    assert all(letter.headers["dead.reason"] for letter in letters)
    assert "Traceback" not in logs


def dead(bus: SpoolBus) -> list[Message]:
    consumer = bus.consumer(["graynode.deadletter"], f"look{time.time_ns()}", on_assigned=dict.fromkeys)
    try:
        return [received.message for received in consumer.poll(0.2)]
    finally:
        consumer.close()


# --- the lake of a newer version ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("pipeline",), 1),
        (("detect",), 1),
        (("sql", "-c", "SELECT count(*) FROM host"), 1),
        (("explain", "abc"), 1),
        (("import", "--format", "longhorn-sgemm", "{fixture}"), 2),
    ],
    ids=lambda v: v[0] if isinstance(v, tuple) else "",
)
def test_a_lake_of_a_newer_version(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    """Every command that uses the lake leaves it as it is, and says both versions and the way out."""
    lake = Lake(str(tmp_path / "lake"))
    for table in ("gpu_30s", "host_30s", "link_30s", "host", "incident", "probe"):
        lake.create(table)
        lake.table(table).alter.set_table_properties({VERSION_KEY: "9.0"}, raise_if_not_exists=False)
    fixture = Path(__file__).parents[1] / "fixtures/longhorn/sgemm-longhorn.csv.gz"
    found, said = call(Roles(tmp_path, {}), *(w.format(fixture=fixture) for w in words))
    assert found == code, said
    assert f"was written by contract version 9.0, this graynode speaks {VERSION[0]}.{VERSION[1]}; update" in said


# --- two of a kind ----------------------------------------------------------------------------------------


def test_two_of_every_role(tmp_path: Path) -> None:
    """A second agent and a second detect are refused with who is there; a second pipeline stands by and says so, and no
    row is doubled."""
    with Roles(tmp_path, {"agent": {"collectors": ["host"]}}) as roles:
        started = {role: roles.start(role).pid for role in ("agent", "pipeline", "detect")}
        rows = "SELECT count(*) AS c, count(DISTINCT ts) AS d FROM host"
        roles.until(lambda: ask(tmp_path / "lake", rows)[0]["c"] > 1)
        roles.until(lambda: "detect starts" in roles.log("detect"))
        for role in ("agent", "detect"):
            code, said = call(roles, role)
            assert code == 2
            assert f"process {started[role]}" in said
        code, said = call(roles, "pipeline", until="other members")
        assert code == 0
        assert "other members of the group read everything" in said
        assert {roles.stop(role) for role in ("agent", "pipeline", "detect")} == {0}
    found = ask(tmp_path / "lake", rows)[0]
    assert found["c"] == found["d"]


# --- nobody to be told --------------------------------------------------------------------------------------


def test_the_receiver_is_down_for_the_whole_run(tmp_path: Path) -> None:
    """The role says who does not answer, ends with 0 when it is told to, and the incident is still there for the next
    run, which tells it."""
    log = tmp_path / "kmsg"
    log.write_text("")
    port = free_port()
    settings = {
        "agent": {"collectors": ["kernel_log"], "kmsg": str(log), "batch_s": 0.5},
        "respond": webhook(tmp_path, f"http://127.0.0.1:{port}/"),
    }
    with Roles(tmp_path, settings) as roles:
        for role in ("agent", "detect", "respond"):
            roles.start(role)
        roles.until(lambda: "agent started" in roles.log("agent"))
        time.sleep(1)
        now_us = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
        log.write_text(f"3,7,{now_us},-;NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n")
        roles.until(lambda: "incident not told" in roles.log("respond"))
        assert roles.stop("respond", 10) == 0
        assert "Traceback" not in roles.log("respond")
        with closing(socket.create_server(("127.0.0.1", port))) as receiver:
            receiver.settimeout(30)
            roles.start("respond")
            with closing(receiver.accept()[0]) as told:
                told.settimeout(10)
                text = b""
                while b"0000:9b:00.0" not in text:
                    text += told.recv(65536) or pytest.fail(f"hung up after {text!r}")
                told.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        assert {roles.stop(role) for role in ("agent", "detect", "respond")} == {0}
