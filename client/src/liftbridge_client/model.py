"""Values that the API takes and returns; times are `datetime` (UTC) and `timedelta`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple

from typing_extensions import TypeVar

from liftbridge_client.errors import LiftbridgeError, UsageError
from liftbridge_client.quota_model import QuotaUse

if TYPE_CHECKING:
    import pyarrow as pa

Value = TypeVar("Value", default=bytes)
"""Type of values; `Message` alone means `Message[bytes]` (PEP 696)."""

AckPolicy = Literal["leader", "all", "none"]
FsyncPolicy = Literal["never", "interval", "commit", "auto"]
UncleanMode = Literal["manual", "balanced", "proactive"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS_MAX: Final = 292 * 365 * 86_400 * 1_000_000_000
"""Nanoseconds are sent in 64 bits, which last for 292 years."""


def to_ns(time: datetime) -> int:
    """Convert an aware time to Unix nanoseconds.

    Raises:
        UsageError: It is no `datetime`, has no time zone, or is too far from 1970 for 64 bits.
    """
    if not isinstance(time, datetime):
        raise UsageError(f"time {time!r}: must be a datetime; use datetime.now(UTC)")
    if time.tzinfo is None:
        raise UsageError(f"{time!r} has no time zone; use datetime.now(UTC)")
    delta = time - EPOCH
    nanoseconds = (delta.days * 86_400 + delta.seconds) * 1_000_000_000 + delta.microseconds * 1_000
    if abs(nanoseconds) > _NS_MAX:
        raise UsageError(f"time {time}: must be in the years 1678 to 2261; correct it")
    return nanoseconds


def from_ns(timestamp: int) -> datetime:
    """Convert Unix nanoseconds to a UTC time, truncated to microseconds."""
    return EPOCH + timedelta(microseconds=timestamp // 1_000)


class Message(NamedTuple, Generic[Value]):
    """A message of a partition.

    Attributes:
        offset: Position in the partition.
        key: Key, empty for none.
        value: Value; bytes, or decoded by the codec of the subscription.
        timestamp: When the leader stored it, in Unix nanoseconds; `time` has it as `datetime`.
        stream: Name of the stream.
        partition: Number of the partition.
        subject: NATS subject it was published to.
        reply: NATS reply subject, empty for none.
        headers: Headers, including `subject` and `reply` of the server.
    """

    offset: int
    key: bytes
    value: Value
    timestamp: int
    stream: str
    partition: int
    subject: str
    reply: str
    headers: Mapping[str, bytes]

    @property
    def time(self) -> datetime:
        """Time at which the leader stored it."""
        return from_ns(self.timestamp)


class Ack(NamedTuple):
    """Ack of a message: the place where it is stored.

    Attributes:
        stream: Name of the stream that stored it; in a queue group, it may be another one.
        partition: Number of the partition, -1 if unknown.
        offset: Offset of the message.
        timestamp: When it was stored, in Unix nanoseconds.
        duplicate: Whether an earlier attempt of the same idempotent publisher stored it.
        leader_epoch: Epoch of the leader that acknowledged it, 0 if unknown.
    """

    stream: str
    partition: int
    offset: int
    timestamp: int
    duplicate: bool = False
    leader_epoch: int = 0


PublishResult = Ack | LiftbridgeError
"""Result for one message of a batch: its ack or an error."""


class Start(NamedTuple):
    """Start position of a subscription; created by the class methods."""

    kind: Literal["new", "offset", "earliest", "latest", "time", "cursor"]
    offset: int = 0
    timestamp: int = 0
    cursor_id: str = ""

    @classmethod
    def new(cls) -> "Start":
        """Start after the last message: deliver only new messages."""
        return cls("new")

    @classmethod
    def earliest(cls) -> "Start":
        """Start at the first message in the log."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> "Start":
        """Start at the last message."""
        return cls("latest")

    @classmethod
    def at(cls, offset: int) -> "Start":
        """Start at the message at an offset, or at the first message after it."""
        return cls("offset", offset)

    @classmethod
    def time(cls, time: datetime) -> "Start":
        """Start at the first message stored at or after an aware time."""
        return cls("time", timestamp=to_ns(time))

    @classmethod
    def cursor(cls, cursor_id: str) -> "Start":
        """Start after the message that a cursor names; at the first message if it is not set."""
        return cls("cursor", cursor_id=cursor_id)


