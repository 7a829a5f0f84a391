"""NATS as the node sees it: subscriptions deliver runs of messages, publishing takes bytes.

The port carries bytes of the NATS client protocol for publishing because formatting each message
behind a call would double its cost; `wire.nats` builds and parses them, also for a simulated
network.

It uses three connections. The *quiet* one has `no_echo` set: it carries subscriptions without
a queue group and everything the broker publishes for partitions it appended to directly, so the
broker never gets its own message back. The *echo* one carries queue-group subscriptions and
messages that must reach this broker's own subscriptions too. The third one brings acks: it carries
subscriptions to subjects of the cluster itself.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, NewType, Protocol

SubscriptionId = NewType("SubscriptionId", int)


class Arrival(NamedTuple):
    """Arrival of a message; equal arrivals of one chunk are the same object (compare by `is`).

    Attributes:
        subject: Concrete subject the message was published to.
        reply: Reply subject, empty for none.
        headers: NATS header block (`NATS/1.0...`), empty for none.
    """

    subject: str
    reply: str
    headers: bytes


class MessageSink(Protocol):
    """Receiver of subscribed messages; implemented by the node's shell."""

    def on_messages(
        self, subscription: SubscriptionId, arrivals: list[Arrival], payloads: list[bytes]
    ) -> None:
        """Handle messages of one subscription in order; both lists have the same length.

        Called once for each subscription and chunk; the lists belong to the receiver.
        """
        ...

    def on_link(self, *, connected: bool, reason: str) -> None:
        """Handle the loss or return of the link; subscriptions are restored first."""
        ...


class Messaging(Protocol):
    """The link to NATS. Calls return at once.

    Frames published shortly after a connection was lost are written to the next one; while it
    stays down publishing is refused.
    """

    @property
    def is_connected(self) -> bool:
        """Return whether all connections are established."""
        ...

    @property
    def takes_frames(self) -> bool:
        """Return whether `publish_quiet` and `publish_echo` take frames, besides the backlog."""
        ...

    @property
    def payload_bytes_max(self) -> int:
        """`max_payload` of the NATS server, 1 MiB until the first connection."""
        ...

    @property
    def backlog_bytes(self) -> int:
        """Bytes published on the quiet connection that the NATS server has not read yet."""
        ...

    @property
    def backlog_bytes_max(self) -> int:
        """Backlog above which publishing is refused."""
        ...

    def subscribe(self, subscription: SubscriptionId, subject: str, queue: str) -> None:
        """Begin delivery of a subject, wildcards allowed; `queue` is empty for no queue group."""
        ...

    def when_subscribed(self, done: Callable[[], None]) -> None:
        """Call `done` once every subscription made so far receives all publishes.

        Bounded: it is also called after a second, or while the link is down.
        """
        ...

    def unsubscribe(self, subscription: SubscriptionId) -> None:
        """End delivery; messages already read from the socket may still arrive."""
        ...

    def publish_quiet(self, frames: Sequence[bytes]) -> None:
        """Write `PUB`/`HPUB` frames on the quiet connection. Written once per loop turn.

        Raises:
            UnavailableError: The link stays down; nothing was written.
        """
        ...

    def publish_echo(self, frames: Sequence[bytes]) -> None:
        """Do as `publish_quiet`, on the echo connection, so that this broker gets it too."""
        ...
