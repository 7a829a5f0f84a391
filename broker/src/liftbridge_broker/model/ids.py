"""Identities and counters as distinct types, so that mypy distinguishes an offset from an epoch.

All of them are plain integers or strings at run time. Ends are exclusive everywhere inside the
broker (`docs/adr/0001`): `log_end_offset` and `high_watermark` are the first offset *not* included.
"""

from typing import Final, NewType

BrokerId = NewType("BrokerId", str)
NOBODY: Final = BrokerId("")
"""Id of no broker."""

StreamName = NewType("StreamName", str)

PartitionNumber = NewType("PartitionNumber", int)
"""Number of a partition within its stream, from 0."""

StreamId = NewType("StreamId", int)
"""Metadata index of the command that created the stream; 1 to 2**40 - 1.

Unique in a cluster, never reused.
"""

PartitionId = NewType("PartitionId", int)
"""Stream id and partition number in one unsigned 64-bit integer (`partition_id`)."""

Offset = NewType("Offset", int)
"""Position of a record in a partition, from 0; signed 64-bit."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Metadata index of the last election of a partition; unsigned 64-bit.

Rises with every change of leadership.
"""

MetadataIndex = NewType("MetadataIndex", int)
"""Index of an entry in the metadata log, from 1."""

PublisherId = NewType("PublisherId", int)
"""Id of an idempotent publisher; 0 means none. Unsigned 64-bit."""

Instant = NewType("Instant", int)
"""Monotonic time in nanoseconds; only differences mean anything."""

PARTITION_NUMBER_BITS: Final = 24
OFFSET_MAX: Final = 2**63 - 1

RESTORED_OFFSET_MAX: Final = 2**62
"""Bound of restored offsets: so that no publisher can use up the offsets of a stream."""


def earliest(*deadlines: Instant | None) -> Instant | None:
    """The earliest deadline, ignoring `None`.

    Called several times a turn: a loop takes a quarter of the time of `min` over a generator.
    """
    first: Instant | None = None
    for deadline in deadlines:
        if deadline is not None and (first is None or deadline < first):
            first = deadline
    return first


def partition_id(stream: StreamId, number: PartitionNumber) -> PartitionId:
    """Unique id of a partition: `stream` in the upper 40 bits, `number` in the lower 24."""
    assert 0 < stream < 1 << (64 - PARTITION_NUMBER_BITS)
    assert 0 <= number < 1 << PARTITION_NUMBER_BITS
    return PartitionId(stream << PARTITION_NUMBER_BITS | number)


def stream_of(partition: PartitionId) -> StreamId:
    """Stream that a partition belongs to."""
    return StreamId(partition >> PARTITION_NUMBER_BITS)


def number_of(partition: PartitionId) -> PartitionNumber:
    """Number of a partition within its stream."""
    return PartitionNumber(partition & ((1 << PARTITION_NUMBER_BITS) - 1))
