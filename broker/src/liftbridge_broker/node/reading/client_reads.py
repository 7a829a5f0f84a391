"""Reads from the disk for clients: so many bytes at once, the others wait in line.

A read holds its bytes from its start until its reader took them, perhaps many turns later. Ten
thousand readers of what is not in memory would otherwise hold as many blocks, and other brokers'
fetches would wait behind their reads.
"""

from collections.abc import Callable
from typing import Final

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.storage.types import ReadNeed

HELD_BYTES_MAX: Final = 32 << 20
"""One larger read is made alone."""

ReadDone = Callable[[bytes | LiftbridgeError], None]


class DiskRead:
    """One read; it holds its bytes until `end`."""

    __slots__ = ("_done", "_is_ended", "_is_read", "_reads", "need")

    def __init__(self, reads: "ClientReads", need: ReadNeed, done: ReadDone) -> None:
        """Wait in line; `ClientReads` starts it."""
        self._reads = reads
        self.need = need
        self._done = done
        self._is_read = False
        self._is_ended = False

    def on_read(self, outcome: bytes | LiftbridgeError) -> None:
        """Handle the bytes, or the error."""
        self._is_read = True
        if self._is_ended:
            self._reads.on_ended(self)
        else:
            self._done(outcome)

    def end(self) -> None:
        """The reader took the bytes, or is gone: `done` is not called any more."""
        if self._is_ended or self._reads.leave(self):
            return
        self._is_ended = True
        if self._is_read:
            self._reads.on_ended(self)


class ClientReads:
    """All reads for clients of one broker."""

    def __init__(self, submit: Callable[[ReadNeed, ReadDone], None]) -> None:
        """Start without reads; `submit` reads off the loop, and calls back in a later turn."""
        self._submit = submit
        self._line: dict[DiskRead, None] = {}
        self._held_bytes = 0

    def submit(self, need: ReadNeed, done: ReadDone) -> DiskRead:
        """Read when it is this one's turn; `done` is called in a later turn.

        The file stays open until the caller ends the read (`ReadNeed`).
        """
        read = DiskRead(self, need, done)
        self._line[read] = None
        self._start()
        return read

    def leave(self, read: DiskRead) -> bool:
        """Leave the line; return whether the read had not started."""
        if read not in self._line:
            return False
        del self._line[read]
        return True

    def on_ended(self, read: DiskRead) -> None:
        """Handle that a started read holds its bytes no longer."""
        self._held_bytes -= read.need.length
        self._start()

    def _start(self) -> None:
        while self._line:
            read = next(iter(self._line))
            length = read.need.length
            if self._held_bytes and self._held_bytes + length > HELD_BYTES_MAX:
                return
            del self._line[read]
            self._held_bytes += length
            self._submit(read.need, read.on_read)
