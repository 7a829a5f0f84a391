"""`PublishBatch` and `FetchBatches`: many records in each message.

Both pay Python's cost once per batch: values arrive as one repeated field that becomes a list in
one step, and stored batches leave byte for byte.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

from liftbridge_broker.api.batch_run import FIELDS_MAX, parse, run_of
from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.grpc.turns import Turns, Waker
from liftbridge_broker.api.publish_async import check_publish
from liftbridge_broker.api.read_pause import ReadPause
from liftbridge_broker.api.streams import decode
from liftbridge_broker.errors import (
    FailedPreconditionError,
    FencedPublisherError,
    GrpcStatus,
    IncorrectOffsetError,
    InvalidRequestError,
    LiftbridgeError,
    LimitError,
    NotAppendedError,
    NotFoundError,
    NotLeaderError,
    OffsetNotAvailableError,
    OutcomeUnknownError,
    OutOfOrderError,
    PausedError,
    PermissionDeniedError,
    ReadonlyError,
    TooLargeError,
    UnavailableError,
    UnimplementedError,
)
from liftbridge_broker.model.ids import Offset, stream_of
from liftbridge_broker.model.units import MIB
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import Stored
from liftbridge_broker.node.reading.bulk import BulkRange, BulkRead, Chunk
from liftbridge_proto.ext.v1 import data_pb2

CHUNK_BYTES: Final = MIB
IN_FLIGHT_BYTES_MAX: Final = 64 * MIB
"""Maximum number of bytes of a call that wait for acks; beyond it, reading pauses."""

Error = data_pb2.PublishBatchResponse

_CODES: Final[tuple[tuple[type[LiftbridgeError], int], ...]] = (
    (OutcomeUnknownError, Error.UNKNOWN),
    (TooLargeError, Error.TOO_LARGE),
    (InvalidRequestError, Error.BAD_REQUEST),
    (NotFoundError, Error.NOT_FOUND),
    (ReadonlyError, Error.READONLY),
    (PermissionDeniedError, Error.PERMISSION_DENIED),
    (NotLeaderError, Error.NOT_LEADER),
    (PausedError, Error.PAUSED),
    (OutOfOrderError, Error.OUT_OF_ORDER),
    (FencedPublisherError, Error.FENCED_PUBLISHER),
    (IncorrectOffsetError, Error.INCORRECT_OFFSET),
    (LimitError, Error.UNAVAILABLE),
    (NotAppendedError, Error.UNAVAILABLE),
    (UnavailableError, Error.UNAVAILABLE),
)


def _code_of(error: LiftbridgeError) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), Error.INTERNAL)


class _BatchAck:
    """Answers one `PublishBatchRequest`."""

    __slots__ = ("count", "leader_epoch", "owner", "policy", "received", "request_id", "size")

    def __init__(self, owner: "PublishBatchCall", request_id: int, policy: int, size: int) -> None:
        self.received = owner.context.clock.now()
        self.count = 0
        self.leader_epoch = 0
        self.owner = owner
        self.request_id = request_id
        self.policy = policy
        self.size = size

    def acked(self, stored: Stored) -> None:
        response = data_pb2.PublishBatchResponse(
            request_id=self.request_id,
            base_offset=stored.base_offset,
            timestamp=stored.timestamp,
            duplicate=stored.is_duplicate,
            leader_epoch=stored.leader_epoch,
        )
        for piece in stored.pieces:
            response.pieces.add(base_offset=piece.base_offset, record_count=piece.record_count)
        self.owner.context.note_acked(self.policy, self.received, self.count)
        self.owner.answer(response, self.size)

    def refused(self, error: LiftbridgeError) -> None:
        response = data_pb2.PublishBatchResponse(
            request_id=self.request_id, message=error.text, leader_epoch=self.leader_epoch
        )
        response.error = _code_of(error)  # type: ignore[assignment] # enum values are integers
        self.owner.answer(response, self.size)


def _check_format(batch_format: int) -> None:
    """Refuse all formats but the stored one.

    Raises:
        UnimplementedError: Readers build columns themselves (ADR 0016).
        InvalidRequestError: No such format exists.
    """
    if batch_format == data_pb2.BATCH_FORMAT_ARROW:
        raise UnimplementedError(
            "format BATCH_FORMAT_ARROW: brokers do not make columns; request BATCH_FORMAT_RAW"
        )
    if batch_format != data_pb2.BATCH_FORMAT_RAW:
        raise InvalidRequestError(f"format: unknown value {batch_format}")


class PublishBatchCall:
    """One `PublishBatch` call: requests in order, one response each."""

    def __init__(self, context: Context, call: Call) -> None:
        self.context = context
        self._call = call
        self._is_paused = False
        self._in_flight_bytes = 0
        self._in_flight_count = 0
        self._is_half_closed = False
        call.on_messages = self._on_messages
        call.on_half_close = self._on_half_close

    def _on_messages(self, messages: list[bytes]) -> None:
        """Publish requests, each in a step of its own because it may have thousands of records."""
        if len(messages) == 1:
            self._take(messages[0])
        else:
            self._call.go_on(self._take_each(messages))

    def _take_each(self, messages: list[bytes]) -> Iterator[None]:
        for raw in messages:
            self._take(raw)
            yield

    def _take(self, raw: bytes) -> None:
        try:
            request, is_whole = parse(raw)
        except DecodeError:
            self._call.finish(GrpcStatus.INTERNAL, "failed to unmarshal the received message")
            return
        acks = _BatchAck(self, request.request_id, request.ack_policy, len(raw))
        self._in_flight_bytes += len(raw)
        self._in_flight_count += 1
        delay_ns = 0
        try:
            if not is_whole:
                raise InvalidRequestError(
                    f"request: more than {FIELDS_MAX} entries in all of its lists; "
                    "send fewer records in one request"
                )
            delay_ns = self._publish(request, acks, len(raw))
        except LiftbridgeError as error:
            self.context.count_refused(error, max(1, len(request.values)))
            acks.refused(error)
        if self._in_flight_bytes > IN_FLIGHT_BYTES_MAX and not delay_ns:
            self._is_paused = True
            self._call.pause_reading()
        else:
            self.context.hold_back(self._call, request.stream, delay_ns)

    def _publish(self, request: data_pb2.PublishBatchRequest, acks: _BatchAck, size: int) -> int:
        """Publish a request; return how long its quota allows no further one, nanoseconds."""
        self._call.authorize(request)
        node = self.context.node
        partition = node.find_led(request.stream, request.partition)
        acks.count = len(request.values)
        acks.leader_epoch = partition.leader_epoch
        check_publish(partition, request.ack_policy)
        run = run_of(request, partition, acks, self.context)
        delay_ns = self.context.quotas.publish(
            self._call.principal.name,
            request.stream,
            messages=acks.count,
            sizes=(size,),
        )
        clock = self.context.clock
        node.publish(partition, run, clock.now(), clock.wall_ns())
        return delay_ns

    def answer(self, response: data_pb2.PublishBatchResponse, size: int) -> None:
        """Send one response and make room for more requests."""
        self._in_flight_bytes -= size
        self._in_flight_count -= 1
        if self._call.is_open:
            self._call.send_message(response.SerializeToString())
            if self._is_paused and self._in_flight_bytes <= IN_FLIGHT_BYTES_MAX // 2:
                self._is_paused = False
                self._call.resume_reading()
            self._end_if_done()

    def _on_half_close(self) -> None:
        self._is_half_closed = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_half_closed and self._in_flight_count == 0:
            self._call.finish()


class FetchBatchesCall:
    """One `FetchBatches` call: a range of committed records."""

    def __init__(self, context: Context, call: Call, turns: Turns) -> None:
        self._context = context
        self._call = call
        self._turns = turns
        self._read: BulkRead | None = None
        self._unclean_epoch: int | None = None
        self._has_request = False
        self._is_pumping = False
        self._pause = ReadPause(context, call)
        call.on_messages = self._on_messages
        call.on_writable = self._pump
        call.on_cancel = self._close
        call.expect_request()

    def _on_messages(self, messages: list[bytes]) -> None:
        if self._has_request or len(messages) != 1:
            self._close()
            raise InvalidRequestError("FetchBatches takes one request")
        self._has_request = True
        request = decode(self._call, data_pb2.FetchBatchesRequest, messages[0])
        if request is None:
            return
        wanted = BulkRange(
            Offset(request.start_offset),
            Offset(request.end_offset),
            request.max_bytes,
            request.follow,
            request.read_replica,
            request.is_strict,
        )
        node = self._context.node
        find = node.find_replica if request.read_replica else node.find_led
        partition = find(request.stream, request.partition)
        wanted.check()
        stream_id = stream_of(partition.partition_id)
        if request.stream_id not in (0, stream_id):
            raise FailedPreconditionError(
                f"stream {request.stream} has id {stream_id}, not {request.stream_id}: "
                "it was recreated"
            )
        _check_format(request.format)
        if request.HasField("unclean_epoch"):
            self._unclean_epoch = request.unclean_epoch

        def answered(error: LiftbridgeError | None) -> None:
            if not self._call.is_open:
                return
            if error is not None:
                refuse(self._call, error)
                return
            try:
                self._open(request, partition, wanted)
            except LiftbridgeError as refusal:
                refuse(self._call, refusal)

        question, as_replica = wanted.question(partition), request.read_replica
        self._context.ask(self._call, partition, question, answered, as_replica=as_replica)

    def _open(
        self, request: data_pb2.FetchBatchesRequest, partition: Partition, wanted: BulkRange
    ) -> None:
        self._check_history(partition)
        # The rules may have changed since.
        self._call.authorize(request)  # guard Access.bulk_read
        self._context.take_subscription(self._call)
        try:
            wake = Waker(self._turns, self._call, self._pump).wake
            self._read = BulkRead(partition, self._context.node.client_reads, wake, wanted)
        except LiftbridgeError:
            self._context.release_subscription(self._call)
            raise
        self._context.access.follow(self._call, request, self._end)
        self._pump()

    def _end(self, error: LiftbridgeError) -> None:
        self._close()
        refuse(self._call, error)

    def _pump(self) -> None:
        """Send while there is data, the transport accepts it and the quota allows it."""
        read, call, quotas = self._read, self._call, self._context.quotas
        if read is None or self._is_pumping or self._pause.is_on:
            return
        principal, stream = call.principal.name, read.partition.stream
        bytes_max = quotas.bytes_at_once(principal, stream, CHUNK_BYTES)
        self._is_pumping = True
        try:
            while call.writable:
                self._check_history(read.partition)
                chunk = read.pull(min(bytes_max, call.room + 1))
                if chunk is None:
                    return
                if not chunk.data:
                    self._close()
                    call.finish()
                    return
                call.send_message(self._response(read, chunk))
                sizes = (len(chunk.data),)
                if delay_ns := quotas.read(principal, stream, messages=chunk.count, sizes=sizes):
                    self._pause.begin(stream, delay_ns, self._pump)
                    break
            read.release()
        except LiftbridgeError as error:
            self._end(error)
        finally:
            self._is_pumping = False

    def _check_history(self, partition: Partition) -> None:
        """Check that the log belongs to the history that the client reads, if it names one.

        Raises:
            FailedPreconditionError: The log belongs to a later history.
            OffsetNotAvailableError: The log may still hold records that an election discarded;
                retriable.
        """
        named = self._unclean_epoch
        if named is None:
            return
        node = self._context.node
        state = node.state.partition(partition.partition_id)
        current = node.state.unclean_epoch(partition.partition_id)
        if current > named:  # guard Read.history
            raise FailedPreconditionError(
                f"{partition.stream}/{partition.number} has history {current}, not {named}: an "
                "unclean election may have removed records; fetch the bounds again"
            )
        # A replica joins the in-sync set only after it was truncated to its leader's log.
        is_cut = named == 0 or (state is not None and node.broker in state.isr)
        if current < named or not is_cut:  # guard Read.cut
            raise OffsetNotAvailableError(
                f"{partition.stream}/{partition.number} is not in sync with history {named} here"
            )

    def _response(self, read: BulkRead, chunk: Chunk) -> bytes:
        log = read.partition.log
        return data_pb2.FetchBatchesResponse(
            data=chunk.data,
            next_offset=chunk.next_offset,
            high_watermark=log.high_watermark,
            log_start=log.log_start_offset,
            count=chunk.count,
        ).SerializeToString()

    def _close(self) -> None:
        read, self._read = self._read, None
        self._pause.cancel()
        if read is not None:
            self._context.access.forget(self._call)
            self._context.release_subscription(self._call)
            read.close(self._context.clock.now())
