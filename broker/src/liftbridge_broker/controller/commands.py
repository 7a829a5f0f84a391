"""Commands: the requests in metadata log entries (C1 to C25, and those of the activity stream).

A command states a request and carries all input of `decide` besides the state, such as the wall
clock. Every node checks it by `decide` when it is committed. So a command may hold any value that
its types allow.
"""

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from liftbridge_broker.controller.callers.commands import AccessCommand, SetQuota, TokenCommand
from liftbridge_broker.controller.consumer_groups.commands import GroupCommand
from liftbridge_broker.model.ids import NOBODY, BrokerId, PartitionId, StreamId, StreamName
from liftbridge_broker.model.keys import DataKey, MasterKey
from liftbridge_broker.model.listeners import ListenerAddress
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions, StreamOverrides, UncleanMode

PARTITIONS_MAX_DEFAULT: Final = 10_000
STREAMS_MAX_DEFAULT: Final = 100_000

FEATURE_LEVEL: Final = 4
"""Latest feature level that this version knows; 0 is that of versions without clusters."""

GROUPS_LEVEL: Final = 4
"""Lowest feature level with consumer groups: older brokers cannot read their commands."""

ROOM_LEVEL: Final = 2
"""Lowest feature level at which a broker gets no more replicas than its reported limit."""

ENCRYPTION_LEVEL: Final = 4
"""Lowest feature level at which streams may be encrypted, and brokers report master keys."""

MEMBER_ALREADY: Final = -1
"""Replica epoch of a member that was in sync before (KIP-903)."""


class BrokerLoad(NamedTuple):
    """Load of a broker, counted in partitions that it leads."""

    broker: BrokerId
    load: int


class IsrMember(NamedTuple):
    """A member of a requested in-sync set, with its session as known to the leader.

    `replica_epoch` is `MEMBER_ALREADY` for a replica that is already in sync.
    """

    broker: BrokerId
    replica_epoch: int


class ReplicaAnswer(NamedTuple):
    """A replica's report about its log, with the session of its broker.

    Attributes:
        broker: The replica.
        broker_epoch: Session of the reporting broker.
        last_epoch: Newest leader epoch that its log knows, with a record or without; 0 for none.
        log_end_offset: End of its log.
        is_damaged: Whether the log is damaged, so that the replica cannot lead.
    """

    broker: BrokerId
    broker_epoch: int
    last_epoch: int
    log_end_offset: int
    is_damaged: bool = False


class LeaderChange(NamedTuple):
    """A leader that its followers cannot reach, with the epochs known to them."""

    partition_id: PartitionId
    leader_epoch: int
    partition_epoch: int
    exclude: BrokerId


