"""Consumer groups in the protocol of the original: clients of three brokers without a network."""

import pytest
from google.protobuf.message import Message

from liftbridge_broker.controller.commands import Bootstrap, CreateStream, DeleteStream, PauseStream
from liftbridge_broker.errors import GrpcStatus, LiftbridgeError
from liftbridge_broker.model.ids import Instant, StreamName
from liftbridge_proto import api_pb2
from liftbridge_testkit.client_calls import API, ClientCalls, Outcome
from liftbridge_testkit.cluster_world import CLUSTER_ID, ClusterWorld, Member

SESSION_MS = 15_000
"""Default of `groups.consumer.timeout`."""

MEMBER = (GrpcStatus.FAILED_PRECONDITION, "consumer is not a member of the consumer group")
NO_GROUP = (GrpcStatus.NOT_FOUND, "consumer group does not exist")
STALE = (
    GrpcStatus.FAILED_PRECONDITION,
    "client-provided group epoch differs from broker group epoch",
)
NOT_HERE = (GrpcStatus.FAILED_PRECONDITION, "broker is not the consumer group coordinator")
NOT_ASSIGNED = (
    GrpcStatus.FAILED_PRECONDITION,
    "Consumer is not currently assigned this partition",
)


class Clients:
    """Clients of all brokers, and what they know of their groups."""

    def __init__(self, brokers: int = 3, *, level: int = 4) -> None:
        self.world = ClusterWorld(brokers)
        self.world.propose(Bootstrap(cluster_id=CLUSTER_ID, feature_level=level))
        self.create("orders", 4)

    def create(self, name: str, partitions: int = 1) -> None:
        command = CreateStream(
            name=StreamName(name),
            subject=name,
            partitions=partitions,
            replication_factor=len(self.world.members),
            creation_timestamp=1,
        )
        outcome = self.world.propose(command)
        assert not isinstance(outcome, LiftbridgeError), outcome
        numbers = range(partitions)
        self.world.until(lambda: all(self.world.leader(name, one) is not None for one in numbers))

    def member(self, broker: str) -> Member:
        return next(one for one in self.world.alive if one.node.broker == broker)

    def call(self, name: str, request: Message, at: Member | None = None) -> Outcome:
        return ClientCalls(at or self.world.alive[0]).call(API + name, request)

    def refused(self, name: str, request: Message, at: Member | None = None) -> tuple[int, str]:
        outcome = self.call(name, request, at)
        assert outcome.code, outcome.messages
        return outcome.code, outcome.text

    def join(
        self, consumer: str, *streams: str, group: str = "g", at: Member | None = None
    ) -> api_pb2.JoinConsumerGroupResponse:
        request = api_pb2.JoinConsumerGroupRequest(
            groupId=group, consumerId=consumer, streams=streams or ("orders",)
        )
        outcome = self.call("JoinConsumerGroup", request, at)
        assert outcome.code == 0, outcome.text
        (answer,) = outcome.messages
        assert isinstance(answer, api_pb2.JoinConsumerGroupResponse)
        return answer

    def leave(self, consumer: str) -> None:
        request = api_pb2.LeaveConsumerGroupRequest(groupId="g", consumerId=consumer)
        outcome = self.call("LeaveConsumerGroup", request)
        assert outcome.code == 0, outcome.text

    def metadata(self, group: str = "g", at: Member | None = None) -> api_pb2.ConsumerGroupMetadata:
        outcome = self.call("FetchMetadata", api_pb2.FetchMetadataRequest(groups=[group]), at)
        (answer,) = outcome.messages
        assert isinstance(answer, api_pb2.FetchMetadataResponse)
        (found,) = answer.groupMetadata
        return found

    def fetch(self, consumer: str, epoch: int, at: Member | None = None) -> Outcome:
        at = at or self.member(self.metadata().coordinator)
        request = api_pb2.FetchConsumerGroupAssignmentsRequest(
            groupId="g", consumerId=consumer, epoch=epoch
        )
        return self.call("FetchConsumerGroupAssignments", request, at)

    def assigned(self, consumer: str) -> set[tuple[str, int]]:
        outcome = self.fetch(consumer, self.metadata().epoch)
        assert outcome.code == 0, outcome.text
        (answer,) = outcome.messages
        assert isinstance(answer, api_pb2.FetchConsumerGroupAssignmentsResponse)
        return {(one.stream, part) for one in answer.assignments for part in one.partitions}

    def subscribe(
        self, consumer: str, epoch: int, number: int = 0, *, group: str = "g", resume: bool = False
    ) -> Outcome:
        leader = self.world.leader("orders", number)
        if leader is None:  # paused
            leader = self.member(self.world.state("orders", number).leader or "")
        request = api_pb2.SubscribeRequest(
            stream="orders",
            partition=number,
            resume=resume,
            consumer=api_pb2.Consumer(groupId=group, consumerId=consumer, groupEpoch=epoch),
        )
        outcome = ClientCalls(leader).begin(API + "Subscribe", request)
        self.world.run(200)
        return outcome

    def report(self, consumer: str, coordinator: str, epoch: int) -> Outcome:
        request = api_pb2.ReportConsumerGroupCoordinatorRequest(
            groupId="g", consumerId=consumer, coordinator=coordinator, epoch=epoch
        )
        return self.call("ReportConsumerGroupCoordinator", request)

    def silence(self, milliseconds: int, *alive: str) -> None:
        """Let time pass in which only some consumers send heartbeats."""
        for _ in range(0, milliseconds, 2_000):
            for consumer in alive:
                self.fetch(consumer, self.metadata().epoch)
            self.world.run(2_000)

    def is_member(self, consumer: str) -> bool:
        group = self.world.alive[0].node.state.groups.get("g")
        return group is not None and group.member(consumer) is not None


