"""End of a read-only partition, for a reader that reached the end of the local log.

The local log may end before the partition does: a follower may not have fetched the rest, and a
leader may have been replaced. So the end is queried, as any other end (`answers`).
"""

from collections.abc import Callable

from liftbridge_broker.errors import EndOfStreamError, LiftbridgeError
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.reading.answers import Question, ask
from liftbridge_broker.node.reading.client_reads import ClientReads


class ReadonlyEnd:
    """Query by which one reader learns whether it has read all of a read-only partition."""

    __slots__ = (
        "_answer",
        "_as_replica",
        "_ask_ends_later",
        "_is_asking",
        "_known_end",
        "_partition",
        "_reads",
        "_wake",
    )

    def __init__(
        self,
        partition: Partition,
        reads: ClientReads,
        wake: Callable[[], None],
        *,
        as_replica: bool,
    ) -> None:
        """Start without a query.

        Args:
            partition: Partition to read.
            reads: Reads for clients of this broker.
            wake: Called when `look` may have a result after it returned `None`.
            as_replica: Whether any replica may answer.
        """
        self._partition = partition
        self._reads = reads
        self._wake = wake
        self._as_replica = as_replica
        self._is_asking = False
        self._ask_ends_later = False
        self._answer: LiftbridgeError | None = None
        self._known_end = Offset(-1)  # not asked yet

    def look(self) -> LiftbridgeError | None:
        """Return the error that ends a reader at the local log end, `None` during the query."""
        if not self._is_asking and self._known_end != self._partition.log.log_end_offset:
            self._is_asking, self._ask_ends_later = True, False
            as_replica, now = self._as_replica, self._reads.context.now
            ask(
                self._reads.answers,
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
