"""Incremental groups and positions with a fence, by clients of three brokers without a network."""

from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from google.protobuf.message import Message

from liftbridge_broker.api.groups.positions import POSITIONS_MAX
from liftbridge_broker.controller.commands import Bootstrap, CreateStream, DeleteStream
from liftbridge_broker.errors import GrpcStatus, LiftbridgeError
from liftbridge_broker.groups.cursors import cursor_key, cursors_partition
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.subjects import CURSORS_STREAM
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import groups_pb2
from liftbridge_testkit.client_calls import API, GROUPS, ClientCalls, Outcome
from liftbridge_testkit.cluster_world import CLUSTER_ID, ClusterWorld, Member

Kind = TypeVar("Kind", bound=Message)
Partitions = set[tuple[str, int]]

NO_MEMBER = (
    GrpcStatus.FAILED_PRECONDITION,
    "consumer is not a member of the consumer group",
)
NOT_ASSIGNED = (
    GrpcStatus.FAILED_PRECONDITION,
    "Consumer is not currently assigned this partition",
)


class Clients:
    """A cluster with cursors and a stream of four partitions."""

    def __init__(self) -> None:
        self.world = ClusterWorld(3)
        self.world.propose(Bootstrap(cluster_id=CLUSTER_ID))
        self.create(CURSORS_STREAM, 2)
        self.create("orders", 4)

    def create(self, name: str, partitions: int = 1) -> None:
        outcome = self.world.propose(
            CreateStream(
                name=StreamName(name),
                subject=name,
                partitions=partitions,
                replication_factor=3,
                is_internal=name == CURSORS_STREAM,
            )
        )
        assert not isinstance(outcome, LiftbridgeError), outcome
        numbers = range(partitions)
        self.world.until(lambda: all(self.world.leader(name, one) is not None for one in numbers))

    def member(self, broker: str) -> Member:
        return next(one for one in self.world.alive if one.node.broker == broker)

    def call(self, name: str, request: Message, at: Member | None = None) -> Outcome:
        return ClientCalls(at or self.world.alive[0]).call(GROUPS + name, request)

    def ask(self, name: str, request: Message, kind: type[Kind]) -> Kind:
        outcome = self.call(name, request)
        assert outcome.code == 0, outcome.text
        (answer,) = outcome.messages
        assert isinstance(answer, kind)
        return answer

    def describe(self, group: str = "g") -> groups_pb2.DescribeGroupResponse:
        request = groups_pb2.DescribeGroupRequest(group_id=group)
        return self.ask("DescribeGroup", request, groups_pb2.DescribeGroupResponse)

    def cursors_leader(self, stream: str, number: int, group: str = "g") -> Member:
        key = cursor_key(stream, number, f"__group:{group}")
        leader = self.world.leader(CURSORS_STREAM, cursors_partition(key, 2))
        assert leader is not None
        return leader

    def position(self, stream: str, number: int) -> int:
        """The position of group g in a partition."""
        leader = self.cursors_leader(stream, number)
        request = api_pb2.FetchCursorRequest(stream=stream, partition=number, cursorId="__group:g")
        outcome = ClientCalls(leader).call(API + "FetchCursor", request)
        (answer,) = outcome.messages
        assert isinstance(answer, api_pb2.FetchCursorResponse)
        return answer.offset


@dataclass
class Consumer:
    """A member as our client would write it."""

    clients: Clients
    name: str
    streams: tuple[str, ...] = ("orders",)
    instance: str = ""
    zone: str = ""
    epoch: int = 0
    group_epoch: int = 0
    held: Partitions = field(default_factory=set)
    answer: groups_pb2.HeartbeatResponse = field(default_factory=groups_pb2.HeartbeatResponse)

    def request(self) -> groups_pb2.HeartbeatRequest:
        held: dict[str, list[int]] = {}
        for stream, number in sorted(self.held):
            held.setdefault(stream, []).append(number)
        return groups_pb2.HeartbeatRequest(
            group_id="g",
            member_id=self.name,
            member_epoch=self.epoch,
            streams=self.streams,
            instance_id=self.instance,
            zone=self.zone,
            group_epoch=self.group_epoch,
            held=[
                groups_pb2.StreamPartitions(stream=stream, partitions=numbers)
                for stream, numbers in held.items()
            ],
        )

    def send(self, request: groups_pb2.HeartbeatRequest | None = None) -> Outcome:
        """Send a heartbeat to the coordinator; nothing is acted on."""
        group = self.clients.world.alive[0].node.state.groups.get("g")
        at = None if group is None else self.clients.member(group.coordinator)
        return self.clients.call("Heartbeat", request or self.request(), at)

    def beat(self) -> Partitions:
        """Send a heartbeat, and act on its answer; return the partitions that it reads then."""
        outcome = self.send()
        assert outcome.code == 0, outcome.text
        (answer,) = outcome.messages
        assert isinstance(answer, groups_pb2.HeartbeatResponse)
        self.answer = answer
        self.epoch, self.group_epoch = answer.member_epoch, answer.group_epoch
        self.held = {(one.stream, part) for one in answer.assigned for part in one.partitions}
        self.clients.world.run(100)
        return self.held

    def commit(
        self, stream: str, number: int, offset: int, stream_id: int = 0
    ) -> tuple[int | None, str]:
        request = groups_pb2.CommitPositionsRequest(
            group_id="g",
            member_id=self.name,
            member_epoch=self.epoch,
            group_epoch=self.group_epoch,
        )
        request.positions.add(stream=stream, partition=number, offset=offset, stream_id=stream_id)
        leader = self.clients.cursors_leader(stream, number)
        outcome = self.clients.call("CommitPositions", request, leader)
        return outcome.code, outcome.text


