"""The collector's side of its child: start it, talk to it within a deadline, leave it when it hangs."""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, cast

from graynode.collectors.nvml import wire

MODULE: Final = "graynode.collectors.nvml.reader"
_STOP_S: Final = 1.0
"""An idle child ends within milliseconds of its stdin; one that does not is in the driver."""


class ChildEnded(Exception):
    """The child is gone; the text says how."""


class Spawner:
    """Starts children from one thread that lives as long as the collector.

    The kernel ends a child when the *thread* that started it ends (PR_SET_PDEATHSIG), and the agent's threads
    come and go as the agent likes.
    """

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, make: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """What ``make`` gives, made in the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nvml-spawner", daemon=True)
            self._thread.start()
        answer: queue.SimpleQueue[subprocess.Popen[bytes] | BaseException] = queue.SimpleQueue()

        def order() -> None:
            try:
                answer.put(make())
            except BaseException as error:  # carried to the thread that asked
                answer.put(error)

        self._orders.put(order)
        got = answer.get()
        if isinstance(got, BaseException):
            raise got
        return got

    def stop(self) -> None:
        """End the thread, and with it every child that still hangs."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread = None

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            order()


class Child:
    """One child process. ``only`` and ``skip_index`` as in ``Setup``; ``env`` decides which library it loads."""

    def __init__(
        self,
        setup: wire.Setup,
        spawner: Spawner,
        env: Mapping[str, str],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.setup, self._monotonic = setup, monotonic
        self.started_at = monotonic()
        self._page_fd = os.memfd_create("graynode-nvml")
        os.ftruncate(self._page_fd, wire.PROGRESS_SIZE)
        self._page = mmap.mmap(self._page_fd, wire.PROGRESS_SIZE)
        self._page[:] = wire.mark(wire.NOWHERE, "start")
        self._buffer = bytearray()
        try:
            self.process = spawner.start(lambda: self._spawn(env))
        except BaseException:
            self._close_page()
            raise
        os.set_blocking(self._out, False)
        with contextlib.suppress(ChildEnded):  # one that is gone already says so when it is listened to
            self.send(setup)

    def send(self, message: wire.Setup | wire.Ask) -> None:
        """Send a frame; ``ChildEnded`` if nobody reads any more. Frames are small, so this never waits."""
        try:
            os.write(self._in, wire.frame(message))
        except OSError as error:
            raise ChildEnded(self.ending()) from error

    def receive(self, until: float) -> wire.Message | None:
        """The next message, ``None`` if none has come by monotonic time ``until``; ``ChildEnded``."""
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        while True:
            body = self._take_frame()
            if body is not None:
                return cast("wire.Message", wire.decode_message(body))
            left = until - self._monotonic()
            if not poll.poll(max(0.0, left * 1000)):
                if left <= 0:
                    return None
                continue
            data = os.read(self._out, 1 << 16)
            if not data:
                raise ChildEnded(self.ending())
            self._buffer += data

    def where(self) -> tuple[int, str]:
        """(slot, call) that the child is in; slot is its place in the order while GPUs are being attached."""
        return (wire.NOWHERE, "") if self._page.closed else wire.unmark(self._page[:])

    def ending(self) -> str:
        """How the process ended, in words."""
        try:
            code = self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            return "the reader closed its pipe"
        slot, call = self.where()
        place = f" in {call} of GPU {slot}" if slot >= 0 else f" in {call}" if call else ""
        return f"the reader ended by signal {-code}{place}" if code < 0 else f"the reader ended with code {code}{place}"

    def kill(self) -> None:
        """Leave it: SIGKILL, and no waiting, for in the driver even that may not be heard."""
        self.process.kill()
        self._close()

    def stop(self) -> None:
        """End it in good order, or leave it."""
        self._close()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.reap()

    def reap(self) -> None:
        """Wait a moment for the end of a child that was killed; one in the driver may outlive the agent."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_S)

    def gone(self) -> bool:
        """True once the kernel has let it go; reaps it."""
        return self.process.poll() is not None

    def _spawn(self, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        # -P: the working folder of an agent is no place to import from
        command = [sys.executable, "-P", "-m", MODULE, str(os.getpid()), str(self._page_fd)]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=dict(env), pass_fds=(self._page_fd,), bufsize=0,
            start_new_session=True,
        )  # fmt: skip

    @property
    def _in(self) -> int:
        assert self.process.stdin is not None  # noqa: S101 (for the type checker: it is a pipe)
        return self.process.stdin.fileno()

    @property
    def _out(self) -> int:
        assert self.process.stdout is not None  # noqa: S101 (the same)
        return self.process.stdout.fileno()

    def _take_frame(self) -> bytes | None:
        head = wire.FRAME.size
        if len(self._buffer) < head:
            return None
        size = wire.FRAME.unpack_from(self._buffer)[0]
        if size > wire.MAX_FRAME:
            raise ChildEnded(f"the reader sent a frame of {size} bytes")
        if len(self._buffer) < head + size:
            return None
        body = bytes(self._buffer[head : head + size])
        del self._buffer[: head + size]
        return body

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        self._close_page()

    def _close_page(self) -> None:
        if not self._page.closed:
            self._page.close()
            os.close(self._page_fd)
