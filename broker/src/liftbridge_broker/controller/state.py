"""State of the cluster, equal on all nodes after the same log entries.

Everything is kept in an order that the log defines, never a hash, so that equal logs give equal
states and equal snapshot bytes. Only `replay` changes a state; all other code reads it. Partition
and broker states are values: a state that was read never changes.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from liftbridge_broker.access.quotas import Quota, QuotaKey
from liftbridge_broker.access.rule_set import RuleSet
from liftbridge_broker.controller.activity_queue import ActivityQueue
from liftbridge_broker.model.groups import Group
from liftbridge_broker.model.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataIndex,
    PartitionId,
    PublisherId,
    StreamId,
    StreamName,
    number_of,
    stream_of,
)
from liftbridge_broker.model.keys import DataKey, MasterKey
from liftbridge_broker.model.listeners import ListenerAddress
from liftbridge_broker.model.partitions import NEVER_UNCLEAN, PartitionState
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides, UncleanMode

NOTHING_APPLIED: Final = MetadataIndex(0)
RESTARTS_MAX: Final = 8
"""Maximum number of starts remembered for a broker."""

DELETED_MAX: Final = 10_000
"""Maximum number of deleted streams whose ids are remembered."""


class Restart(NamedTuple):
    """A start of a broker.

    Attributes:
        incarnation_id: The process.
        started: When it registered by its own wall clock, nanoseconds since 1970.
        is_clean: Whether the process before it shut down cleanly, on the same data directory.
        version: Version of its software.
    """

    incarnation_id: str
    started: int
    is_clean: bool
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """A registered broker.

    Invariants: a broker that was removed is fenced and holds no replica; `draining` implies
    `cordoned`.

    Attributes:
        broker: Configured id.
        broker_epoch: Metadata index of the registration.
        incarnation_id: Process that registered.
        data_dir_id: Data directory it holds.
        host: Address clients reach it at.
        port: Port clients reach it at.
        zone: Zone or rack of the broker; empty when unknown.
        version: Version of the software, for people.
        feature_level: Latest feature level it knows.
        fenced: Whether it may neither lead nor be in sync.
        in_controlled_shutdown: Whether it transfers its leaderships in order to stop.
        controlled_shutdown_index: Metadata index at which that began; 0 for none.
        cordoned: Whether it gets no new replicas.
        draining: Whether its replicas move to other brokers.
        removed: Whether it was permanently removed from the cluster, with its data directory.
        restarts: Its last `RESTARTS_MAX` starts, the current start last.
        listeners: Addresses of its listeners for clients, other than the first.
        replicas_max: Maximum number of replicas; 0 if not reported.
        master_keys: Master keys that its process reported.
    """

    broker: BrokerId
    broker_epoch: MetadataIndex
    incarnation_id: str
    data_dir_id: str
    host: str
    port: int
    zone: str = ""
    version: str = ""
    feature_level: int = 0
    fenced: bool = True
    in_controlled_shutdown: bool = False
    controlled_shutdown_index: MetadataIndex = NOTHING_APPLIED
    cordoned: bool = False
    draining: bool = False
    removed: bool = False
    restarts: tuple[Restart, ...] = ()
    listeners: tuple[ListenerAddress, ...] = ()
    replicas_max: int = 0
    master_keys: tuple[MasterKey, ...] = ()

    @property
    def registration_index(self) -> MetadataIndex:
        """Index up to which a broker must have applied the log before it is unfenced."""
        return self.broker_epoch

    @property
    def can_lead(self) -> bool:
        """Return whether it may be elected or come into sync: alive and not about to stop."""
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def takes_replicas(self) -> bool:
        """Return whether new replicas may be placed on it."""
        return self.can_lead and not self.cordoned  # guard C20.placement

    def can_unwrap(self, key: DataKey | None) -> bool:
        """Return whether it has reported the master key of a stream; also if there is none."""
        return key is None or any(one.key_id == key.master_key for one in self.master_keys)

    def has_room(self, replica_count: int) -> bool:
        """Return whether its limit allows another replica."""
        return not self.replicas_max or replica_count < self.replicas_max  # guard Room.limit


class PublisherState(NamedTuple):
    """An idempotent publisher of one stream: its id and the epoch below which it is fenced."""

    publisher_id: PublisherId
    publisher_epoch: int


class StreamPolicy(NamedTuple):
    """Settings of a stream that the controller uses, with defaults applied.

    Attributes:
        replication_factor: Replicas that each partition has, or will have after a reassignment.
        min_isr: In-sync replicas needed for a commit; see `effective_min_isr`.
        min_isr_default: Default of `min_isr` for the stream; 0 for a default that depends on the
            replication factor.
        fsync_policy: When appended data reaches the disk.
        unclean_mode: Rule for electing replicas that might lack acknowledged records.
        is_growing: Whether the replication factor grows with the number of brokers.
        fsync_index: Metadata index of the last change of `fsync_policy`; 0 for none since the
            stream was created.
    """

    replication_factor: int = 1
    min_isr: int = 1
    min_isr_default: int = 0
    fsync_policy: FsyncPolicy = FsyncPolicy.INTERVAL
    unclean_mode: UncleanMode = UncleanMode.BALANCED
    is_growing: bool = False
    fsync_index: int = 0


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
        policy: Settings that the controller uses.
        resume_all: Whether resuming one partition resumes all.
        partitions: State of each partition, by number.
        publishers: Idempotent publishers by name, the longest unused first.
        owner: Mark of the stream's owner; empty for none.
        data_key: Its wrapped data key, `None` if it is not encrypted.
        created_by: Principal that created it; empty if unknown.
    """

    stream_id: StreamId
    name: StreamName
    subject: str
    group: str
    creation_timestamp: int
    overrides: StreamOverrides
    policy: StreamPolicy = field(default_factory=StreamPolicy)
    resume_all: bool = False
    partitions: list[PartitionState] = field(default_factory=list)
    publishers: dict[str, PublisherState] = field(default_factory=dict)
    owner: str = ""
    data_key: DataKey | None = None
    created_by: str = ""

    def partition(self, number: int) -> PartitionState | None:
        """Return the state of a partition, `None` when no partition has this number."""
        return self.partitions[number] if 0 <= number < len(self.partitions) else None

    @property
    def replication_factor(self) -> int:
        """Replicas that each partition has, or will have after a reassignment."""
        return self.policy.replication_factor

    @property
    def min_isr(self) -> int:
        """Configured min ISR; `effective_min_isr` gives the number in force."""
        return self.policy.min_isr

    @property
    def fsync_policy(self) -> FsyncPolicy:
        """Time at which appended data is synced to disk."""
        return self.policy.fsync_policy

    @property
    def unclean_mode(self) -> UncleanMode:
        """Rule for electing replicas that might lack acknowledged records."""
        return self.policy.unclean_mode


