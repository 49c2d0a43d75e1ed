"""Asking a server that refuses, floods, hangs, lies or is none."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from graynode.pipeline.lake import Lake
from graynode.service.config import Config, ConfigError
from graynode.service.config_tables import LakeSection
from graynode.service.prometheus.answer import NotAnAnswer, error_text, matrix
from graynode.service.prometheus.client import Access, PrometheusClient
from graynode.service.prometheus.command import Options, run
from graynode.service.prometheus.refusals import Away, Refused, TooMuch

Reply = tuple[int, dict[str, str], bytes | Callable[[Any], None]]
EMPTY = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'


class StandIn:
    """An HTTP server that answers what it is told to, the last again and again, and remembers what was asked."""

    def __init__(self) -> None:
        self.replies: list[Reply] = [(200, {}, EMPTY)]
        self.answer: Callable[[str, dict[str, list[str]]], Reply] | None = None
        self.asked: list[tuple[str, dict[str, str], dict[str, list[str]]]] = []
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stand_in.reply(self, parse_qs(urlsplit(self.path).query))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                stand_in.reply(self, parse_qs(body.decode()))

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.over = threading.Event()

    def reply(self, handler: BaseHTTPRequestHandler, form: dict[str, list[str]]) -> None:
        path = urlsplit(handler.path).path
        self.asked.append((path, {k.lower(): v for k, v in handler.headers.items()}, form))
        if self.answer is not None:
            status, headers, body = self.answer(path, form)
        else:
            status, headers, body = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        try:
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            if callable(body):
                handler.end_headers()
                body(handler)
                return
            handler.send_header("content-length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
        except OSError:
            pass  # the client has gone, as it should

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[StandIn]:
    stand_in = StandIn()
    yield stand_in
    stand_in.close()


class Time:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


def ask(
    server: StandIn, clock: Time | None = None, max_bytes: int = 1 << 20, **access: Any
) -> tuple[PrometheusClient, Time]:
    clock = clock or Time()
    made = PrometheusClient(
        Access(**{"url": server.url, "rate": 1e6, **access}),
        monotonic=clock.monotonic, sleep=clock.sleep, max_bytes=max_bytes,
    )  # fmt: skip
    return made, clock


def failing(server: StandIn, error: type[Exception], clock: Time | None = None, **more: Any) -> str:
    client, _ = ask(server, clock, **more)
    try:
        with pytest.raises(error) as raised:
            client.matrix("up{a='b'}", 0, 60, 60)
        return str(raised.value)
    finally:
        client.close()


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((200, {}, b"<!DOCTYPE html><html>Please log in"), "a web page, not JSON"),
        ((404, {}, b"404 page not found\n"), "does not look like a Prometheus"),
        ((302, {"location": "https://sso.example/login"}, b""), "sent on to https://sso.example/login"),
        ((401, {}, b"Unauthorized"), "--token-file"),
        (
            (400, {}, b'{"status":"error","errorType":"bad_data","error":"parse error: \\u001b[2Junexpected"}'),
            "unexpected",
        ),
        ((200, {}, b'{"status":"error","error":"no org id"}'), "no org id"),
    ],
)
def test_what_waiting_does_not_help_is_said_at_once(server: StandIn, reply: Reply, said: str) -> None:
    """With the query, the server's own words and the way out, on one line; nothing is tried again."""
    server.replies = [reply]
    clock = Time()
    told = failing(server, Refused, clock)
    assert told.startswith("query up{a='b'}: ")
    assert said in told
    assert told.isprintable()
    assert len(server.asked) == 1
    assert clock.slept == []


def test_busy_is_waited_for(server: StandIn) -> None:
    """429 and 503 are tried again: as long as asked, and longer each time; then the answer counts."""
    busy = (503, {}, b"down for a moment")
    server.replies = [(200, {}, EMPTY), (429, {"retry-after": "7"}, b""), busy, busy, (200, {}, EMPTY)]
    client, clock = ask(server)
    client.matrix("up", 0, 60, 60)
    assert client.matrix("up", 0, 60, 60).series == []
    assert [pytest.approx(7, abs=0.1), 1.0, 2.0] == [s for s in clock.slept if s > 0.1]
    assert client.retries == 3
    client.close()


def test_patience_ends(server: StandIn) -> None:
    """A server that keeps failing is told after the agreed time, with what it said last and how often it was asked."""
    server.replies = [(200, {}, EMPTY), (503, {}, b"starting up")]
    client, clock = ask(server, patience_s=60.0)
    client.matrix("up", 0, 60, 60)
    with pytest.raises(Away, match=r"HTTP 503: .*starting up.* \(\d tries\)"):
        client.matrix("up", 0, 60, 60)
    assert 30 < sum(clock.slept) <= 60
    client.close()


def test_nobody_there_is_said_soon(server: StandIn) -> None:
    """An address at which nothing has ever answered is not waited for like a server that restarts."""
    clock = Time()
    told = failing(server, Away, clock, url="http://127.0.0.1:9/")
    assert "not reached" in told
    assert "is the address right" in told
    assert sum(clock.slept) <= 3


@pytest.mark.parametrize(
    "body",
    [
        EMPTY[:-20],
        b"",
        b"[" * 100_000,
        b'{"status":"success","data":{"resultType":"vector","result":[]}}',
        b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"many"]]}]}}',
        b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":1},"values":[]}]}}',
    ],
)
def test_what_is_no_answer(server: StandIn, body: bytes) -> None:
    """Cut, empty, deep, of another kind or with a text for a value: tried again, then told."""
    with pytest.raises(NotAnAnswer):
        matrix(body)
    server.replies = [(200, {}, body)]
    assert "tries" in failing(server, Away)


