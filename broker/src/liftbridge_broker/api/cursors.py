"""`SetCursor` and `FetchCursor` (spec 1.11)."""

from liftbridge_broker.api.call import Call
from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.streams import decode
from liftbridge_broker.errors import InternalError, LiftbridgeError, NotLeaderError
from liftbridge_broker.groups.cursors import Cursor, check_cursor, cursor_key, cursors_partition
from liftbridge_broker.model.subjects import CURSORS_STREAM
from liftbridge_broker.node.partition import Partition
from liftbridge_broker.node.runs import POLICY_ALL, PublishRun, Stored, Ticket
from liftbridge_broker.wire.cursors import encode_cursor
from liftbridge_proto import api_pb2


class _SetAck:
    """Answers a `SetCursor` call once the record is committed."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call = call

    def acked(self, stored: Stored) -> None:
        del stored
        self.call.reply(api_pb2.SetCursorResponse().SerializeToString())

    def refused(self, error: LiftbridgeError) -> None:
        refuse(self.call, InternalError(error.text))


class CursorService:
    """Stores and finds cursors."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def set(self, call: Call, raw: bytes) -> None:
        """Serve `SetCursor`; a paused cursors partition wakes up first."""
        request = decode(call, api_pb2.SetCursorRequest, raw)
        if request is None:
            return
        check_cursor(request.stream, request.cursorId)
        cursor = Cursor(request.stream, request.partition, request.cursorId, request.offset)
        partition = self._partition_of(cursor.key)
        run = PublishRun(
            [encode_cursor(cursor)],
            partition.subject,
            "grpc",
            (Ticket(POLICY_ALL, _SetAck(call)),),
            [cursor.key],
            policy=POLICY_ALL,
        )
        clock = self._context.clock
        self._context.node.publish(partition, run, clock.now(), clock.wall_ns())

    def fetch(self, call: Call, raw: bytes) -> None:
        """Serve `FetchCursor`: the latest value stored, -1 when there is none."""
        request = decode(call, api_pb2.FetchCursorRequest, raw)
        if request is None:
            return
        check_cursor(request.stream, request.cursorId)
        key = cursor_key(request.stream, request.partition, request.cursorId)
        partition = self._partition_of(key)

        def found(outcome: int | LiftbridgeError) -> None:
            if isinstance(outcome, LiftbridgeError):
                refuse(call, InternalError(outcome.text))
            else:
                call.reply(api_pb2.FetchCursorResponse(offset=outcome).SerializeToString())

        self._context.node.look_up_cursor(partition, key, found)

    def _partition_of(self, key: bytes) -> Partition:
        node = self._context.node
        stream = node.state.stream(CURSORS_STREAM)
        if stream is None:
            raise InternalError("Cursors stream does not exist")
        number = cursors_partition(key, len(stream.partitions))
        partition = node.partitions.get(stream.partitions[number].partition_id)
        if partition is None or not partition.is_led:
            raise NotLeaderError(f"Server not leader for cursors partition {number}")
        return partition
