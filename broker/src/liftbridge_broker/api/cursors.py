"""`SetCursor` and `FetchCursor`, and `SetCursor` of a stream identified by its id."""

import asyncio
from functools import partial
from typing import Final

from google.protobuf.message import Message

from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.streams import decode
from liftbridge_broker.errors import (
    FailedPreconditionError,
    InternalError,
    LiftbridgeError,
    NotLeaderError,
)
from liftbridge_broker.groups.cursors import (
    Cursor,
    CursorPosition,
    check_cursor,
    cursor_key,
    cursors_partition,
    position_in,
    stamp,
)
from liftbridge_broker.model.groups import CURSOR_PREFIX
from liftbridge_broker.model.subjects import CURSORS_STREAM
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import POLICY_ALL, PendingAck, PublishRun, Stored
from liftbridge_broker.node.reading.answers import Question
from liftbridge_broker.node.refusals import failed_change
from liftbridge_broker.wire.cursors import encode_cursor
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

ANSWER_SECONDS: Final = 5.0
"""Seconds that a call without a deadline waits for disk and other replicas."""


class Answer:
    """Ends a call once: with a response, with a refusal, or after a timeout."""

    __slots__ = ("_call", "_timer")

    def __init__(self, context: Context, call: Call, seconds: float) -> None:
        """Start to wait; the transport ends a call with a deadline."""
        self._call = call
        self._timer: asyncio.TimerHandle | None = None
        if call.deadline is None:
            late = InternalError(f"no answer within {seconds:g} s")
            end = context.in_turn(call, partial(refuse, call, late))
            self._timer = asyncio.get_running_loop().call_later(seconds, end)
            call.on_cancel = self._timer.cancel

    def reply(self, response: Message) -> None:
        """Send the success response."""
        self._stop()
        self._call.reply(response.SerializeToString())

    def acked(self, stored: Stored) -> None:
        """The record of a cursor is committed."""
        del stored
        self.reply(data_pb2.SetCursorResponse())  # as empty as that of `proto.API`

    def refused(self, error: LiftbridgeError) -> None:
        """Send the refusal of a failed attempt."""
        self.refused_as(failed_change(error, error.text))

    def refused_as(self, error: LiftbridgeError) -> None:
        """Refuse before any attempt; another broker can serve the call, or this broker soon."""
        self._stop()
        refuse(self._call, error)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class CursorService:
    """Stores and finds cursors.

    Args:
        context: Context that all services share.
        answer_seconds: Time limit of a call without a deadline.
    """

    def __init__(self, context: Context, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._context = context
        self._answer_seconds = answer_seconds

    def set(self, call: Call, raw: bytes) -> None:
        """Serve `SetCursor`; a paused cursors partition wakes up first."""
        request = decode(call, api_pb2.SetCursorRequest, raw)
        if request is not None:
            self._set(call, request, 0, None)

    def set_of_stream(self, call: Call, raw: bytes) -> None:
        """Serve `SetCursor` of `Data`; refuse another stream id or history than requested."""
        request = decode(call, data_pb2.SetCursorRequest, raw)
        if request is not None:
            read_in = request.unclean_epoch if request.HasField("unclean_epoch") else None
            self._set(call, request.cursor, request.stream_id, read_in)

    def _set(
        self, call: Call, request: api_pb2.SetCursorRequest, stream_id: int, read_in: int | None
    ) -> None:
        check_cursor(request.stream, request.cursorId)
        self._check_group(request.cursorId)
        meant = Cursor(
            request.stream, request.partition, request.cursorId, request.offset, stream_id
        )
        partition = self.partition_of(meant.key)
        named = self._context.node.state.stream(request.stream)
        place = None if named is None else named.partition(request.partition)
        cursor = stamp(
            meant,
            0 if named is None else named.stream_id,
            0 if place is None else place.unclean_epoch,
            read_in=read_in,
        )
        run = PublishRun(
            [encode_cursor(cursor)],
            partition.subject,
            "grpc",
            (PendingAck(POLICY_ALL, Answer(self._context, call, self._answer_seconds)),),
            [cursor.key],
            policy=POLICY_ALL,
        )
        clock = self._context.clock
        self._context.node.publish(partition, run, clock.now(), clock.wall_ns())

    def _check_group(self, cursor_id: str) -> None:
        """Refuse an unfenced position of an incremental group."""
        group_id = cursor_id.removeprefix(CURSOR_PREFIX)
        group = self._context.node.state.groups.get(group_id)
        if group is not None and group.is_incremental and group_id != cursor_id:
            raise FailedPreconditionError(
                f"cursor {cursor_id} belongs to an incremental consumer group: its members call "
                "CommitPositions of liftbridge.ext.v1.Groups"
            )

    def fetch(self, call: Call, raw: bytes) -> None:
        """Serve `FetchCursor`: the latest value stored, -1 without a value for this stream."""
        node = self._context.node
        request = decode(call, api_pb2.FetchCursorRequest, raw)
        if request is None:
            return
        check_cursor(request.stream, request.cursorId)
        key = cursor_key(request.stream, request.partition, request.cursorId)
        partition = self.partition_of(key)
        answer = Answer(self._context, call, self._answer_seconds)

        def found(outcome: CursorPosition | LiftbridgeError) -> None:
            if isinstance(outcome, LiftbridgeError):
                answer.refused(outcome)
            else:
                present = node.state.stream(request.stream)
                position = position_in(outcome, 0 if present is None else present.stream_id)
                answer.reply(api_pb2.FetchCursorResponse(offset=position.offset))

        def may_look(error: LiftbridgeError | None) -> None:
            if isinstance(error, NotLeaderError):
                answer.refused_as(_not_leader(partition.number))
            elif error is not None:
                answer.refused_as(error)
            else:
                node.cursors.look_up(partition, key, found)

        self._context.ask(call, partition, Question.END, may_look)

    def partition_of(self, key: bytes) -> Partition:
        """Return the partition of `__cursors` that stores a key, led here.

        Raises:
            InternalError: The cluster keeps no cursors.
            NotLeaderError: Another broker leads it.
        """
        node = self._context.node
        stream = node.state.stream(CURSORS_STREAM)
        if stream is None:
            raise InternalError("Cursors stream does not exist")
        number = cursors_partition(key, len(stream.partitions))
        partition = node.partitions.get(stream.partitions[number].partition_id)
        if partition is None or not partition.is_led:
            raise _not_leader(number)
        return partition


def _not_leader(number: int) -> NotLeaderError:
    return NotLeaderError(f"Server not leader for cursors partition {number}")