def test_answers_are_bounded(server: StandIn) -> None:
    """A flood is cut off and asked for in pieces, whether it comes plain or packed."""
    server.replies = [(200, {}, b"x" * (3 << 20))]
    assert "more than 1 MiB" in failing(server, TooMuch)
    import gzip

    server.replies = [(200, {"content-encoding": "gzip"}, gzip.compress(b"x" * (30 << 20)))]
    assert "more than 1 MiB" in failing(server, TooMuch)


@pytest.mark.parametrize("drip", [False, True])
def test_a_hanging_server_is_left(server: StandIn, drip: bool) -> None:
    """One that says nothing, and one that says a byte now and then: both end with the query's own time."""

    def hang(handler: BaseHTTPRequestHandler) -> None:
        while not server.over.wait(0.05):
            if drip:
                handler.wfile.write(b" ")
                handler.wfile.flush()

    server.replies = [(200, {}, hang)]
    client = PrometheusClient(Access(url=server.url, timeout_s=0.4))
    began = time.monotonic()
    with pytest.raises(TooMuch, match=r"no whole answer within 0\.4 s") as raised:
        client.matrix("up", 0, 60, 60)
    assert raised.value.late
    assert time.monotonic() - began < 5
    client.close()


def test_queries_are_paced(server: StandIn) -> None:
    """No more a second than was said."""
    client, clock = ask(server, rate=4.0)
    for _ in range(9):
        client.matrix("up", 0, 60, 60)
    assert sum(clock.slept) == pytest.approx(2.0, abs=0.01)
    client.close()


def test_credentials_come_from_files(server: StandIn, tmp_path: Path) -> None:
    """A password or a token is sent, and appears in no message."""
    secret = tmp_path / "secret"
    secret.write_text("s3cr3t\n")
    for access in ({"user": "me", "password_file": secret}, {"token_file": secret}):
        server.replies = [(401, {}, b"no")]
        assert "s3cr3t" not in failing(server, Refused, **access)
    sent = [headers["authorization"] for _, headers, _ in server.asked]
    assert sent == [f"Basic {base64.b64encode(b'me:s3cr3t').decode()}", "Bearer s3cr3t"]
    (tmp_path / "two").write_text("a\nb")
    with pytest.raises(ConfigError, match="one line"):
        PrometheusClient(Access(url=server.url, token_file=tmp_path / "two"))


def test_long_errors_keep_their_end() -> None:
    """VictoriaMetrics repeats the query before it comes to the reason."""
    told = error_text(
        json.dumps({"status": "error", "error": "when executing " + "x" * 5000 + ": the reason"}).encode()
    )
    assert told.endswith(": the reason")
    assert len(told) < 400


def prometheus(path: str, form: dict[str, list[str]], extra: dict[str, Any]) -> Reply:
    """A very small Prometheus: one GPU, one metric."""
    if path.endswith("/label/__name__/values"):
        data: Any = ["DCGM_FI_DEV_SM_CLOCK"] if "DCGM" in form["match[]"][0] else []
    elif path.endswith("/values"):
        data = ["n0:9400"] if "/instance/" in path else []
    else:
        start, end, step = (int(form[name][0]) for name in ("start", "end", "step"))
        labels = {"UUID": "GPU-0", "gpu": "0", "instance": "n0:9400"}
        values = [[t, "1500"] for t in range(start, end + 1, step)]
        data = {"resultType": "matrix", "result": [{"metric": labels, "values": values}]}
        return 200, {}, json.dumps({"status": "success", "data": data, **extra}).encode()
    return 200, {}, json.dumps({"status": "success", "data": data}).encode()


@pytest.mark.parametrize("extra", [{"isPartial": True}, {"warnings": ["store gateway 3: deadline exceeded"]}])
def test_a_partial_answer_is_not_taken_for_the_whole(
    server: StandIn, extra: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told, nothing of it is stored, the command ends with 1, and the next run asks again."""
    server.answer = lambda path, form: prometheus(path, form, extra)
    config = Config(lake=LakeSection(path=str(tmp_path / "lake")))
    asked = Options(url=server.url, since="2026-03-02T00:00", until="2026-03-02T06:00", rate=1000.0, samples=True)
    assert run(config, asked) == 1
    said = capsys.readouterr().out
    assert "1 pieces NOT imported, their answers being partial: " in said
    assert "deadline exceeded" in said or "isPartial" in said
    assert Lake(str(tmp_path / "lake")).read("gpu").height == 0
    server.answer = lambda path, form: prometheus(path, form, {})
    assert run(config, asked) == 0
    assert Lake(str(tmp_path / "lake")).read("gpu").height == 72


def test_a_server_that_goes_away_in_the_middle(server: StandIn, tmp_path: Path) -> None:
    """It is said with the query and that what is done is kept; the next run asks for the rest only."""
    began: list[str] = []

    def answer(path: str, form: dict[str, list[str]]) -> Reply:
        if path.endswith("query_range"):
            began.append(form["start"][0])
            if len(began) > 1:
                return 401, {}, b"expired"
        return prometheus(path, form, {})

    server.answer = answer
    config = Config(lake=LakeSection(path=str(tmp_path / "lake")))
    asked = Options(url=server.url, since="2026-03-01", until="2026-03-04", rate=1000.0)
    with pytest.raises(ConfigError, match=r"HTTP 401: .*; what is done is kept"):
        run(config, asked)
    done = set(began[:1])
    server.asked.clear()
    server.answer = lambda path, form: prometheus(path, form, {})
    assert run(config, asked) == 0
    assert Lake(str(tmp_path / "lake")).read("gpu_1h").height == 3 * 24
    again = {form["start"][0] for path, _, form in server.asked if path.endswith("query_range")}
    assert len(again) == 2
    assert not again & done
