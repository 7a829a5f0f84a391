"""Snapshot of the cluster state <-> bytes (`Snapshot` in `internal/v1/metadata.proto`).

Equal states give equal bytes: everything is written in the order the state defines. Decoding
checks every relation that the rest of the broker relies on, because a snapshot comes from a disk.

Both can run in steps, as tens of thousands of partitions take longer than a turn of the event loop
may. Only parsing and serializing the whole is one step: it is native, and 40 times faster.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Final

from liftbridge_broker.controller.activity_queue import (
    PENDING_MAX,
    ActivityEvent,
    ActivityKind,
    ActivityQueue,
    NumberRange,
)
from liftbridge_broker.controller.state import (
    DELETED_MAX,
    RESTARTS_MAX,
    BrokerState,
    ClusterState,
    PublisherState,
    Restart,
    StreamPolicy,
    StreamState,
)
from liftbridge_broker.model.ids import (
    PARTITION_NUMBER_BITS,
    BrokerId,
    LeaderEpoch,
    MetadataIndex,
    PartitionNumber,
    PublisherId,
    StreamId,
    StreamName,
    partition_id,
)
from liftbridge_broker.model.keys import (
    DataKey,
    MasterKey,
    fault_of_data_key,
    fault_of_id,
    fault_of_masters,
)
from liftbridge_broker.model.listeners import ListenerAddress, fault_of
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.steps import finish
from liftbridge_broker.model.streams import FsyncPolicy, UncleanMode
from liftbridge_broker.wire.metadata import (
    fsync_policy_of,
    fsync_policy_value,
    overrides_message,
    overrides_of,
    parse_canonical,
    require,
    unclean_mode_of,
    unclean_mode_value,
)
from liftbridge_broker.wire.snapshot_callers import fill_callers, restore_callers
from liftbridge_broker.wire.snapshot_groups import fill_group, read_group
from liftbridge_proto.internal.v1 import metadata_pb2 as pb

STREAM_ID_END = 1 << (64 - PARTITION_NUMBER_BITS)

STEP_ENTRIES: Final = 8
"""Entries of all lists per step: about 200 us to read."""


class _Pace:
    """Counts entries, over all lists of a snapshot."""

    def __init__(self) -> None:
        self._count = 0

    def is_due(self) -> bool:
        """Return whether a step ends before this entry."""
        self._count += 1
        return self._count % STEP_ENTRIES == 0


def encode_state(state: ClusterState) -> bytes:
    """Encode a snapshot."""
    return finish(encode_state_in_steps(state))


def encode_state_in_steps(state: ClusterState) -> Generator[None, None, bytes]:
    """Encode a state in steps; it must not change before the bytes are complete."""
    message = pb.Snapshot(
        applied_index=state.applied_index,
        cluster_id=state.cluster_id,
        feature_level=state.feature_level,
        chain=state.chain,
        catch_up_rate=state.catch_up_rate,
    )
    pace = _Pace()
    places = {broker: place for place, broker in enumerate(state.brokers)}
    for broker in state.brokers.values():
        if pace.is_due():
            yield
        _fill_broker(message.brokers.add(), broker)
    for stream in state.streams.values():
        if pace.is_due():
            yield
        yield from _fill_stream(message.streams.add(), stream, places, pace)
    for stream_id, index in state.deleted.items():
        if pace.is_due():
            yield
        message.deleted.add(stream_id=stream_id, deleted_index=index)
    yield from fill_callers(message, state, pace.is_due)
    for group in state.groups.values():
        yield from fill_group(message.groups.add(), group, pace.is_due)
    yield from _fill_activity(message, state.activity, pace)
    yield from _fill_keys(message, state, pace)
    assert message.applied_index == state.applied_index  # it did not change
    return message.SerializeToString(deterministic=True)


def _fill_keys(message: pb.Snapshot, state: ClusterState, pace: _Pace) -> Iterator[None]:
    if state.master_key:
        message.encryption.master_key = state.master_key
    for stream_id in sorted(state.encrypted):
        if pace.is_due():
            yield
        key = state.streams[stream_id].data_key
        assert key is not None
        stored = message.encryption.streams.add(stream_id=stream_id)
        stored.key.CopyFrom(pb.DataKey(**key._asdict()))
    for place, broker in enumerate(state.brokers.values()):
        if broker.master_keys:
            target = message.encryption.brokers.add(broker=place)
            for master in broker.master_keys:
                target.keys.add(key_id=master.key_id, check=master.check)


def _fill_broker(target: pb.Broker, broker: BrokerState) -> None:
    target.broker = broker.broker
    target.broker_epoch = broker.broker_epoch
    target.incarnation_id = broker.incarnation_id
    target.data_dir_id = broker.data_dir_id
    target.host = broker.host
    target.port = broker.port
    target.zone = broker.zone
    target.version = broker.version
    target.feature_level = broker.feature_level
    target.fenced = broker.fenced
    target.in_controlled_shutdown = broker.in_controlled_shutdown
    target.controlled_shutdown_index = broker.controlled_shutdown_index
    target.cordoned = broker.cordoned
    target.draining = broker.draining
    target.removed = broker.removed
    for restart in broker.restarts:
        target.restarts.add(
            incarnation_id=restart.incarnation_id,
            started=restart.started,
            is_clean=restart.is_clean,
            version=restart.version,
        )
    target.replicas_max = broker.replicas_max
    for name, host, port in broker.listeners:
        target.listeners.add(name=name, host=host, port=port)


def _fill_stream(
    target: pb.Stream, stream: StreamState, places: dict[BrokerId, int], pace: _Pace
) -> Iterator[None]:
    target.stream_id = stream.stream_id
    target.name = stream.name
    target.subject = stream.subject
    target.group = stream.group
    target.creation_timestamp = stream.creation_timestamp
    target.overrides.CopyFrom(overrides_message(stream.overrides))
    target.resume_all = stream.resume_all
    for partition in stream.partitions:
        if pace.is_due():
            yield
        _fill_partition(target.partitions.add(), partition, places)
    for name, publisher in stream.publishers.items():
        if pace.is_due():
            yield
        target.publishers.add(
            publisher=name,
            publisher_id=publisher.publisher_id,
            publisher_epoch=publisher.publisher_epoch,
        )
    policy = stream.policy
    target.replication_factor = policy.replication_factor
    target.min_isr = policy.min_isr
    target.min_isr_default = policy.min_isr_default
    target.fsync_policy = fsync_policy_value(policy.fsync_policy)
    target.unclean_mode = unclean_mode_value(policy.unclean_mode)
    target.is_growing = policy.is_growing
    target.fsync_index = policy.fsync_index
    target.owner = stream.owner
    target.created_by = stream.created_by


def _fill_partition(
    target: pb.Partition, partition: PartitionState, places: dict[BrokerId, int]
) -> None:
    replicas = partition.replicas
    target.replicas.extend(places[broker] for broker in replicas)
    target.isr.extend(replicas.index(broker) for broker in partition.isr)
    if partition.leader is not None:
        target.leader = replicas.index(partition.leader)
    target.leader_epoch = partition.leader_epoch
    target.partition_epoch = partition.partition_epoch
    target.unclean_epoch = partition.unclean_epoch
    target.paused = partition.paused
    target.auto_paused = partition.auto_paused
    target.readonly = partition.readonly
    target.elr.extend(replicas.index(broker) for broker in partition.elr)
    target.last_known_elr.extend(replicas.index(broker) for broker in partition.last_known_elr)
    target.target.extend(replicas.index(broker) for broker in partition.target)
    target.adding.extend(replicas.index(broker) for broker in partition.adding)
    target.is_recovering = partition.is_recovering
    target.replica_epochs.extend(partition.replica_epochs)


def _fill_activity(target: pb.Snapshot, queue: ActivityQueue, pace: _Pace) -> Iterator[None]:
    if queue == ActivityQueue():
        return  # as a version that does not know it writes it
    activity = target.activity
    activity.SetInParent()
    activity.wanted_by.extend(queue.wanted_by)
    activity.end_offset = queue.end_offset
    activity.lost_count = queue.lost_count
    activity.gap = queue.gap
    for event in queue.events:
        if pace.is_due():
            yield
        written = activity.events.add(
            event_id=event.event_id,
            kind=event.kind,
            name=event.name,
            flag=event.flag,
            consumer=event.consumer,
            streams=event.streams,
            lost_before=event.lost_before,
        )
        for first, length in event.partitions:
            written.partitions.add(first=first, length=length)


def decode_state(data: bytes) -> ClusterState:
    """Decode the state of a snapshot.

    Raises:
        CorruptionError: Like `decode_state_in_steps`.
    """
    return finish(decode_state_in_steps(data))


def decode_state_in_steps(data: bytes) -> Generator[None, None, ClusterState]:
    """Decode the state of a snapshot, complete at the end.

    Raises:
        CorruptionError: The bytes are not a snapshot of this version, or are inconsistent.
    """
    message = parse_canonical(pb.Snapshot, data)
    state = ClusterState(
        applied_index=MetadataIndex(message.applied_index),
        cluster_id=message.cluster_id,
        feature_level=message.feature_level,
        chain=message.chain,
        catch_up_rate=message.catch_up_rate,
    )
    pace = _Pace()
    for broker in message.brokers:
        if pace.is_due():
            yield
        require(broker.broker not in state.brokers, f"broker {broker.broker} twice")
        state.brokers[BrokerId(broker.broker)] = _broker(broker, message.applied_index)
    brokers = tuple(state.brokers)
    publishers: set[int] = set()
    last_id = 0
    for found in message.streams:
        if pace.is_due():
            yield
        require(
            last_id < found.stream_id <= min(message.applied_index, STREAM_ID_END - 1),
            f"stream id {found.stream_id} out of order",
        )
        require(found.name not in state.stream_ids, f"stream {found.name} twice")
        last_id = found.stream_id
        stream = yield from _stream(found, brokers, message.applied_index, pace)
        ids = [publisher.publisher_id for publisher in stream.publishers.values()]
        require(publishers.isdisjoint(ids) and len(ids) == len(set(ids)), "a publisher id twice")
        publishers.update(ids)
        state.add_stream(stream)
    yield from _restore_deleted(state, message, pace)
    yield from restore_callers(state, message, pace.is_due)
    for given in message.groups:
        group = yield from read_group(given, state, pace.is_due)
        state.groups[group.group_id] = group
    yield from _restore_activity(state, message, pace)
    yield from _restore_keys(state, message.encryption, pace)
    return state


def _restore_keys(state: ClusterState, message: pb.EncryptionKeys, pace: _Pace) -> Iterator[None]:
    if message.master_key:
        require(not fault_of_id(message.master_key), "the id of the master key is invalid")
        state.master_key = message.master_key
    last_id = 0
    for found in message.streams:
        if pace.is_due():
            yield
        stream_id = StreamId(found.stream_id)
        require(stream_id in state.streams and stream_id > last_id, "a data key of no stream")
        key = DataKey(found.key.master_key, found.key.wrapped, found.key.check)
        fault = fault_of_data_key(key)
        require(not fault, f"data key of stream {found.stream_id}: {fault}")
        state.set_data_key(stream_id, key)
        last_id = stream_id
    brokers = tuple(state.brokers)
    last = -1
    for holder in message.brokers:
        require(last < holder.broker < len(brokers), "master keys of no broker")
        last = holder.broker
        keys = tuple(MasterKey(key.key_id, key.check) for key in holder.keys)
        fault = fault_of_masters(keys) or ("" if keys else "none listed")
        require(not fault, f"master keys of broker {brokers[last]}: {fault}")
        broker = state.brokers[brokers[last]]
        state.brokers[broker.broker] = replace(broker, master_keys=keys)


def _restore_deleted(state: ClusterState, message: pb.Snapshot, pace: _Pace) -> Iterator[None]:
    require(len(message.deleted) <= DELETED_MAX, f"{len(message.deleted)} deleted streams")
    last_index = 0
    for found in message.deleted:
        if pace.is_due():
            yield
        stream_id = StreamId(found.stream_id)
        is_gone = stream_id not in state.streams and stream_id not in state.deleted
        require(is_gone, f"stream {stream_id} exists, or deleted twice")
        require(
            max(last_index, stream_id) < found.deleted_index <= message.applied_index
            and stream_id > 0,
            f"stream {stream_id} deleted out of order",
        )
        last_index = found.deleted_index
        state.deleted[stream_id] = MetadataIndex(found.deleted_index)


def _restore_activity(state: ClusterState, message: pb.Snapshot, pace: _Pace) -> Iterator[None]:
    if not message.HasField("activity"):
        return
    found, queue = message.activity, state.activity
    for name in found.wanted_by:
        broker = state.brokers.get(BrokerId(name))
        is_fit = broker is not None and not broker.removed
        require(is_fit and name not in queue.wanted_by, f"activity wanted by {name}")
        queue.set_wanted(BrokerId(name), is_wanted=True)
    last_id = 0
    for event in found.events:
        if pace.is_due():
            yield
        require(
            last_id < event.event_id <= message.applied_index,
            f"activity event {event.event_id} out of order",
        )
        last_id = event.event_id
        queue.events.append(_activity_event(event))
        queue.weight += queue.events[-1].weight
    require(queue.weight <= PENDING_MAX, f"{queue.weight} pending activity events")
    queue.end_offset, queue.lost_count, queue.gap = found.end_offset, found.lost_count, found.gap


def _activity_event(message: pb.ActivityEvent) -> ActivityEvent:
    require(message.kind in set(ActivityKind), f"activity event of kind {message.kind}")
    return ActivityEvent(
        MetadataIndex(message.event_id),
        ActivityKind(message.kind),
        message.name,
        tuple(NumberRange(one.first, one.length) for one in message.partitions),
        message.flag,
        message.consumer,
        tuple(message.streams),
        message.lost_before,
    )


def _broker(message: pb.Broker, applied_index: int) -> BrokerState:
    require(
        max(message.broker_epoch, message.controlled_shutdown_index) <= applied_index,
        "a broker epoch ahead of the state",
    )
    require(
        message.fenced or not message.removed, f"broker {message.broker} removed but not fenced"
    )
    require(
        len(message.restarts) <= RESTARTS_MAX,
        f"broker {message.broker} with {len(message.restarts)} starts",
    )
    require(
        message.cordoned or not message.draining,
        f"broker {message.broker} draining but not cordoned",
    )
    listeners = tuple(
        ListenerAddress(listener.name, listener.host, listener.port)
        for listener in message.listeners
    )
    fault = fault_of(listeners)
    require(not fault, f"listeners of broker {message.broker}: {fault}")
    return BrokerState(
        broker=BrokerId(message.broker),
        broker_epoch=MetadataIndex(message.broker_epoch),
        incarnation_id=message.incarnation_id,
        data_dir_id=message.data_dir_id,
        host=message.host,
        port=message.port,
        zone=message.zone,
        version=message.version,
        feature_level=message.feature_level,
        fenced=message.fenced,
        in_controlled_shutdown=message.in_controlled_shutdown,
        controlled_shutdown_index=MetadataIndex(message.controlled_shutdown_index),
        cordoned=message.cordoned,
        draining=message.draining,
        removed=message.removed,
        restarts=tuple(
            Restart(restart.incarnation_id, restart.started, restart.is_clean, restart.version)
            for restart in message.restarts
        ),
        listeners=listeners,
        replicas_max=message.replicas_max,
    )


def _stream(
    message: pb.Stream, brokers: tuple[BrokerId, ...], applied_index: int, pace: _Pace
) -> Generator[None, None, StreamState]:
    require(
        0 < len(message.partitions) < 1 << PARTITION_NUMBER_BITS,
        f"stream {message.name} with {len(message.partitions)} partitions",
    )
    stream = StreamState(
        stream_id=StreamId(message.stream_id),
        name=StreamName(message.name),
        subject=message.subject,
        group=message.group,
        creation_timestamp=message.creation_timestamp,
        overrides=overrides_of(message),
        policy=_policy(message),
        resume_all=message.resume_all,
        owner=message.owner,
        created_by=message.created_by,
    )
    for number, found in enumerate(message.partitions):
        if pace.is_due():
            yield
        partition = _partition(stream.stream_id, number, found, brokers)
        require(partition.partition_epoch <= applied_index, "a partition epoch ahead of the state")
        stream.partitions.append(partition)
    for publisher in message.publishers:
        if pace.is_due():
            yield
        require(publisher.publisher not in stream.publishers, "a publisher twice")
        require(0 < publisher.publisher_id <= applied_index, "a publisher id ahead of the state")
        stream.publishers[publisher.publisher] = PublisherState(
            PublisherId(publisher.publisher_id), publisher.publisher_epoch
        )
    return stream


def _policy(message: pb.Stream) -> StreamPolicy:
    """Decode the policy of a stream; versions without clusters wrote none and used the defaults."""
    return StreamPolicy(
        message.replication_factor or len(message.partitions[0].replicas),
        message.min_isr or 1,
        message.min_isr_default,
        fsync_policy_of(message.fsync_policy) or FsyncPolicy.INTERVAL,
        unclean_mode_of(message.unclean_mode) or UncleanMode.BALANCED,
        message.is_growing,
        message.fsync_index,
    )


def _partition(
    stream_id: StreamId, number: int, message: pb.Partition, brokers: tuple[BrokerId, ...]
) -> PartitionState:
    name = f"partition {number} of stream {stream_id}"
    places = tuple(message.replicas)
    require(all(place < len(brokers) for place in places), f"{name} on an unknown broker")
    require(bool(places) and len(set(places)) == len(places), f"{name} without distinct replicas")
    for kind in ("isr", "elr", "last_known_elr", "adding"):
        members = tuple(getattr(message, kind))
        require(members == tuple(sorted(set(members))), f"{name} with a disordered {kind}")
        require(all(place < len(places) for place in members), f"{name} with a {kind} elsewhere")
    _check_target(name, message)
    _check_election(name, message)
    require(
        message.unclean_epoch <= message.leader_epoch <= message.partition_epoch
        and stream_id <= message.leader_epoch,
        f"{name} with disordered epochs",
    )
    epochs = message.replica_epochs or (stream_id,) * len(places)
    require(len(epochs) == len(places), f"{name} without an epoch of each replica")
    require(max(epochs) <= message.partition_epoch, f"{name} with disordered epochs")
    require(message.paused or not message.auto_paused, f"{name} with disordered pause flags")
    replicas = tuple(brokers[place] for place in places)

    def named(members: Sequence[int]) -> tuple[BrokerId, ...]:
        return tuple(replicas[place] for place in members)

    return PartitionState(
        partition_id=partition_id(stream_id, PartitionNumber(number)),
        replicas=replicas,
        isr=named(message.isr),
        leader=replicas[message.leader] if message.HasField("leader") else None,
        leader_epoch=LeaderEpoch(message.leader_epoch),
        partition_epoch=MetadataIndex(message.partition_epoch),
        replica_epochs=tuple(MetadataIndex(epoch) for epoch in epochs),
        elr=named(message.elr),
        last_known_elr=named(message.last_known_elr),
        target=named(message.target),
        adding=named(message.adding),
        unclean_epoch=LeaderEpoch(message.unclean_epoch),
        is_recovering=message.is_recovering,
        paused=message.paused,
        auto_paused=message.auto_paused,
        readonly=message.readonly,
    )


def _check_target(name: str, message: pb.Partition) -> None:
    target, adding = tuple(message.target), tuple(message.adding)
    count = len(message.replicas)
    require(
        len(set(target)) == len(target) and all(place < count for place in target),
        f"{name} moving to an unknown replica",
    )
    require(set(adding) <= set(target), f"{name} adding a replica outside its target")
    require(
        not adding or adding[0] == count - len(adding),
        f"{name} adding replicas before the last ones",
    )
    require(len(adding) < count, f"{name} adding all of its replicas")


def _check_election(name: str, message: pb.Partition) -> None:
    isr, elr = set(message.isr), set(message.elr)
    require(
        not message.HasField("leader") or message.leader in isr,
        f"{name} led by a replica out of sync",
    )
    require(isr.isdisjoint(elr), f"{name} with a replica both in sync and eligible")
    require(
        not message.is_recovering or (len(isr) <= 1 and message.unclean_epoch > 0),
        f"{name} recovering without an unclean election",
    )
