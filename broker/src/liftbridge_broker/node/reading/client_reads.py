"""Reads from the disk for clients: a bounded number of bytes at once, the rest in a queue.

A read holds its bytes from its start until its reader takes them, perhaps many turns later. Without
the bound, ten thousand readers of data that is not in memory would hold as many blocks, and the
fetches of other brokers would wait behind their reads.
"""

from typing import Final

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.node.context import NodeContext, ReadDone
from liftbridge_broker.node.reading.answers import Answers
from liftbridge_broker.storage.log.types import ReadNeed

READING_BYTES_MAX: Final = 32 << 20
"""A larger read runs alone."""


class ReadSlot:
    """The reads of one reader, one at a time; each holds its bytes until `free`."""

    __slots__ = ("_done", "_need", "_reads", "is_busy")

    def __init__(self, reads: "ClientReads") -> None:
        """Start without a read."""
        self._reads = reads
        self._need: ReadNeed | None = None
        self._done: ReadDone | None = None
        self.is_busy = False

    def read(self, need: ReadNeed, done: ReadDone) -> None:
        """Queue a read; `done` is called in a later turn, unless the slot is freed before.

        The file stays open until then (`ReadNeed`).
        """
        assert self._need is None
        self._need, self._done, self.is_busy = need, done, True
        self._reads.enqueue(self, need)

    def on_read(self, outcome: bytes | LiftbridgeError) -> None:
        """Handle the bytes, or the error."""
        self.is_busy = False
        done, self._done = self._done, None
        if done is None:
            self.free()
        else:
            done(outcome)

    def free(self) -> None:
        """Release the bytes, those of a running read at its end; no-op without a read.

        While the slot is busy, only a closed reader may call this.
        """
        need = self._need
        if need is None:
            return
        self._done = None
        if self.is_busy and not self._reads.dequeue(self):
            return
        self._need, was_started = None, not self.is_busy
        self.is_busy = False
        if was_started:
            self._reads.give_back(need.length)


class ClientReads:
    """All reads for clients of one broker.

    Attributes:
        context: State and ports that the parts of the node share.
        answers: Questions that wait before a read; `None` for a sole broker.
    """

    def __init__(self, context: NodeContext, answers: Answers | None) -> None:
        """Start without reads."""
        self.context = context
        self.answers = answers
        self._queue: dict[ReadSlot, ReadNeed] = {}
        self._reading_bytes = 0

    def enqueue(self, slot: ReadSlot, need: ReadNeed) -> None:
        """Queue a read, which starts once the bound allows it."""
        self._queue[slot] = need
        self._start()

    def dequeue(self, slot: ReadSlot) -> bool:
        """Drop a read from the queue; return whether it was still there."""
        return self._queue.pop(slot, None) is not None

    def give_back(self, length: int) -> None:
        """Release the bytes of a finished read, and start waiting reads."""
        self._reading_bytes -= length
        self._start()

    def _start(self) -> None:
        while self._queue:
            slot, need = next(iter(self._queue.items()))
            if self._reading_bytes and self._reading_bytes + need.length > READING_BYTES_MAX:
                return
            del self._queue[slot]
            self._reading_bytes += need.length
            self.context.submit_read(need, slot.on_read)
