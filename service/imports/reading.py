"""Files to import, opened: packed or not, in whichever Unicode they were written, known by their hash."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TextIO, cast

from graynode.service.config import ConfigError

GZIP: Final = b"\x1f\x8b"
_BOMS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
"""A redirection in PowerShell writes UTF-16."""
_CHUNK: Final = 1 << 20


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked if they are gzip's. ``ConfigError`` where they cannot be had, then or later."""
    try:
        mode = path.stat().st_mode  # before it is opened: that waits for a writer
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise ConfigError(f"{path}: is a pipe or a device, and files are read twice; write it into a file first")
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            yield cast("BinaryIO", file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: damaged gzip: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


@contextmanager
def opened_text(path: Path) -> Iterator[TextIO]:
    """The same as text. Bytes that are none are shown as marks, so that they cost the value that they are in."""
    with opened(path) as file:
        head = file.read(4)
        file.seek(0)
        encoding = next((name for bom, name in _BOMS if head.startswith(bom)), "utf-8")
        yield io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="")


def hash_of(path: Path) -> str:
    """SHA-256 of the unpacked bytes: a packed copy is the same file."""
    found = hashlib.sha256()
    with opened(path) as file:
        while data := file.read(_CHUNK):
            found.update(data)
    return found.hexdigest()


def position(file: TextIO | BinaryIO) -> int:
    """Bytes of the file as it lies on the disk that have been read, for a bar."""
    raw = getattr(file, "buffer", file)
    packed = getattr(raw, "fileobj", None)  # gzip's own file
    return int((packed or raw).tell())