class Stop(NamedTuple):
    """Stop position of a subscription; created by the class methods."""

    kind: Literal["never", "offset", "latest", "time"]
    offset: int = 0
    timestamp: int = 0

    @classmethod
    def never(cls) -> "Stop":
        """Never stop; the caller ends the subscription."""
        return cls("never")

    @classmethod
    def latest(cls) -> "Stop":
        """Stop after the message that is the last at the time of the call."""
        return cls("latest")

    @classmethod
    def at(cls, offset: int) -> "Stop":
        """Stop after the message at an offset."""
        return cls("offset", offset)

    @classmethod
    def time(cls, time: datetime) -> "Stop":
        """Stop after the last message stored at or before an aware time."""
        return cls("time", timestamp=to_ns(time))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """Settings of a stream; `None` is the default of the server. Sizes are in bytes.

    Retention keeps all messages from the cursor `retention_cursor` on (empty for none), unless a
    partition holds more than `retention_cursor_max_bytes` (0 for no such limit). With `ack_reply`,
    a message published with NATS alone is acknowledged to its reply subject. These three,
    `fsync_policy`, `unclean_mode` and `tombstone_retention` need a server of this project.
    """

    retention_max_bytes: int | None = None
    retention_max_messages: int | None = None
    retention_max_age: timedelta | None = None
    cleaner_interval: timedelta | None = None
    segment_max_bytes: int | None = None
    segment_max_age: timedelta | None = None
    compact_max_goroutines: int | None = None
    compact_enabled: bool | None = None
    auto_pause_time: timedelta | None = None
    auto_pause_disable_if_subscribers: bool | None = None
    min_isr: int | None = None
    optimistic_concurrency_control: bool | None = None
    encryption: bool | None = None
    fsync_policy: FsyncPolicy | None = None
    tombstone_retention: timedelta | None = None
    retention_cursor: str | None = None
    retention_cursor_max_bytes: int | None = None
    ack_reply: bool | None = None
    unclean_mode: UncleanMode | None = None


class BrokerInfo(NamedTuple):
    """A broker in the metadata; `zone` is empty if unknown."""

    id: str
    host: str
    port: int
    partition_count: int
    leader_count: int
    zone: str = ""


class EventTimes(NamedTuple):
    """First and latest time of an event since the broker started, in Unix ns; 0 for never."""

    first: int
    latest: int


class PartitionInfo(NamedTuple):
    """A partition in the metadata; an offset is -1 if the partition is empty.

    Attributes:
        number: Number of the partition.
        leader: Id of the leading broker, empty for none.
        replicas: Ids of the brokers that hold it.
        isr: Ids of the in-sync replicas.
        high_watermark: Last committed offset.
        newest_offset: Last offset.
        paused: Whether ingestion is stopped.
        readonly: Whether publishes are refused.
        messages_received: When messages were received.
        pause_changes: When it was paused or resumed.
        readonly_changes: When it was made read-only or writable.
    """

    number: int
    leader: str
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    high_watermark: int
    newest_offset: int
    paused: bool
    readonly: bool
    messages_received: EventTimes
    pause_changes: EventTimes
    readonly_changes: EventTimes


class ClientCertificate(NamedTuple):
    """A client's certificate, as the broker verified it.

    Attributes:
        common_name: Common name of its subject, empty for none.
        alternative_names: Its other names, such as `DNS:billing.example`.
        expires: End of its validity.
    """

    common_name: str
    alternative_names: tuple[str, ...]
    expires: datetime


class Caller(NamedTuple):
    """A client as the broker that answers sees it.

    Attributes:
        broker: Id of the broker.
        address: Address of the client, `host:port`; that of the last proxy, if there is one.
        listener: Listener that accepted the connection, empty for the main one.
        certificate: `None` without TLS, and if the client presented none.
        principal: Whom the call acts for; empty for an anonymous client, and from older brokers.
        groups: Groups of the principal.
        proof: How that was proven: `certificate`, `jwt`, `token`, or `anonymous`; empty from older
            brokers.
        expires: End of the proof; `None` for none.
        quota: What the principal may use; `None` without a quota, and from older brokers.
    """

    broker: str
    address: str
    listener: str
    certificate: ClientCertificate | None
    principal: str = ""
    groups: tuple[str, ...] = ()
    proof: str = ""
    expires: datetime | None = None
    quota: QuotaUse | None = None


