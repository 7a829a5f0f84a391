"""`Subscribe`: sends slices of stored bytes as they are on disk (ADR 0003).

The service reads while the transport accepts more; the partition or the transport wakes it. It
buffers no bytes. Each pull sends whole gRPC frames, hundreds of messages at a time.
"""

from typing import Final, cast

from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.grpc.turns import Turns, Waker
from liftbridge_broker.api.read_pause import ReadPause
from liftbridge_broker.api.streams import decode
from liftbridge_broker.errors import (
    GrpcStatus,
    InvalidRequestError,
    LiftbridgeError,
    NotFoundError,
)
from liftbridge_broker.node.groups.seats import Consumer, Seat
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.reading.subscription import Position, Subscription, question_of
from liftbridge_proto import api_pb2

PULL_BYTES: Final = 256 * 1024
"""Bytes per pull: large enough for a low cost per message, small enough that one subscriber does
not block the loop."""

HANDSHAKE: Final = bytes(5)
"""The empty first message every client waits for: a flag and four bytes of length."""


EPOCH_HEADER: Final = b"liftbridge-leader-epoch"
"""Response header: the latest leader epoch of the log being read, 0 for none."""


class SubscribeCall:
    """One subscription and the call it answers."""

    def __init__(self, context: Context, call: Call, turns: Turns) -> None:
        self._context = context
        self._call = call
        self._turns = turns
        self._subscription: Subscription | None = None
        self._seat: Seat | None = None
        self._has_request = False
        self._is_pumping = False
        self._pause = ReadPause(context, call)
        call.on_messages = self._on_messages
        call.on_half_close = _ignore
        call.on_cancel = self._close
        call.on_writable = self._pump
        call.expect_request()

    def _on_messages(self, messages: list[bytes]) -> None:
        if self._has_request or len(messages) != 1:
            self._end(InvalidRequestError("Subscribe takes one request"))
            return
        self._has_request = True
        request = decode(self._call, api_pb2.SubscribeRequest, messages[0])
        if request is None:
            return
        node = self._context.node
        try:
            _check_consumer(request.consumer)
            partition = self._find(request)
            if request.consumer.groupId and not partition.is_led:
                raise InvalidRequestError("Consumer groups not compatible with ReadISRReplica")
        except NotFoundError:
            self._end(NotFoundError("No such partition"))
            return
        except LiftbridgeError as error:
            self._end(error)
            return
        if request.consumer.groupId:
            node.groups.confirm(lambda error: self._confirmed(request, error))
        else:
            self._resume(partition, request)

    def _confirmed(self, request: api_pb2.SubscribeRequest, error: LiftbridgeError | None) -> None:
        """Check a consumer before anything is resumed or replaced for it."""
        if not self._call.is_open:
            return
        try:
            if error is not None:
                raise error
            partition = self._find(request)
            is_admitted = self._admits(partition, _consumer(request.consumer))
        except LiftbridgeError as refusal:
            self._end(refusal)
            return
        if is_admitted:
            self._resume(partition, request)

    def _admits(self, partition: Partition, consumer: Consumer) -> bool:
        """Check a consumer; end the call in order if it was overtaken by a change of its group.

        The original's client repeats a refused call for half a second, for each partition, and
        sends no heartbeats meanwhile.

        Raises:
            NotAssignedError: It may not read the partition.
        """
        seats = self._context.node.groups.seats
        if seats.is_over(partition.partition_id, consumer):
            self._begin(partition)
            self._call.finish()
            return False
        seats.check(partition.partition_id, consumer)
        return True

    def _resume(self, partition: Partition, request: api_pb2.SubscribeRequest) -> None:
        if request.resume and partition.is_paused:
            now, node = self._context.clock.now(), self._context.node
            node.resume(partition, now, lambda error: self._resumed(request, error))
        else:
            self._open(request)

    def _find(self, request: api_pb2.SubscribeRequest) -> Partition:
        """Find the partition on this broker, which may be any replica if the client allows that."""
        node = self._context.node
        if request.readISRReplica:
            return node.find_replica(request.stream, request.partition)
        return node.find_partition(request.stream, request.partition)

    def _resumed(self, request: api_pb2.SubscribeRequest, error: LiftbridgeError | None) -> None:
        if error is not None:
            self._call.finish(GrpcStatus.INTERNAL, f"Failed to resume stream: {error.text}")
        else:
            self._open(request)

    def _open(self, request: api_pb2.SubscribeRequest) -> None:
        """Subscribe once this broker may resolve the requested positions."""
        try:
            partition = self._find(request)
        except LiftbridgeError as error:
            self._end(error)
            return
        start = Position(request.startPosition, request.startOffset, request.startTimestamp)
        stop = Position(request.stopPosition, request.stopOffset, request.stopTimestamp)
        question = question_of(
            partition,
            start,
            stop,
            is_reverse=request.reverse,
            reads_replica=request.readISRReplica,
        )

        def answered(error: LiftbridgeError | None) -> None:
            if not self._call.is_open:
                return
            if error is not None:
                self._end(error)
                return
            try:
                self._subscribe(partition, request, start, stop)
            except LiftbridgeError as refusal:
                self._end(refusal)

        self._context.ask(
            self._call, partition, question, answered, as_replica=request.readISRReplica
        )

    def _subscribe(
        self,
        partition: Partition,
        request: api_pb2.SubscribeRequest,
        start: Position,
        stop: Position,
    ) -> None:
        # The rules may have changed since.
        self._call.authorize(request)  # guard Access.subscription
        seats, consumer = self._context.node.groups.seats, _consumer(request.consumer)
        if consumer.group_id and not self._admits(partition, consumer):
            return
        self._context.take_subscription(self._call)
        try:
            self._subscription = Subscription.open(
                partition,
                self._context.node.client_reads,
                Waker(self._turns, self._call, self._pump).wake,
                start=start,
                stop=stop,
                is_reverse=request.reverse,
                reads_replica=request.readISRReplica,
            )
        except LiftbridgeError:
            self._context.release_subscription(self._call)
            raise
        self._context.access.follow(self._call, request, self._end)
        if consumer.group_id:
            self._seat = seats.take(partition.partition_id, consumer, self._replaced)
        self._begin(partition)
        self._pump()

    def _begin(self, partition: Partition) -> None:
        """Send what comes before the first message."""
        # The last epoch in the log, not that of the leadership: a replica may not know the latter
        # yet, and the former is that of the last record that it can send (KIP-320).
        epoch = partition.log.epochs.latest or 0
        self._call.begin(((EPOCH_HEADER, b"%d" % epoch),))
        self._call.send(HANDSHAKE)

    def _pump(self) -> None:
        """Send while there is data, the transport accepts it and the quota allows it."""
        subscription = self._subscription
        if subscription is None or self._is_pumping or self._pause.is_on:
            return
        call, quotas = self._call, self._context.quotas
        principal, stream = call.principal.name, subscription.partition.stream
        bytes_max = quotas.bytes_at_once(principal, stream, PULL_BYTES)
        self._is_pumping = True
        try:
            while call.writable:
                slices, count, end, waits = subscription.pull(min(bytes_max, call.room + 1))
                if slices:
                    call.send(cast("list[bytes]", slices))  # views are joined like bytes
                    sizes = map(len, slices)
                    if delay_ns := quotas.read(principal, stream, messages=count, sizes=sizes):
                        self._pause.begin(stream, delay_ns, self._pump)
                if end is not None:
                    self._end(end)
                    return
                if waits:
                    return
                if self._pause.is_on:
                    break
            subscription.release()
        finally:
            self._is_pumping = False

    def _replaced(self) -> None:
        """End in order: another member reads the partition for the group from now on."""
        self._close()
        self._call.finish()

    def _end(self, error: LiftbridgeError) -> None:
        self._close()
        refuse(self._call, error)

    def _close(self) -> None:
        subscription, self._subscription = self._subscription, None
        self._pause.cancel()
        if subscription is not None:
            self._context.access.forget(self._call)
            self._context.release_subscription(self._call)
            subscription.close(self._context.clock.now())
        if self._seat is not None:
            self._context.node.groups.seats.leave(self._seat)
            self._seat = None


def _check_consumer(consumer: api_pb2.Consumer) -> None:
    if consumer.groupId and not consumer.consumerId:
        raise InvalidRequestError("Consumer id cannot be empty when group id is provided")


def _consumer(consumer: api_pb2.Consumer) -> Consumer:
    return Consumer(consumer.groupId, consumer.consumerId, consumer.groupEpoch)


def _ignore() -> None:
    """Ignore the event: a subscription continues when the client closes its side."""
