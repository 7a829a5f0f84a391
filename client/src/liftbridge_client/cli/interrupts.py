"""Ctrl-C and SIGTERM: always handled; the second one ends the program at once.

The first one cancels the task of the command, which cleans up. Python's own mechanisms do not
suffice. A `KeyboardInterrupt` is dropped when it is raised in a callback of the garbage collector,
of a weak reference or of C code. A handler runs only between two instructions of the main thread: a
signal that arrives right before the loop waits, or in a thread of grpcio, does not wake the main
thread, and one that writes to a full pipe never reaches its next instruction. So C code writes the
number of each signal into a socket, whichever thread receives it, and a dedicated thread reads the
socket.
"""

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Coroutine, Iterator
from types import FrameType, TracebackType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
BLOCKED_SECONDS_MAX: Final = 5.0
"""Seconds without a turn after which a loop counts as blocked and the program ends."""

EXIT_BASE: Final = 128
"""Base of the exit code after a signal, as in shells: the signal's number is added."""


def run(body: Coroutine[Any, Any, None]) -> int:
    """Run a command; return 0, or the exit code for the signal that ended it."""
    if threading.current_thread() is not threading.main_thread():
        asyncio.run(body)  # signals are for the main thread
        return 0
    runner = asyncio.Runner()
    with _Ears(runner.get_loop()) as ears, runner:
        try:
            runner.run(ears.heed(body))
        except asyncio.CancelledError:
            if not ears.heard:
                raise
            return EXIT_BASE + ears.heard
    return 0


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt` while a question blocks the loop."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the number of the signal is in the socket already."""


class _Ears:
    """Receives signals for a loop, while entered.

    Attributes:
        heard: Number of the first signal; 0 before it arrives.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.heard = 0
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._receiver, self._sender = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)

    def __enter__(self) -> Self:
        self._sender.settimeout(0.0)
        self._wakeup = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._thread.start()
        # Ignored signals, as in the background of a script, stay ignored.
        known = {number: signal.getsignal(number) for number in SIGNALS}
        self._before = {n: how for n, how in known.items() if how is not signal.SIG_IGN}
        for number in self._before:
            signal.signal(number, _on_signal)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for number, how in self._before.items():
            signal.signal(number, how)
        signal.set_wakeup_fd(self._wakeup)
        self._sender.close()  # ends the thread
        self._thread.join()
        self._receiver.close()

    async def heed(self, body: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it ends or a signal arrives."""
        self._task = asyncio.current_task()
        if self.heard:
            body.close()
            raise asyncio.CancelledError
        await body

    def _end(self, number: int) -> None:
        self.heard = number
        if self._task is not None:
            self._task.cancel()

    def _listen(self) -> None:
        """Forward the first signal to the loop.

        End the program at the next, or if the loop blocks.
        """
        first = self._next()
        if not first:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the program ends anyway
            self._loop.call_soon_threadsafe(self._end, first)
        self._receiver.settimeout(BLOCKED_SECONDS_MAX)
        try:
            last = self._next()
        except TimeoutError:
            self._receiver.settimeout(None)
            last = self._next() if self.heard else first
        if last:
            os._exit(EXIT_BASE + last)

    def _next(self) -> int:
        """Return the next signal, 0 at the end."""
        while data := self._receiver.recv(1):
            if data[0] in SIGNALS:
                return data[0]
        return 0
