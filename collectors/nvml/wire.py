"""What the collector and its child say to each other: frames over pipes, and one shared page of progress.

A frame is a four-byte length and a msgpack body. The page says which GPU and which call the child is in, so that
the parent can name the GPU when an answer never comes. Imported by the child: msgspec and the standard library.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
from msgspec import Struct

FRAME: Final = struct.Struct(">I")
MAX_FRAME: Final = 16 << 20
"""Far above a round of 36 links × 16 GPUs; a longer frame means that the two no longer understand each other."""

PROGRESS_SIZE: Final = 64
_PROGRESS: Final = struct.Struct("<i60s")

NOWHERE: Final = -1
"""Progress: in no GPU's call (start, events, between rounds)."""

NOT_AVAILABLE: Final = -1
"""Code of a field whose call succeeded with NVML_VALUE_NOT_AVAILABLE or all bits set."""
NO_FIELD_ID: Final = -2
"""Code of a field for which this driver version has no known id."""


class Setup(Struct, array_like=True):
    """The parent's first frame. ``only`` is PCI addresses; empty means every GPU that NVML lists.

    ``skip_index`` keeps away from GPUs that hung before their address was known. ``every`` is the reading class
    of each contract field of table ``gpu``, so that the child needs no schema, ``links`` the same of table ``link``;
    a field that is in neither is switched off and not read.
    """

    every: dict[str, int]
    only: list[str] = []
    skip_index: list[int] = []
    links: dict[str, int] = {}


class Ask(Struct, array_like=True):
    """One round: the reading classes that are due, and the slots whose links are looked at whatever is due."""

    n: int
    due: list[int]
    watch: list[int] = []


class Gpu(Struct, array_like=True):
    """Who a GPU is. ``slot`` is its place in this child's answers, ``index`` its NVML index (−1: by address)."""

    slot: int
    index: int
    uuid: str
    bus: str
    model: str
    serial: str
    vbios: str


class Unseen(Struct, array_like=True):
    """A GPU that NVML lists and gives no identity for."""

    index: int
    bus: str
    code: int


class Hello(Struct, array_like=True, tag="hello"):
    """The child's first frame. ``code`` is why NVML did not start, 0 when it did; ``where`` the call that said so."""

    code: int
    where: str
    driver: str = ""
    library: str = ""
    gpus: list[Gpu] = []
    unseen: list[Unseen] = []


class Happening(Struct, array_like=True):
    """One event of the NVML event set; ``slot`` −1 where the handle resolves to no GPU of this child."""

    slot: int
    type: int
    data: int
    gi: int
    ci: int


class Happenings(Struct, array_like=True, tag="events"):
    """Events, sent ahead of the readings: what preceded a hang must not be lost with it."""

    events: list[Happening]


class Part(Struct, array_like=True):
    """Readings of one MIG instance: a GPU instance by its id. ``pids`` is null where nobody knows; ``uuids`` of its
    compute instances, by which schedulers call them, come with the 10 s class."""

    gi: int
    profile: str
    values: dict[str, int | float]
    errors: dict[str, int] = {}
    pids: list[int] | None = None
    uuids: list[str] = []


class Link(Struct, array_like=True):
    """One NVLink by its number: its state as NVML counts states (−1: could not tell), and what else was read.

    ``remote`` is told when it was asked for: version, kind of the far end, its PCI address and its link there.
    """

    n: int
    state: int
    values: dict[str, int | float]
    remote: dict[str, str] = {}


class Read(Struct, array_like=True):
    """One GPU, one round. ``trouble`` is the code that makes the GPU as a whole unreadable, 0 when it is well.

    ``errors`` holds fields whose code changed since they were last told, ``link_errors`` the same of table ``link``
    for all of the GPU's links. ``facts`` (domain, place, MIG profiles) come with the 60 s class. ``pids`` are its
    compute processes, null in rounds that do not count them and where nobody knows; ``links`` is null where they were
    not looked at.
    """

    slot: int
    trouble: int
    where: str
    max_ms: float
    values: dict[str, int | float]
    errors: dict[str, int]
    parts: list[Part] = []
    facts: dict[str, str] = {}
    pids: list[int] | None = None
    links: list[Link] | None = None
    link_errors: dict[str, int] = {}


class Answer(Struct, array_like=True, tag="answer"):
    """The answer to ``Ask`` of the same ``n``. ``counts`` are calls that failed since the last answer, by code."""

    n: int
    reads: list[Read]
    counts: dict[int, int]


Message = Hello | Happenings | Answer

_INT64, _UINT64 = -(2**63), 2**64
_encoder = msgspec.msgpack.Encoder()
decode_setup = msgspec.msgpack.Decoder(Setup).decode
decode_ask = msgspec.msgpack.Decoder(Ask).decode
decode_message = msgspec.msgpack.Decoder(Hello | Happenings | Answer).decode


def frame(message: Struct) -> bytes:
    """The message with its length in front. A reading that no integer of the wire holds goes as a float: one GPU's
    nonsense must not end the reader of all, and whoever judges readings finds it out of range."""
    try:
        body = _encoder.encode(message)
    except OverflowError:
        if not isinstance(message, Answer):
            raise
        for read in message.reads:
            for part in (read, *read.parts, *(read.links or ())):
                part.values |= {n: float(v) for n, v in part.values.items() if not _INT64 <= v < _UINT64}
        body = _encoder.encode(message)
    return FRAME.pack(len(body)) + body


def mark(slot: int, call: str) -> bytes:
    """The page's content while the child is in ``call`` of GPU ``slot``."""
    return _PROGRESS.pack(slot, call.encode()[:60])


def unmark(page: bytes) -> tuple[int, str]:
    """(slot, call) of a page."""
    slot, call = _PROGRESS.unpack(page)
    return slot, call.rstrip(b"\0").decode(errors="replace")
