"""Reading logs through after the disk refused a read, to find out whether they are whole.

A device that was reset, or storage over a network, may refuse a read and give it a moment later.
The replica was declared unclean by then, and others lead. But what it holds may be what they lack
while it is copied anew, so it is set aside only when it cannot be read, or is damaged.
"""

from collections.abc import Callable
from typing import Final, Protocol

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.streams import MILLISECOND_NS
from liftbridge_broker.node.following import Following
from liftbridge_broker.storage.batch_reader import ScrubReader
from liftbridge_broker.storage.log import PartitionLog
from liftbridge_broker.storage.types import READ_BLOCK_BYTES, ReadNeed

PAUSE_NS: Final = 1_000 * MILLISECOND_NS
"""How long a disk is left alone before it is read again."""


class ExaminingHost(Protocol):
    """What examinations need of their owner."""

    def submit_read(self, need: ReadNeed, done: Callable[[bytes | LiftbridgeError], None]) -> None:
        """Read off the loop."""
        ...


class _Examination:
    """Verifies one log; `due` is when its next piece is to be read."""

    def __init__(self, log: PartitionLog, due: Instant) -> None:
        self.due = due
        self.is_reading = False
        self.error: LiftbridgeError | None = None
        self.end = log.log_end_offset
        self.reader = ScrubReader(log, log.log_start_offset)

    def on_read(self, outcome: bytes | LiftbridgeError) -> None:
        """Go on with what was read off the loop."""
        self.is_reading = False
        if isinstance(outcome, LiftbridgeError):
            self.error = outcome
        else:
            self.reader.feed(outcome)


class Examinations:
    """Those that are wanted, one log after the other and one block a turn."""

    def __init__(self, host: ExaminingHost, is_current: Callable[[Following], bool]) -> None:
        """Begin without any.

        Args:
            host: The owner.
            is_current: Whether a partition is still followed so; else nobody wants to know.
        """
        self._host = host
        self._is_current = is_current
        self._wanted: dict[Following, _Examination] = {}

    def begin(self, following: Following, now: Instant) -> None:
        """Examine the log of a partition, unless that is so already."""
        if following not in self._wanted:
            due = Instant(now + PAUSE_NS)
            self._wanted[following] = _Examination(following.partition.log, due)

    def next_deadline(self) -> Instant | None:
        """When `on_timer` wants to be called, `None` for never."""
        first = next(iter(self._wanted.values()), None)
        return None if first is None or first.is_reading else first.due

    def on_timer(self, now: Instant) -> None:
        """Verify the next block if it is time for it."""
        due = self.next_deadline()
        if due is None or due > now:
            return
        following, one = next(iter(self._wanted.items()))
        error: LiftbridgeError | None = None
        is_wanted = self._is_current(following)
        if is_wanted:
            try:
                if not self._step(one):
                    return
            except LiftbridgeError as met:
                error = met
        self._wanted.pop(following).reader.close()
        if is_wanted:
            following.on_examined(error)

    def _step(self, one: _Examination) -> bool:
        """Verify a block; whether it was the last one."""
        if one.error is not None:
            raise one.error
        result = one.reader.read(READ_BLOCK_BYTES, one.end)
        if result.need is None:
            return one.reader.next_offset >= one.end
        one.is_reading = True
        self._host.submit_read(result.need, one.on_read)
        return False