ALL = {("orders", number) for number in range(4)}


@pytest.fixture
def clients() -> Clients:
    return Clients()


def settled(*consumers: Consumer) -> None:
    """Let members send heartbeats until each reads its share."""
    for _ in range(4):
        for consumer in consumers:
            consumer.beat()


# -- heartbeats -----------------------------------------------------------------------------------


def test_a_partition_moves_after_its_reader_let_go(clients: Clients) -> None:
    first, second = Consumer(clients, "c1"), Consumer(clients, "c2")
    assert first.beat() == ALL
    assert second.beat() == set()
    assert second.answer.pending_count == 2

    assert len(first.beat()) == 2
    mine, first.held = first.held, ALL  # it goes on with what it is to give up
    first.send()
    clients.world.run(100)
    assert second.beat() == set()
    first.held = mine
    first.beat()
    assert second.beat() == ALL - first.held
    assert second.answer.pending_count == 0


def test_a_late_heartbeat_from_before_the_assignment_releases_nothing(clients: Clients) -> None:
    first, second = Consumer(clients, "c1"), Consumer(clients, "c2")
    first.beat()
    late = first.request()
    late.ClearField("held")
    second.beat()
    first.send(late)  # c1 had not heard yet that it is to give up anything
    clients.world.run(100)
    assert second.beat() == set()


def test_heartbeats_name_the_times_and_the_coordinator(clients: Clients) -> None:
    consumer = Consumer(clients, "c1")
    consumer.beat()
    answer = consumer.answer
    assert (answer.session_timeout_ms, answer.heartbeat_interval_ms) == (15_000, 3_000)
    assert answer.coordinator == clients.describe().coordinator
    other = next(one for one in clients.world.alive if one.node.broker != answer.coordinator)
    outcome = clients.call("Heartbeat", consumer.request(), other)
    assert outcome.text == "broker is not the consumer group coordinator"


def test_a_fenced_member_hears_that_it_is_none(clients: Clients) -> None:
    first = Consumer(clients, "c1")
    first.beat()
    Consumer(clients, "c1").beat()  # another process of this name
    outcome = first.send()
    assert (outcome.code, outcome.text) == NO_MEMBER


def test_a_silent_member_is_removed_and_its_partitions_go_on(clients: Clients) -> None:
    first, second = Consumer(clients, "c1"), Consumer(clients, "c2")
    settled(first, second)
    for _ in range(9):
        clients.world.run(2_000)
        second.beat()
    assert second.held == ALL
    outcome = first.send()
    assert (outcome.code, outcome.text) == NO_MEMBER


def test_members_keep_their_partitions_when_the_coordinator_is_killed(clients: Clients) -> None:
    first, second = Consumer(clients, "c1"), Consumer(clients, "c2")
    settled(first, second)
    before = first.held, second.held
    coordinator = clients.member(first.answer.coordinator)
    coordinator.kill()
    clients.world.until(lambda: clients.describe().coordinator != first.answer.coordinator)
    clients.world.run(500)
    assert (first.beat(), second.beat()) == before
    third = Consumer(clients, "c3")
    settled(third, first, second)
    assert first.held | second.held | third.held == ALL
    assert len(third.held) == 1


def test_a_member_that_restarts_under_its_instance_moves_nothing(clients: Clients) -> None:
    first, second = Consumer(clients, "c1", instance="pod-1"), Consumer(clients, "c2")
    settled(first, second)
    again = Consumer(clients, "c3", instance="pod-1")
    assert again.beat() == first.held
    assert second.beat() == ALL - again.held
    outcome = first.send()
    assert (outcome.code, outcome.text) == NO_MEMBER


