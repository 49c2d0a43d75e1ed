"""The child that alone loads pynvml: ``python -m graynode.collectors.nvml.reader``, frames on stdin and stdout.

It is spawned, never forked: NVML does not survive a fork. A call that hangs in the driver hangs this process; the
parent sees from the shared page where, ends it and goes on. It imports pynvml, msgspec and the standard library.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

import pynvml
from pynvml import NVMLError

from graynode.collectors.nvml import wire
from graynode.collectors.nvml.device import Device, found_devices
from graynode.collectors.nvml.events import MIG_CHANGE, EventSet
from graynode.collectors.nvml.gpu import NvmlGone, Watch

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Serve rounds until stdin ends. Arguments: the parent's process id, and the shared page's descriptor."""
    # a terminal or a service manager signals the whole group; this process ends when its parent lets it go
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent, page = int(sys.argv[1]), mmap.mmap(int(sys.argv[2]), wire.PROGRESS_SIZE)
    end_with(parent)
    Reader(0, 1, page).run()


def end_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, also while it hangs in a call."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was told
        raise SystemExit(0)


class Reader:
    """One child's life: set up, then a round for every ``Ask``."""

    def __init__(self, source: int, sink: int, page: Any) -> None:  # noqa: ANN401 (mmap or bytearray)
        self._source, self._sink = source, sink
        self._watch = Watch(page)
        self._devices: list[Device] = []
        self._events: EventSet | None = None

    def run(self) -> None:
        """Until the parent closes its end, or NVML as a whole is gone."""
        body = self._receive()
        if body is None:
            return
        try:
            self._start(wire.decode_setup(body))
            while (body := self._receive()) is not None:
                self._round(wire.decode_ask(body))
        except NvmlGone as gone:
            self._send(wire.Hello(gone.code, gone.where))
        finally:
            self._end()

    def _start(self, setup: wire.Setup) -> None:
        self._mark("nvmlInit")
        self._must("nvmlInit", pynvml.nvmlInit)
        hello = wire.Hello(
            0,
            "",
            self._must("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion),
            self._must("nvmlSystemGetNVMLVersion", pynvml.nvmlSystemGetNVMLVersion),
        )
        count = self._must("nvmlDeviceGetCount", pynvml.nvmlDeviceGetCount)
        self._devices, hello.unseen = found_devices(setup, count, hello.driver, self._watch)
        hello.gpus = [d.gpu for d in self._devices]
        self._mark("nvmlEventSetCreate")
        self._events = EventSet(self._devices, self._watch)
        self._send(hello)

    def _round(self, ask: wire.Ask) -> None:
        due = frozenset(ask.due)
        self._mark("nvmlEventSetWait")
        if self._events is not None:
            events = self._events.take()
            if events:
                self._send(wire.Happenings(events))
            for event in events:
                if event.type == MIG_CHANGE and 0 <= event.slot < len(self._devices):
                    self._devices[event.slot].instances_changed()
        reads = [d.read(due, watch_links=d.gpu.slot in ask.watch) for d in self._devices]
        for device, read in zip(self._devices, reads, strict=True):
            device.finish(due, read)
            if device.new_handle and self._events is not None:
                self._events.follow(device)
            device.new_handle = False
        self._mark("")
        counts, self._watch.counts = dict(self._watch.counts), type(self._watch.counts)()
        self._send(wire.Answer(ask.n, reads, counts))

    def _must(self, where: str, function: Callable[[], Any]) -> Any:  # noqa: ANN401 (pynvml has no types)
        try:
            return function()
        except NVMLError as error:
            raise NvmlGone(int(error.value), where) from error

    def _end(self) -> None:
        """Give back what NVML allocated; a GPU that hangs now hangs a process that nobody waits for."""
        for part in (*self._devices, self._events):
            if part is not None:
                part.close()
        try:
            pynvml.nvmlShutdown()
        except NVMLError:
            return

    def _mark(self, where: str) -> None:
        self._watch.page[:] = wire.mark(wire.NOWHERE, where)

    def _send(self, message: wire.Message) -> None:
        data = memoryview(wire.frame(message))
        while data:
            data = data[os.write(self._sink, data) :]

    def _receive(self) -> bytes | None:
        head = self._exactly(wire.FRAME.size)
        return None if head is None else self._exactly(wire.FRAME.unpack(head)[0])

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            more = os.read(self._source, size - len(data))
            if not more:
                return None
            data += more
        return data


if __name__ == "__main__":
    main()
