"""`liftbridge.ext.v1.Groups`: heartbeats of incremental groups, and calls for people about groups.

A heartbeat joins, changes what a member subscribes to, or tells the coordinator what the member
still reads; the answer names what it may read. `api.groups.positions` stores its positions.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from google.protobuf.message import Message

from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.groups.classic import add_partitions
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.streams import answer_with, check_named, decode
from liftbridge_broker.controller.consumer_groups.commands import (
    DeleteGroup,
    GroupCommand,
    JoinGroup,
    LeaveGroup,
)
from liftbridge_broker.controller.consumer_groups.groups import NO_GROUP
from liftbridge_broker.controller.records import MemberAnswer
from liftbridge_broker.errors import LiftbridgeError, NotFoundError
from liftbridge_broker.model.groups import (
    GROUP_PARTITIONS_MAX,
    SUBSCRIPTIONS_MAX,
    check_id,
    check_streams,
)
from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.scheduling.steps import STEP
from liftbridge_proto.ext.v1 import groups_pb2

HEARTBEATS_PER_SESSION: Final = 5
"""Heartbeats that a member sends in a session: some may be lost, or the coordinator replaced.

An interval is also the time after which others learn what a dead member leaves to them.
"""


class GroupMemberService:
    """Serves members of incremental groups, and people."""

    def __init__(self, context: Context) -> None:
        self._context = context

    # -- members ------------------------------------------------------------------------------

    def heartbeat(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `Heartbeat`."""
        request = decode(call, groups_pb2.HeartbeatRequest, raw)
        if request is None:
            return
        check_id("groupId", request.group_id)
        check_id("memberId", request.member_id)
        check_named("streams", len(request.streams), SUBSCRIPTIONS_MAX)
        held_count = sum(len(one.partitions) for one in request.held)
        check_named("partitions", held_count + len(request.held), 2 * GROUP_PARTITIONS_MAX)
        if not request.member_epoch:
            self._join(call, request)
            return
        groups = self._context.node.groups
        if groups.knows(request.group_id, max(request.group_epoch, request.member_epoch)):
            yield from self._beat(call, request)
            return

        def confirmed(error: LiftbridgeError | None) -> None:
            if error is not None:
                refuse(call, error)
            else:
                call.go_on(self._beat(call, request))

        groups.confirm(confirmed)

    def _join(self, call: Call, request: groups_pb2.HeartbeatRequest) -> None:
        """Propose to join, or with a member epoch to change the streams."""
        check_streams(request.streams, may_match=True)
        command = JoinGroup(
            group_id=request.group_id,
            member_id=request.member_id,
            streams=tuple(dict.fromkeys(request.streams)),
            is_incremental=True,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            zone=request.zone,
        )

        def answered(outcome: object) -> None:
            if isinstance(outcome, LiftbridgeError):
                refuse(call, outcome)
            else:
                assert isinstance(outcome, MemberAnswer)
                call.go_on(self._answer(call, outcome))

        self._context.node.propose(command, self._context.clock.now(), answered)

    def _beat(self, call: Call, request: groups_pb2.HeartbeatRequest) -> Iterator[None]:
        node, now = self._context.node, self._context.clock.now()
        held = frozenset(self._held(request.held))
        yield
        answer = node.groups.heartbeat_holding(
            request.group_id,
            request.member_id,
            request.member_epoch,
            request.group_epoch,
            held,
            now,
        )
        if request.streams and set(request.streams) != set(answer.member.streams):
            self._join(call, request)
        else:
            yield from self._answer(call, answer)

    def _held(self, held: Iterable[groups_pb2.StreamPartitions]) -> Iterator[PartitionId]:
        """Yield the partitions that a member reads and that still exist."""
        for one in held:
            stream = self._context.node.state.stream(one.stream)
            for number in () if stream is None else one.partitions:
                partition = None if stream is None else stream.partition(number)
                if partition is not None:
                    yield partition.partition_id

    def _answer(self, call: Call, answer: MemberAnswer) -> Iterator[None]:
        group, member = answer
        assigned = member.assigned
        session_ms = self._context.node.context.options.consumer_timeout_ns // MILLISECOND_NS
        response = groups_pb2.HeartbeatResponse(
            member_epoch=member.member_epoch,
            group_epoch=group.group_epoch,
            coordinator=group.coordinator,
            pending_count=len(member.target) - len(assigned),
            heartbeat_interval_ms=session_ms // HEARTBEATS_PER_SESSION,
            session_timeout_ms=session_ms,
        )
        shows = partial(self._context.access.shows, call.principal)
        yield from add_partitions(self._context.node.state, assigned, response.assigned, shows)
        call.reply(response.SerializeToString())

    def leave(self, call: Call, raw: bytes) -> None:
        """Serve `Leave`."""
        request = decode(call, groups_pb2.LeaveRequest, raw)
        if request is not None:
            self._remove(call, request, groups_pb2.LeaveResponse(), is_evicted=False)

    # -- people -------------------------------------------------------------------------------

    def evict(self, call: Call, raw: bytes) -> None:
        """Serve `EvictMember`."""
        request = decode(call, groups_pb2.EvictMemberRequest, raw)
        if request is not None:
            self._remove(call, request, groups_pb2.EvictMemberResponse(), is_evicted=True)

    def _remove(
        self,
        call: Call,
        request: groups_pb2.LeaveRequest | groups_pb2.EvictMemberRequest,
        response: Message,
        *,
        is_evicted: bool,
    ) -> None:
        check_id("groupId", request.group_id)
        check_id("memberId", request.member_id)
        command = LeaveGroup(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            is_evicted=is_evicted,
        )
        self._propose(call, command, response)

    def delete(self, call: Call, raw: bytes) -> None:
        """Serve `DeleteGroup`."""
        request = decode(call, groups_pb2.DeleteGroupRequest, raw)
        if request is not None:
            check_id("groupId", request.group_id)
            command = DeleteGroup(group_id=request.group_id)
            self._propose(call, command, groups_pb2.DeleteGroupResponse())

    def _propose(self, call: Call, command: GroupCommand, response: Message) -> None:
        answered: Callable[[object], None] = answer_with(call, response)
        self._context.node.propose(command, self._context.clock.now(), answered)

    def list_groups(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `ListGroups`."""
        if decode(call, groups_pb2.ListGroupsRequest, raw) is None:
            return
        response = groups_pb2.ListGroupsResponse()
        for count, group in enumerate(list(self._context.node.state.groups.values()), 1):
            response.groups.add(
                group_id=group.group_id,
                is_incremental=group.is_incremental,
                coordinator=group.coordinator,
                group_epoch=group.group_epoch,
                member_count=len(group.members),
                partition_count=sum(len(member.target) for member in group.members),
            )
            if count % STEP == 0:
                yield
        call.reply(response.SerializeToString())

    def describe(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `DescribeGroup`."""
        request = decode(call, groups_pb2.DescribeGroupRequest, raw)
        if request is None:
            return
        check_id("groupId", request.group_id)
        state = self._context.node.state
        group = state.groups.get(request.group_id)
        if group is None:
            raise NotFoundError(NO_GROUP)
        shows = partial(self._context.access.shows, call.principal)
        response = groups_pb2.DescribeGroupResponse(
            group_id=group.group_id,
            is_incremental=group.is_incremental,
            coordinator=group.coordinator,
            group_epoch=group.group_epoch,
        )
        for count, member in enumerate(group.members, 1):
            target = response.members.add(
                member_id=member.member_id,
                member_epoch=member.member_epoch,
                streams=filter(shows, member.streams),
                instance_id=member.instance_id,
                zone=member.zone,
            )
            yield from add_partitions(state, member.target, target.target, shows)
            yield from add_partitions(state, member.held, target.held, shows)
            if count % STEP == 0:
                yield
        call.reply(response.SerializeToString())
