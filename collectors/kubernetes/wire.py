"""Answers of the kubelet's PodResources API, decoded from protobuf bytes: which container holds which devices.

The messages are those of ``k8s.io/kubelet/pkg/apis/podresources/v1/api.proto`` (``v1alpha1`` is a part of it). They
nest five deep at most and so does the code: there is no recursion that bytes could drive. Unknown fields are passed
over, so a newer kubelet is read as an older one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

MOST_BYTES: Final = 16 << 20
"""The kubelet's own bound for a message of this API."""
_MOST_FIELDS: Final = 200_000
"""Fields in one answer: 250 pods with a hundred devices each are a tenth of it; decoding so many takes a second."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_TEXT: Final = 1024


class WireError(ValueError):
    """The bytes are not such a message."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A device that a DRA driver allocated: the triple names it in its ResourceSlice; CDI names are the runtime's."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    cdi: tuple[str, ...] = ()


class Devices(NamedTuple):
    """Devices of one resource, by the ids that its device plugin gave."""

    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """What one container holds."""

    namespace: str
    pod: str
    container: str
    devices: tuple[Devices, ...] = ()
    claims: tuple[Claimed, ...] = ()


class _Reader:
    """Counts fields over a whole answer."""

    def __init__(self, data: bytes) -> None:
        if len(data) > MOST_BYTES:
            raise WireError(f"an answer of {len(data)} bytes; at most {MOST_BYTES} are read")
        self.left = _MOST_FIELDS

    def fields(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Number and content of the length-delimited fields, in order; numbers of other types are passed over."""
        at = 0
        while at < len(data):
            self.left -= 1
            if self.left < 0:
                raise WireError(f"more than {_MOST_FIELDS} fields")
            tag, at = _varint(data, at)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise WireError("field number 0")
            if kind == _BYTES:
                size, at = _varint(data, at)
                if size > len(data) - at:
                    raise WireError("a field is longer than the message")
                yield number, data[at : at + size]
                at += size
            else:
                at = _skip(kind, data, at)


def list_response(data: bytes) -> list[Held]:
    """The answer of ``List``: one entry a container that holds something. ``WireError`` if it is none."""
    reader = _Reader(data)
    held: list[Held] = []
    for number, pod in reader.fields(data):
        if number == 1:
            held += _pod(reader, pod)
    return held


def allocatable_response(data: bytes) -> list[Devices]:
    """The answer of ``GetAllocatableResources``: all devices that may be handed out."""
    reader = _Reader(data)
    return [_devices(reader, inner) for number, inner in reader.fields(data) if number == 1]


def _pod(reader: _Reader, data: bytes) -> list[Held]:
    name = namespace = ""
    containers: list[bytes] = []
    for number, inner in reader.fields(data):
        if number == 1:
            name = _text(inner)
        elif number == 2:
            namespace = _text(inner)
        elif number == 3:
            containers.append(inner)
    made = (_container(reader, inner, namespace, name) for inner in containers)
    return [one for one in made if one.devices or one.claims]


def _container(reader: _Reader, data: bytes, namespace: str, pod: str) -> Held:
    name = ""
    devices: list[Devices] = []
    claims: list[Claimed] = []
    for number, inner in reader.fields(data):
        if number == 1:
            name = _text(inner)
        elif number == 2:
            devices.append(_devices(reader, inner))
        elif number == 5:
            claims += [_claimed(reader, claim) for n, claim in reader.fields(inner) if n == 4]
    return Held(namespace, pod, name, tuple(devices), tuple(claims))


def _devices(reader: _Reader, data: bytes) -> Devices:
    resource = ""
    ids: list[str] = []
    for number, inner in reader.fields(data):
        if number == 1:
            resource = _text(inner)
        elif number == 2:
            ids.append(_text(inner))
    return Devices(resource, tuple(ids))


def _claimed(reader: _Reader, data: bytes) -> Claimed:
    texts: dict[int, str] = {}
    cdi: list[str] = []
    for number, inner in reader.fields(data):
        if number == 1:
            cdi += [_text(name) for n, name in reader.fields(inner) if n == 1]
        elif number in (2, 3, 4):
            texts[number] = _text(inner)
    return Claimed(texts.get(2, ""), texts.get(3, ""), texts.get(4, ""), tuple(cdi))


def _text(data: bytes) -> str:
    if len(data) > _MOST_TEXT:
        raise WireError(f"a name of {len(data)} bytes")
    return data.decode("utf-8", "replace")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise WireError("cut in a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise WireError("a number of more than 64 bits")


def _skip(kind: int, data: bytes, at: int) -> int:
    if kind == _VARINT:
        return _varint(data, at)[1]
    size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
    if size is None:
        raise WireError(f"wire type {kind}")
    if size > len(data) - at:
        raise WireError("cut in a number")
    return at + size
