"""End of a read-only partition, for a reader that reached the end of the local log.

The local log may end before the partition does: a follower may not have fetched the rest, and a
leader may have been replaced. So the end is queried, as any other end (`answers`).
"""

from collections.abc import Callable
from typing import Protocol

from liftbridge_broker.errors import EndOfStreamError, LiftbridgeError
from liftbridge_broker.model.ids import Instant, Offset
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.reading.answers import AskedNode, Question, ask


class EndHost(AskedNode, Protocol):
    """The part of the node that this query needs."""

    now: Instant


class ReadonlyEnd:
    """Query of one reader whether it has read all of a read-only partition."""

    __slots__ = (
        "_answer",
        "_as_replica",
        "_ask_ends_later",
        "_host",
        "_is_asking",
        "_known_end",
        "_partition",
        "_wake",
    )

    def __init__(
        self, partition: Partition, host: EndHost, wake: Callable[[], None], *, as_replica: bool
    ) -> None:
        """Begin without a question.

        Args:
            partition: Partition to read.
            host: The node.
            wake: Called when `look` may have a result after it returned `None`.
            as_replica: Whether any replica may answer.
        """
        self._partition = partition
        self._host = host
        self._wake = wake
        self._as_replica = as_replica
        self._is_asking = False
        self._ask_ends_later = False
        self._answer: LiftbridgeError | None = None
        self._known_end: Offset | None = None

    def look(self) -> LiftbridgeError | None:
        """Return the error that ends a reader at the local log end, `None` during the query."""
        if not self._is_asking and self._known_end != self._partition.log.log_end_offset:
            self._is_asking, self._ask_ends_later = True, False
            as_replica, now = self._as_replica, self._host.now
            ask(
                self._host,
                self._partition,
                Question.END,
                self._answered,
                now,
                as_replica=as_replica,
            )
            self._ask_ends_later = True
        if self._is_asking:
            return None
        return self._answer or EndOfStreamError("End of readonly partition")

    def _answered(self, error: LiftbridgeError | None) -> None:
        """Handle the answer: records acknowledged before the query are in the local log now."""
        self._is_asking = False
        self._answer, self._known_end = error, self._partition.log.log_end_offset
        if self._ask_ends_later:
            self._wake()
