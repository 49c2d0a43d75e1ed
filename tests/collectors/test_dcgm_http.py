"""One page over HTTP: what an exporter, or what stands in its place, can do to a scrape."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import certificates
import exporter_standin as standin
import pytest
from exporter_standin import Answer, Exporters

from graynode.collectors.dcgm import http as dcgm_http
from graynode.collectors.dcgm.http import Client, Fetched
from graynode.collectors.dcgm.targets import parse_address
from graynode.collectors.dcgm.threads import addresses, apart

PAGE = standin.page(2)
QUICK_S = 0.4


def fetch(url: str, *, times: int = 1, timeout_s: float = 5.0, wait_s: float = 0.0, authorization: str = "",
          tls: ssl.SSLContext | None = None, between: Callable[[], None] = lambda: None) -> list[Fetched]:  # fmt: skip
    """What comes of so many scrapes over one client."""

    async def all_of_them() -> list[Fetched]:
        client = Client(parse_address(url), tls, authorization)
        got = []
        for turn in range(times):
            if turn:
                between()
                await asyncio.sleep(wait_s)
            got.append(await client.fetch(timeout_s))
        client.close()
        return got

    return asyncio.run(all_of_them())


@pytest.fixture
def exporters() -> Iterator[Exporters]:
    with Exporters(lambda _path: Answer(PAGE)) as made:
        yield made


@pytest.mark.parametrize("how", ["length", "chunked", "close"])
def test_page_comes_whole_however_it_is_framed(exporters: Exporters, how: str) -> None:
    """With a length, in chunks, or ended by the end of the connection; connections are kept where they may be."""
    exporters.answer = lambda _path: Answer(PAGE, how=how)
    assert fetch(exporters.url(), times=3) == [Fetched(PAGE)] * 3
    assert exporters.connections == (3 if how == "close" else 1)


def test_request_says_who_asks_and_what_for(exporters: Exporters) -> None:
    """GET of the configured path, no compression wanted, credentials only where configured."""
    fetch(exporters.url("/metrics/gpu?x=1"), authorization="Bearer secret")
    path, headers = exporters.requests[0]
    assert path == "/metrics/gpu?x=1"
    assert headers["host"] == f"127.0.0.1:{exporters.port}"
    assert headers["accept-encoding"] == "identity"
    assert headers["authorization"] == "Bearer secret"
    fetch(exporters.url())
    assert "authorization" not in exporters.requests[1][1]


def test_gzip_that_nobody_asked_for(exporters: Exporters) -> None:
    """A proxy may pack it all the same."""
    exporters.answer = lambda _path: standin.packed(PAGE)
    assert fetch(exporters.url()) == [Fetched(PAGE)]


def test_gzip_bomb_is_bounded(exporters: Exporters) -> None:
    """A megabyte that unpacks to a gigabyte is stopped at the page's limit."""
    bomb = standin.packed(b"#" * (dcgm_http.MAX_PAGE * 2))
    exporters.answer = lambda _path: bomb
    (got,) = fetch(exporters.url())
    assert "page of more than" in got.error
    assert len(got.body) <= dcgm_http.MAX_PAGE + 1


def test_exporter_that_restarted_is_asked_again_at_once(exporters: Exporters) -> None:
    """A kept connection that the other side has closed is no failure."""
    exporters.answer = lambda _path: Answer(PAGE, headers={"X": "1"}, cut=len(PAGE))
    assert fetch(exporters.url(), times=3, wait_s=0.05) == [Fetched(PAGE)] * 3
    assert exporters.connections == 3


