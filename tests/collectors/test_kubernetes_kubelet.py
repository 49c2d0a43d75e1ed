"""The kubelet's PodResources API: real gRPC over a Unix socket, old kubelets, hostile bytes, silence."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pod_resources_stub as stub
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node_files import FIXTURES
from pod_resources_stub import ALLOCATABLE, LIST, KubeletStub, RawSocket

from graynode.collectors.kubernetes.grpc import GrpcError, unary
from graynode.collectors.kubernetes.kubelet import Kubelet, Unreachable
from graynode.collectors.kubernetes.wire import (
    Claimed,
    Devices,
    Held,
    WireError,
    allocatable_response,
    list_response,
)

BUSY = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""

GPU = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"
OTHER = "GPU-a4f34abc-7715-3560-dcea-7238b9611a45"
V1 = "/v1.PodResourcesLister/List"


def test_containers_and_what_they_hold(tmp_path: Path) -> None:
    """Devices of plugins, DRA claims with their CDI names; CPUs, memory and containers without devices are left out."""
    claims = [stub.claim("gpu.nvidia.com", "host-1", "gpu-0", "k8s.gpu.nvidia.com/device=gpu-0", "k8s.x/y=z")]
    answer = stub.listing(
        stub.gpu_pod("team", "train-0", GPU, OTHER),
        stub.pod("team", "dra-0", stub.container("main", claims=claims), stub.container("sidecar")),
        stub.pod("kube-system", "coredns", stub.container("dns")),
    )
    with KubeletStub(tmp_path / "kubelet.sock", answers={LIST: answer}) as kubelet:
        held = Kubelet(kubelet.path).held()
    cdi = ("k8s.gpu.nvidia.com/device=gpu-0", "k8s.x/y=z")
    assert held == [
        Held("team", "train-0", "main", (Devices("nvidia.com/gpu", (GPU, OTHER)),)),
        Held("team", "dra-0", "main", (), (Claimed("gpu.nvidia.com", "host-1", "gpu-0", cdi),)),
    ]


def test_bytes_of_the_kubelets_own_code() -> None:
    """What the published Go types serialise is read: packed numbers, topology, optional fields of newer versions."""
    at = FIXTURES / "podresources"
    gpus = Devices("nvidia.com/gpu", (GPU, OTHER))
    claim = Claimed("gpu.nvidia.com", "host-1", "gpu-3", ("k8s.gpu.nvidia.com/device=gpu-3",))
    assert list_response((at / "list.bin").read_bytes()) == [
        Held("team", "llm-worker-0", "pytorch", (gpus, Devices("rdma/hca", ("0",)))),
        Held("team", "dra-0", "main", (), (claim,)),
    ]
    mig = Devices("nvidia.com/mig-1g.10gb", ("MIG-dc9f1a6d-6b56-5f8e-a0ba-1d1d8e0a1c11",))
    assert allocatable_response((at / "allocatable.bin").read_bytes()) == [mig]


def test_an_old_kubelet_has_only_v1alpha1(tmp_path: Path) -> None:
    """The older service is asked where the newer one is not implemented, from then on at once."""
    answers = {LIST: stub.listing(stub.gpu_pod("team", "train-0", GPU))}
    with KubeletStub(tmp_path / "kubelet.sock", "v1alpha1", answers) as old:
        kubelet = Kubelet(old.path)
        assert [h.pod for h in kubelet.held()] == ["train-0"]
        assert [h.pod for h in kubelet.held()] == ["train-0"]
        assert kubelet.allocatable() is None
        assert old.calls == [LIST, LIST]


def test_allocatable_devices(tmp_path: Path) -> None:
    """What may be handed out, by resource."""
    answer = stub.part(1, stub.devices("nvidia.com/gpu", GPU, OTHER)) + stub.part(2, stub.varint(3))
    with KubeletStub(tmp_path / "kubelet.sock", answers={ALLOCATABLE: answer}) as kubelet:
        assert Kubelet(kubelet.path).allocatable() == [Devices("nvidia.com/gpu", (GPU, OTHER))]


def test_a_large_answer_comes_whole(tmp_path: Path) -> None:
    """Two megabytes are beyond HTTP/2's first window, so the client must give credit; ten seconds are not needed."""
    ids = [f"dev-{n:06d}" for n in range(110_000)]
    answer = stub.listing(stub.pod("team", "many", stub.container("main", [stub.devices("example.com/dev", *ids)])))
    assert len(answer) > 1 << 20
    with KubeletStub(tmp_path / "kubelet.sock", answers={LIST: answer}) as kubelet:
        assert unary(kubelet.path, V1, deadline_s=30.0) == answer


