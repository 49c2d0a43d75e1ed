"""``graynode serve`` and ``graynode token`` as they are started: a process, a port, a signal, and a start after it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from people_site import Ended, Site

from graynode.service.config import ConfigError
from graynode.service.config_tables import Serve
from graynode.service.serve import _Connection, check

STREAMS = 4


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """One node, and a configuration with ``[serve]``."""
    folder = tmp_path_factory.mktemp("serve")
    made = Site(folder)
    made.nodes(["n1"], datetime.now(UTC) - timedelta(hours=1))
    made.incident("aaaa0000", "n1", datetime.now(UTC) - timedelta(minutes=5))
    port = _free_port()
    made.file.write_text(
        made.file.read_text()
        + f'\n[serve]\nlisten = "127.0.0.1:{port}"\ntokens_file = "{folder / "tokens.json"}"\nstreams = {STREAMS}\n'
        "refresh_s = 1\n"
    )
    return made


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_of(site: Site) -> int:
    return int(re.findall(r'listen = "127.0.0.1:(\d+)"', site.file.read_text())[0])


@contextlib.contextmanager
def serving(site: Site) -> Iterator[httpx.Client]:
    """The process, ready; it has to end well at SIGTERM."""
    log = (site.folder / "serve.log").open("ab")
    command = [sys.executable, "-m", "graynode.service.cli", "serve", "--config", str(site.file)]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port_of(site)}", timeout=60) as client:
            _until_ready(client, process)
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (site.folder / "serve.log").read_text()
    finally:
        process.kill()
        process.wait()
        log.close()


def _until_ready(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if client.get("/readyz").status_code == 200:
                return
        time.sleep(0.2)
    raise AssertionError("serve did not get ready")


def token(site: Site, name: str, scope: str = "read") -> str:
    made = site.run("token", "create", "--name", name, "--scope", scope, "--for", "1d")
    assert made.returncode == 0, made.stderr
    return made.stdout.strip().splitlines()[-1]


def events(client: httpx.Client, headers: dict[str, str], most: int) -> list[dict[str, str]]:
    """The first events of the stream."""
    found: list[dict[str, str]] = []
    with client.stream("GET", "/api/v1/stream", headers=headers) as answer:
        assert answer.status_code == 200
        one: dict[str, str] = {}
        for line in answer.iter_lines():
            if line:
                key, _, value = line.partition(": ")
                one[key] = value
                continue
            if one.get("event"):
                found.append(one)
            one = {}
            if len(found) >= most:
                return found
    return found


def test_it_serves_is_stopped_and_serves_again(site: Site) -> None:
    """Over a real socket: pages, token, stream; the session and the stream go on after a restart; slow listeners are
    bounded, and nobody else waits for them."""
    secret = token(site, "ann")
    headers = {"Authorization": f"Bearer {secret}"}
    with serving(site) as client:
        assert client.get("/api/v1/nodes").status_code == 401
        assert client.get("/api/v1/nodes", headers=headers).json()["rows"][0]["node"] == "n1"
        assert client.get("/signin").status_code == 200
        assert client.post("/session", json={"token": secret}).status_code == 200
        assert client.get("/api/v1/nodes").status_code == 200
        last = events(client, headers, 1)[0]["id"]
        slow = [_slow(port_of(site), secret) for _ in range(100)]
        try:
            statuses = [_status(one) for one in slow]
            assert statuses.count(200) == STREAMS
            assert statuses.count(503) == 100 - STREAMS
            began = time.monotonic()
            assert client.get("/healthz").status_code == 200
            assert time.monotonic() - began < 10
        finally:
            for one in slow:
                one.close()
        cookies = client.cookies
    site.incident("bbbb0000", "n1", datetime.now(UTC))
    with serving(site) as client:
        client.cookies = cookies
        assert client.get("/api/v1/nodes").status_code == 200
        told = events(client, {"Last-Event-ID": last}, 1)
        assert [json.loads(one["data"]).get("incident_id") for one in told if one["event"] == "incident"]
    log = (site.folder / "serve.log").read_text()
    assert "Traceback" not in log
    assert secret not in log


def _slow(port: int, secret: str) -> http.client.HTTPConnection:
    """A listener that asks and reads no further than the status."""
    made = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    made.request("GET", "/api/v1/stream", headers={"Authorization": f"Bearer {secret}"})
    return made


def _status(connection: http.client.HTTPConnection) -> int:
    answer = connection.getresponse()
    return answer.status


def test_who_does_not_get_to_the_end_of_a_question_is_let_go() -> None:
    """Connections are counted, and anybody may open one: 512 that say nothing would shut all others out."""
    asyncio.run(_dawdle())


async def _dawdle() -> None:
    class Quick(_Connection):
        question_s = 0.3

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await asyncio.sleep(1)  # an answer that takes long is waited for
        await send({"type": "http.response.body", "body": b"ok"})

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    made = await asyncio.get_running_loop().create_server(
        lambda: Quick(config, uvicorn.server.ServerState(), {}), "127.0.0.1", 0
    )
    port = made.sockets[0].getsockname()[1]
    head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n"
    for sent, answered in ((b"", False), (b"GET / HT", False), (head, False), (head + b"ok", True)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert (await asyncio.wait_for(reader.read(), 20)).endswith(b"ok") is answered
        writer.close()
    made.close()


# --- tokens ---------------------------------------------------------------------------------------------------


def test_a_token_is_made_listed_and_revoked(site: Site) -> None:
    """Shown once: the list has its name, never the token."""
    secret = token(site, "bob", "act")
    assert secret.startswith("graynode_")
    listed = site.run("token", "list")
    assert re.search(r"^bob +act +since \S+ +until ", listed.stdout, re.M)
    assert secret not in listed.stdout
    assert site.run("token", "revoke", "bob").returncode == 0
    assert "bob" not in site.run("token", "list").stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("create", "--name", "carl", "--for", "x"), "--for x"),
        (("create", "--name", "carl", "--for", "99999d"), "ten years"),
        (("create", "--name", "<b>"), "--name"),
        (("create", "--name", ""), "--name"),
        (("revoke", "nobody"), "no token is called"),
    ],
)
def test_a_wrong_token_command_says_what_is_wrong(site: Site, words: tuple[str, ...], says: str) -> None:
    """Code 2 and a sentence."""
    ended: Ended = site.run("token", *words)
    assert (ended.returncode, says in ended.stderr) == (2, True), ended


def test_a_name_is_one_persons(site: Site) -> None:
    """It signs what is done, so two cannot have it."""
    token(site, "dora")
    assert "is taken" in site.run("token", "create", "--name", "dora").stderr


# --- where it listens -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"listen": "0.0.0.0:9405"}, "in the clear"),
        ({"listen": "10.1.2.3:9405"}, "in the clear"),
        ({"listen": "nowhere"}, "not host:port"),
        ({"cert_file": Path("/none.pem")}, "both are needed"),
        ({"cert_file": Path("/none.pem"), "key_file": Path("/none.key")}, "no such file"),
    ],
)
def test_beyond_loopback_it_wants_tls(settings: dict[str, Any], says: str) -> None:
    """A token must not go over the wire in the clear."""
    with pytest.raises(ConfigError, match=says):
        check(Serve(**settings))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:9405", "[::1]:9405", ":9405"])
def test_loopback_needs_nothing(listen: str) -> None:
    """By any of its names."""
    check(Serve(listen=listen))


def test_a_proxy_in_front_is_said(tmp_path: Path) -> None:
    """``serve.plain_http``."""
    check(Serve(listen="0.0.0.0:9405", plain_http=True))


def test_a_taken_port_is_said(site: Site) -> None:
    """Code 2, with the key."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", port_of(site)))
        held.listen()
        command = [sys.executable, "-m", "graynode.service.cli", "serve", "--config", str(site.file)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, "serve.listen" in ended.stderr, "Traceback" in ended.stderr) == (2, True, False)
