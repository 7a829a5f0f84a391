"""State of the cluster: what all nodes agree on after the same log entries.

Everything is kept in an order that the log defines, never a hash, so that equal logs give equal
states and equal snapshot bytes. Only `replay` changes a state; everyone else reads. Partition and
broker states are values: one that was read stays as it was.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataIndex,
    PartitionId,
    PartitionNumber,
    PublisherId,
    StreamId,
    StreamName,
    number_of,
    stream_of,
)
from liftbridge_broker.model.streams import StreamOverrides

NOTHING_APPLIED: Final = MetadataIndex(0)
NEVER_UNCLEAN: Final = LeaderEpoch(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """A registered broker.

    Attributes:
        broker: Configured id.
        broker_epoch: Metadata index of the registration.
        incarnation_id: Process that registered.
        data_dir_id: Data directory it holds.
        host: Address clients reach it at.
        port: Port clients reach it at.
    """

    broker: BrokerId
    broker_epoch: MetadataIndex
    incarnation_id: str
    data_dir_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition (replication protocol 1.3).

    Invariants: `isr` is a subset of `replicas`, in their order; a leader is a member of `isr`;
    `unclean_epoch` <= `leader_epoch` <= `partition_epoch`; `auto_paused` implies `paused`.

    Attributes:
        partition_id: Unique id, never reused.
        replicas: Assigned brokers, the preferred leader first.
        isr: In-sync set.
        leader: Present leader, `None` when no replica can lead.
        leader_epoch: Metadata index of the last election.
        partition_epoch: Metadata index of the last change.
        unclean_epoch: Leader epoch of the last election that may have lost records; 0 for never.
        paused: Whether intake is stopped.
        auto_paused: Whether the leader paused it for idleness.
        readonly: Whether publishes are refused.
    """

    partition_id: PartitionId
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    partition_epoch: MetadataIndex
    unclean_epoch: LeaderEpoch = NEVER_UNCLEAN
    paused: bool = False
    auto_paused: bool = False
    readonly: bool = False

    @property
    def number(self) -> PartitionNumber:
        """Number within the stream."""
        return number_of(self.partition_id)


class PublisherState(NamedTuple):
    """An idempotent publisher of one stream: its id and the epoch below which it is fenced."""

    publisher_id: PublisherId
    publisher_epoch: int


@dataclass(slots=True, kw_only=True)
class StreamState:
    """A stream.

    Attributes:
        stream_id: Metadata index of the command that created it.
        name: Unique name.
        subject: NATS subject of partition 0.
        group: NATS queue group, empty for none.
        creation_timestamp: Nanoseconds since 1970.
        overrides: Settings other than the defaults.
        resume_all: Whether resuming one partition resumes all.
        partitions: State of each partition, by number.
        publishers: Idempotent publishers by name, the longest unused first.
    """

    stream_id: StreamId
    name: StreamName
    subject: str
    group: str
    creation_timestamp: int
    overrides: StreamOverrides
    resume_all: bool = False
    partitions: list[PartitionState] = field(default_factory=list)
    publishers: dict[str, PublisherState] = field(default_factory=dict)

    def partition(self, number: int) -> PartitionState | None:
        """State of a partition, `None` when there is none of this number."""
        return self.partitions[number] if 0 <= number < len(self.partitions) else None

    @property
    def replication_factor(self) -> int:
        """Replicas of each partition."""
        return len(self.partitions[0].replicas)


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """Everything the metadata log holds.

    Attributes:
        applied_index: Index of the last command applied, refused ones included.
        streams: Streams by id, in order of creation.
        stream_ids: Ids by name, in order of creation.
        brokers: Registered brokers, in order of their first registration.
        publisher_epochs: Epochs of all idempotent publishers by id; follows from `streams`.
        partition_count: Number of partitions of all streams; follows from `streams`.
    """

    applied_index: MetadataIndex = NOTHING_APPLIED
    streams: dict[StreamId, StreamState] = field(default_factory=dict)
    stream_ids: dict[StreamName, StreamId] = field(default_factory=dict)
    brokers: dict[BrokerId, BrokerState] = field(default_factory=dict)
    publisher_epochs: dict[PublisherId, int] = field(default_factory=dict)
    partition_count: int = 0

    def stream(self, name: str) -> StreamState | None:
        """Stream of a name, `None` when there is none."""
        stream_id = self.stream_ids.get(StreamName(name))
        return None if stream_id is None else self.streams[stream_id]

    def partition(self, partition: PartitionId) -> PartitionState | None:
        """Partition of an id, `None` when it does not exist any more."""
        stream = self.streams.get(stream_of(partition))
        return None if stream is None else stream.partition(number_of(partition))

    def partitions(self) -> Iterator[tuple[StreamState, PartitionState]]:
        """All partitions with their streams, in order of creation and number."""
        for stream in self.streams.values():
            for partition in stream.partitions:
                yield stream, partition

    def add_stream(self, stream: StreamState) -> None:
        """Enter a stream; for `replay` and the reader of snapshots."""
        assert stream.stream_id not in self.streams
        assert stream.name not in self.stream_ids
        self.streams[stream.stream_id] = stream
        self.stream_ids[stream.name] = stream.stream_id
        self.partition_count += len(stream.partitions)
        for publisher in stream.publishers.values():
            self.publisher_epochs[publisher.publisher_id] = publisher.publisher_epoch

    def drop_stream(self, stream_id: StreamId) -> StreamState:
        """Remove a stream and its publishers; for `replay`."""
        stream = self.streams.pop(stream_id)
        del self.stream_ids[stream.name]
        self.partition_count -= len(stream.partitions)
        for publisher in stream.publishers.values():
            del self.publisher_epochs[publisher.publisher_id]
        return stream
