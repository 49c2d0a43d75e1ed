"""One record of a spool segment as bytes, and how a reader finds its way through damage.

A frame is a head of 32 bytes (little-endian: magic, CRC-32, body length, offset, arrival in epoch ms, key
length, headers length) and a body (key, headers as MessagePack, value). The CRC covers the body and the head
from the length on, so neither a torn write nor a stale block passes for a record; offset and magic in every
frame let a reader find the next whole one behind a damaged one.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import Final

import msgspec

from graynode.pipeline.bus import Partition, Received
from graynode.pipeline.codec import MAX_MESSAGE_BYTES, Message

MAGIC: Final = b"\xc7gS1"
HEAD: Final = struct.Struct("<4sIIqqHH")
_CRC_FROM: Final = 8
_CRC: Final = struct.Struct("<I")
MAX_BODY: Final = MAX_MESSAGE_BYTES + (1 << 17)
"""Value, key and headers; a head that promises more is damaged."""
BLOCK: Final = 1 << 20
_encode_headers = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode


def encode_frame(message: Message, offset: int, arrived_ms: int) -> bytearray:
    """The frame of one message, whose size has been checked (``graynode.pipeline.bus.check_size``)."""
    key, headers = message.key.encode(), _encode_headers(dict(message.headers))
    length = len(key) + len(headers) + len(message.value)
    head = HEAD.pack(MAGIC, 0, length, offset, arrived_ms, len(key), len(headers))
    frame = bytearray(b"".join((head, key, headers, message.value)))
    _CRC.pack_into(frame, 4, zlib.crc32(memoryview(frame)[_CRC_FROM:]))
    return frame


def frame_size(block: bytes, at: int, expect: int) -> int | None:
    """Bytes of the frame whose head begins at ``at``, or ``None`` if no sound head of ``expect`` or later is."""
    if len(block) - at < HEAD.size:
        return None
    magic, _, length, offset, _, keys, headers = HEAD.unpack_from(block, at)
    if magic != MAGIC or offset < expect or length > MAX_BODY or keys + headers > length:
        return None
    return HEAD.size + int(length)


def is_whole(block: bytes, at: int, size: int) -> bool:
    """Whether the frame of ``size`` bytes at ``at`` is all there and its CRC is right."""
    if at + size > len(block):
        return False
    (crc,) = _CRC.unpack_from(block, at + 4)
    return bool(crc == zlib.crc32(memoryview(block)[at + _CRC_FROM : at + size]))


def offset_of(block: bytes, at: int) -> int:
    """The offset that the frame at ``at`` carries."""
    return int(HEAD.unpack_from(block, at)[3])


def read_frame(block: bytes, at: int, partition: Partition) -> Received:
    """The message of the whole frame at ``at``."""
    _, _, length, offset, arrived_ms, keys, headers = HEAD.unpack_from(block, at)
    key_at = at + HEAD.size
    value_at = key_at + keys + headers
    message = Message(
        str(block[key_at : key_at + keys], "utf-8"),
        block[value_at : key_at + length],
        _decode_headers(memoryview(block)[key_at + keys : value_at]),
    )
    return Received(message, partition, offset, arrived_ms)


def next_whole(fd: int, at: int, expect: int) -> tuple[int, int, int] | None:
    """Place, size and offset of the first whole frame at or behind ``at``; ``None`` if there is none.

    Reads block by block, so that damage at the head of a large segment does not cost its size in memory.
    """
    for found in _magics(fd, at):
        head = os.pread(fd, HEAD.size, found)
        size = frame_size(head, 0, expect)
        if size is not None:
            frame = os.pread(fd, size, found)
            if is_whole(frame, 0, size):
                return found, size, offset_of(frame, 0)
    return None


def _magics(fd: int, at: int) -> Iterator[int]:
    while block := os.pread(fd, BLOCK, at):
        found = block.find(MAGIC)
        while found >= 0:
            yield at + found
            found = block.find(MAGIC, found + 1)
        if len(block) < len(MAGIC):
            return
        at += len(block) - len(MAGIC) + 1


def walk(fd: int, at: int, expect: int) -> Iterator[tuple[int, int, int]]:
    """Place, size and offset of every whole frame from ``at`` on; what is damaged is stepped over."""
    while True:
        block = os.pread(fd, BLOCK, at)
        here = 0
        while (size := frame_size(block, here, expect)) is not None and is_whole(block, here, size):
            offset = offset_of(block, here)
            yield at + here, size, offset
            here, expect = here + size, offset + 1
        at += here
        if here:
            continue
        found = next_whole(fd, at, expect)
        if found is None:
            return
        yield found
        at, expect = found[0] + found[1], found[2] + 1


def end_of(fd: int, at: int, offset: int) -> tuple[int, int]:
    """Where the whole frames end from ``at`` on, and the offset that comes next there."""
    for place, size, found in walk(fd, at, offset):
        at, offset = place + size, found + 1
    return at, offset
