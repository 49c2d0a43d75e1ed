"""``/dev/kmsg``: the kernel's own ring of records, read without waiting (Documentation/ABI/testing/dev-kmsg)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_BUFFER: Final = 16 * 1024
"""More than a record can be (about 8 KiB with its dictionary); a smaller buffer would make the kernel say EINVAL."""
_MAX_RECORDS: Final = 5000
"""A round takes no more; the rest waits in the ring for the next one."""


class KmsgDevice:
    """Records from the oldest that the ring still holds, then new ones. ``OSError`` from opening.

    ``drained`` tells whether the last look saw the end. An overrun (EPIPE: records were overwritten before they were
    read) is passed over; how many were lost is told by the sequence numbers.
    """

    def __init__(self, path: Path, read: Callable[[int, int], bytes] = os.read) -> None:
        self._read = read
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.drained = False

    def records(self) -> Iterator[bytes]:
        """What is there now, record by record, as the kernel gives them."""
        self.drained = False
        for taken in range(_MAX_RECORDS):
            try:
                raw = self._read(self._fd, _BUFFER)
            except BlockingIOError:
                self.drained = True
                return
            except OSError as error:
                if error.errno != errno.EPIPE:
                    if taken:
                        return  # what was read is given first; the next look meets the error again
                    raise
                continue
            if not raw:
                self.drained = True
                return
            yield raw

    def close(self) -> None:
        """Let go of the device; twice is as good as once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