def effective_min_isr(stream: StreamState, partition: PartitionState) -> int:
    """Return the min ISR in force: never more than the replica count.

    While replicas are being added, the former count applies: replicas to come are not waited for.
    A min ISR that follows from the replication factor is that of the new factor at once, though:
    from two to three replicas it rises from 1 to 2.
    """
    return min_isr_of(stream.policy, partition.replication_factor)


def min_isr_of(policy: StreamPolicy, replication_factor: int) -> int:
    """Return the min ISR in force for `replication_factor` replicas."""
    return max(1, min(policy.min_isr, replication_factor))


def is_commit_mode(stream: StreamState, partition: PartitionState) -> bool:
    """Return whether only what was synced counts as replicated: commit mode.

    With `auto`, this holds while the in-sync set has no member to spare.
    """
    policy = stream.policy.fsync_policy
    if policy is FsyncPolicy.AUTO:
        return len(partition.isr) <= effective_min_isr(stream, partition)
    return policy is FsyncPolicy.COMMIT


class TokenState(NamedTuple):
    """An API token.

    Attributes:
        token_id: Public part of the token.
        principal: Whom its bearer acts for.
        groups: Groups of the principal.
        verifier: Argon2id hash of its secret part, in the PHC form.
        created: When it was created, nanoseconds since 1970.
        expires: When it ends, nanoseconds since 1970; 0 for never.
        created_by: Principal that asked for it; empty if unknown.
    """

    token_id: str
    principal: str
    groups: tuple[str, ...]
    verifier: str
    created: int
    expires: int
    created_by: str


