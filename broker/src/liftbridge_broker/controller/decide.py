"""Decisions: a command and a state give records and an answer, or a refusal.

Every guard is in here (replication protocol, rule R0): `decide` runs on all nodes when a command
is committed, so a zombie, a retry or a reordered request does no harm, and running it before
proposing is only an early refusal. It is pure: it reads the state and changes nothing. What it
returns for equal input must not change between versions that share a log.
"""

from dataclasses import fields, replace
from typing import Final, assert_never

from liftbridge_broker.controller.checks import (
    check_encryption,
    check_min_isr,
    check_names,
    check_not_reserved,
    check_partition_count,
    check_partitions,
    check_publisher,
    check_replication_factor,
    check_stream_count,
    check_values,
)
from liftbridge_broker.controller.commands import (
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    InitPublisher,
    PauseStream,
    RegisterBroker,
    ResumeStream,
    SetReadonly,
)
from liftbridge_broker.controller.records import (
    BrokerEpochAnswer,
    BrokerRegistered,
    Decision,
    Done,
    LeaderElected,
    PartitionsPaused,
    PartitionsResumed,
    PublisherForgotten,
    PublisherInitialised,
    ReadonlySet,
    Record,
    StreamAltered,
    StreamCreated,
    StreamDeleted,
    StreamIdAnswer,
)
from liftbridge_broker.controller.state import (
    BrokerState,
    ClusterState,
    PublisherState,
    StreamState,
)
from liftbridge_broker.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidRequestError,
    LiftbridgeError,
    NotFoundError,
)
from liftbridge_broker.model.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataIndex,
    PartitionNumber,
    PublisherId,
    StreamId,
    partition_id,
)
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.model.subjects import check_group

PUBLISHERS_MAX: Final = 10_000
"""Idempotent publishers of one stream; beyond it the longest unused is forgotten."""

PUBLISHER_EPOCH_MAX: Final = 2**32 - 1


def decide(state: ClusterState, index: MetadataIndex, command: Command) -> Decision:
    """Decide on a command.

    Args:
        state: State after every entry before `index`.
        index: Index of the command in the log; before proposing, the one it would get at best.
        command: What is asked for, with values unchecked.

    Returns:
        Records to replay with the answer, or the refusal without records.
    """
    try:
        return _decide(state, index, command)
    except LiftbridgeError as refusal:
        return Decision((), refusal)


def _decide(state: ClusterState, index: MetadataIndex, command: Command) -> Decision:
    match command:
        case RegisterBroker():
            decision = _register_broker(state, index, command)
        case CreateStream():
            decision = _create_stream(state, index, command)
        case DeleteStream():
            decision = _delete_stream(state, command)
        case AlterStream():
            decision = _alter_stream(state, command)
        case PauseStream():
            decision = _pause_stream(state, index, command)
        case ResumeStream():
            decision = _resume_stream(state, index, command)
        case SetReadonly():
            decision = _set_readonly(state, index, command)
        case InitPublisher():
            decision = _init_publisher(state, index, command)
        case _:
            assert_never(command)
    return decision


def _register_broker(
    state: ClusterState, index: MetadataIndex, command: RegisterBroker
) -> Decision:
    """C1: a new session with a new epoch, and new leader epochs where the broker leads.

    A live session of another process is replaced only when it holds the same data directory, whose
    lock proves the former process gone.
    """
    if not command.broker or not command.incarnation_id or not command.data_dir_id:
        raise InvalidRequestError("Invalid registration, broker and identities cannot be empty")
    check_group(command.broker)
    known = state.brokers.get(command.broker)
    if known is not None:
        if known.incarnation_id == command.incarnation_id:
            return Decision((), BrokerEpochAnswer(known.broker_epoch))
        if known.data_dir_id != command.data_dir_id:
            raise FailedPreconditionError(
                f"broker {command.broker} is registered with data directory {known.data_dir_id}, "
                f"this one is {command.data_dir_id}"
            )
    broker = BrokerState(
        broker=command.broker,
        broker_epoch=index,
        incarnation_id=command.incarnation_id,
        data_dir_id=command.data_dir_id,
        host=command.host,
        port=command.port,
        fenced=False,
    )
    is_clean = known is not None and command.previous_broker_epoch == known.broker_epoch
    elections = _elections(state, index, command, is_clean=is_clean)
    return Decision((BrokerRegistered(broker), *elections), BrokerEpochAnswer(index))


def _elections(
    state: ClusterState, index: MetadataIndex, command: RegisterBroker, *, is_clean: bool
) -> list[LeaderElected]:
    """C4: the broker leads again what it led, and what has no other replica.

    The only replica comes back by itself after a crash (step 3a); the record tells when it may
    have lost what was acknowledged, unless the broker found all of it on disk.
    """
    broker = command.broker
    verified = frozenset(command.clean_partitions)
    elections: list[LeaderElected] = []
    for _, partition in state.partitions():
        is_only = partition.replicas == (broker,)
        if not is_only and partition.leader != broker:
            continue
        elections.append(
            LeaderElected(
                partition.partition_id,
                broker,
                (broker,) if is_only else partition.isr,
                LeaderEpoch(index),
                is_unclean=not is_clean and partition.partition_id not in verified,
            )
        )
    return elections


