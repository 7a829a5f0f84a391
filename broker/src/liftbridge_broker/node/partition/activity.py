"""Counts and times of what a partition received, delivered and dropped."""

from dataclasses import dataclass, field
from typing import Final

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
    """

    messages_received: EventTimes = field(default_factory=EventTimes)
    pause_changed: EventTimes = field(default_factory=EventTimes)
    readonly_changed: EventTimes = field(default_factory=EventTimes)
    received_counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PATHS, 0))
    received_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PATHS, 0))
    delivered_count: int = 0
    delivered_bytes: int = 0
    dropped_count: int = 0

    def on_received(self, path: str, count: int, size_bytes: int, wall_ns: int) -> None:
        """Count messages that were appended."""
        self.messages_received.mark(wall_ns)
        self.received_counts[path] += count
        self.received_bytes[path] += size_bytes
