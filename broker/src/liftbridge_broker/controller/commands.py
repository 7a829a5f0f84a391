"""Commands: what a metadata log entry asks for (replication protocol 1.5 and 1.15).

A command says what is wanted and carries everything `decide` must know beyond the state, such as
the wall clock. It is checked by `decide`, on every node alike, when it is committed; a value in a
command may therefore be wrong in any way its type allows.
"""

from dataclasses import dataclass, field
from typing import Final

from liftbridge_broker.model.ids import BrokerId, PartitionId, StreamName
from liftbridge_broker.model.streams import StreamOverrides

PARTITIONS_MAX_DEFAULT: Final = 10_000
STREAMS_MAX_DEFAULT: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker process starts its session (C1).

    Attributes:
        broker: Configured id of the broker.
        incarnation_id: Random text chosen at process start; a command with the incarnation of the
            present registration is a retry.
        data_dir_id: Random text written once into the data directory.
        host: Address clients reach the broker at.
        port: Port clients reach the broker at.
        previous_broker_epoch: Broker epoch in the clean-shutdown marker; 0 when there was none.
        clean_partitions: Partitions of which every acknowledged record was found on disk, though
            the shutdown was not clean (fsync policy `commit`).
    """

    broker: BrokerId
    incarnation_id: str
    data_dir_id: str
    host: str = ""
    port: int = 0
    previous_broker_epoch: int = 0
    clean_partitions: tuple[PartitionId, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteStream:
    """Delete a stream and retire its partition ids for ever (C14)."""

    name: StreamName
    is_internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterStream:
    """Change settings of a stream; what is `None` in `overrides` stays as it is (C16)."""

    name: StreamName
    overrides: StreamOverrides
    is_internal: bool = False


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


Command = (
    RegisterBroker
    | CreateStream
    | DeleteStream
    | AlterStream
    | PauseStream
    | ResumeStream
    | SetReadonly
    | InitPublisher
)
"""Every command of this version; a log that holds another one stops the node."""
