"""A partition that a broker leads, as the fetch sessions of its followers see it."""

from collections.abc import Sequence
from typing import Protocol

from liftbridge_broker.model.fetching import FetchOutcome, FetchPosition, SessionClock
from liftbridge_broker.model.ids import BrokerId, Instant, LeaderEpoch, Offset
from liftbridge_broker.ports.replica_log import LogBounds


class LedPartition(LogBounds, Protocol):
    """A partition that this broker leads, as the sessions of its followers see it.

    The owner forwards the calls to its `LeaderCore`, and applies the results.
    """

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Epoch this broker leads in."""
        ...

    @property
    def compacted_everywhere(self) -> Offset:
        """The least compacted offset of all replicas."""
        ...

    @property
    def dropped_offset(self) -> Offset:
        """Offset below which tombstones may have been removed from the log."""
        ...

    def on_fetch(
        self, replica: BrokerId, fetch: FetchPosition, clock: SessionClock, now: Instant
    ) -> FetchOutcome:
        """Check and record a position."""
        ...

    def on_answered(self, replica: BrokerId, asked_at: Instant) -> None:
        """Note that records were sent for a position valid at `asked_at`."""
        ...

    def on_forgotten(self, replica: BrokerId) -> None:
        """Note that the follower's fetches no longer cover this partition."""
        ...

    def read(
        self, replica: BrokerId, offset: Offset, bytes_max: int
    ) -> Sequence[bytes | memoryview] | None:
        """Return whole batches of [offset, ...), at least one.

        Empty when they must be read from the disk first: `LeaderSession.notify` follows when they
        are available. `None` when they are damaged.
        """
        ...
