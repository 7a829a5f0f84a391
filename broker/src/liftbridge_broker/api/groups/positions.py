"""`CommitPositions`: stores the positions of a member of an incremental group, unless it is fenced.

A position is a cursor whose id clients of the original choose too, so that tools for cursors show
it. The broker that leads the cursor's partition of `__cursors` checks in its metadata that the
member holds the partition. Once it took a position of the next holder, it has applied that the
former one lost the partition, and refuses it. A new leader first learns of all earlier decisions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.cursors import ANSWER_SECONDS, Answer, CursorService
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.streams import check_named, decode
from liftbridge_broker.errors import LiftbridgeError, NotFoundError
from liftbridge_broker.groups.cursors import Cursor, check_cursor, stamp
from liftbridge_broker.model.groups import CURSOR_PREFIX, check_id
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import POLICY_ALL, PendingAck, PublishRun, Stored
from liftbridge_broker.wire.cursors import encode_cursor
from liftbridge_proto.ext.v1 import groups_pb2

POSITIONS_MAX: Final = 1_000
"""Positions in a request."""


@dataclass(slots=True)
class _Joint:
    """Ends a call when all its records are stored, or when the first is refused."""

    answer: Answer
    awaited_count: int

    def acked(self, stored: Stored) -> None:
        """Implement `AckSink.acked`."""
        del stored
        self.awaited_count -= 1
        if self.awaited_count == 0:
            self.answer.reply(groups_pb2.CommitPositionsResponse())

    def refused(self, error: LiftbridgeError) -> None:
        """Implement `AckSink.refused`."""
        self.answer.refused(error)


class PositionService:
    """Stores positions of members.

    Args:
        context: Context that all services share.
        answer_seconds: Time limit of a call without a deadline.
    """

    def __init__(self, context: Context, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._context = context
        self._cursors = CursorService(context)
        self._answer_seconds = answer_seconds

    def commit(self, call: Call, raw: bytes) -> None:
        """Serve `CommitPositions`."""
        request = decode(call, groups_pb2.CommitPositionsRequest, raw)
        if request is None:
            return
        check_id("groupId", request.group_id)
        check_id("memberId", request.member_id)
        check_named("positions", len(request.positions), POSITIONS_MAX)
        cursor_id = CURSOR_PREFIX + request.group_id
        for position in request.positions:
            check_cursor(position.stream, cursor_id)

        def confirmed(error: LiftbridgeError | None) -> None:
            if error is None and call.is_open:
                try:
                    self._store(call, request)
                except LiftbridgeError as refusal:
                    error = refusal
            if error is not None:
                refuse(call, error)

        self._context.node.groups.confirm(confirmed)

    def _store(self, call: Call, request: groups_pb2.CommitPositionsRequest) -> None:
        places = [self._place(position) for position in request.positions]
        self._context.node.groups.may_commit(
            request.group_id,
            request.member_id,
            request.member_epoch,
            [place.partition_id for place in places],
        )
        cursors = [
            self._cursor(request.group_id, position, place)
            for position, place in zip(request.positions, places, strict=True)
        ]
        runs: dict[Partition, list[Cursor]] = {}
        for cursor in cursors:
            runs.setdefault(self._cursors.partition_of(cursor.key), []).append(cursor)
        answer = Answer(self._context, call, self._answer_seconds)
        if not runs:
            answer.reply(groups_pb2.CommitPositionsResponse())
        joint = _Joint(answer, len(cursors))
        for partition, group in runs.items():
            self._publish(partition, group, joint)

    def _place(self, position: groups_pb2.CommitPositionsRequest.Position) -> PartitionState:
        stream = self._context.node.state.stream(position.stream)
        place = None if stream is None else stream.partition(position.partition)
        if place is None:
            raise NotFoundError(f"no such partition: {position.stream}/{position.partition}")
        return place

    def _cursor(
        self,
        group_id: str,
        position: groups_pb2.CommitPositionsRequest.Position,
        place: PartitionState,
    ) -> Cursor:
        stream_id = self._context.node.state.stream_ids[StreamName(position.stream)]
        meant = Cursor(
            position.stream, position.partition, CURSOR_PREFIX + group_id, position.offset
        )
        return stamp(meant, stream_id, place.unclean_epoch)

    def _publish(self, partition: Partition, cursors: Sequence[Cursor], joint: _Joint) -> None:
        clock = self._context.clock
        run = PublishRun(
            [encode_cursor(cursor) for cursor in cursors],
            partition.subject,
            "grpc",
            tuple(PendingAck(POLICY_ALL, joint) for _ in cursors),
            [cursor.key for cursor in cursors],
            policy=POLICY_ALL,
        )
        self._context.node.publish(partition, run, clock.now(), clock.wall_ns())
