"""Commands: what a metadata log entry asks for (replication protocol 1.5 and 1.15).

A command says what is wanted and carries everything `decide` must know beyond the state, such as
the wall clock. It is checked by `decide`, on every node alike, when it is committed; a value in a
command may therefore be wrong in any way its type allows.
"""

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import BrokerId, PartitionId, StreamName
from liftbridge_broker.model.listeners import ListenerAddress
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions, StreamOverrides, UncleanMode

PARTITIONS_MAX_DEFAULT: Final = 10_000
STREAMS_MAX_DEFAULT: Final = 100_000

FEATURE_LEVEL: Final = 2
"""Latest rules of decision that this version knows; 0 were those without clusters."""

ROOM_LEVEL: Final = 2
"""Feature level from which on a broker gets no more replicas than it told to have room for."""

NOBODY: Final = BrokerId("")

MEMBER_ALREADY: Final = -1
"""Replica epoch of a member that was in sync before (KIP-903)."""


class BrokerLoad(NamedTuple):
    """How much a broker carries, counted in partitions that it leads."""

    broker: BrokerId
    load: int


class IsrMember(NamedTuple):
    """A replica that is to be in sync, in the session that the leader knows it in.

    `replica_epoch` is `MEMBER_ALREADY` for one that is in sync as the leader proposes.
    """

    broker: BrokerId
    replica_epoch: int


class ReplicaAnswer(NamedTuple):
    """What a replica told of its log, in which session of its broker.

    Attributes:
        broker: The replica.
        broker_epoch: Session of the broker that told it.
        last_epoch: Leader epoch of the last record it holds.
        log_end_offset: End of its log.
        is_damaged: Whether the log is damaged, so that the replica cannot lead.
    """

    broker: BrokerId
    broker_epoch: int
    last_epoch: int
    log_end_offset: int
    is_damaged: bool = False


class LeaderChange(NamedTuple):
    """A leader that its followers do not hear, and the epochs they knew it by."""

    partition_id: PartitionId
    leader_epoch: int
    partition_epoch: int
    exclude: BrokerId


