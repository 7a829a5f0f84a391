"""Messages between brokers as the node sees them.

Delivery is that of core NATS: at most once, in order per connection, losses are not reported. Every
protocol above repeats its messages as needed. The owner of the port passes received payloads to the
node with their channel.
"""

from enum import StrEnum
from typing import Final, Protocol

from liftbridge_broker.model.ids import BrokerId, Instant


class Channel(StrEnum):
    """Channels to a broker, each with a separate connection, so that bulk delays no election."""

    METADATA = "meta"
    DATA = "data"


EVERYONE: Final = BrokerId("_all")
"""Target of a message to every broker of the namespace, the sender too; `METADATA` only.

A broker of this name would receive the messages of all brokers.
"""


class Transport(Protocol):
    """Transport to other brokers.

    Attributes:
        is_connected: Whether messages can be sent now.
        payload_bytes_max: Longest payload that `send` takes, in bytes.
    """

    @property
    def is_connected(self) -> bool:
        """Return whether messages can be sent now."""
        ...

    @property
    def payload_bytes_max(self) -> int:
        """Longest payload that `send` takes, in bytes."""
        ...

    def send(self, broker: BrokerId, channel: Channel, payload: bytes) -> None:
        """Send at most once; dropped while the link is down. Never raises."""
        ...

    def probe(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Send an empty message that no receiver sees; dropped while the link is down.

        When nobody listens for the broker, NATS says so at once: the owner of the port passes that
        to the node, with `sent_at`. The signal may be lost or late, and an attacker may
        forge it.
        """
        ...
