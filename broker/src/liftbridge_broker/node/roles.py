"""What a broker is to a partition, and the other replicas as the partition sees them."""

from enum import StrEnum
from typing import Protocol

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import Instant, Offset


class Role(StrEnum):
    """What this broker is to a partition it holds a replica of."""

    LEADER = "leader"
    RISING = "rising"
    """Leader by the metadata, but not ready to take or give records yet."""
    FOLLOWER = "follower"
    NONE = "none"
    """Nobody leads, or this broker does not know yet."""


class Replication(Protocol):
    """The other replicas as a partition sees them, whether it leads or follows.

    Attributes:
        is_commit_mode: Whether only what is on disk counts.
        is_latest_known: Whether all that may be committed is known to be (I9).
    """

    @property
    def is_latest_known(self) -> bool:
        """Whether all that may be committed is known to be (I9)."""
        ...

    @property
    def is_cut_off(self) -> bool:
        """Whether this broker leads by metadata that may be outdated: another may lead by now."""
        ...

    @property
    def is_recovering(self) -> bool:
        """Whether this broker leads since an unclean election and has not begun (1.15)."""
        ...

    @property
    def is_commit_mode(self) -> bool:
        """Whether only what is on disk counts."""
        ...

    def check_append(self, *, is_all: bool, now: Instant) -> None:
        """Refuse a run before it is appended.

        Args:
            is_all: Whether somebody waits for all replicas.
            now: Time now.

        Raises:
            LiftbridgeError: Nothing is to be appended.
        """
        ...

    def on_appended(self, now: Instant, wall_ns: int) -> None:
        """The leader appended records."""
        ...

    def on_flushed(self, wall_ns: int) -> None:
        """More of the log is on disk."""
        ...

    def on_offline(self, reason: str) -> None:
        """The log cannot be used any more."""
        ...


class Subscriber(Protocol):
    """A subscription as its partition sees it."""

    @property
    def next_offset(self) -> Offset:
        """First offset not delivered yet."""
        ...

    @property
    def reads_replica(self) -> bool:
        """Whether it goes on when this broker does not lead any more."""
        ...

    def on_closed(self, error: LiftbridgeError) -> None:
        """The partition serves no longer."""
        ...