class Leadership(NamedTuple):
    """A partition led in some epoch."""

    partition_id: PartitionId
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker process starts its session (C1).

    Attributes:
        broker: Configured id of the broker.
        incarnation_id: Random text chosen at process start; a command with the id of the
            present registration is a retry.
        data_dir_id: Random text written once into the data directory.
        host: Address clients reach the broker at.
        port: Port clients reach the broker at.
        previous_broker_epoch: Broker epoch in the clean-shutdown marker; 0 when there was none.
        clean_partitions: Partitions of which every acknowledged record was found on disk, though
            the shutdown was not clean (fsync policy `commit`).
        known_index: Metadata that the broker had applied when it found that; what was changed
            since may have let records count that it never had on disk.
        quarantined_partitions: Partitions with damaged files; unclean however it stopped.
        zone: Zone or rack it stands in; empty when unknown.
        version: Version of its software, for people.
        feature_level: Latest rules of decision it knows. At 0, a version without clusters, the
            broker is not fenced first, so that logs of that version mean what they meant.
        started: Wall clock of the broker, nanoseconds since 1970, for people.
        replicas_max: Replicas that it may have at most, by the limits of its system; 0 when it
            does not tell.
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
    """A cluster begins: it gets its name and the rules it decides by, once.

    Attributes:
        cluster_id: Random text.
        feature_level: Rules of decision; every broker that registers must know them.
    """

    cluster_id: str
    feature_level: int = FEATURE_LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBroker:
    """A broker that has caught up with the metadata may lead and come into sync (C2).

    Attributes:
        broker: The broker.
        broker_epoch: Its session.
        applied_index: Metadata index that its last heartbeat told.
        want_fence: Whether that heartbeat asked to stay fenced.
    """

    broker: BrokerId
    broker_epoch: int
    applied_index: int
    want_fence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBroker:
    """A broker was not heard of for a session: it leads nothing and is nowhere in sync (C3)."""

    broker: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutDownBroker:
    """A broker is about to stop: others take over what they can (C13)."""

    broker: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertiseListeners:
    """A broker says where clients reach it by its further listeners, all of them at once.

    Attributes:
        broker: The broker itself.
        broker_epoch: Its session.
        listeners: At most `LISTENERS_MAX`; those that it leaves out it is not reached by.
    """

    broker: BrokerId
    broker_epoch: int
    listeners: tuple[ListenerAddress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonBroker:
    """Place no new replicas on a broker, and with `draining` move its own away (C20)."""

    broker: BrokerId
    cordoned: bool = True
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBroker:
    """A stopped broker without replicas leaves for good; its data directory never comes back."""

    broker: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFeatureLevel:
    """Other rules of decision are in force, which every broker must know (C21)."""

    feature_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCatchUpRate:
    """Bytes a second that each leader spends on replicas added by reassignments; 0 is no limit."""

    bytes_per_second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """A leader asks for another in-sync set (C5, KIP-497).

    Attributes:
        broker: The leader.
        broker_epoch: Its session.
        partition_id: The partition.
        leader_epoch: Epoch it leads in.
        partition_epoch: Epoch of the state it decided on.
        isr: In-sync set wanted.
        is_recovering: Whether the leader has not taken up its work since an unclean election.
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
        partition_epoch: Epoch of the state this was decided on; 0 for any.
    """

    partition_id: PartitionId
    target: tuple[BrokerId, ...]
    partition_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReassignment:
    """Give up the reassignment of a partition (C8).

    Attributes:
        partition_id: The partition.
        partition_epoch: Epoch of the state this was decided on; 0 for any.
        is_unclean: Whether it may be given up though too few of the former replicas are in sync,
            which may lose acknowledged records.
    """

    partition_id: PartitionId
    partition_epoch: int = 0
    is_unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectPreferred:
    """Elect the first replica of partitions where it can lead (C9); told for each of them."""

    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverUnclean:
    """Elect a replica that might lack acknowledged records (C10).

    Attributes:
        partition_id: The partition.
        chosen: Broker to elect.
        partition_epoch: Epoch of the state this was decided on.
        mode: Who decided: an operator (`manual`), or the controller in one of its modes.
        answers: What replicas told of their logs; an operator needs none.
    """

    partition_id: PartitionId
    chosen: BrokerId
    partition_epoch: int
    mode: UncleanMode = UncleanMode.MANUAL
    answers: tuple[ReplicaAnswer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLeader:
    """Replace leaders that most of their followers do not hear (C11); told for each of them."""

    changes: tuple[LeaderChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareUnclean:
    """A replica lost some of what it had reported, without a restart of its broker (C12).

    Attributes:
        broker: Broker of the replica.
        broker_epoch: Its session.
        partition_id: The partition.
        replica_epoch: Session of the replica.
        reason: What happened, for people.
    """

    broker: BrokerId
    broker_epoch: int
    partition_id: PartitionId
    replica_epoch: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resign:
    """A broker gives leaderships up, where another can take them (C19); told for each of them.

    Attributes:
        broker: The leader.
        broker_epoch: Its session.
        partitions: What it leads.
        leaves_isr: Whether it leaves the in-sync sets as well, because it cannot follow either.
        successor: Who is to lead; empty for the first that can.
        reason: Why, for people.
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
        is_internal: Whether the broker itself asks, who may create reserved streams.
        partitions_max: Limit of partitions of one stream in the settings of that broker.
        streams_max: Limit of streams of the cluster in the settings of that broker.
        min_isr_default: In-sync replicas needed by its settings when `overrides` does not say;
            0 leaves it to the replication factor: 2 from three replicas on, else 1.
        fsync_policy_default: Likewise, when appended data reaches the disk.
        unclean_mode_default: Likewise, who may elect a replica that might lack records.
        load: What brokers carry already, for the choice among them.
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

    def with_defaults(self, defaults: StreamOptions) -> "CreateStream":
        """This command with the defaults of the broker that takes the request."""
        return replace(
            self,
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
        overrides: New settings; what is `None` stays as it is.
        is_internal: Whether the broker itself asks, who may change reserved streams.
        replication_factor: New number of replicas, which partitions reach by reassignment; 0
            leaves it.
        load: What brokers carry already, for the choice among them.
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
        is_automatic: Whether the leader pauses an idle partition by itself: it stays subscribed
            and the first message resumes it.
        is_internal: Whether the broker itself asks, who may pause reserved streams.
    """

    name: StreamName
    partitions: tuple[int, ...] = ()
    resume_all: bool = False
    is_automatic: bool = False
    is_internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeStream:
    """Take up the intake of partitions again; all of them after a pause with `resume_all` (C17).

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
    """Register an idempotent publisher of a stream, or raise its epoch to fence its former self.

    Attributes:
        stream: Stream the publisher writes to.
        publisher: Name chosen by the publisher, 1 to 255 bytes; known per stream.
    """

    stream: StreamName
    publisher: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkStream:
    """Say who manages a stream, if it is still managed by whom the caller believes.

    Attributes:
        name: Name of the stream.
        stream_id: Its id, so that a stream created anew under the name is not taken for it.
        expected: Mark it has; empty for none.
        owner: Mark it gets, at most `OWNER_BYTES_MAX` bytes; empty for none.
    """

    name: StreamName
    stream_id: int
    expected: str = ""
    owner: str = ""


ClusterCommand = Bootstrap | SetFeatureLevel | SetCatchUpRate
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
Command = ClusterCommand | BrokerCommand | PartitionCommand | StreamCommand
"""Every command of this version; a log that holds another one stops the node."""
