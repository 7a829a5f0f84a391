"""Counts and times of what a partition received, delivered and dropped."""

from dataclasses import dataclass, field
from typing import Final

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.node.context import BEGINNING

PATHS: Final = ("grpc", "nats", "batch")


@dataclass(slots=True)
class EventTimes:
    """First and latest time of an event since the broker started, Unix nanoseconds."""

    first: int = 0
    latest: int = 0

    def mark(self, wall_ns: int) -> None:
        """Record an occurrence."""
        if not self.first:
            self.first = wall_ns
        self.latest = wall_ns


@dataclass(slots=True)
class Activity:
    """Activity of a partition since the broker started.

    Attributes:
        received_counts: Messages appended, by the path on which they arrived.
        received_bytes: Bytes of them.
        dropped_count: Messages that arrived over NATS while the partition was paused by hand.
        last_active: Time of its last use, from which it counts as idle.
    """

    messages_received: EventTimes = field(default_factory=EventTimes)
    pause_changed: EventTimes = field(default_factory=EventTimes)
    readonly_changed: EventTimes = field(default_factory=EventTimes)
    received_counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PATHS, 0))
    received_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PATHS, 0))
    delivered_count: int = 0
    delivered_bytes: int = 0
    dropped_count: int = 0
    last_active: Instant = BEGINNING

    def on_received(self, path: str, count: int, size_bytes: int, wall_ns: int) -> None:
        """Count messages that were appended."""
        self.messages_received.mark(wall_ns)
        self.received_counts[path] += count
        self.received_bytes[path] += size_bytes
