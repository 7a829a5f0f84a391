"""The port `Messaging` in memory: one broker and other publishers, without sockets.

Nothing is delivered automatically: published messages wait in `new` until the owner delivers them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.model.subject_table import SubjectTable
from liftbridge_broker.model.units import MIB
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.wire.envelope import decode_ack
from liftbridge_proto import api_pb2

SENT_COUNT_MAX: Final = 10_000
"""Maximum number of messages remembered; beyond it, the older half is dropped."""


class Sent(NamedTuple):
    """One published message.

    Attributes:
        subject: Concrete subject.
        payload: Bytes without headers.
        headers: NATS header block, empty for none.
        is_quiet: Whether the broker published it on its quiet connection.
        reply: Reply subject, empty for none.
    """

    subject: str
    payload: bytes
    headers: bytes
    is_quiet: bool
    reply: str = ""


class Chunk(NamedTuple):
    """Messages of one subscription, as `ports.messaging.MessageSink` takes them."""

    subscription: SubscriptionId
    arrivals: list[Arrival]
    payloads: list[bytes]


def parse_frames(data: bytes, *, is_quiet: bool) -> list[Sent]:
    """Parse `PUB` and `HPUB` frames to messages; anything else is a bug of the caller."""
    sent: list[Sent] = []
    position = 0
    while position < len(data):
        line_end = data.index(b"\r\n", position)
        operation, subject, *rest = data[position:line_end].split(b" ")
        assert operation in {b"PUB", b"HPUB"}, operation
        size_count = 2 if operation == b"HPUB" else 1
        reply = b"".join(rest[:-size_count])
        header_size = int(rest[-2]) if size_count == 2 else 0
        start = line_end + 2
        end = start + int(rest[-1])
        assert data[end : end + 2] == b"\r\n", "a message is not as long as its size field says"
        headers, payload = data[start : start + header_size], data[start + header_size : end]
        sent.append(Sent(subject.decode(), payload, headers, is_quiet, reply.decode()))
        position = end + 2
    return sent


@dataclass(slots=True, eq=False)
class MemoryMessaging:
    """The port `Messaging`; published messages stay in `new` until the owner delivers them.

    Attributes:
        on_published: Called when there are messages to deliver.
        is_connected: Set by the owner; publishing is refused while false.
        payload_bytes_max: As in the port.
        backlog_bytes: Set by the owner.
        backlog_bytes_max: As in the port.
        sent: Published messages, the latest last.
        subscriptions: Subject and queue group by subscription.
        new: Published messages that were not delivered yet.
    """

    on_published: Callable[[], None] | None = None
    is_connected: bool = True
    payload_bytes_max: int = MIB
    backlog_bytes: int = 0
    backlog_bytes_max: int = 64 << 20
    sent: list[Sent] = field(default_factory=list)
    subscriptions: dict[SubscriptionId, tuple[str, str]] = field(default_factory=dict)
    new: list[Sent] = field(default_factory=list)
    _table: SubjectTable[SubscriptionId] = field(default_factory=SubjectTable)
    _turns: dict[str, int] = field(default_factory=dict)

    @property
    def takes_frames(self) -> bool:
        """Implement `Messaging.takes_frames`."""
        return self.is_connected

    def subscribe(self, subscription: SubscriptionId, subject: str, queue: str) -> None:
        """Implement `Messaging.subscribe`."""
        assert subscription not in self.subscriptions
        self.subscriptions[subscription] = (subject, queue)
        self._table.add(subject, subscription)

    def when_subscribed(self, done: Callable[[], None]) -> None:
        """Implement `Messaging.when_subscribed`; nothing is in flight here."""
        done()

    def unsubscribe(self, subscription: SubscriptionId) -> None:
        """Implement `Messaging.unsubscribe`."""
        subscribed = self.subscriptions.pop(subscription, None)
        if subscribed is not None:
            self._table.remove(subscribed[0], subscription)

    def publish_quiet(self, frames: Sequence[bytes]) -> None:
        """Implement `Messaging.publish_quiet`."""
        self._publish(frames, is_quiet=True)

    def publish_echo(self, frames: Sequence[bytes]) -> None:
        """Implement `Messaging.publish_echo`."""
        self._publish(frames, is_quiet=False)

    def _publish(self, frames: Sequence[bytes], *, is_quiet: bool) -> None:
        if not self.is_connected:
            raise UnavailableError("NATS is not connected")
        self.publish(parse_frames(b"".join(frames), is_quiet=is_quiet))

    def publish(self, messages: Sequence[Sent]) -> None:
        """Publish as the broker or as another client; delivered later."""
        self.new += messages
        self.sent += messages
        if len(self.sent) > SENT_COUNT_MAX:
            del self.sent[: -SENT_COUNT_MAX // 2]
        if self.on_published is not None:
            self.on_published()

    def receivers(self, subject: str, *, is_quiet: bool) -> list[SubscriptionId]:
        """List receivers of a message: all without a queue group, and one of each group in turn.

        A message from the quiet connection does not return to its own subscriptions, which are
        those without a queue group.
        """
        matching: list[SubscriptionId] = []
        groups: dict[str, list[SubscriptionId]] = {}
        for subscription in self._table.lookup(subject):
            queue = self.subscriptions[subscription][1]
            if queue:
                groups.setdefault(queue, []).append(subscription)
            elif not is_quiet:
                matching.append(subscription)
        for queue, members in groups.items():
            turn = self._turns[queue] = self._turns.get(queue, -1) + 1
            matching.append(members[turn % len(members)])
        return matching

    def take_chunks(self) -> list[Chunk]:
        """Deliver the new messages: one chunk for each subscription that receives messages."""
        messages, self.new = self.new, []
        chunks: dict[SubscriptionId, Chunk] = {}
        arrivals: dict[Arrival, Arrival] = {}
        for message in messages:
            arrival = Arrival(message.subject, message.reply, message.headers)
            # Receivers compare arrivals of one chunk by identity (ports.messaging).
            arrival = arrivals.setdefault(arrival, arrival)
            for subscription in self.receivers(message.subject, is_quiet=message.is_quiet):
                chunk = chunks.get(subscription)
                if chunk is None:
                    chunk = chunks[subscription] = Chunk(subscription, [], [])
                chunk.arrivals.append(arrival)
                chunk.payloads.append(message.payload)
        return list(chunks.values())

    def acks(self, inbox: str) -> list[api_pb2.Ack]:
        """Return the acks published to an inbox, among the messages remembered."""
        acks = [decode_ack(message.payload) for message in self.sent if message.subject == inbox]
        assert None not in acks
        return [ack for ack in acks if ack is not None]
