"""Events of a client, as `Client.events` returns them; `describe` formats one as a line.

    async for event in lb.events():
        log.warning(events.describe(event))

An outage is reported once, not at every attempt.
"""

from typing import Final, NamedTuple, assert_never

from liftbridge_client.errors import LiftbridgeError

EVENTS_KEPT_MAX: Final = 1_000
"""Maximum number of events queued for a listener; beyond it, the oldest are dropped and counted."""


class Connected(NamedTuple):
    """A connection to a broker was established."""

    address: str


class Disconnected(NamedTuple):
    """A connection to a broker was lost."""

    address: str


class ConnectFailed(NamedTuple):
    """A broker cannot be reached; reported once until it is reached."""

    address: str


class BrokersChanged(NamedTuple):
    """The brokers in the metadata changed.

    Attributes:
        before: Addresses before, sorted.
        after: Addresses now, sorted.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]


class StreamsChanged(NamedTuple):
    """The streams in the metadata changed.

    Attributes:
        appeared: Names of new streams, sorted.
        vanished: Names of removed streams, sorted.
    """

    appeared: tuple[str, ...]
    vanished: tuple[str, ...]


class LeaderChanged(NamedTuple):
    """Another broker leads a partition.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        before: Id of the previous leader, empty for none.
        after: Id of the new leader, empty for none.
    """

    stream: str
    partition: int
    before: str
    after: str


class CallRetried(NamedTuple):
    """A call failed and is retried.

    Attributes:
        method: Path of the method.
        attempt: Number of the attempt that starts, from 2 on.
        cause: Why the previous attempt failed.
    """

    method: str
    attempt: int
    cause: LiftbridgeError


class PublisherReconnects(NamedTuple):
    """A publisher lost its call to the leader of a partition and opens another.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        waiting_count: Messages that still wait for an ack.
        cause: Why the call ended.
    """

    stream: str
    partition: int
    waiting_count: int
    cause: LiftbridgeError


class SubscriptionReconnects(NamedTuple):
    """A subscription lost its call and continues at its next offset.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        next_offset: First offset not delivered yet, `None` before the first message.
        cause: Why the call ended.
    """

    stream: str
    partition: int
    next_offset: int | None
    cause: LiftbridgeError


class SubscriptionTruncated(NamedTuple):
    """A subscription with `on_truncation="continue"` lost records that it had delivered.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        offset: Where it continues: the first offset that now holds another record, or none yet.
        next_offset: Where it would have continued.
    """

    stream: str
    partition: int
    offset: int
    next_offset: int


class MembershipLost(NamedTuple):
    """A consumer lost its partitions, at the group or for want of its coordinator; it goes on.

    Attributes:
        group: Name of the group.
        member: Name of the member.
        partition_count: Partitions that it read.
        cause: Why.
    """

    group: str
    member: str
    partition_count: int
    cause: LiftbridgeError


class SlowCall(NamedTuple):
    """A call took longer than the listener's `slow_after`.

    Attributes:
        method: Path of the method.
        address: Broker that was asked.
        seconds: Duration of the call.
    """

    method: str
    address: str
    seconds: float


class SlowAcks(NamedTuple):
    """A publisher waits longer than `slow_after` for the next ack; reported once per wait.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        waiting_count: Messages that wait for an ack.
        seconds: Seconds since the last ack.
    """

    stream: str
    partition: int
    waiting_count: int
    seconds: float


class EventsLost(NamedTuple):
    """The listener was too slow: `count` events before the next event were dropped."""

    count: int  # type: ignore[assignment]  # hides `tuple.count`, which is not needed here


Event = (
    Connected
    | Disconnected
    | ConnectFailed
    | BrokersChanged
    | StreamsChanged
    | LeaderChanged
    | CallRetried
    | PublisherReconnects
    | SubscriptionReconnects
    | SubscriptionTruncated
    | MembershipLost
    | SlowCall
    | SlowAcks
    | EventsLost
)
"""All events of `Client.events`."""


def describe(event: Event) -> str:
    """Describe an event and what to do about it, in one line."""
    match event:
        case Connected() | Disconnected() | ConnectFailed():
            return _connection(event)
        case BrokersChanged() | StreamsChanged() | LeaderChanged():
            return _metadata(event)
        case CallRetried() | PublisherReconnects() | SubscriptionReconnects():
            return _retry(event)
        case SubscriptionTruncated() | MembershipLost():
            return _loss(event)
        case SlowCall() | SlowAcks():
            return _slow(event)
        case EventsLost(count):
            return f"{count} events were dropped. Read the events faster."
    assert_never(event)


def _connection(event: Connected | Disconnected | ConnectFailed) -> str:
    match event:
        case Connected(address):
            return f"connected to {address}."
        case Disconnected(address):
            return f"lost the connection to {address}. Calls are retried for the retry time."
        case ConnectFailed(address):
            return f"cannot reach {address}. Check the address and whether the broker is running."
    assert_never(event)


def _metadata(event: BrokersChanged | StreamsChanged | LeaderChanged) -> str:
    match event:
        case BrokersChanged(before, after):
            return f"brokers changed from {_names(before)} to {_names(after)}."
        case StreamsChanged(appeared, vanished):
            return f"streams appeared: {_names(appeared)}; vanished: {_names(vanished)}."
        case LeaderChanged(stream, partition, before, after):
            return (
                f"{stream}/{partition} is led by {after or 'none'}, before by {before or 'none'}."
            )
    assert_never(event)


def _retry(event: CallRetried | PublisherReconnects | SubscriptionReconnects) -> str:
    match event:
        case CallRetried(method, attempt, _):
            what = f"{method} is retried (attempt {attempt})"
        case PublisherReconnects(stream, partition, waiting, _):
            what = f"the publisher to {stream}/{partition} reconnects, {waiting} messages wait"
        case SubscriptionReconnects(stream, partition, next_offset, _):
            where = "its start" if next_offset is None else f"offset {next_offset}"
            what = f"the subscription to {stream}/{partition} continues from {where}"
        case _:
            assert_never(event)
    return f"{what}: {event.cause}. {event.cause.advice}"


def _slow(event: SlowCall | SlowAcks) -> str:
    match event:
        case SlowCall(method, address, seconds):
            where = f"{method} at {address}"
            return f"slow: {where} took {seconds:.3f} s. Check the load of the broker."
        case SlowAcks(stream, partition, waiting, seconds):
            what = f"no ack from {stream}/{partition} for {seconds:.1f} s"
            return f"slow: {what}, {waiting} messages wait. Check the disk and load of the broker."
    assert_never(event)


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def _loss(event: SubscriptionTruncated | MembershipLost) -> str:
    match event:
        case SubscriptionTruncated(stream, partition, offset, _):
            where = f"{stream}/{partition} was truncated at offset {offset} by an unclean election"
            return f"{where}. The subscription continues from there, with other records."
        case MembershipLost(group, member, count, cause):
            what = f"{member} lost its {count} partitions in group {group} and joins again"
            return f"{what}: {cause}. {cause.advice}"
        case _:
            assert_never(event)
