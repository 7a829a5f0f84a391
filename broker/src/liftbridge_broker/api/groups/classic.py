"""Consumer groups in the protocol of the original: join, leave, heartbeat, report.

`FetchConsumerGroupAssignments` is the heartbeat of a member; only the coordinator of its group
answers it, and every broker the other requests. Order and texts of refusals are those of the
original.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Protocol

from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.streams import answer_with, check_named, decode
from liftbridge_broker.controller.consumer_groups.commands import JoinGroup, LeaveGroup
from liftbridge_broker.controller.records import MemberAnswer
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.groups import SUBSCRIPTIONS_MAX, check_id, check_streams
from liftbridge_broker.model.ids import PartitionId, number_of, stream_of
from liftbridge_broker.node.scheduling.steps import STEP
from liftbridge_proto import api_pb2


class Assignments(Protocol):
    """Field of a response that lists partitions by stream."""

    def add(self, *, stream: str, partitions: Sequence[int]) -> object:
        """Append an entry."""
        ...


class GroupService:
    """Serves the members of classic groups."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def join(self, call: Call, raw: bytes) -> None:
        """Serve `JoinConsumerGroup`; the first member founds the group."""
        request = decode(call, api_pb2.JoinConsumerGroupRequest, raw)
        if request is None:
            return
        check_id("groupId", request.groupId)
        check_id("consumerId", request.consumerId)
        check_streams(request.streams, may_match=False)
        check_named("streams", len(request.streams), SUBSCRIPTIONS_MAX)
        node, clock = self._context.node, self._context.clock
        command = JoinGroup(
            group_id=request.groupId,
            member_id=request.consumerId,
            streams=tuple(dict.fromkeys(request.streams)),
        )

        def answered(outcome: object) -> None:
            if isinstance(outcome, LiftbridgeError):
                refuse(call, outcome)
                return
            assert isinstance(outcome, MemberAnswer)
            options = node.context.options
            response = api_pb2.JoinConsumerGroupResponse(
                coordinator=outcome.group.coordinator,
                epoch=outcome.group.group_epoch,
                consumerTimeout=options.consumer_timeout_ns,
                coordinatorTimeout=options.coordinator_timeout_ns,
            )
            call.reply(response.SerializeToString())

        node.propose(command, clock.now(), answered)

    def leave(self, call: Call, raw: bytes) -> None:
        """Serve `LeaveConsumerGroup`; the last member ends the group."""
        request = decode(call, api_pb2.LeaveConsumerGroupRequest, raw)
        if request is None:
            return
        check_id("groupId", request.groupId)
        check_id("consumerId", request.consumerId)
        command = LeaveGroup(group_id=request.groupId, member_id=request.consumerId)
        answer = answer_with(call, api_pb2.LeaveConsumerGroupResponse())
        self._context.node.propose(command, self._context.clock.now(), answer)

    def fetch_assignments(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `FetchConsumerGroupAssignments`: a heartbeat, and the partitions of the member."""
        request = decode(call, api_pb2.FetchConsumerGroupAssignmentsRequest, raw)
        if request is None:
            return
        check_id("groupId", request.groupId)
        check_id("consumerId", request.consumerId)
        groups = self._context.node.groups
        if groups.knows(request.groupId, request.epoch):
            yield from self._assignments(call, request)
            return

        def confirmed(error: LiftbridgeError | None) -> None:
            if error is not None:
                refuse(call, error)
            else:
                call.go_on(self._assignments(call, request))

        groups.confirm(confirmed)

    def _assignments(
        self, call: Call, request: api_pb2.FetchConsumerGroupAssignmentsRequest
    ) -> Iterator[None]:
        node, now = self._context.node, self._context.clock.now()
        answer = node.groups.heartbeat(request.groupId, request.consumerId, request.epoch, now)
        # The original refuses an earlier epoch. Its client takes the epoch from the answer, but
        # pauses for 2 s after a refusal, which may be longer than its session.
        response = api_pb2.FetchConsumerGroupAssignmentsResponse(epoch=answer.group.group_epoch)
        shows = partial(self._context.access.shows, call.principal)
        yield from add_partitions(node.state, answer.member.target, response.assignments, shows)
        call.reply(response.SerializeToString())

    def report_coordinator(self, call: Call, raw: bytes) -> None:
        """Serve `ReportConsumerGroupCoordinator`; the report goes to the metadata leader."""
        request = decode(call, api_pb2.ReportConsumerGroupCoordinatorRequest, raw)
        if request is None:
            return
        check_id("groupId", request.groupId)
        check_id("consumerId", request.consumerId)
        check_id("coordinator", request.coordinator)
        groups, now = self._context.node.groups, self._context.clock.now()

        def confirmed(error: LiftbridgeError | None) -> None:
            try:
                if error is not None:
                    raise error
                named = request.groupId, request.consumerId, request.coordinator
                groups.report(*named, request.epoch, now)
            except LiftbridgeError as refusal:
                refuse(call, refusal)
            else:
                call.reply(api_pb2.ReportConsumerGroupCoordinatorResponse().SerializeToString())

        groups.confirm(confirmed)


def add_partitions(
    state: ClusterState,
    partitions: Sequence[PartitionId],
    target: Assignments,
    shows: Callable[[str], bool],
) -> Iterator[None]:
    """Add partitions to a response, one entry for each stream; yield where a step ends.

    Args:
        state: Applied metadata.
        partitions: The partitions, in order.
        target: Field of the response.
        shows: Returns whether the caller may see a stream: rights of a member may have been revoked
            since it joined, and one member may ask about another.
    """
    for count, (stream_id, group) in enumerate(groupby(partitions, key=stream_of), 1):
        stream = state.streams.get(stream_id)
        if stream is not None and shows(stream.name):  # None: deleted since
            target.add(stream=stream.name, partitions=[number_of(one) for one in group])
        if count % STEP == 0:
            yield