@dataclass(slots=True, kw_only=True)
class AccessState:
    """Access control of the cluster.

    Invariant: while it is on, some rule lets a principal change the rules.

    Attributes:
        is_on: Whether the rules are in force.
        rules: The rules, in the order in which they were first granted.
    """

    is_on: bool = False
    rules: RuleSet = field(default_factory=RuleSet)


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """Everything the metadata log holds.

    Attributes:
        applied_index: Index of the last command applied, refused ones included.
        streams: Streams by id, in order of creation.
        stream_ids: Ids by name, in order of creation.
        brokers: Registered brokers and those removed, in order of their first registration.
        cluster_id: Random text chosen when the cluster was founded; empty before.
        feature_level: Feature level in force; every broker knows it.
        deleted: Metadata index of the deletion of streams by id, the last `DELETED_MAX`: the
            proof a broker needs before it removes their files.
        catch_up_rate: Bytes a second that a leader spends on replicas a reassignment adds; 0 is
            without limit.
        tokens: API tokens by id, in order of creation.
        activity: Events that are not stored in the activity stream yet.
        master_key: Master key that wraps data keys; empty before the first encrypted stream.
        quotas: Quotas, in the order in which they were set first.
        chain: Hash over all records so far, 64 bits; equal on all nodes of one version after the
            same command.
        access: Access control of the cluster.
        groups: Consumer groups by name, in order of creation.
        publisher_epochs: Epochs of all idempotent publishers by id; follows from `streams`.
        partition_count: Number of partitions of all streams; follows from `streams`.
        replica_counts: Replicas by broker, those being added included; follows from `streams`.
        encrypted: Ids of the streams with a data key; follows from `streams`.
    """

    applied_index: MetadataIndex = NOTHING_APPLIED
    streams: dict[StreamId, StreamState] = field(default_factory=dict)
    stream_ids: dict[StreamName, StreamId] = field(default_factory=dict)
    brokers: dict[BrokerId, BrokerState] = field(default_factory=dict)
    cluster_id: str = ""
    feature_level: int = 0
    deleted: dict[StreamId, MetadataIndex] = field(default_factory=dict)
    catch_up_rate: int = 0
    tokens: dict[str, TokenState] = field(default_factory=dict)
    activity: ActivityQueue = field(default_factory=ActivityQueue)
    master_key: str = ""
    quotas: dict[QuotaKey, Quota] = field(default_factory=dict)
    chain: int = 0
    access: AccessState = field(default_factory=AccessState)
    groups: dict[str, Group] = field(default_factory=dict)
    publisher_epochs: dict[PublisherId, int] = field(default_factory=dict)
    partition_count: int = 0
    replica_counts: Counter[BrokerId] = field(default_factory=Counter)
    encrypted: dict[StreamId, None] = field(default_factory=dict)

    def stream(self, name: str) -> StreamState | None:
        """Return the stream of a name, `None` when none exists."""
        stream_id = self.stream_ids.get(StreamName(name))
        return None if stream_id is None else self.streams[stream_id]

    def partition(self, partition: PartitionId) -> PartitionState | None:
        """Return the partition of an id, `None` when it no longer exists."""
        stream = self.streams.get(stream_of(partition))
        return None if stream is None else stream.partition(number_of(partition))

    def unclean_epoch(self, partition: PartitionId) -> LeaderEpoch:
        """Return the leader epoch of the last election that may have replaced records."""
        state = self.partition(partition)
        return NEVER_UNCLEAN if state is None else state.unclean_epoch

    def partitions(self) -> Iterator[tuple[StreamState, PartitionState]]:
        """Yield all partitions with their streams, in order of creation and number."""
        for stream in self.streams.values():
            for partition in stream.partitions:
                yield stream, partition

    def add_stream(self, stream: StreamState) -> None:
        """Add a stream; for `replay` and the reader of snapshots."""
        assert stream.stream_id not in self.streams
        assert stream.name not in self.stream_ids
        self.streams[stream.stream_id] = stream
        self.stream_ids[stream.name] = stream.stream_id
        self.partition_count += len(stream.partitions)
        self.replica_counts.update(
            chain.from_iterable(partition.replicas for partition in stream.partitions)
        )
        for publisher in stream.publishers.values():
            self.publisher_epochs[publisher.publisher_id] = publisher.publisher_epoch

    def set_data_key(self, stream_id: StreamId, key: DataKey) -> None:
        """Set the data key of a stream; for `replay` and the reader of snapshots."""
        self.streams[stream_id].data_key = key
        self.encrypted[stream_id] = None

    def drop_stream(self, stream_id: StreamId) -> StreamState:
        """Remove a stream and its publishers; for `replay`."""
        stream = self.streams.pop(stream_id)
        self.encrypted.pop(stream_id, None)
        del self.stream_ids[stream.name]
        self.partition_count -= len(stream.partitions)
        for partition in stream.partitions:
            self.replica_counts.subtract(partition.replicas)
        for publisher in stream.publishers.values():
            del self.publisher_epochs[publisher.publisher_id]
        return stream
