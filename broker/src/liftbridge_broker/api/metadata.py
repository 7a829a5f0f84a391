"""`FetchMetadata` and `FetchPartitionMetadata`. Offsets become inclusive here."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.grpc.call import MAIN_LISTENER, Call
from liftbridge_broker.api.streams import check_named, decode
from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.errors import (
    FailedPreconditionError,
    LiftbridgeError,
    NotFoundError,
    NotLeaderError,
)
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.node.partition.activity import EventTimes
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.reading.answers import Question, refusal
from liftbridge_broker.node.scheduling.steps import STEP, all_partitions
from liftbridge_proto import api_pb2

NOT_LED: Final = "The request should be sent to partition leader"
"""Text of the original."""


class MetadataService:
    """Describes brokers, streams and partitions.

    Args:
        context: Context that all services share.
        host: Advertised host.

    Attributes:
        port: Advertised port, known once the server listens.
    """

    def __init__(self, context: Context, *, host: str) -> None:
        self._context = context
        self._host = host
        self.port = 0

    def fetch(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `FetchMetadata`; no names means all streams, in order of creation."""
        request = decode(call, api_pb2.FetchMetadataRequest, raw)
        if request is None:
            return
        check_named("streams and groups", len(request.streams) + len(request.groups))
        yield
        response = api_pb2.FetchMetadataResponse()
        yield from self._add_brokers(call.listener, response)
        # Concatenated parts of a message are the message: building 20 MB of it at once takes longer
        # than a turn.
        parts = [response.SerializeToString()]
        state, access = self._context.node.state, self._context.access
        # Each name once: a name repeated a million times must not cause a million answers.
        asked = dict.fromkeys(request.streams)
        for number, name in enumerate(list(asked or state.stream_ids)):
            part = api_pb2.FetchMetadataResponse()
            stream = state.stream(name) if access.shows(call.principal, name) else None
            if stream is not None:
                yield from self._describe(stream, part.streamMetadata.add())
            elif asked:
                part.streamMetadata.add(name=name, error=api_pb2.StreamMetadata.UNKNOWN_STREAM)
            parts.append(part.SerializeToString())
            if number % STEP == 0:
                yield
        for number, group in enumerate(dict.fromkeys(request.groups)):
            part = api_pb2.FetchMetadataResponse()
            known = state.groups.get(group) if access.shows_group(call.principal, group) else None
            described = part.groupMetadata.add(groupId=group)
            if known is None:
                described.error = api_pb2.ConsumerGroupMetadata.UNKNOWN_GROUP
            else:
                described.coordinator = known.coordinator
                described.epoch = known.group_epoch
            parts.append(part.SerializeToString())
            if number % STEP == 0:
                yield
        call.reply(b"".join(parts))

    def _add_brokers(
        self, listener: str, response: api_pb2.FetchMetadataResponse
    ) -> Iterator[None]:
        """Add all brokers that clients may connect to, this one first; in steps."""
        node = self._context.node
        addresses = self._addresses(listener)
        own = addresses.pop(node.broker, None)
        if own is not None:
            response.brokers.add(
                id=node.broker,
                host=own[0],
                port=own[1],
                partitionCount=node.partition_count,
                leaderCount=node.leader_count,
                zone=self._zone(node.broker),
            )
        if not addresses:
            return
        held: Counter[str] = Counter()
        led: Counter[str] = Counter()
        for number, (_, partition) in enumerate(all_partitions(node.state)):
            if not partition.paused:
                held.update(partition.replicas)
                led[partition.leader or ""] += 1
            if number % STEP == 0:
                yield
        for broker, (host, port) in addresses.items():
            response.brokers.add(
                id=broker,
                host=host,
                port=port,
                partitionCount=held[broker],
                leaderCount=led[broker],
                zone=self._zone(broker),
            )

    def _zone(self, broker: BrokerId) -> str:
        known = self._context.node.state.brokers.get(broker)
        return "" if known is None else known.zone

    def _addresses(self, listener: str) -> dict[BrokerId, tuple[str, int]]:
        """Return addresses of brokers for clients of a listener; brokers without it are omitted."""
        node = self._context.node
        alive = [
            broker
            for broker in node.state.brokers.values()
            if (not broker.fenced and not broker.removed) or broker.broker == node.broker
        ]
        if listener == MAIN_LISTENER:
            addresses = {one.broker: (one.host, one.port) for one in alive}
            addresses[node.broker] = self._host, self.port
            return addresses
        return {
            one.broker: (host, port)
            for one in alive
            for name, host, port in one.listeners
            if name == listener
        }

    def _describe(self, stream: StreamState, target: api_pb2.StreamMetadata) -> Iterator[None]:
        """Describe all partitions of a stream, in steps."""
        target.name = stream.name
        target.subject = stream.subject
        target.creationTimestamp = stream.creation_timestamp
        for place, state in enumerate(stream.partitions, 1):
            if place % STEP == 0:
                yield
            self._fill(state, target.partitions[state.number])
            partition = self._context.node.partitions.get(state.partition_id)
            is_alone = partition is not None and partition.replication is None
            if partition is not None and is_alone and refusal(partition, Question.END) is None:
                # For a replicated partition, clients call the leader, which may know more.
                _fill_ends(partition, target.partitions[state.number])

    def _fill(self, state: PartitionState, target: api_pb2.PartitionMetadata) -> None:
        partition = self._context.node.partitions.get(state.partition_id)
        target.id = state.number
        target.leader = state.leader or ""
        target.replicas.extend(state.replicas)
        target.isr.extend(state.isr)
        target.paused = state.paused
        target.readonly = state.readonly
        target.highWatermark = -1
        target.newestOffset = -1
        if partition is not None:
            _fill_events(partition, target)

    def fetch_partition(self, call: Call, raw: bytes) -> None:
        """Serve `FetchPartitionMetadata`, which only the leader of the partition answers."""
        request = decode(call, api_pb2.FetchPartitionMetadataRequest, raw)
        if request is None:
            return
        node = self._context.node
        stream = node.state.stream(request.stream)
        state = stream.partition(request.partition) if stream is not None else None
        if state is None:
            raise NotFoundError("partition not found")
        partition = node.partitions.get(state.partition_id)
        if partition is None or not partition.is_led or partition.is_paused:
            raise FailedPreconditionError(NOT_LED)
        led = partition

        def answered(error: LiftbridgeError | None) -> None:
            if isinstance(error, NotLeaderError):
                error = FailedPreconditionError(NOT_LED)
            present = node.state.partition(led.partition_id)
            if error is not None or present is None:
                refuse(call, error or NotFoundError("partition not found"))
                return
            response = api_pb2.FetchPartitionMetadataResponse()
            self._fill(present, response.metadata)
            _fill_ends(led, response.metadata)
            call.reply(response.SerializeToString())

        self._context.ask(call, led, Question.END, answered)


def _fill_ends(partition: Partition, target: api_pb2.PartitionMetadata) -> None:
    target.highWatermark = partition.log.high_watermark - 1
    target.newestOffset = partition.log.log_end_offset - 1


def _fill_events(partition: Partition, target: api_pb2.PartitionMetadata) -> None:
    _fill_times(partition.activity.messages_received, target.messagesReceivedTimestamps)
    _fill_times(partition.activity.pause_changed, target.pauseTimestamps)
    _fill_times(partition.activity.readonly_changed, target.readonlyTimestamps)


def _fill_times(times: EventTimes, target: api_pb2.PartitionEventTimestamps) -> None:
    target.firstTimestamp = times.first
    target.latestTimestamp = times.latest
