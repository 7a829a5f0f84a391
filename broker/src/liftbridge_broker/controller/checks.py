"""Guards of stream requests that need only the request and a number of brokers.

Values are checked on every node when the command is applied, so a broker with other rules or a
forged command cannot bring a wrong value into the state.
"""

from collections.abc import Collection
from typing import Final

from liftbridge_broker.controller.commands import GROUPS_LEVEL, CreateStream
from liftbridge_broker.controller.state import BrokerState, ClusterState, StreamState
from liftbridge_broker.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    LimitError,
    NotFoundError,
    UnavailableError,
)
from liftbridge_broker.model.ids import PartitionNumber
from liftbridge_broker.model.streams import StreamOverrides, levels_needed
from liftbridge_broker.model.subjects import (
    CURSOR_ID_BYTES_MAX,
    RESERVED_STREAMS,
    check_group,
    check_stream_name,
    check_subject,
)

PARTITIONS_MAX: Final = 1_000_000
"""Hard limit on the partitions of a stream, so that no command exhausts memory."""

PUBLISHER_BYTES_MAX: Final = 255
OWNER_BYTES_MAX: Final = 1_024

_REQUEST_NAMES: Final = (
    ("retention_bytes_max", "retentionMaxBytes"),
    ("retention_messages_max", "retentionMaxMessages"),
    ("retention_age_ms_max", "retentionMaxAge"),
    ("cleaner_interval_ms", "cleanerInterval"),
    ("segment_bytes_max", "segmentMaxBytes"),
    ("segment_age_ms_max", "segmentMaxAge"),
    ("compact_goroutines_max", "compactMaxGoroutines"),
    ("auto_pause_ms", "autoPauseTime"),
    ("min_isr", "minIsr"),
    ("tombstone_retention_ms", "tombstone_retention_ms"),
    ("retention_cursor_bytes_max", "retention_cursor_max_bytes"),
)
"""Settings that must not be negative: our field and its name for clients."""


def check_names(command: CreateStream, partition_count: int) -> None:
    """Refuse names and subjects that break the grammar, and reserved names to clients."""
    check_stream_name(command.name)
    check_subject(command.subject)
    check_not_reserved(command.name, is_internal=command.is_internal)
    check_group(command.group)
    if partition_count > 1 and command.subject.endswith(">"):
        raise InvalidRequestError(
            "Subject is invalid: '>' leaves no room for the numbers of several partitions"
        )


def check_not_reserved(name: str, *, is_internal: bool) -> None:
    """Refuse a client that asks for a reserved stream."""
    if name in RESERVED_STREAMS and not is_internal:
        raise InvalidRequestError("Stream is reserved")


def check_partition_count(partitions: int, partitions_max: int) -> int:
    """Return the number of partitions requested, 0 meaning 1."""
    if partitions < 0:
        raise InvalidRequestError(f"Invalid partitions {partitions}")
    limit = min(partitions_max, PARTITIONS_MAX)
    if partitions > limit:
        raise InvalidRequestError(
            f"Invalid partitions {partitions}, limit {limit} (streams.max.partitions)"
        )
    return partitions or 1


def check_replication_factor(
    replication_factor: int, broker_count: int, placeable_count: int
) -> int:
    """Return the number of replicas: 0 means 1, and -1 means every broker that accepts replicas.

    Args:
        replication_factor: The requested factor.
        broker_count: Brokers of the cluster.
        placeable_count: Brokers that accept new replicas now.
    """
    resolved = placeable_count if replication_factor == -1 else replication_factor or 1
    if resolved <= 0:
        raise InvalidRequestError(f"Invalid replicationFactor {replication_factor}")
    if resolved > broker_count:
        raise InvalidRequestError(
            f"Invalid replicationFactor {resolved}, cluster size {broker_count}"
        )
    if resolved > placeable_count:  # guard C15.live
        raise UnavailableError(
            f"only {placeable_count} brokers accept new replicas, {resolved} are needed"
        )
    return resolved