def ended(outcome: Outcome) -> tuple[int | None, str]:
    return outcome.code, outcome.text


@pytest.fixture
def clients() -> Clients:
    return Clients()


# -- join, leave, assignments ---------------------------------------------------------------------


def test_members_share_partitions_and_keep_what_they_can(clients: Clients) -> None:
    first = clients.join("c1", at=clients.world[2])
    all_four = clients.assigned("c1")
    second = clients.join("c2", at=clients.world[3])

    assert all_four == {("orders", number) for number in range(4)}
    assert (first.consumerTimeout, first.coordinatorTimeout) == (15 * 10**9, 15 * 10**9)
    assert second.epoch > first.epoch
    assert second.coordinator == first.coordinator == clients.metadata().coordinator
    kept, given = clients.assigned("c1"), clients.assigned("c2")
    assert (len(kept), len(given), kept | given) == (2, 2, all_four)
    clients.leave("c1")
    assert clients.assigned("c2") == all_four
    clients.leave("c2")
    assert clients.metadata().error == api_pb2.ConsumerGroupMetadata.UNKNOWN_GROUP


def test_coordinators_are_spread_over_brokers(clients: Clients) -> None:
    found = {clients.join("c", group=group).coordinator for group in ("g", "h", "i")}
    assert len(found) == 3


def test_metadata_of_a_group_name_its_coordinator_and_epoch(clients: Clients) -> None:
    joined = clients.join("c1")
    for member in clients.world.alive:
        found = clients.metadata(at=member)
        assert (found.groupId, found.error) == ("g", api_pb2.ConsumerGroupMetadata.OK)
        assert (found.coordinator, found.epoch) == (joined.coordinator, joined.epoch)


def test_a_deleted_stream_is_nobodys(clients: Clients) -> None:
    clients.create("bills", 2)
    clients.join("c1", "orders", "bills")
    before = clients.metadata().epoch
    clients.world.propose(DeleteStream(name=StreamName("bills")))

    assert clients.assigned("c1") == {("orders", number) for number in range(4)}
    assert clients.metadata().epoch > before
    clients.create("bills")
    assert clients.assigned("c1") == {("orders", number) for number in range(4)}


JOIN, LEAVE = "JoinConsumerGroup", "LeaveConsumerGroup"
FETCH, REPORT = "FetchConsumerGroupAssignments", "ReportConsumerGroupCoordinator"
FIELDS: dict[str, tuple[type[Message], dict[str, object], list[tuple[str, str]]]] = {
    JOIN: (
        api_pb2.JoinConsumerGroupRequest,
        {"groupId": "g", "consumerId": "c", "streams": ["orders"]},
        [("groupId", "groupId"), ("consumerId", "consumerId"), ("streams", "streams")],
    ),
    LEAVE: (
        api_pb2.LeaveConsumerGroupRequest,
        {"groupId": "g", "consumerId": "c"},
        [("groupId", "groupId"), ("consumerId", "consumerId")],
    ),
    FETCH: (
        api_pb2.FetchConsumerGroupAssignmentsRequest,
        {"groupId": "g", "consumerId": "c"},
        [("groupId", "groupId"), ("consumerId", "consumerId")],
    ),
    REPORT: (
        api_pb2.ReportConsumerGroupCoordinatorRequest,
        {"groupId": "g", "consumerId": "c", "coordinator": "b1"},
        [("groupId", "groupId"), ("consumerId", "consumerId"), ("coordinator", "coordinator")],
    ),
}


