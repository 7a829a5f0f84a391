"""Snapshot of the cluster state <-> bytes (`Snapshot` in `internal/v1/metadata.proto`).

Equal states give equal bytes: everything is written in the order the state defines. Decoding
checks every relation that the rest of the broker relies on, because a snapshot comes from a disk.
"""

from liftbridge_broker.controller.state import (
    BrokerState,
    ClusterState,
    PartitionState,
    PublisherState,
    StreamState,
)
from liftbridge_broker.errors import CorruptionError
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
from liftbridge_broker.wire.metadata import overrides_message, overrides_of, parse_canonical
from liftbridge_proto.internal.v1 import metadata_pb2 as pb

STREAM_ID_END = 1 << (64 - PARTITION_NUMBER_BITS)


def encode_state(state: ClusterState) -> bytes:
    """Bytes of a snapshot."""
    message = pb.Snapshot(applied_index=state.applied_index)
    places = {broker: place for place, broker in enumerate(state.brokers)}
    for broker in state.brokers.values():
        message.brokers.add(
            broker=broker.broker,
            broker_epoch=broker.broker_epoch,
            incarnation_id=broker.incarnation_id,
            data_dir_id=broker.data_dir_id,
            host=broker.host,
            port=broker.port,
        )
    for stream in state.streams.values():
        _fill_stream(message.streams.add(), stream, places)
    return message.SerializeToString(deterministic=True)


def _fill_stream(target: pb.Stream, stream: StreamState, places: dict[BrokerId, int]) -> None:
    target.stream_id = stream.stream_id
    target.name = stream.name
    target.subject = stream.subject
    target.group = stream.group
    target.creation_timestamp = stream.creation_timestamp
    target.overrides.CopyFrom(overrides_message(stream.overrides))
    target.resume_all = stream.resume_all
    for partition in stream.partitions:
        _fill_partition(target.partitions.add(), partition, places)
    for name, publisher in stream.publishers.items():
        target.publishers.add(
            publisher=name,
            publisher_id=publisher.publisher_id,
            publisher_epoch=publisher.publisher_epoch,
        )


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


def decode_state(data: bytes) -> ClusterState:
    """State of a snapshot.

    Raises:
        CorruptionError: The bytes are no snapshot of this version, or contradict themselves.
    """
    message = parse_canonical(pb.Snapshot, data)
    state = ClusterState(applied_index=MetadataIndex(message.applied_index))
    for broker in message.brokers:
        _require(broker.broker not in state.brokers, f"broker {broker.broker} twice")
        _require(broker.broker_epoch <= message.applied_index, "a broker epoch ahead of the state")
        state.brokers[BrokerId(broker.broker)] = _broker(broker)
    brokers = tuple(state.brokers)
    publishers: set[int] = set()
    last_id = 0
    for found in message.streams:
        _require(
            last_id < found.stream_id <= min(message.applied_index, STREAM_ID_END - 1),
            f"stream id {found.stream_id} out of order",
        )
        _require(found.name not in state.stream_ids, f"stream {found.name} twice")
        last_id = found.stream_id
        stream = _stream(found, brokers, message.applied_index)
        ids = [publisher.publisher_id for publisher in stream.publishers.values()]
        _require(publishers.isdisjoint(ids) and len(ids) == len(set(ids)), "a publisher id twice")
        publishers.update(ids)
        state.add_stream(stream)
    return state


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise CorruptionError(f"metadata snapshot: {fault}")


def _broker(message: pb.Broker) -> BrokerState:
    return BrokerState(
        broker=BrokerId(message.broker),
        broker_epoch=MetadataIndex(message.broker_epoch),
        incarnation_id=message.incarnation_id,
        data_dir_id=message.data_dir_id,
        host=message.host,
        port=message.port,
    )


def _stream(message: pb.Stream, brokers: tuple[BrokerId, ...], applied_index: int) -> StreamState:
    _require(
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
        resume_all=message.resume_all,
    )
    for number, found in enumerate(message.partitions):
        partition = _partition(stream.stream_id, number, found, brokers)
        _require(partition.partition_epoch <= applied_index, "a partition epoch ahead of the state")
        stream.partitions.append(partition)
    for publisher in message.publishers:
        _require(publisher.publisher not in stream.publishers, "a publisher twice")
        _require(0 < publisher.publisher_id <= applied_index, "a publisher id ahead of the state")
        stream.publishers[publisher.publisher] = PublisherState(
            PublisherId(publisher.publisher_id), publisher.publisher_epoch
        )
    return stream


def _partition(
    stream_id: StreamId, number: int, message: pb.Partition, brokers: tuple[BrokerId, ...]
) -> PartitionState:
    name = f"partition {number} of stream {stream_id}"
    places, isr = tuple(message.replicas), tuple(message.isr)
    _require(all(place < len(brokers) for place in places), f"{name} on an unknown broker")
    _require(bool(places) and len(set(places)) == len(places), f"{name} without distinct replicas")
    _require(isr == tuple(sorted(set(isr))), f"{name} with a disordered in-sync set")
    _require(all(place < len(places) for place in isr), f"{name} in sync on no replica")
    replicas = tuple(brokers[place] for place in places)
    leader = message.leader if message.HasField("leader") else None
    _require(leader is None or leader in isr, f"{name} led out of sync")
    _require(
        message.unclean_epoch <= message.leader_epoch <= message.partition_epoch
        and stream_id <= message.leader_epoch,
        f"{name} with disordered epochs",
    )
    _require(message.paused or not message.auto_paused, f"{name} with disordered pause flags")
    return PartitionState(
        partition_id=partition_id(stream_id, PartitionNumber(number)),
        replicas=replicas,
        isr=tuple(replicas[place] for place in isr),
        leader=None if leader is None else replicas[leader],
        leader_epoch=LeaderEpoch(message.leader_epoch),
        partition_epoch=MetadataIndex(message.partition_epoch),
        unclean_epoch=LeaderEpoch(message.unclean_epoch),
        paused=message.paused,
        auto_paused=message.auto_paused,
        readonly=message.readonly,
    )