class StreamInfo(NamedTuple):
    """A stream in the metadata."""

    name: str
    subject: str
    created: datetime
    partitions: Mapping[int, PartitionInfo]


class Metadata(NamedTuple):
    """Brokers and streams at one moment."""

    brokers: Mapping[str, BrokerInfo]
    streams: Mapping[str, StreamInfo]


class StreamDescription(NamedTuple):
    """A stream with its settings in effect."""

    stream_id: int
    name: str
    subject: str
    group: str
    replication_factor: int
    partitions: int
    created: datetime
    settings: StreamSettings
    owner: str


class PartitionBounds(NamedTuple):
    """Where a partition starts and ends; ends are exclusive, timestamps in Unix nanoseconds.

    Attributes:
        partition: Number of the partition.
        log_start: First offset in the log.
        high_watermark: First offset not committed.
        log_end: Offset the next message gets.
        bytes: Bytes on disk.
        segments: Segments on disk.
        epochs: Leader epochs, each with its start offset.
        timestamp_offset: Offset for the requested time, `None` if none was requested.
        first_timestamp: Timestamp of the first message, 0 if empty.
        last_timestamp: Timestamp of the last message, 0 if empty.
        stream_id: Unique id of the stream, 0 if unknown.
        unclean_epoch: Leader epoch of the last election that may have lost messages, 0 for never,
            `None` if the broker is too old to report it. Another epoch means another history:
            offsets may have other messages.
    """

    partition: int
    log_start: int
    high_watermark: int
    log_end: int
    bytes: int
    segments: int
    epochs: tuple[tuple[int, int], ...]
    timestamp_offset: int | None
    first_timestamp: int
    last_timestamp: int
    stream_id: int = 0
    unclean_epoch: int | None = None


COLUMNS: Final = ("offset", "timestamp", "key", "value")
"""Default columns of a bulk read."""


class Numbering(NamedTuple):
    """How an idempotent publisher numbers its messages.

    Attributes:
        name: Name of the publisher; another publisher with this name is fenced.
        first_sequence: Sequence of the first message in each partition. Messages below the sequence
            that the broker expects next are already stored and not sent again; between that
            sequence and `first_sequence`, nothing was ever sent.
    """

    name: str
    first_sequence: int


class Published(NamedTuple):
    """Result of publishing records.

    Attributes:
        acked_count: Records that were sent and acknowledged.
        known_count: Records that were not sent because they are already stored.
    """

    acked_count: int
    known_count: int


class ColumnBatch(NamedTuple):
    """Messages as columns, with their place in the log.

    Attributes:
        records: The requested columns.
        next_offset: First offset after them, to continue at.
        high_watermark: First offset not committed, as known to the broker that served them.
        log_start: First offset kept.
    """

    records: "pa.RecordBatch"
    next_offset: int
    high_watermark: int
    log_start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Bearer token that proves who a client is: an API token of the cluster, or a JSON web token.

    Exactly one of `value` and `file` is given. A file is read again whenever it changes, as
    Kubernetes replaces those that it projects.

    Attributes:
        value: The token; never shown.
        file: File that holds it.
        allows_plain: Whether it is also sent over plaintext, where others can read and use it.
    """

    value: str = field(default="", repr=False)
    file: Path | None = None
    allows_plain: bool = False

    @classmethod
    def from_environment(cls) -> "Token | None":
        """Return the token in the file of `LIFTBRIDGE_TOKEN_FILE`, or that of `LIFTBRIDGE_TOKEN`.

        `None` if neither is set.
        """
        if path := os.environ.get("LIFTBRIDGE_TOKEN_FILE"):
            return cls(file=Path(path))
        value = os.environ.get("LIFTBRIDGE_TOKEN")
        return cls(value=value) if value else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """TLS files of a connection, in PEM.

    They are read again whenever they change, as Kubernetes replaces those of Secrets: the next
    calls use other connections.

    Attributes:
        ca: CA certificates that verify the server; `None` for those of the system.
        cert: Client certificate, with `key`; `None` for none.
        key: Private key of the client certificate.
        server_name: Name expected in the server's certificate instead of the host.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str = ""