def test_requests_without_a_name_are_refused_in_the_original_words() -> None:
    clients = Clients(1)
    for method, (kind, fields, names) in FIELDS.items():
        for field, word in names:
            request = kind(**{name: value for name, value in fields.items() if name != field})
            assert clients.refused(method, request) == (
                GrpcStatus.INVALID_ARGUMENT,
                f"No {word} provided",
            )


def test_names_have_a_bound() -> None:
    clients = Clients(1)
    for name in ("x" * 256, "a\nb"):
        request = api_pb2.JoinConsumerGroupRequest(groupId=name, consumerId="c", streams=["orders"])
        code, text = clients.refused(JOIN, request)
        assert (code, text) == (
            GrpcStatus.INVALID_ARGUMENT,
            "Invalid groupId, must be 1 to 255 bytes of printable text",
        )


def test_refusals_have_the_codes_and_words_of_the_original(clients: Clients) -> None:
    join = api_pb2.JoinConsumerGroupRequest(groupId="g", consumerId="c1", streams=["nowhere"])
    assert clients.refused(JOIN, join) == (
        GrpcStatus.FAILED_PRECONDITION,
        "stream does not exist",
    )
    leave = api_pb2.LeaveConsumerGroupRequest(groupId="g", consumerId="c1")
    assert clients.refused(LEAVE, leave) == NO_GROUP
    fetch = api_pb2.FetchConsumerGroupAssignmentsRequest(groupId="g", consumerId="c1")
    assert clients.refused(FETCH, fetch) == NO_GROUP
    assert ended(clients.report("c1", "b1", 1)) == (
        GrpcStatus.FAILED_PRECONDITION,
        "No such consumer group g",
    )

    joined = clients.join("c1")
    again = api_pb2.JoinConsumerGroupRequest(groupId="g", consumerId="c1", streams=["orders"])
    assert clients.refused(JOIN, again) == (
        GrpcStatus.FAILED_PRECONDITION,
        "consumer is already a member of the consumer group",
    )
    stranger = api_pb2.LeaveConsumerGroupRequest(groupId="g", consumerId="c2")
    assert clients.refused(LEAVE, stranger) == MEMBER
    assert ended(clients.fetch("c2", joined.epoch)) == MEMBER
    assert ended(clients.fetch("c1", joined.epoch + 1)) == STALE
    assert ended(clients.fetch("c1", joined.epoch - 1)) == STALE  # before it joined
    other = next(one for one in clients.world.alive if one.node.broker != joined.coordinator)
    assert ended(clients.fetch("c1", joined.epoch, at=other)) == NOT_HERE
    assert ended(clients.report("c1", joined.coordinator, joined.epoch - 1)) == (
        GrpcStatus.FAILED_PRECONDITION,
        (
            f"Coordinator generation mismatch, current coordinator: {joined.coordinator} epoch: "
            f"{joined.epoch}, got coordinator: {joined.coordinator} epoch: {joined.epoch - 1}"
        ),
    )
    assert ended(clients.report("c2", joined.coordinator, joined.epoch)) == (
        GrpcStatus.FAILED_PRECONDITION,
        "Consumer c2 is not a member of consumer group g",
    )


def test_groups_wait_for_their_feature_level() -> None:
    clients = Clients(level=3)
    request = api_pb2.JoinConsumerGroupRequest(groupId="g", consumerId="c", streams=["orders"])
    (leader,) = (one for one in clients.world.alive if one.consensus.is_leader)
    other = next(one for one in clients.world.alive if one is not leader)
    before = leader.consensus.core.log.last_index
    assert clients.refused(JOIN, request, other) == (
        GrpcStatus.FAILED_PRECONDITION,
        (
            "consumer groups need feature level 4, the cluster is at 3: upgrade all brokers, then "
            "raise the level"
        ),
    )
    assert leader.consensus.core.log.last_index == before


def test_an_only_broker_has_no_coordinator_to_replace() -> None:
    clients = Clients(1)
    joined = clients.join("c1")
    assert ended(clients.report("c1", joined.coordinator, joined.epoch)) == (
        GrpcStatus.FAILED_PRECONDITION,
        "No coordinator candidates",
    )


# -- sessions -------------------------------------------------------------------------------------


def test_a_silent_member_is_removed_and_a_live_one_stays(clients: Clients) -> None:
    clients.join("c1")
    clients.join("c2")
    clients.silence(SESSION_MS + 2_000, "c1")

    assert clients.is_member("c1")
    assert not clients.is_member("c2")
    assert len(clients.assigned("c1")) == 4