@pytest.mark.parametrize(
    ("answer", "says", "denied"),
    [
        (Answer(status=500), "answers 500", False),
        (Answer(status=503), "answers 503 (not available)", False),
        (Answer(status=404), "answers 404 (no such path)", False),
        (Answer(status=401), "answers 401 (not permitted)", True),
        (Answer(status=403), "answers 403 (not permitted)", True),
        (Answer(status=302, headers={"Location": "http://other/"}), "redirecting to 'http://other/'", False),
        (Answer(PAGE, headers={"Content-Encoding": "br"}), "content encoding 'br'", False),
        (Answer(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", how="raw"), "not HTTP: 'SSH-2.0-OpenSSH_9.2", False),
        (Answer(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", how="raw"), "content length '-5'", False),
        (Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", how="raw"), "page of 99999999999", False),
        (Answer(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000, how="raw"), "headers without an end", False),
        (Answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", how="raw"), "not well formed", False),
        (Answer(b"", how="raw"), "closed before an answer", False),
    ],
)  # fmt: skip
def test_answer_that_is_no_page(exporters: Exporters, answer: Answer, says: str, denied: bool) -> None:
    """Said in words that tell a person what it was; nothing is followed, nothing is believed."""
    exporters.answer = lambda _path: answer
    (got,) = fetch(exporters.url())
    assert says in got.error
    assert (got.denied, got.whole, got.body) == (denied, False, b"")


def test_page_that_was_cut_is_given_as_far_as_it_came(exporters: Exporters) -> None:
    """The connection breaks in the middle: what came, and that it is not whole; the next scrape is well."""
    answers = iter([Answer(PAGE, cut=len(PAGE) // 2), Answer(PAGE)])
    exporters.answer = lambda _path: next(answers)
    cut, well = fetch(exporters.url(), times=2)
    assert cut.body == PAGE[: len(PAGE) // 2]
    assert cut.error == f"the connection was closed after {len(PAGE) // 2} bytes of the page"
    assert well == Fetched(PAGE)


def test_end_in_the_middle_of_a_line_is_a_cut(exporters: Exporters) -> None:
    """Without a length only the missing line feed tells it."""
    exporters.answer = lambda _path: Answer(PAGE[:-5], how="close")
    (got,) = fetch(exporters.url())
    assert (got.body, got.error) == (PAGE[:-5], "the page ends in the middle of a line")


@pytest.mark.parametrize("answer", [Answer(PAGE, hang_s=30.0), Answer(PAGE, drip_s=0.05)])
def test_one_deadline_for_everything(exporters: Exporters, answer: Answer) -> None:
    """Hanging before the answer or dripping through it: over at the deadline, and the next scrape begins anew."""
    answers = iter([answer, Answer(PAGE)])
    exporters.answer = lambda _path: next(answers)
    began = time.monotonic()
    late, well = fetch(exporters.url(), times=2, timeout_s=QUICK_S)
    assert time.monotonic() - began < 10 * QUICK_S
    assert late.error == "no whole answer within 0.4 s"
    assert PAGE.startswith(late.body)
    assert well == Fetched(PAGE)


def test_nobody_listens() -> None:
    """Refused: said in the kernel's words."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        (got,) = fetch(f"http://127.0.0.1:{held.getsockname()[1]}/metrics")
    assert "connect" in got.error.lower()


def test_name_that_is_not_known() -> None:
    """A host that no resolver knows: an error of this target."""
    (got,) = fetch("http://nowhere.invalid:9400/metrics", timeout_s=10)
    assert got.error
    assert not got.whole


def test_resolver_that_hangs_costs_its_target_only(exporters: Exporters) -> None:
    """A name server that does not answer: over at the deadline, while another target is read."""

    async def both() -> tuple[Fetched, Fetched]:
        async def never(_host: str, _port: int) -> list[str]:
            await asyncio.sleep(60)
            return []

        hung = Client(parse_address("http://far:9400"), None, resolve=never)
        near = Client(parse_address(exporters.url()), None)
        slow, quick = await asyncio.gather(hung.fetch(QUICK_S), near.fetch(5.0))
        near.close()
        return slow, quick

    slow, quick = asyncio.run(both())
    assert slow.error == "no whole answer within 0.4 s"
    assert quick == Fetched(PAGE)


def test_second_address_of_a_name_is_tried(exporters: Exporters) -> None:
    """A name with two addresses of which one does not answer."""

    async def two(_host: str, _port: int) -> list[str]:
        return ["127.0.0.9", "127.0.0.1"]

    async def ask() -> Fetched:
        client = Client(parse_address(f"http://both:{exporters.port}"), None, resolve=two)
        got = await client.fetch(5.0)
        client.close()
        return got

    assert asyncio.run(ask()) == Fetched(PAGE)


def test_call_apart_hangs_alone() -> None:
    """What blocks in a thread does not stop the loop; what it raises arrives; nobody waits for it at the end."""

    async def run() -> list[str]:
        said = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await apart(lambda: time.sleep(0.5))
        try:
            await apart(lambda: [][0])  # type: ignore[misc]  # it is empty on purpose
        except IndexError as error:
            said.append(str(error))
        said.append(await apart(lambda: "got"))
        said += await addresses("localhost", 80)
        return said

    said = asyncio.run(run())
    assert said[:2] == ["list index out of range", "got"]
    assert {"127.0.0.1", "::1"} & set(said)


def test_tls_by_the_configured_authority(tmp_path: Path, exporters: Exporters) -> None:
    """https is checked against the CA that is configured, and against the system's where none is."""
    authority = certificates.Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.issue("exporter", server=True))
    exporters._server.socket = server.wrap_socket(exporters._server.socket, server_side=True)
    url = exporters.url().replace("http:", "https:")
    trusting = ssl.create_default_context(cafile=authority.ca_file)
    assert fetch(url, times=2, tls=trusting) == [Fetched(PAGE)] * 2
    (refused,) = fetch(url, tls=ssl.create_default_context())
    assert "certificate" in refused.error.lower()
