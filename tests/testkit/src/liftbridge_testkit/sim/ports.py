"""The ports `Messaging` and `Transport` of one process, on the simulated network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.ports.messaging import SubscriptionId
from liftbridge_broker.ports.transport import Channel
from liftbridge_testkit.sim.network import Endpoint, Network

PAYLOAD_BYTES_MAX = 1 << 20
BACKLOG_BYTES_MAX = 64 << 20


class Published(NamedTuple):
    """One `PUB` or `HPUB` frame."""

    subject: str
    reply: str
    headers: bytes
    payload: bytes


def parse_frames(data: bytes) -> list[Published]:
    """Return the frames of the NATS client protocol; anything else is a bug of the sender."""
    found: list[Published] = []
    position = 0
    while position < len(data):
        line_end = data.index(b"\r\n", position)
        operation, subject, *rest = data[position:line_end].decode().split(" ")
        assert operation in {"PUB", "HPUB"}, operation
        sizes_count = 2 if operation == "HPUB" else 1
        reply = rest[0] if len(rest) > sizes_count else ""
        headers_end = line_end + 2 + (int(rest[-2]) if operation == "HPUB" else 0)
        end = line_end + 2 + int(rest[-1])
        assert data[end : end + 2] == b"\r\n", "a message is not as long as its size field says"
        headers = data[line_end + 2 : headers_end]
        found.append(Published(subject, reply, headers, data[headers_end:end]))
        position = end + 2
    return found


@dataclass(slots=True)
class SimMessaging:
    """Implement `Messaging`: two connections of one process that connect and break together.

    Attributes:
        endpoint: Endpoint of the process.
        network: Carries the messages.
        server_delay_ns: Time until the server knows of a subscription.
        backlog_bytes: Bytes that the server has not read; set by faults.
        turn: Runs a callback in a turn of the process, or never when it has ended.
    """

    endpoint: Endpoint
    network: Network
    server_delay_ns: int
    turn: Callable[[Callable[[], None]], None]
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    backlog_bytes: int = 0
    backlog_bytes_max: int = BACKLOG_BYTES_MAX
    _asked: dict[SubscriptionId, int] = field(default_factory=dict)
    _asked_last: int = 0

    @property
    def is_connected(self) -> bool:
        """Implement `Messaging.is_connected`."""
        return self.endpoint.is_up

    takes_frames = is_connected

    def subscribe(self, subscription: SubscriptionId, subject: str, queue: str) -> None:
        """Implement `Messaging.subscribe`; the server knows a little later."""
        assert subscription not in self._asked
        self._asked_last += 1
        self._asked[subscription] = self._asked_last
        self.network.scheduler.after(
            self.server_delay_ns, self._subscribed, subscription, self._asked_last, subject, queue
        )

    def _subscribed(
        self, subscription: SubscriptionId, asked: int, subject: str, queue: str
    ) -> None:
        # The process is not involved: the server handles messages that it received earlier.
        is_there = self.network.endpoints.get(self.endpoint.name) is self.endpoint
        if is_there and self._asked.get(subscription) == asked:
            self.network.subscribe(self.endpoint, subscription, subject, queue)

    def when_subscribed(self, done: Callable[[], None]) -> None:
        """Implement `Messaging.when_subscribed`, after all subscriptions made so far."""
        self.network.scheduler.after(self.server_delay_ns, self.turn, done)

    def unsubscribe(self, subscription: SubscriptionId) -> None:
        """Implement `Messaging.unsubscribe`."""
        if self._asked.pop(subscription, None) is not None:
            self.network.unsubscribe(self.endpoint, subscription)

    def publish_quiet(self, frames: Sequence[bytes]) -> None:
        """Implement `Messaging.publish_quiet`."""
        self._publish(frames, "quiet", hears_itself=False)

    def publish_echo(self, frames: Sequence[bytes]) -> None:
        """Implement `Messaging.publish_echo`."""
        self._publish(frames, "echo", hears_itself=True)

    def _publish(self, frames: Sequence[bytes], lane: str, *, hears_itself: bool) -> None:
        if not self.endpoint.is_up:
            raise UnavailableError("NATS is not connected")
        for subject, reply, headers, payload in parse_frames(b"".join(frames)):
            self.network.publish(
                self.endpoint,
                lane,
                subject,
                payload,
                reply=reply,
                headers=headers,
                hears_itself=hears_itself,
            )


@dataclass(slots=True)
class SimTransport:
    """Implement `Transport` for one process.

    Attributes:
        endpoint: Endpoint of the process.
        network: Carries the messages.
        sent_counts: Number of messages sent by channel, to measure idle cost.
    """

    endpoint: Endpoint
    network: Network
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    sent_counts: dict[Channel, int] = field(
        default_factory=lambda: dict.fromkeys((Channel.METADATA, Channel.DATA), 0)
    )

    @property
    def is_connected(self) -> bool:
        """Implement `Transport.is_connected`."""
        return self.endpoint.is_up

    def send(self, broker: BrokerId, channel: Channel, payload: bytes) -> None:
        """Implement `Transport.send`."""
        assert len(payload) <= self.payload_bytes_max
        self.sent_counts[channel] += 1
        self.network.send(self.endpoint, broker, channel, payload)

    def probe(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Implement `Transport.probe`."""
        self.network.probe(self.endpoint, broker, channel, sent_at)