def _create_stream(state: ClusterState, index: MetadataIndex, command: CreateStream) -> Decision:
    """C15. The order of the checks is that of the original (spec 1.4)."""
    check_names(command, command.partitions)
    check_encryption(command.overrides)
    partition_count = check_partition_count(command.partitions, command.partitions_max)
    check_values(command.overrides)
    replication_factor = check_replication_factor(command.replication_factor, len(state.brokers))
    check_min_isr(command.overrides, replication_factor)
    if command.name in state.stream_ids:
        raise AlreadyExistsError("stream already exists")
    check_stream_count(len(state.streams), command.streams_max)
    stream_id = StreamId(index)
    created = StreamCreated(
        stream_id,
        command.name,
        command.subject,
        command.group,
        command.creation_timestamp,
        _normalised(command.overrides),
        tuple(
            _new_partition(state, stream_id, PartitionNumber(number), replication_factor)
            for number in range(partition_count)
        ),
    )
    return Decision((created,), StreamIdAnswer(stream_id))


def _new_partition(
    state: ClusterState, stream_id: StreamId, number: PartitionNumber, replication_factor: int
) -> PartitionState:
    """A partition on the brokers whose turn it is; the first one leads."""
    brokers: list[BrokerId] = list(state.brokers)
    first = state.partition_count + number
    replicas = tuple(brokers[(first + k) % len(brokers)] for k in range(replication_factor))
    return PartitionState(
        partition_id=partition_id(stream_id, number),
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        leader_epoch=LeaderEpoch(stream_id),
        partition_epoch=MetadataIndex(stream_id),
        replica_epochs=(MetadataIndex(stream_id),) * len(replicas),
    )


def _normalised(overrides: StreamOverrides) -> StreamOverrides:
    """Overrides with 0 in-sync replicas read as 1: the leader itself is always one."""
    return replace(overrides, min_isr=1) if overrides.min_isr == 0 else overrides


def _delete_stream(state: ClusterState, command: DeleteStream) -> Decision:
    """C14: the partition ids go with the stream and are never given again."""
    check_not_reserved(command.name, is_internal=command.is_internal)
    stream = _existing(state, command.name)
    partition_ids = tuple(partition.partition_id for partition in stream.partitions)
    return Decision((StreamDeleted(stream.stream_id, stream.name, partition_ids),), Done())


def _existing(state: ClusterState, name: str) -> StreamState:
    stream = state.stream(name)
    if stream is None:
        raise NotFoundError("stream does not exist")
    return stream


def _alter_stream(state: ClusterState, command: AlterStream) -> Decision:
    """C16: values given replace those the stream has."""
    check_not_reserved(command.name, is_internal=command.is_internal)
    stream = _existing(state, command.name)
    check_encryption(command.overrides)
    check_values(command.overrides)
    check_min_isr(command.overrides, stream.replication_factor)
    values = {name: getattr(command.overrides, name) for name in _OVERRIDE_NAMES}
    given = {name: value for name, value in values.items() if value is not None}
    overrides = _normalised(replace(stream.overrides, **given))
    return Decision((StreamAltered(stream.stream_id, stream.name, overrides),), Done())


_OVERRIDE_NAMES: Final = tuple(field.name for field in fields(StreamOverrides))


def _pause_stream(state: ClusterState, index: MetadataIndex, command: PauseStream) -> Decision:
    """C17. Pausing twice is answered alike; a pause by hand outlasts one for idleness."""
    check_not_reserved(command.name, is_internal=command.is_internal)
    stream, numbers = check_partitions(state.stream(command.name), command.partitions)
    automatic: list[PartitionNumber] = []
    explicit: list[PartitionNumber] = []
    for number in numbers:
        before = stream.partitions[number]
        by_hand = not command.is_automatic or (before.paused and not before.auto_paused)
        (explicit if by_hand else automatic).append(number)
    # An idle partition does not take back what a client asked for the stream.
    resume_all = stream.resume_all if command.is_automatic else command.resume_all
    paused = PartitionsPaused(
        stream.stream_id, stream.name, tuple(explicit), tuple(automatic), resume_all, index
    )
    return Decision((paused,), Done())


def _resume_stream(state: ClusterState, index: MetadataIndex, command: ResumeStream) -> Decision:
    """C17. Reserved streams too: any publish or subscription resumes."""
    stream, numbers = check_partitions(state.stream(command.name), command.partitions)
    if stream.resume_all:
        numbers = tuple(partition.number for partition in stream.partitions)
    numbers = tuple(number for number in numbers if stream.partitions[number].paused)
    if not numbers:
        return Decision((), Done())
    return Decision((PartitionsResumed(stream.stream_id, stream.name, numbers, index),), Done())


def _set_readonly(state: ClusterState, index: MetadataIndex, command: SetReadonly) -> Decision:
    """C18. Asking for the present state is answered alike."""
    check_not_reserved(command.name, is_internal=command.is_internal)
    stream, numbers = check_partitions(state.stream(command.name), command.partitions)
    record = ReadonlySet(stream.stream_id, stream.name, numbers, command.readonly, index)
    return Decision((record,), Done())


def _init_publisher(state: ClusterState, index: MetadataIndex, command: InitPublisher) -> Decision:
    """A new publisher gets an id, a known one the next epoch, which fences its former self."""
    check_publisher(command.publisher)
    stream = _existing(state, command.stream)
    known = stream.publishers.get(command.publisher)
    records: list[Record] = []
    if known is None or known.publisher_epoch == PUBLISHER_EPOCH_MAX:
        initialised = PublisherState(PublisherId(index), 0)
    else:
        initialised = PublisherState(known.publisher_id, known.publisher_epoch + 1)
    if known is None and len(stream.publishers) >= PUBLISHERS_MAX:
        oldest = next(iter(stream.publishers))
        records.append(
            PublisherForgotten(stream.stream_id, oldest, stream.publishers[oldest].publisher_id)
        )
    records.append(PublisherInitialised(stream.stream_id, command.publisher, initialised))
    return Decision(tuple(records), initialised)
