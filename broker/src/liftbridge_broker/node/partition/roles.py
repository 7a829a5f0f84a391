"""Role of a broker for a partition, and the partition's view of other replicas."""

from enum import StrEnum
from typing import Protocol

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import Instant, Offset


class Role(StrEnum):
    """Role of this broker for a partition of which it holds a replica."""

    LEADER = "leader"
    RISING = "rising"
    """Leader by the metadata, but not ready to accept or serve records yet."""
    FOLLOWER = "follower"
    NONE = "none"
    """No leader, or none known to this broker yet."""


class Replication(Protocol):
    """The other replicas as a partition sees them, whether it leads or follows.

    Attributes:
        is_commit_mode: Whether only what is on disk counts.
        is_latest_known: Whether every possibly committed record is known to be committed (I9).
    """

    @property
    def is_latest_known(self) -> bool:
        """Return whether every possibly committed record is known to be committed (I9)."""
        ...

    @property
    def is_cut_off(self) -> bool:
        """Return whether this broker leads by possibly outdated metadata: another may lead."""
        ...

    @property
    def is_recovering(self) -> bool:
        """Return whether this broker leads by an unclean election and does not serve yet (L1)."""
        ...

    @property
    def is_commit_mode(self) -> bool:
        """Return whether only what is on disk counts."""
        ...

    def check_append(self, *, is_all: bool, now: Instant) -> None:
        """Refuse a run before it is appended.

        Args:
            is_all: Whether an ack of the run waits for all replicas.
            now: Time now.

        Raises:
            LiftbridgeError: The run must not be appended.
        """
        ...

    def on_appended(self, base: Offset, data: bytes, now: Instant) -> None:
        """Handle the batches that the leader appended at the end of its log, `base`."""
        ...

    def on_flushed(self, wall_ns: int) -> None:
        """Handle progress of the sync."""
        ...

    def on_offline(self, reason: str) -> None:
        """Handle a log that cannot be used any more."""
        ...


class Subscriber(Protocol):
    """A subscription as its partition sees it."""

    @property
    def next_offset(self) -> Offset:
        """First offset not delivered yet."""
        ...

    @property
    def reads_replica(self) -> bool:
        """Return whether it continues when this broker no longer leads."""
        ...

    def on_closed(self, error: LiftbridgeError) -> None:
        """End the subscription, because the partition closed."""
        ...