class Leadership(NamedTuple):
    """A partition with the leader epoch of its leadership."""

    partition_id: PartitionId
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker process starts its session (C1).

    Attributes:
        broker: Configured id of the broker.
        incarnation_id: Random text chosen at process start; a command with the id of the current
            registration is a retry.
        data_dir_id: Random text written once into the data directory.
        host: Address clients reach the broker at.
        port: Port clients reach the broker at.
        previous_broker_epoch: Broker epoch in the clean-shutdown marker; 0 without a marker.
        clean_partitions: Partitions with every acknowledged record on disk, although the shutdown
            was not clean (fsync policy `commit`).
        known_index: Metadata index applied when that was determined; after later changes, records
            may have counted that it never had on disk.
        quarantined_partitions: Partitions with damaged files; unclean after any kind of shutdown.
        zone: Zone or rack of the broker; empty when unknown.
        version: Version of its software, for people.
        feature_level: Latest feature level it knows. At 0, a version without clusters, the broker
            is not fenced first, so that logs of that version keep their meaning.
        started: Wall clock of the broker, nanoseconds since 1970, for people.
        replicas_max: Maximum number of replicas, by the limits of its system; 0 if not reported.
    """

    broker: BrokerId
    incarnation_id: str
    data_dir_id: str
    host: str = ""
    port: int = 0
    previous_broker_epoch: int = 0
    clean_partitions: tuple[PartitionId, ...] = ()
    quarantined_partitions: tuple[PartitionId, ...] = ()
    zone: str = ""
    version: str = ""
    feature_level: int = 0
    started: int = 0
    known_index: int = 0
    replicas_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """Give a new cluster its id and feature level, once.

    Attributes:
        cluster_id: Random text.
        feature_level: Feature level; every broker that registers must know it.
    """

    cluster_id: str
    feature_level: int = FEATURE_LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBroker:
    """A broker that has caught up with the metadata may lead and come into sync (C2).

    Attributes:
        broker: The broker.
        broker_epoch: Its session.
        applied_index: Metadata index in its last heartbeat.
        want_fence: Whether that heartbeat asked to stay fenced.
    """

    broker: BrokerId
    broker_epoch: int
    applied_index: int
    want_fence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBroker:
    """Fence a broker silent for a session: it leads nothing and is in no in-sync set (C3)."""

    broker: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutDownBroker:
    """Start a controlled shutdown: other brokers take over its leaderships if they can (C13)."""

    broker: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertiseListeners:
    """Set the addresses of a broker's further listeners, all of them at once.

    Attributes:
        broker: The broker itself.
        broker_epoch: Its session.
        listeners: At most `LISTENERS_MAX`; omitted listeners are removed.
    """

    broker: BrokerId
    broker_epoch: int
    listeners: tuple[ListenerAddress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonBroker:
    """Place no new replicas on a broker, and with `draining` move its replicas away (C20)."""

    broker: BrokerId
    cordoned: bool = True
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBroker:
    """Remove a stopped broker without replicas; its data directory can never rejoin."""

    broker: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFeatureLevel:
    """Set the feature level, which every broker must know (C21)."""

    feature_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCatchUpRate:
    """Bytes per second that each leader sends to replicas added by reassignments; 0 is no limit."""

    bytes_per_second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """Request another in-sync set as the leader (C5, KIP-497).

    Attributes:
        broker: The leader.
        broker_epoch: Its session.
        partition_id: The partition.
        leader_epoch: Leader epoch of the broker.
        partition_epoch: Partition epoch of the state that the decision is based on.
        isr: In-sync set wanted.
        is_recovering: Whether the leader does not serve yet after an unclean election.
    """

    broker: BrokerId
    broker_epoch: int
    partition_id: PartitionId
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]
    is_recovering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReassignment:
    """Move a partition to other brokers: grow, catch up, shrink (C6).

    Attributes:
        partition_id: The partition.
        target: Brokers wanted, the preferred leader first.
        partition_epoch: Partition epoch of the state that the decision is based on; 0 for any.
    """

    partition_id: PartitionId
    target: tuple[BrokerId, ...]
    partition_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReassignment:
    """Cancel the reassignment of a partition (C8).

    Attributes:
        partition_id: The partition.
        partition_epoch: Partition epoch of the state that the decision is based on; 0 for any.
        is_unclean: Whether to cancel although too few of the former replicas are in sync,
            which may lose acknowledged records.
    """

    partition_id: PartitionId
    partition_epoch: int = 0
    is_unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectPreferred:
    """Elect the first replica of partitions where it can lead (C9); one outcome each."""

    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverUnclean:
    """Elect a replica that might lack acknowledged records (C10).

    Attributes:
        partition_id: The partition.
        chosen: Broker to elect.
        partition_epoch: Partition epoch of the state that the decision is based on.
        mode: Source of the decision: an operator (`manual`), or the controller in one of its modes.
        answers: Reports of replicas about their logs; not needed for an operator.
    """

    partition_id: PartitionId
    chosen: BrokerId
    partition_epoch: int
    mode: UncleanMode = UncleanMode.MANUAL
    answers: tuple[ReplicaAnswer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLeader:
    """Replace leaders that most of their followers cannot reach (C11); one outcome each."""

    changes: tuple[LeaderChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareUnclean:
    """Declare that a replica lost reported records, without a restart of its broker (C12).

    Attributes:
        broker: Broker of the replica.
        broker_epoch: Its session.
        partition_id: The partition.
        replica_epoch: Session of the replica.
        reason: Human-readable cause.
    """

    broker: BrokerId
    broker_epoch: int
    partition_id: PartitionId
    replica_epoch: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resign:
    """Resign leaderships where another broker can lead (C19); one outcome each.

    Attributes:
        broker: The leader.
        broker_epoch: Its session.
        partitions: Leaderships to resign.
        leaves_isr: Whether it also leaves the in-sync sets, because it cannot follow either.
        successor: The next leader; empty for the first replica that can lead.
        reason: Human-readable reason.
    """

    broker: BrokerId
    broker_epoch: int
    partitions: tuple[Leadership, ...]
    leaves_isr: bool = False
    successor: BrokerId = NOBODY
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStream:
    """Create a stream with its partitions (C15).

    Attributes:
        name: Name of the stream.
        subject: NATS subject of partition 0; wildcards allowed.
        group: NATS queue group; empty for none.
        replication_factor: Replicas of each partition; 0 means 1, -1 all brokers.
        partitions: Number of partitions; 0 means 1.
        overrides: Settings other than the broker's defaults.
        creation_timestamp: Wall clock of the broker that took the request, nanoseconds since 1970.
        is_internal: Whether the broker itself sent it; only brokers may create reserved streams.
        partitions_max: Limit of partitions of one stream in the settings of that broker.
        streams_max: Limit of streams of the cluster in the settings of that broker.
        min_isr_default: In-sync replicas needed by its settings when `overrides` does not say;
            0 derives it from the replication factor: 2 from three replicas on, else 1.
        fsync_policy_default: Likewise, when appended data reaches the disk.
        unclean_mode_default: Likewise, the rule for electing replicas that might lack records.
        load: Current load of the brokers, to choose the least loaded.
        created_by: Principal that asked for it; empty if unknown, or below feature level 4.
    """

    name: StreamName
    subject: str
    group: str = ""
    replication_factor: int = 1
    partitions: int = 1
    overrides: StreamOverrides = field(default_factory=StreamOverrides)
    creation_timestamp: int = 0
    is_internal: bool = False
    partitions_max: int = PARTITIONS_MAX_DEFAULT
    streams_max: int = STREAMS_MAX_DEFAULT
    min_isr_default: int = 0
    fsync_policy_default: FsyncPolicy | None = None
    unclean_mode_default: UncleanMode | None = None
    load: tuple[BrokerLoad, ...] = ()
    created_by: str = ""

    def with_defaults(self, defaults: StreamOptions) -> "CreateStream":
        """Return this command with the defaults of the broker that takes the request."""
        overrides = self.overrides
        if overrides.encryption is None and defaults.encryption and not self.is_internal:
            overrides = replace(overrides, encryption=True)
        return replace(
            self,
            overrides=overrides,
            min_isr_default=defaults.min_isr,
            fsync_policy_default=defaults.fsync_policy,
            unclean_mode_default=defaults.unclean_mode,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteStream:
    """Delete a stream and retire its partition ids for ever (C14)."""

    name: StreamName
    is_internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterStream:
    """Change settings of a stream (C16).

    Attributes:
        name: Name of the stream.
        overrides: New settings; `None` leaves a setting unchanged.
        is_internal: Whether the broker itself sent it; only brokers may change reserved streams.
        replication_factor: New number of replicas, which partitions reach by reassignment; 0
            leaves it.
        load: Present load of the brokers, for the choice among them.
    """

    name: StreamName
    overrides: StreamOverrides
    is_internal: bool = False
    replication_factor: int = 0
    load: tuple[BrokerLoad, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseStream:
    """Stop the intake of partitions (C17).

    Attributes:
        name: Name of the stream.
        partitions: Numbers of the partitions; empty means all.
        resume_all: Whether the next publish to any partition resumes all of them.
        is_automatic: Whether the leader pauses an idle partition: it stays subscribed and the first
            message resumes it.
        is_internal: Whether the broker itself sent it; only brokers may pause reserved streams.
    """

    name: StreamName
    partitions: tuple[int, ...] = ()
    resume_all: bool = False
    is_automatic: bool = False
    is_internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeStream:
    """Resume the intake of partitions; of all of them after a pause with `resume_all` (C17).

    Attributes:
        name: Name of the stream.
        partitions: Numbers of the partitions; empty means all.
    """

    name: StreamName
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReadonly:
    """Refuse publishes to partitions, or accept them again (C18); empty `partitions` means all."""

    name: StreamName
    partitions: tuple[int, ...] = ()
    readonly: bool = True
    is_internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InitPublisher:
    """Register an idempotent publisher of a stream, or raise its epoch to fence the earlier one.

    Attributes:
        stream: Stream the publisher writes to.
        publisher: Name chosen by the publisher, 1 to 255 bytes; known per stream.
    """

    stream: StreamName
    publisher: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkStream:
    """Set the owner mark of a stream, if it still has the expected mark.

    Attributes:
        name: Name of the stream.
        stream_id: Its id, so that a recreated stream of the same name is not marked.
        expected: Current mark; empty for none.
        owner: New mark, at most `OWNER_BYTES_MAX` bytes; empty for none.
    """

    name: StreamName
    stream_id: int
    expected: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetActivity:
    """Record whether a broker's settings turn the activity stream on.

    Attributes:
        broker: The broker itself.
        broker_epoch: Its session.
        is_wanted: Whether its settings turn it on.
    """

    broker: BrokerId
    broker_epoch: int
    is_wanted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmActivity:
    """Remove pending events that the leader of the activity stream has stored.

    Attributes:
        partition_id: Partition of the activity stream.
        leader_epoch: Leader epoch of the broker.
        start_offset: Offset of the first pending event in the state that the decision is based on.
        last_id: Id of the last event that is stored; 0 for none of the pending ones.
        end_offset: Offset behind the last stored event. A smaller one than the state expects
            shows that stored events were lost.
    """

    partition_id: PartitionId
    leader_epoch: int
    start_offset: int
    last_id: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateEncryptedStream:
    """Create a stream whose records are encrypted with a data key (C22)."""

    stream: CreateStream
    key: DataKey

    @property
    def name(self) -> StreamName:
        """Name of the stream."""
        return self.stream.name


class RewrappedKey(NamedTuple):
    """Another wrapping of the data key of a stream.

    Attributes:
        stream_id: The stream.
        expected: Wrapped data key that it replaces.
        master_key: Id of the other master key.
        wrapped: The data key, wrapped by it.
        check: Check value of the data key.
    """

    stream_id: StreamId
    expected: bytes
    master_key: str
    wrapped: bytes
    check: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrapDataKeys:
    """Store other wrappings of data keys (C23)."""

    keys: tuple[RewrappedKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMasterKey:
    """Choose the master key that wraps data keys from now on (C24)."""

    master_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportMasterKeys:
    """Report the master keys of a broker (C25).

    Attributes:
        broker: The broker itself.
        broker_epoch: Its session.
        keys: At most `MASTER_KEYS_MAX`; those left out are no longer there.
    """

    broker: BrokerId
    broker_epoch: int
    keys: tuple[MasterKey, ...] = ()


ClusterCommand = Bootstrap | SetFeatureLevel | SetCatchUpRate | SetQuota
BrokerCommand = (
    RegisterBroker
    | UnfenceBroker
    | FenceBroker
    | ShutDownBroker
    | AdvertiseListeners
    | CordonBroker
    | RemoveBroker
)
PartitionCommand = (
    AlterPartition
    | StartReassignment
    | CancelReassignment
    | ElectPreferred
    | RecoverUnclean
    | ChangeLeader
    | DeclareUnclean
    | Resign
)
StreamCommand = (
    CreateStream
    | DeleteStream
    | AlterStream
    | PauseStream
    | ResumeStream
    | SetReadonly
    | InitPublisher
    | MarkStream
)
ActivityCommand = SetActivity | ConfirmActivity
KeyCommand = CreateEncryptedStream | RewrapDataKeys | SetMasterKey | ReportMasterKeys
Command = (
    ClusterCommand
    | BrokerCommand
    | PartitionCommand
    | StreamCommand
    | AccessCommand
    | TokenCommand
    | GroupCommand
    | ActivityCommand
    | KeyCommand
)
"""Every command of this version; an unknown command in the log stops the node."""