def test_a_member_hears_of_a_change_by_the_answer_to_its_heartbeat(clients: Clients) -> None:
    joined = clients.join("c1")
    changed = clients.join("c2")
    outcome = clients.fetch("c1", joined.epoch)
    assert outcome.code == 0, outcome.text
    (answer,) = outcome.messages
    assert isinstance(answer, api_pb2.FetchConsumerGroupAssignmentsResponse)
    assert answer.epoch == changed.epoch > joined.epoch
    (assigned,) = answer.assignments
    assert {("orders", one) for one in assigned.partitions} == clients.assigned("c1")
    assert len(assigned.partitions) == 2


def test_a_heartbeat_with_an_earlier_epoch_counts(clients: Clients) -> None:
    joined = clients.join("c1")
    clients.join("c2")
    for _ in range(10):
        assert ended(clients.fetch("c1", joined.epoch)) == (0, "")
        clients.world.run(2_000)
    assert clients.is_member("c1")
    assert not clients.is_member("c2")


def test_a_heartbeat_of_an_earlier_membership_does_not_count(clients: Clients) -> None:
    former = clients.join("c1")
    clients.join("c2")
    clients.leave("c1")
    clients.join("c1")
    for _ in range(9):
        assert ended(clients.fetch("c1", former.epoch)) == STALE
        clients.silence(2_000, "c2")
    assert not clients.is_member("c1")
    assert clients.is_member("c2")


def test_a_new_coordinator_gives_members_a_whole_session(clients: Clients) -> None:
    joined = clients.join("c1")
    clients.world.run(SESSION_MS - 3_000)
    clients.member(joined.coordinator).kill()
    clients.world.run(SESSION_MS - 3_000)

    assert clients.metadata().coordinator != joined.coordinator
    assert clients.is_member("c1")
    clients.world.run(6_000)
    assert not clients.is_member("c1")


def test_a_coordinator_that_was_suspended_expires_nobody() -> None:
    clients = Clients(1)
    clients.join("c1")
    clients.world.run(5_000)
    clients.world.now = Instant(clients.world.now + SESSION_MS * 2 * 10**6)
    clients.world.run(1_000)
    assert clients.is_member("c1")


# -- coordinators ---------------------------------------------------------------------------------


def test_a_killed_coordinator_is_replaced_at_once(clients: Clients) -> None:
    joined = clients.join("c1")
    clients.member(joined.coordinator).kill()
    clients.world.until(lambda: clients.metadata().coordinator != joined.coordinator)
    assert clients.metadata().epoch > joined.epoch
    assert len(clients.assigned("c1")) == 4


def test_a_broker_that_stops_in_order_hands_its_groups_over(clients: Clients) -> None:
    joined = clients.join("c1")
    stopping = clients.member(joined.coordinator)
    assert stopping.node.cluster is not None
    stopping.node.cluster.session.want_shutdown = True
    clients.world.until(lambda: clients.metadata().coordinator != joined.coordinator)
    assert stopping.is_alive


def test_more_than_half_of_the_members_replace_a_coordinator(clients: Clients) -> None:
    joined = [clients.join(consumer) for consumer in ("c1", "c2", "c3")][-1]
    clients.world.run(100)
    for consumer in ("c1", "c1", "c1"):
        assert ended(clients.report(consumer, joined.coordinator, joined.epoch)) == (0, "")
    clients.world.run(1_000)
    assert clients.metadata().coordinator == joined.coordinator

    assert ended(clients.report("c2", joined.coordinator, joined.epoch)) == (0, "")
    clients.world.run(1_000)
    assert clients.metadata().coordinator != joined.coordinator
    assert clients.metadata().epoch > joined.epoch


def test_reports_count_together_only_within_the_timeout(clients: Clients) -> None:
    joined = [clients.join(consumer) for consumer in ("c1", "c2", "c3")][-1]
    clients.world.run(100)
    clients.report("c1", joined.coordinator, joined.epoch)
    clients.silence(SESSION_MS + 2_000, "c1", "c2", "c3")
    clients.report("c2", joined.coordinator, joined.epoch)
    clients.world.run(1_000)
    assert clients.metadata().coordinator == joined.coordinator


# -- subscriptions --------------------------------------------------------------------------------


def test_a_consumer_reads_only_what_its_group_assigned(clients: Clients) -> None:
    clients.join("c1")
    epoch = clients.join("c2").epoch
    (own, *_), (other, *_) = sorted(clients.assigned("c1")), sorted(clients.assigned("c2"))

    assert clients.subscribe("c1", epoch, own[1]).code is None
    assert ended(clients.subscribe("c1", epoch, other[1])) == NOT_ASSIGNED
    assert ended(clients.subscribe("c3", epoch, other[1])) == NOT_ASSIGNED