def test_patterns_and_later_streams(clients: Clients) -> None:
    consumer = Consumer(clients, "c1", ("returns.*",))
    assert consumer.beat() == set()
    clients.create("returns.eu", 2)
    assert consumer.beat() == {("returns.eu", 0), ("returns.eu", 1)}
    consumer.streams = ("orders",)
    assert consumer.beat() == ALL
    consumer.beat()
    assert {one.stream for one in clients.describe().members[0].held} == {"orders"}
    clients.world.propose(DeleteStream(name=StreamName("orders")))
    assert consumer.beat() == set()


def test_who_leaves_lets_go_at_once(clients: Clients) -> None:
    first, second = Consumer(clients, "c1"), Consumer(clients, "c2")
    settled(first, second)
    request = groups_pb2.LeaveRequest(group_id="g", member_id="c1", member_epoch=first.epoch - 1)
    assert clients.call("Leave", request).text == NO_MEMBER[1]
    request.member_epoch = first.epoch
    assert clients.call("Leave", request).code == 0
    assert second.beat() == ALL


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"group_id": ""}, "No groupId provided"),
        ({"member_id": ""}, "No memberId provided"),
        ({"streams": []}, "No streams provided"),
        ({"streams": ["a.*.>", "b.*", "c.*", "d.*", "e.*"]}, "5 different patterns, limit 4"),
        ({"streams": ["a b"]}, "Invalid stream a b"),
        ({"streams": ["s"] * 10_001}, "streams: 10001 listed, at most 10000"),
    ],
)
def test_bad_heartbeats_are_refused(clients: Clients, fields: dict[str, object], text: str) -> None:
    given = {"group_id": "g", "member_id": "c", "streams": ["orders"], **fields}
    outcome = clients.call("Heartbeat", groups_pb2.HeartbeatRequest(**given))  # type: ignore[arg-type]  # names of fields
    assert text in outcome.text
    assert clients.world[1].node.state.groups == {}


def test_kinds_of_groups_are_told_apart(clients: Clients) -> None:
    consumer = Consumer(clients, "c1")
    consumer.beat()
    fetch = api_pb2.FetchConsumerGroupAssignmentsRequest(
        groupId="g", consumerId="c1", epoch=consumer.group_epoch
    )
    at = clients.member(consumer.answer.coordinator)
    outcome = ClientCalls(at).call(API + "FetchConsumerGroupAssignments", fetch)
    assert outcome.text == (
        "consumer group g is incremental, its members call liftbridge.ext.v1.Groups"
    )


# -- reading and positions ------------------------------------------------------------------------


def test_a_member_reads_by_its_member_epoch(clients: Clients) -> None:
    first, second = Consumer(clients, "c1"), Consumer(clients, "c2")
    settled(first, second)

    def subscribe(consumer: Consumer, number: int) -> Outcome:
        leader = clients.world.leader("orders", number)
        assert leader is not None
        request = api_pb2.SubscribeRequest(
            stream="orders",
            partition=number,
            consumer=api_pb2.Consumer(
                groupId="g", consumerId=consumer.name, groupEpoch=consumer.epoch
            ),
        )
        outcome = ClientCalls(leader).begin(API + "Subscribe", request)
        clients.world.run(200)
        return outcome

    (_, number), (_, other) = min(first.held), min(second.held)
    running = subscribe(first, number)
    assert running.code is None
    refused = subscribe(first, other)
    assert (refused.code, refused.text) == NOT_ASSIGNED
    evict = groups_pb2.EvictMemberRequest(group_id="g", member_id="c1")
    assert clients.call("EvictMember", evict).code == 0
    clients.world.run(200)
    ended: tuple[int | None, str] = running.code, running.text
    assert ended == (0, "")


def test_a_fenced_member_commits_nothing(clients: Clients) -> None:
    first, second = Consumer(clients, "c1"), Consumer(clients, "c2")
    settled(first, second)
    own, other = min(first.held), min(second.held)
    assert first.commit(*own, 5) == (0, "")
    assert clients.position(*own) == 5
    assert first.commit(*other, 6) == NOT_ASSIGNED
    assert clients.position(*other) == -1
    stranger = Consumer(clients, "c3", epoch=first.epoch)
    assert stranger.commit(*own, 7) == NO_MEMBER
    first.epoch -= 1
    assert first.commit(*own, 8) == NO_MEMBER
    assert clients.position(*own) == 5


def test_a_position_of_an_earlier_hold_follows_none_of_a_later_hold(clients: Clients) -> None:
    first, second = Consumer(clients, "c1"), Consumer(clients, "c2")
    first.beat()
    settled(second, first)
    kept, lost = min(first.held), min(second.held)
    let_go = first.group_epoch
    assert clients.call("Leave", groups_pb2.LeaveRequest(group_id="g", member_id="c2")).code == 0
    settled(first)
    assert first.commit(*lost, 9) == (0, "")
    now, first.group_epoch = first.group_epoch, let_go
    assert first.commit(*lost, 8) == NOT_ASSIGNED
    assert first.commit(*kept, 3) == (0, "")  # it had this one all the time
    assert clients.position(*lost) == 9
    first.group_epoch = now
    assert first.commit(*lost, 8) == (0, "")


