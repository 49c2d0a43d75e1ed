"""List and watch against an API server that pages, forgets, refuses, hangs, cuts and lies."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kube_api_stub as kube
import pytest
from agent_fakes import until
from certificates import Authority
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kube_api_stub import NODES, PODS, Asked, KubeApi, Trouble

from graynode.collectors.kubernetes.api import METADATA, Access, Api, ApiError, in_cluster
from graynode.collectors.kubernetes.objects import Pod
from graynode.collectors.kubernetes.pods import PodFacts, trim
from graynode.collectors.kubernetes.settings import node_name
from graynode.collectors.kubernetes.store import Expired, Store, WatchFailed
from graynode.collectors.kubernetes.watch import Watch

BUSY = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""

SELECTOR = {"fieldSelector": "spec.nodeName=host-1"}


@pytest.fixture
def server() -> Iterator[KubeApi]:
    with KubeApi() as api:
        yield api


@pytest.fixture
def watching(server: KubeApi) -> Iterator[Callable[..., Watch]]:
    made: list[Watch] = []

    def make(*, silence_s: float = 30.0, most: int = 100_000, **more: Any) -> Watch:
        api = Api(Access(server.url, None, None, timeout_s=5.0, silence_s=silence_s))
        store = Store(Pod, trim, most)
        watch = Watch(api, (PODS,), store, query=SELECTOR, first_wait_s=0.02, rng=random.Random(1), **more)
        made.append(watch)
        watch.start()
        return watch

    yield make
    for watch in made:
        watch.close()


def names(watch: Watch) -> set[str]:
    return {pod.name for pod in watch.store.facts().values()}


def fail_once(match: Callable[[Asked], bool], trouble: Trouble) -> Callable[[Asked], Trouble | None]:
    left = [trouble]
    return lambda asked: left.pop() if left and match(asked) else None


def test_a_list_then_what_changes(server: KubeApi, watching: Callable[..., Watch]) -> None:
    """Pods of this node only, as they come, change and go; the last state of one that went is kept for who asks."""
    server.put(PODS, kube.pod("a"))
    server.put(PODS, kube.pod("elsewhere", node="host-2"))
    watch = watching()
    assert until(lambda: names(watch) == {"a"} and server.watching(PODS) == 1)
    server.put(PODS, kube.pod("b", phase="Pending"))
    assert until(lambda: names(watch) == {"a", "b"})
    server.put(PODS, kube.pod("b", phase="Succeeded"))
    server.drop(PODS, "uid-a", status={"phase": "Failed"})
    assert until(lambda: names(watch) == {"b"})
    _, (ended,) = watch.store.take()
    assert (ended.name, ended.phase) == ("a", "Failed")
    assert watch.store.facts()["uid-b"].phase == "Succeeded"
    assert watch.store.take()[1] == []
    (asked,) = [a for a in server.of(PODS) if a.watch]
    assert asked.query["allowWatchBookmarks"] == "true"
    assert 300 <= int(asked.query["timeoutSeconds"]) <= 600


def test_five_thousand_pods_come_in_pages(server: KubeApi, watching: Callable[..., Watch]) -> None:
    """Each page names where the next begins; nothing is lost at the seams."""
    for n in range(5000):
        server.objects[PODS][f"u{n}"] = kube.pod(f"p{n}", uid=f"u{n}")
    watch = watching()
    assert until(lambda: watch.lists == 1, 60)
    assert len(watch.store.facts()) == 5000
    assert len([a for a in server.of(PODS) if not a.watch]) == 10
    assert watch.store.left_out == 0


def test_memory_is_bounded_and_says_so(server: KubeApi, watching: Callable[..., Watch]) -> None:
    """Beyond the bound objects are left out and counted, in lists and in events."""
    for n in range(30):
        server.put(PODS, kube.pod(f"p{n}"))
    watch = watching(most=20)
    assert until(lambda: watch.lists == 1 and server.watching(PODS) == 1)
    assert (len(watch.store.facts()), watch.store.left_out) == (20, 10)
    server.put(PODS, kube.pod("late"))
    assert until(lambda: watch.store.left_out == 11)
    assert len(watch.store.facts()) == 20


def test_a_stream_that_ends_goes_on_where_it_was(server: KubeApi, watching: Callable[..., Watch]) -> None:
    """Bookmarks move the version on, so a new stream does not tell everything again, and there is one list."""
    watch = watching()
    assert until(lambda: server.watching(PODS) == 1)
    server.tell(PODS, "BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "5555"}})
    server.say(PODS, None)
    assert until(lambda: len([a for a in server.of(PODS) if a.watch]) == 2)
    assert [a for a in server.of(PODS) if a.watch][-1].query["resourceVersion"] == "5555"
    assert watch.lists == 1


def test_a_thousand_agents_may_be_served_from_memory(server: KubeApi, watching: Callable[..., Watch]) -> None:
    """The first list may be the server's cached one; after 410 only the newest will do."""
    watch = watching(cached=True)
    assert until(lambda: server.watching(PODS) == 1)
    server.tell(PODS, "ERROR", {"kind": "Status", "code": 410})
    assert until(lambda: watch.lists == 2)
    assert [a.query.get("resourceVersion") for a in server.of(PODS) if not a.watch] == ["0", None]