def check_encryption(overrides: StreamOverrides, *, has_key: bool) -> None:
    """Refuse to encrypt a stream without a data key, which would store plain text.

    The data key is chosen when a stream is created, and what is stored stays as it is. So a stream
    with a key cannot become a plain one either.
    """
    if overrides.encryption and not has_key:
        raise FailedPreconditionError(
            "Failed on preconditions for stream's encryption handler: the stream has no data key"
        )
    if overrides.encryption is False and has_key:  # guard C16.encryption
        raise FailedPreconditionError(
            "Failed on preconditions for stream's encryption handler: "
            "the stream is encrypted and stays so; create another stream"
        )


def check_values(overrides: StreamOverrides) -> None:
    """Refuse negative limits, times and counts."""
    for ours, theirs in _REQUEST_NAMES:
        value = getattr(overrides, ours)
        if value is not None and value < 0:
            raise InvalidRequestError(f"Invalid {theirs} {value}, must not be negative")


def check_retention_cursor(overrides: StreamOverrides, *, has_cursors: bool) -> None:
    """Refuse a cursor that is invalid, or that cannot exist and would block retention for ever.

    Args:
        overrides: Settings of a stream.
        has_cursors: Whether the cluster has the stream that keeps cursors.
    """
    cursor = overrides.retention_cursor
    if not cursor:
        return
    length = len(cursor.encode())
    if length > CURSOR_ID_BYTES_MAX:
        raise InvalidRequestError(
            f"Invalid retention_cursor of {length} bytes, limit {CURSOR_ID_BYTES_MAX}"
        )
    if not has_cursors:
        raise FailedPreconditionError(
            f"Invalid retention_cursor {cursor}: this cluster keeps no cursors, "
            "set cursors.stream.partitions"
        )


def check_readable(overrides: StreamOverrides, brokers: Collection[BrokerState]) -> None:
    """Refuse a setting that an older broker cannot read in the metadata, and would stop at.

    Called before the command is proposed, because the older broker would read it before it decides.
    The highest level that a broker knows counts, not the level in force.
    """
    for name, level in levels_needed(overrides).items():
        older = [
            broker for broker in brokers if not broker.removed and broker.feature_level < level
        ]
        if older:
            raise FailedPreconditionError(
                f"Invalid {name}: broker {older[0].broker} is too old to know it, upgrade all "
                "brokers first"
            )


def check_min_isr(overrides: StreamOverrides, replication_factor: int) -> None:
    """Refuse a minimum that no in-sync set can reach."""
    min_isr = overrides.min_isr
    if min_isr is not None and min_isr > replication_factor:
        raise InvalidRequestError(
            f"Invalid minIsr {min_isr}, must not exceed replicationFactor {replication_factor}"
        )


def check_stream_count(stream_count: int, streams_max: int) -> None:
    """Refuse a stream beyond the limit."""
    if stream_count >= streams_max:
        raise LimitError(f"{stream_count} streams exist, limit {streams_max} (streams.max.count)")


def check_publisher(publisher: str) -> None:
    """Refuse a publisher name that is empty, too long or unprintable."""
    if not 1 <= len(publisher.encode()) <= PUBLISHER_BYTES_MAX or not publisher.isprintable():
        raise InvalidRequestError(
            f"Invalid publisher, must be 1 to {PUBLISHER_BYTES_MAX} bytes of printable text"
        )


def check_groups_level(state: ClusterState) -> None:
    """Refuse a command about groups that an older broker cannot read.

    Called also before the command is proposed, because that broker would stop at it.
    """
    if state.feature_level < GROUPS_LEVEL:
        raise FailedPreconditionError(
            f"consumer groups need feature level {GROUPS_LEVEL}, the cluster is at "
            f"{state.feature_level}: upgrade all brokers, then raise the level"
        )


def check_partitions(
    stream: StreamState | None, partitions: tuple[int, ...]
) -> tuple[StreamState, tuple[PartitionNumber, ...]]:
    """Return the stream and the named partitions, each once and in order; an empty list means all.

    The original has two texts for an unknown stream, depending on the look-up.
    """
    if stream is None:
        raise NotFoundError("stream does not exist" if partitions else "stream not found")
    if not partitions:
        return stream, tuple(partition.number for partition in stream.partitions)
    for number in partitions:
        if stream.partition(number) is None:
            raise NotFoundError("partition does not exist")
    return stream, tuple(PartitionNumber(number) for number in sorted(set(partitions)))