def test_a_position_in_a_former_stream_follows_none_of_the_present_one(clients: Clients) -> None:
    """The member acted on its assignment in the present stream before its reader heard of it."""
    only = Consumer(clients, "c1")
    settled(only)
    stream = clients.world[1].node.state.stream("orders")
    assert stream is not None
    text = f"stream orders has id {stream.stream_id}, not 1: it was recreated"
    assert only.commit("orders", 0, 5, stream_id=1) == (GrpcStatus.NOT_FOUND, text)
    assert clients.position("orders", 0) == -1
    assert only.commit("orders", 0, 5, stream_id=stream.stream_id) == (0, "")
    assert clients.position("orders", 0) == 5


def test_positions_are_stored_together_or_not_at_all(clients: Clients) -> None:
    consumer = Consumer(clients, "c1")
    consumer.beat()
    request = groups_pb2.CommitPositionsRequest(
        group_id="g",
        member_id="c1",
        member_epoch=consumer.epoch,
        group_epoch=consumer.group_epoch,
    )
    assert clients.call("CommitPositions", request).code == 0
    for number in range(4):
        request.positions.add(stream="orders", partition=number, offset=number)
    leaders = {clients.cursors_leader("orders", number).node.broker for number in range(4)}
    at = clients.cursors_leader("orders", 0)
    outcome = clients.call("CommitPositions", request, at)
    found = [clients.position("orders", number) for number in range(4)]
    if len(leaders) == 1:
        assert (outcome.code, found) == (0, [0, 1, 2, 3])
    else:
        assert outcome.text.startswith("Server not leader for cursors partition")
        assert found == [-1] * 4


def test_positions_have_a_bound_and_a_partition(clients: Clients) -> None:
    consumer = Consumer(clients, "c1")
    consumer.beat()
    assert consumer.commit("orders", 9, 1)[1] == "no such partition: orders/9"
    request = groups_pb2.CommitPositionsRequest(group_id="g", member_id="c1")
    for _ in range(POSITIONS_MAX + 1):
        request.positions.add(stream="orders")
    outcome = clients.call("CommitPositions", request)
    assert outcome.text == f"positions: {POSITIONS_MAX + 1} listed, at most {POSITIONS_MAX}"
    consumer.name = "nobody"
    unknown = groups_pb2.CommitPositionsRequest(group_id="none", member_id="c", member_epoch=1)
    assert clients.call("CommitPositions", unknown).text == "consumer group does not exist"


def test_a_plain_cursor_does_not_go_around_the_fence(clients: Clients) -> None:
    request = api_pb2.SetCursorRequest(stream="orders", partition=0, cursorId="__group:g", offset=3)
    at = clients.cursors_leader("orders", 0)
    assert ClientCalls(at).call(API + "SetCursor", request).code == 0
    Consumer(clients, "c1").beat()
    outcome = ClientCalls(at).call(API + "SetCursor", request)
    assert outcome.code == GrpcStatus.FAILED_PRECONDITION
    assert "CommitPositions" in outcome.text


# -- people ---------------------------------------------------------------------------------------


def test_groups_are_listed_and_described(clients: Clients) -> None:
    first, second = Consumer(clients, "c1", instance="i", zone="z"), Consumer(clients, "c2")
    first.beat()
    second.beat()
    join = api_pb2.JoinConsumerGroupRequest(groupId="old", consumerId="x", streams=["orders"])
    ClientCalls(clients.world[1]).call(API + "JoinConsumerGroup", join)

    listed = clients.ask(
        "ListGroups", groups_pb2.ListGroupsRequest(), groups_pb2.ListGroupsResponse
    )
    found = [
        (one.group_id, one.is_incremental, one.member_count, one.partition_count)
        for one in listed.groups
    ]
    assert found == [("g", True, 2, 4), ("old", False, 1, 4)]
    described = clients.describe()
    one, two = described.members
    assert (one.member_id, list(one.streams), one.instance_id, one.zone) == (
        "c1",
        ["orders"],
        "i",
        "z",
    )
    assert [len(part.partitions) for part in one.held] == [4]
    assert [len(part.partitions) for part in two.target] == [2]
    assert list(two.held) == []
    delete = groups_pb2.DeleteGroupRequest(group_id="g")
    assert clients.call("DeleteGroup", delete).code == 0
    assert clients.call("DeleteGroup", delete).text == "consumer group does not exist"
    unknown = groups_pb2.DescribeGroupRequest(group_id="g")
    assert clients.call("DescribeGroup", unknown).code == GrpcStatus.NOT_FOUND