@pytest.mark.parametrize("in_stream", [True, False])
def test_410_means_list_again(server: KubeApi, watching: Callable[..., Watch], in_stream: bool) -> None:
    """Said in the stream or as the status: what has gone meanwhile has ended, what came is there."""
    server.put(PODS, kube.pod("a"))
    watch = watching()
    assert until(lambda: server.watching(PODS) == 1)
    del server.objects[PODS]["uid-a"]  # while nobody saw it
    server.objects[PODS]["uid-b"] = kube.pod("b")
    if in_stream:
        server.tell(PODS, "ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    else:
        server.trouble = fail_once(lambda a: a.watch, Trouble(410, "too old resource version"))
        server.say(PODS, None)
    assert until(lambda: names(watch) == {"b"} and watch.standing.failing_s is None)
    assert [pod.name for pod in watch.store.take()[1]] == ["a"]
    assert watch.lists == 2


def test_a_line_that_is_cut_is_no_line(server: KubeApi, watching: Callable[..., Watch]) -> None:
    """The stream breaks in the middle of an object: it is opened again, and the object comes whole."""
    watch = watching()
    assert until(lambda: server.watching(PODS) == 1)
    whole = json.dumps({"type": "ADDED", "object": kube.pod("half")}).encode()
    server.say(PODS, whole[: len(whole) // 2])
    server.say(PODS, None)
    assert until(lambda: len([a for a in server.of(PODS) if a.watch]) == 2)
    assert names(watch) == set()
    server.put(PODS, kube.pod("half"))
    assert until(lambda: names(watch) == {"half"})


@pytest.mark.parametrize(
    "line",
    [b"not json\n", b'{"type":"ADDED","object":\n', b"[" * 100_000 + b"\n", b"\xff\xfe\n", b'"text"\n',
     b'{"type":"ERROR","object":{"code":500,"message":"etcd"}}\n', b'{"type":"ERROR","object":7}\n'],
)  # fmt: skip
def test_a_stream_of_rubbish_is_left(server: KubeApi, watching: Callable[..., Watch], line: bytes) -> None:
    """Lines that cannot be read may have been any change, so the list or the watch begins again; the thread lives."""
    watch = watching()
    assert until(lambda: server.watching(PODS) == 1)
    server.say(PODS, line)
    assert until(lambda: len([a for a in server.of(PODS) if a.watch]) >= 2)
    server.put(PODS, kube.pod("after"))
    assert until(lambda: names(watch) == {"after"})


def test_a_line_without_end_is_bounded(server: KubeApi, watching: Callable[..., Watch]) -> None:
    """More than four megabytes without an end of line are no object of Kubernetes."""
    watch = watching()
    assert until(lambda: server.watching(PODS) == 1)
    for _ in range(5):
        server.say(PODS, b"x" * (1 << 20))
    assert until(lambda: len([a for a in server.of(PODS) if a.watch]) >= 2)
    assert watch.lists == 1


def test_one_bad_object_costs_itself(server: KubeApi, watching: Callable[..., Watch]) -> None:
    """An object of another shape, or without uid, is counted; the others of its list and stream are there."""
    server.objects[PODS]["bad"] = {"metadata": {"uid": "bad", "name": 7}, "spec": {"nodeName": "host-1"}}
    server.put(PODS, kube.pod("a"))
    watch = watching()
    assert until(lambda: server.watching(PODS) == 1)
    server.tell(PODS, "ADDED", {"metadata": {"name": "no uid"}})
    server.put(PODS, kube.pod("b"))
    assert until(lambda: names(watch) == {"a", "b"})
    assert watch.store.undecodable == 2


@pytest.mark.parametrize(
    ("trouble", "refused", "why"),
    [
        (Trouble(401, "Unauthorized"), True, "HTTP 401: Unauthorized"),
        (Trouble(403, "pods is forbidden: User cannot list"), True, "HTTP 403: pods is forbidden"),
        (Trouble(500, "etcdserver: leader changed"), False, "HTTP 500: etcdserver"),
        (Trouble(429, "too many requests"), False, "HTTP 429"),
        (Trouble(raw=b""), False, "cannot be asked"),
        (Trouble(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"), False, "cut"),
        (Trouble(raw=b"SSH-2.0-OpenSSH\r\n"), False, "cannot be asked"),
        (Trouble(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"), False, "a list that is none"),
        (Trouble(raw=b"HTTP/1.1 503 x\r\nContent-Length: 9\r\n\r\n\x1b[31mred\x07"), False, "HTTP 503: [31mred"),
    ],
)
def test_failures_are_told_and_asked_again(
    server: KubeApi, watching: Callable[..., Watch], trouble: Trouble, refused: bool, why: str
) -> None:
    """Each says what the server said, refusals apart; when it answers again all is well."""
    server.put(PODS, kube.pod("a"))
    server.trouble = lambda asked: trouble
    watch = watching()
    assert until(lambda: watch.standing.failing_s is not None)
    assert why in watch.standing.error
    assert "\x1b" not in watch.standing.error
    assert (watch.standing.refused, watch.standing.listed) == (refused, False)
    server.trouble = lambda asked: None
    if not refused:  # who lacks permission asks only every five minutes
        assert until(lambda: names(watch) == {"a"})
        assert watch.standing.failing_s is None


def test_too_many_requests_are_not_made(server: KubeApi, watching: Callable[..., Watch]) -> None:
    """``Retry-After`` is kept to, and failures are asked again ever more slowly."""
    server.trouble = lambda asked: Trouble(429, "slow down", {"Retry-After": "30"})
    watch = watching()
    assert until(lambda: watch.standing.failing_s is not None)
    time.sleep(0.3)
    assert len(server.asked) == 1


def test_a_server_that_hangs_is_left(server: KubeApi, watching: Callable[..., Watch]) -> None:
    """A stream in which not even bookmarks come is taken for hung, and another opened."""
    watch = watching(silence_s=0.15)
    assert until(lambda: len([a for a in server.of(PODS) if a.watch]) >= 3)
    server.put(PODS, kube.pod("a"))
    assert until(lambda: names(watch) == {"a"})
    assert watch.lists == 1


def test_closing_does_not_wait_for_the_stream(server: KubeApi, watching: Callable[..., Watch]) -> None:
    """The thread sleeps in the socket; closing wakes it."""
    watch = watching(silence_s=60.0)
    assert until(lambda: server.watching(PODS) == 1)
    started = time.monotonic()
    watch.close()
    watch.close()
    assert time.monotonic() - started < 2.0
    assert not [t for t in threading.enumerate() if t.name == "kubernetes" and t.is_alive()]


def test_nobody_listens(tmp_path: Path) -> None:
    """A port without a server is a failure with its reason."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ApiError, match="Connection refused") as failed:
        Api(Access(url, None, None)).get(PODS)
    assert failed.value.status == 0


def test_an_answer_that_drips_has_a_deadline(server: KubeApi) -> None:
    """A byte now and then keeps no request alive for ever."""
    server.trouble = lambda asked: Trouble(hang_s=1.0)
    started = time.monotonic()
    with pytest.raises(ApiError, match="does not answer"):
        Api(Access(server.url, None, None, timeout_s=0.2)).get(NODES)
    assert time.monotonic() - started < 5.0


def test_the_token_is_read_anew(server: KubeApi, tmp_path: Path) -> None:
    """The kubelet rotates it; a file that is gone is a matter of permission."""
    token = tmp_path / "token"
    api = Api(Access(server.url, token, None))
    for text in ("first\n", "second"):
        token.write_text(text)
        api.get(NODES)
    assert [a.headers["authorization"] for a in server.asked] == ["Bearer first", "Bearer second"]
    token.unlink()
    with pytest.raises(ApiError, match="no token can be read") as failed:
        api.get(NODES)
    assert failed.value.refused


def test_the_server_must_prove_who_it_is(tmp_path: Path) -> None:
    """By the cluster's CA, read anew when it is replaced; another CA's server, or no CA file, is not spoken to."""
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other", "Other CA")
    ca = tmp_path / "ca.crt"
    with KubeApi(ours.issue("server", server=True)) as server:
        api = Api(Access(server.url, None, ca, timeout_s=5.0))
        with pytest.raises(ApiError, match="cannot be verified"):
            api.get(NODES)
        ca.write_bytes(other.ca_file.read_bytes())
        with pytest.raises(ApiError, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            api.get(NODES)
        assert server.asked == []
        ca.write_bytes(ours.ca_file.read_bytes())
        os.utime(ca, ns=(1, 1))
        assert b"items" in api.get(NODES)
        with api.lines(PODS, {"watch": "1"}) as lines:
            assert until(lambda: server.watching(PODS) == 1)
            server.tell(PODS, "ADDED", kube.pod("a"))
            assert len(lines.arrive() or []) == 1


def test_metadata_alone_are_asked_for(server: KubeApi) -> None:
    """An owner's specification and its secrets do not come."""
    server.singles["/apis/batch/v1/namespaces/team/jobs/x"] = kube.bare("Job", "x", "u")
    Api(Access(server.url, None, None)).get("/apis/batch/v1/namespaces/team/jobs/x", accept=METADATA)
    assert server.asked[0].headers["accept"].startswith("application/json;as=PartialObjectMetadata")


def test_where_the_server_is() -> None:
    """As the kubelet tells each pod, IPv6 too; nothing outside of one. What is no address is an error of its key."""
    assert (
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"})
        == "https://10.0.0.1:6443"
    )
    assert in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1"}) == "https://[fd00::1]:443"
    assert in_cluster({}) == ""
    with pytest.raises(ValueError, match=r"kubernetes\.api = 'host:1'"):
        Api(Access("host:1"))
    with pytest.raises(ValueError, match="clear text; use https"):
        Api(Access("http://10.0.0.1:8080"))
    assert node_name("", {"NODE_NAME": "n1"}, "Host-1") == "n1"
    assert node_name("", {}, "Host-1") == "host-1"


# --- the store, without I/O -------------------------------------------------------------------------------


def _line(type_: str, name: str, version: int, phase: str = "Running") -> bytes:
    item = kube.pod(name, phase=phase)
    item["metadata"]["resourceVersion"] = str(version)
    return json.dumps({"type": type_, "object": item}).encode()


def _store() -> Store[Pod, PodFacts]:
    return Store(Pod, trim)


def test_events_out_of_order_do_not_turn_time_back() -> None:
    """An older version of an object does not replace a newer one; one deleted twice has ended once."""
    store = _store()
    for line in (_line("MODIFIED", "a", 9, "Succeeded"), _line("ADDED", "a", 5, "Pending"), _line("DELETED", "a", 4)):
        store.line(line)
    assert store.facts()["uid-a"].phase == "Succeeded"
    for _ in range(2):
        store.line(_line("DELETED", "a", 10, "Succeeded"))
    assert [pod.name for pod in store.take()[1]] == ["a"]


@BUSY
@given(st.binary(max_size=300))
def test_any_line_is_read_or_refused(line: bytes) -> None:
    """Fuzz: nothing but our own errors."""
    store = _store()
    try:
        store.line(line)
    except (Expired, WatchFailed):
        assert store.facts() == {}


KINDS, PHASES = st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), st.sampled_from(["Running", "Failed"])
EVENTS = st.lists(st.tuples(KINDS, st.sampled_from("abc"), PHASES), max_size=30)


@BUSY
@given(EVENTS, st.data())
def test_a_stream_that_is_told_again_changes_nothing(events: list[tuple[str, str, str]], data: st.DataObject) -> None:
    """After a break the server tells from an older version on; the end is the same as of one stream."""
    lines = [_line(type_, name, n + 1, phase) for n, (type_, name, phase) in enumerate(events)]
    once, again = _store(), _store()
    for line in lines:
        once.line(line)
    cut = data.draw(st.integers(0, len(lines)))
    for line in lines:
        again.line(line)
    for line in lines[cut:]:
        again.line(line)
    assert again.facts() == once.facts()
