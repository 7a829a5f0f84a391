"""`CommitPositions` and `ResetPositions`: store positions of groups, each behind its fence.

A position is a cursor whose id clients of the original choose too, so that tools for cursors show
it. The broker that leads the cursor's partition of `__cursors` checks in its metadata that the
member holds the partition. Once it took a position of the next holder, it has applied that the
former one lost the partition, and refuses it. A new leader first learns of all earlier decisions.

A reset is refused while a member holds the partition or is to read it. A member that joins later
may still have found the former position, until the new one is committed. Therefore the metadata are
checked once more after that, and the caller learns of such a member, also if it has left again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.cursors import ANSWER_SECONDS, Answer, CursorService
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.streams import check_named, decode
from liftbridge_broker.errors import InvalidRequestError, LiftbridgeError, NotFoundError
from liftbridge_broker.groups.cursors import UNKNOWN_OFFSET, Cursor, check_cursor, stamp
from liftbridge_broker.model.groups import CURSOR_PREFIX, check_id
from liftbridge_broker.model.ids import PartitionId, stream_of
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import POLICY_ALL, PendingAck, PublishRun, Stored
from liftbridge_broker.wire.cursors import encode_cursor
from liftbridge_proto.ext.v1 import groups_pb2

POSITIONS_MAX: Final = 1_000
"""Positions in a request."""


CommitPosition = groups_pb2.CommitPositionsRequest.Position
ResetPosition = groups_pb2.ResetPositionsRequest.Position
Check = Callable[[Sequence[PartitionId]], None]
"""Refuses to store positions in partitions."""


@dataclass(slots=True)
class _Reset:
    """Checks a reset before and after it is stored.

    Attributes:
        partitions: Partitions of its positions, once they were checked.
        checked_at: Metadata index that was applied here then.
    """

    node: Node
    group_id: str
    partitions: Sequence[PartitionId] = ()
    checked_at: int = 0

    def check(self, partitions: Sequence[PartitionId]) -> None:
        """Refuse to reset what a member reads; implements `Check`."""
        self.node.groups.may_reset(self.group_id, partitions)
        self.partitions, self.checked_at = partitions, self.node.state.applied_index

    def check_again(self) -> None:
        """Refuse if a member reads a partition by now, or may have read it meanwhile.

        Raises:
            FailedPreconditionError: The text names the member, or says that the group changed.
        """
        self.node.groups.may_reset(self.group_id, self.partitions)
        self.node.groups.check_unchanged(self.group_id, self.checked_at)


@dataclass(slots=True)
class _Joint:
    """Goes on when all records of a call are stored, or ends it when the first is refused."""

    answer: Answer
    awaited_count: int
    stored: Callable[[], None]

    def acked(self, stored: Stored) -> None:
        """Implement `AckSink.acked`."""
        del stored
        self.awaited_count -= 1
        if self.awaited_count == 0:
            self.stored()

    def refused(self, error: LiftbridgeError) -> None:
        """Implement `AckSink.refused`."""
        self.answer.refused(error)


class PositionService:
    """Stores positions of members, and resets them for people.

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
        groups = self._context.node.groups
        may_commit = partial(
            groups.may_commit,
            request.group_id,
            request.member_id,
            request.member_epoch,
            request.group_epoch,
        )

        def stored(answer: Answer) -> None:
            answer.reply(groups_pb2.CommitPositionsResponse())

        self._confirm(call, request, may_commit, stored)

    def reset(self, call: Call, raw: bytes) -> None:
        """Serve `ResetPositions`."""
        request = decode(call, groups_pb2.ResetPositionsRequest, raw)
        if request is None:
            return
        check_id("groupId", request.group_id)
        for position in request.positions:
            if position.offset < UNKNOWN_OFFSET:
                raise InvalidRequestError(
                    f"offset {position.offset} of {position.stream}/{position.partition}: must be "
                    f"{UNKNOWN_OFFSET} or more"
                )
        reset = _Reset(self._context.node, request.group_id)

        def stored(answer: Answer) -> None:
            self._context.node.groups.confirm(partial(self._check_again, reset, answer))

        self._confirm(call, request, reset.check, stored)

    def _check_again(self, reset: "_Reset", answer: Answer, error: LiftbridgeError | None) -> None:
        """Answer a reset that is stored, unless a member had a partition meanwhile."""
        try:
            if error is not None:
                raise error
            reset.check_again()
        except LiftbridgeError as refusal:
            answer.refused_as(refusal)
        else:
            answer.reply(groups_pb2.ResetPositionsResponse())

    def _confirm(
        self,
        call: Call,
        request: groups_pb2.CommitPositionsRequest | groups_pb2.ResetPositionsRequest,
        check: Check,
        stored: Callable[[Answer], None],
    ) -> None:
        """Store the positions of a request, once the metadata here hold all earlier decisions."""
        check_named("positions", len(request.positions), POSITIONS_MAX)
        cursor_id = CURSOR_PREFIX + request.group_id
        for position in request.positions:
            check_cursor(position.stream, cursor_id)

        def confirmed(error: LiftbridgeError | None) -> None:
            if error is None and call.is_open:
                try:
                    self._store(call, cursor_id, request.positions, check, stored)
                except LiftbridgeError as refusal:
                    error = refusal
            if error is not None:
                refuse(call, error)

        self._context.node.groups.confirm(confirmed)

    def _store(
        self,
        call: Call,
        cursor_id: str,
        positions: Sequence[CommitPosition | ResetPosition],
        check: Check,
        stored: Callable[[Answer], None],
    ) -> None:
        places = [self._place(position) for position in positions]
        check([place.partition_id for place in places])
        cursors = [
            self._cursor(cursor_id, position, place)
            for position, place in zip(positions, places, strict=True)
        ]
        runs: dict[Partition, list[Cursor]] = {}
        for cursor in cursors:
            runs.setdefault(self._cursors.partition_of(cursor.key), []).append(cursor)
        answer = Answer(self._context, call, self._answer_seconds)
        if not runs:
            stored(answer)
        joint = _Joint(answer, len(cursors), partial(stored, answer))
        for partition, group in runs.items():
            self._publish(partition, group, joint)

    def _place(self, position: CommitPosition | ResetPosition) -> PartitionState:
        stream = self._context.node.state.stream(position.stream)
        place = None if stream is None else stream.partition(position.partition)
        if place is None:
            raise NotFoundError(f"no such partition: {position.stream}/{position.partition}")
        present = stream_of(place.partition_id)
        is_commit = isinstance(position, CommitPosition)
        if is_commit and position.stream_id not in (0, present):  # guard Group.stream
            # Its reader may hear of the new stream after the member acted on its assignment.
            raise NotFoundError(
                f"stream {position.stream} has id {present}, not {position.stream_id}: it was "
                "recreated"
            )
        return place

    def _cursor(
        self, cursor_id: str, position: CommitPosition | ResetPosition, place: PartitionState
    ) -> Cursor:
        stream_id, meant_id, read_in = stream_of(place.partition_id), 0, None
        if isinstance(position, ResetPosition):
            meant_id = position.stream_id
            read_in = position.unclean_epoch if position.HasField("unclean_epoch") else None
        meant = Cursor(position.stream, position.partition, cursor_id, position.offset, meant_id)
        return stamp(meant, stream_id, place.unclean_epoch, read_in=read_in)

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