def test_an_answer_beyond_the_bound_is_refused(tmp_path: Path) -> None:
    """Memory is bounded by the caller, not by what the other side sends."""
    with (
        KubeletStub(tmp_path / "kubelet.sock", answers={LIST: bytes(200_000)}) as kubelet,
        pytest.raises(GrpcError, match="more than 100000 bytes"),
    ):
        unary(kubelet.path, V1, most_bytes=100_000)


def test_a_kubelet_that_restarts_is_asked_again(tmp_path: Path) -> None:
    """Each call connects anew: no socket file, then one again."""
    path = tmp_path / "kubelet.sock"
    kubelet = Kubelet(path)
    for _ in range(2):
        with KubeletStub(path, answers={LIST: stub.listing(stub.gpu_pod("team", "a", GPU))}):
            assert kubelet.held()
        with pytest.raises(Unreachable, match="No such file") as away:
            kubelet.held()
        assert not away.value.refused


def test_permission_is_told_apart(tmp_path: Path) -> None:
    """A socket of root's is refused, which a person can change."""

    def refused(*_: object, **__: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(Unreachable, match="Permission denied") as away:
        Kubelet(tmp_path / "kubelet.sock", call=refused).held()
    assert away.value.refused


def test_an_error_status_says_what_the_kubelet_said(tmp_path: Path) -> None:
    """gRPC's status is in the trailers."""

    def fail() -> bytes:
        raise RuntimeError("rejected by rate limit")

    with (
        KubeletStub(tmp_path / "kubelet.sock", answers={LIST: fail}) as kubelet,
        pytest.raises(Unreachable, match="rejected by rate limit"),
    ):
        Kubelet(kubelet.path).held()


def test_a_kubelet_that_hangs_costs_the_deadline(tmp_path: Path) -> None:
    """No answer within the deadline is an error, and the call is over by then."""
    with KubeletStub(tmp_path / "kubelet.sock", answers={LIST: lambda: time.sleep(3) or b""}) as kubelet:
        started = time.monotonic()
        with pytest.raises(Unreachable, match=r"no answer within|Deadline Exceeded"):
            Kubelet(kubelet.path, 0.3).held()
        assert time.monotonic() - started < 2.5


def test_a_kubelet_that_hangs_is_left_alone_for_a_minute(tmp_path: Path) -> None:
    """The rounds after it fail with the same words and do not ask; a minute later it is asked again."""
    asked: list[float] = []
    clock = [100.0]

    def call(socket: Path, method: str, *, deadline_s: float) -> bytes:
        asked.append(clock[0])
        if clock[0] < 150:
            raise GrpcError(4, f"no answer within {deadline_s:g} s")
        return b""

    kubelet = Kubelet(tmp_path / "kubelet.sock", 0.3, call, lambda: clock[0])
    said = set()
    for clock[0] in (100.0, 110.0, 159.0):
        with pytest.raises(Unreachable) as found:
            kubelet.held()
        said.add(str(found.value))
    assert asked == [100.0]
    assert len(said) == 1
    clock[0] = 161.0
    assert kubelet.held() == []


SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@pytest.mark.parametrize(
    "said",
    [
        b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", SETTINGS, SETTINGS + b"\xff" * 40, b"\x00" * 9,
        SETTINGS + b"\x00\x00\x03\x01\x05\x00\x00\x00\x01\xff\xff\xff",  # headers that are no HPACK
        SETTINGS + b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + b"\x00" * 8,  # GOAWAY
        SETTINGS + b"\x00\x00\x04\x03\x00\x00\x00\x00\x01" + b"\x00\x00\x00\x02",  # RST_STREAM
        SETTINGS + b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x88",  # 200, no gRPC
        SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",  # a frame of 16 MB
    ],
)  # fmt: skip
def test_what_is_no_grpc_is_an_error_and_no_crash(tmp_path: Path, said: bytes) -> None:
    """Another program on that socket, a server that hangs up, broken frames."""
    with RawSocket(tmp_path / "k.sock", said) as server, pytest.raises(GrpcError):
        unary(server.path, V1, deadline_s=2.0)


@BUSY
@given(st.binary(max_size=200))
def test_any_bytes_after_the_settings_are_survived(tmp_path_factory: pytest.TempPathFactory, said: bytes) -> None:
    """Fuzz: whatever a server writes ends in an answer or in ``GrpcError``."""
    with RawSocket(tmp_path_factory.mktemp("fuzz") / "k.sock", SETTINGS + said) as server, suppress(GrpcError):
        unary(server.path, V1, deadline_s=2.0)


@BUSY
@given(st.binary(max_size=400))
def test_any_bytes_are_an_answer_or_none(data: bytes) -> None:
    """Fuzz: the decoder raises ``WireError`` or gives texts."""
    for parse in (list_response, allocatable_response):
        with suppress(WireError):
            parse(data)


TEXT = st.text(max_size=20)
HELD = st.builds(
    Held, st.text(min_size=1, max_size=9), TEXT, TEXT,
    st.lists(st.builds(Devices, TEXT, st.lists(TEXT, max_size=4).map(tuple)), min_size=1, max_size=3).map(tuple),
    st.lists(st.builds(Claimed, TEXT, TEXT, TEXT, st.lists(TEXT, max_size=3).map(tuple)), max_size=2).map(tuple),
)  # fmt: skip


def _written(one: Held) -> bytes:
    claims = [stub.claim(c.driver, c.pool, c.device, *c.cdi) for c in one.claims]
    held = [stub.devices(d.resource, *d.ids, numa=1) for d in one.devices]
    return stub.pod(one.namespace, one.pod, stub.container(one.container, held, claims))


@BUSY
@given(st.lists(HELD, max_size=4))
def test_what_is_written_is_read(held: list[Held]) -> None:
    """Round trip through bytes written field by field."""
    assert list_response(stub.listing(*map(_written, held))) == held


@BUSY
@given(st.lists(HELD, min_size=1, max_size=2), st.data())
def test_a_cut_answer_is_no_answer(held: list[Held], data: st.DataObject) -> None:
    """Cut anywhere but between two pods, it is an error: half a pod is never taken for a whole one."""
    parts = [stub.part(1, _written(one)) for one in held]
    whole = b"".join(parts)
    at = data.draw(st.integers(0, len(whole) - 1))
    ends = {sum(map(len, parts[:n])) for n in range(len(parts) + 1)}
    if at in ends:
        assert len(list_response(whole[:at])) < len(held)
    else:
        with pytest.raises(WireError):
            list_response(whole[:at])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0b", "wire type 3"), (b"\x02\x00", "field number 0"), (b"\x0a\xff", "cut in a number"),
        (b"\x0a" + b"\xff" * 9 + b"\x7f", "longer than"), (b"\x0a" + b"\xff" * 11, "more than 64 bits"),
        (b"\x09\x00", "cut in a number"), (stub.part(1, stub.part(1, b"x" * 5000)), "a name of 5000 bytes"),
        (b"\x0a\x00" * 250_000, "more than 200000 fields"),
    ],
)  # fmt: skip
def test_hostile_messages_are_refused_with_a_reason(data: bytes, why: str) -> None:
    """Groups, numbers without end, lengths beyond the message, names that are none, floods of empty fields."""
    with pytest.raises(WireError, match=why):
        list_response(data)


def test_a_newer_kubelets_fields_are_passed_over() -> None:
    """Field numbers that are not known, of every type, change nothing."""
    newer = stub.number(9, 7) + stub.part(10, b"\xff\x00") + b"\x59" + bytes(8) + b"\x5d" + bytes(4)
    held = stub.devices("nvidia.com/gpu", GPU) + newer
    pod = stub.pod("team", "train-0", stub.container("main", [held]) + newer) + newer
    assert list_response(stub.listing(pod) + newer) == [
        Held("team", "train-0", "main", (Devices("nvidia.com/gpu", (GPU,)),))
    ]