def test_a_subscription_ends_in_order_when_its_partition_goes_to_another(clients: Clients) -> None:
    epoch = clients.join("c1").epoch
    running = {number: clients.subscribe("c1", epoch, number) for number in range(4)}
    clients.join("c2")
    clients.world.run(200)

    lost = {number for _, number in clients.assigned("c2")}
    for number, outcome in running.items():
        assert ended(outcome) == ((0, "") if number in lost else (None, ""))
    clients.leave("c1")
    clients.world.run(200)
    assert {outcome.code for outcome in running.values()} == {0}


def test_a_subscription_to_what_was_lost_since_the_known_epoch_is_over_at_once(
    clients: Clients,
) -> None:
    epoch = clients.join("c1").epoch
    changed = clients.join("c2").epoch
    (_, lost), *_ = clients.assigned("c2")
    late = clients.subscribe("c1", epoch, lost)

    assert ended(late) == (0, "")
    assert late.messages == [api_pb2.Message()]  # the handshake: go-liftbridge does not retry
    assert ended(clients.subscribe("c1", changed, lost)) == NOT_ASSIGNED
    assert ended(clients.subscribe("c1", epoch - 1, lost)) == NOT_ASSIGNED
    assert ended(clients.subscribe("c3", epoch, lost)) == NOT_ASSIGNED


def test_an_equal_or_newer_epoch_replaces_and_an_older_one_is_refused(clients: Clients) -> None:
    epoch = clients.join("c1").epoch
    first = clients.subscribe("c1", epoch)
    second = clients.subscribe("c1", epoch)
    third = clients.subscribe("c1", epoch + 1)

    assert ended(first) == ended(second) == (0, "")
    assert ended(clients.subscribe("c1", epoch)) == NOT_ASSIGNED
    assert third.code is None


def test_an_earlier_membership_does_not_subscribe(clients: Clients) -> None:
    former = clients.join("c1").epoch
    clients.leave("c1")
    epoch = clients.join("c1").epoch
    assert ended(clients.subscribe("c1", former)) == NOT_ASSIGNED
    assert clients.subscribe("c1", epoch).code is None


def test_epochs_alone_fence_a_group_that_the_metadata_do_not_know(clients: Clients) -> None:
    first = clients.subscribe("c1", 5, group="own")
    assert ended(clients.subscribe("c2", 4, group="own")) == NOT_ASSIGNED
    assert first.code is None
    second = clients.subscribe("c2", 5, group="own")
    assert (ended(first), second.code) == ((0, ""), None)
    assert clients.subscribe("c2", 5, group="another").code is None
    clients.join("c3", group="own")
    clients.world.run(200)
    assert ended(second) == (0, "")


def test_a_refused_consumer_resumes_nothing(clients: Clients) -> None:
    clients.join("c1")
    clients.world.propose(PauseStream(name=StreamName("orders")))
    assert ended(clients.subscribe("c2", 10_000, resume=True)) == NOT_ASSIGNED
    assert clients.world.state("orders").paused
    clients.subscribe("c1", clients.metadata().epoch, resume=True)
    assert not clients.world.state("orders").paused


def test_a_consumer_does_not_read_from_a_follower(clients: Clients) -> None:
    epoch = clients.join("c1").epoch
    leader = clients.world.leader("orders")
    follower = next(one for one in clients.world.alive if one is not leader)
    request = api_pb2.SubscribeRequest(
        stream="orders",
        readISRReplica=True,
        consumer=api_pb2.Consumer(groupId="g", consumerId="c1", groupEpoch=epoch),
    )
    assert clients.refused("Subscribe", request, follower) == (
        GrpcStatus.INVALID_ARGUMENT,
        "Consumer groups not compatible with ReadISRReplica",
    )


def test_a_coordinator_that_is_behind_asks_before_it_refuses(clients: Clients) -> None:
    behind = clients.member(clients.join("c1").coordinator)
    if behind.consensus.is_leader:
        successor = next(one for one in clients.world.alive if one is not behind)
        behind.consensus.transfer(successor.node.broker)
        clients.world.until(lambda: successor.consensus.is_leader)
    clients.world.run(100)
    clients.world.cut(behind)
    other = next(one for one in clients.world.alive if one is not behind)
    epoch = clients.join("c2", at=other).epoch
    clients.world.heal()
    assert behind.node.state.groups["g"].group_epoch < epoch

    assert ended(clients.fetch("c1", epoch, at=behind)) == (0, "")
