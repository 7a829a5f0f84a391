"""What a broker tells of a log, by what it is to the partition: every method that tells offsets."""

import itertools

import pytest

from liftbridge_broker.errors import GrpcStatus
from liftbridge_broker.node.partition.runs import POLICY_LEADER
from liftbridge_broker.node.reading.answers import Standing, standing_of
from liftbridge_broker.node.reading.subscription import StartPosition
from liftbridge_broker.ports.transport import Channel
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import admin_pb2, data_pb2
from liftbridge_testkit.client_calls import (
    API,
    DATA,
    RESPONSES,
    ClientCalls,
    end_requests,
    told_end,
)
from liftbridge_testkit.cluster_world import ClusterWorld

RECORDS = 6


@pytest.fixture
def world():
    return ClusterWorld()


def followers(world):
    return [member for member in world.alive if member is not world.leader()]


def deafen(world, one, other):
    """Nothing of the data plane passes between two brokers; the metadata do."""
    world.deaf |= {
        (one.broker, other.broker, Channel.DATA),
        (other.broker, one.broker, Channel.DATA),
    }


def settled(world, **overrides):
    """A stream with six records that all replicas know to be committed."""
    world.create(**overrides)
    for number in range(RECORDS):
        world.commit(b"v%d" % number)
    world.run(100)


def certain(world):
    settled(world)
    return world.leader()


def fenced(world):
    """It has heard of one record; the five others were committed by who leads since."""
    world.create()
    world.commit(b"v0")
    world.run(100)
    former = world.leader()
    world.cut(former)
    world.until(lambda: world.leader() not in (None, former))
    for number in range(1, RECORDS):
        world.commit(b"v%d" % number)
    world.until(lambda: former.node.cluster.is_self_fenced(world.now))
    return former


def uncertain(world):
    """It has all six records, and heard of five that they are committed before the leader died."""
    world.create()
    for number in range(RECORDS - 1):
        world.commit(b"v%d" % number)
    world.run(100)
    world.commit(b"last")
    one, other = followers(world)
    world.leader().kill()
    deafen(world, one, other)
    world.until(lambda: world.leader() is not None)
    return world.leader()


def follower(world):
    settled(world)
    return followers(world)[0]


MEMBERS = {
    Standing.CERTAIN: certain,
    Standing.UNCERTAIN: uncertain,
    Standing.FENCED: fenced,
    Standing.FOLLOWER: follower,
}
TELLS = {(Standing.CERTAIN, False), (Standing.CERTAIN, True), (Standing.FOLLOWER, True)}
"""Who knows how far the log goes, asked in place of the leader or as any replica."""


CASES = [
    (standing, as_replica, method, request)
    for standing, as_replica in itertools.product(MEMBERS, (False, True))
    for method, request in end_requests(as_replica=as_replica)
]


@pytest.mark.parametrize(("standing", "as_replica", "method", "request_"), CASES)
def test_the_end_of_a_log_is_told_by_who_knows_it(world, standing, as_replica, method, request_):
    member = MEMBERS[standing](world)
    assert standing_of(member.node.find_replica("s", 0)) is standing
    outcome = ClientCalls(member).call(method, request_)
    if (standing, as_replica) in TELLS:
        assert told_end(request_, outcome) == RECORDS
        return
    assert outcome.code in (GrpcStatus.UNAVAILABLE, GrpcStatus.FAILED_PRECONDITION)
    assert [message for message in outcome.messages if message.ByteSize()] == []


@pytest.mark.parametrize(("method", "request_"), end_requests(as_replica=False))
def test_a_leader_that_was_replaced_without_hearing_of_it_tells_nothing(world, method, request_):
    """Its session is not over yet, and others lead and acknowledge already."""
    world.create()
    world.commit(b"v0")
    world.run(100)
    former = world.leader()
    if former.consensus.is_leader:
        former.consensus.transfer(followers(world)[0].broker)
        world.until(lambda: any(member.consensus.is_leader for member in followers(world)))
        world.run(300)
    world.cut(former)
    world.until(lambda: world.leader() not in (None, former))
    for number in range(1, RECORDS):
        world.commit(b"v%d" % number)
    assert standing_of(former.node.find_partition("s", 0)) is Standing.CERTAIN
    outcome = ClientCalls(former).call(method, request_)
    assert outcome.code == GrpcStatus.UNAVAILABLE
    assert [message for message in outcome.messages if message.ByteSize()] == []


def lagging(world):
    """A replica in sync that has all six records and has not heard that they are committed."""
    world.create(min_isr=3)
    for number in range(RECORDS - 1):
        world.commit(b"v%d" % number)
    world.run(100)
    behind = followers(world)[0]
    world.commit(b"last")
    partition = behind.node.find_replica("s", 0)
    assert (partition.log.high_watermark, partition.log.log_end_offset) == (RECORDS - 1, RECORDS)
    return behind


@pytest.mark.parametrize(("method", "request_"), end_requests(as_replica=True))
def test_a_replica_waits_until_it_has_heard_of_all_that_is_committed(world, method, request_):
    member = lagging(world)
    deafen(world, member, world.leader())
    outcome = ClientCalls(member).begin(method, request_)
    world.run(200)
    assert (outcome.code, outcome.messages) == (None, [])
    world.heal()
    world.until(lambda: outcome.code is not None)
    assert told_end(request_, outcome) == RECORDS


@pytest.mark.parametrize(("method", "request_"), end_requests(as_replica=True))
def test_a_replica_that_hears_nothing_does_not_let_clients_wait_for_ever(world, method, request_):
    member = lagging(world)
    for other in world.alive:
        deafen(world, member, other)
    outcome = ClientCalls(member).call(method, request_, milliseconds=2_500)
    assert outcome.code in (GrpcStatus.UNAVAILABLE, GrpcStatus.FAILED_PRECONDITION)


@pytest.mark.parametrize(("method", "request_"), end_requests(as_replica=False))
def test_a_new_leader_answers_once_it_knows_what_is_committed(world, method, request_):
    leader = uncertain(world)
    outcome = ClientCalls(leader).begin(method, request_)
    world.run(50)
    assert (outcome.code, outcome.messages) == (None, [])
    world.heal()
    world.until(lambda: outcome.code is not None)
    assert told_end(request_, outcome) == RECORDS


@pytest.mark.parametrize(("method", "request_"), end_requests(as_replica=True))
def test_a_replica_that_is_not_in_sync_sends_to_the_leader(world, method, request_):
    settled(world)
    leader, behind = world.leader(), followers(world)[0]
    deafen(world, leader, behind)
    world.commit(b"more")  # once the replica is no longer waited for
    world.run(200)
    request = type(request_)()
    request.CopyFrom(request_)
    if method == API + "Subscribe" and request.startPosition == StartPosition.OFFSET:
        request.startOffset = RECORDS  # where it has not come to
    outcome = ClientCalls(behind).call(method, request)
    assert outcome.code == GrpcStatus.FAILED_PRECONDITION
    assert outcome.text == f"Server not partition leader: broker {leader.broker} leads s/0"


def test_who_does_not_lead_names_the_leader(world):
    settled(world)
    leader, other = world.leader(), followers(world)[0]
    bounds = data_pb2.PartitionBoundsRequest(stream="s", partitions=[0])
    refused = ClientCalls(other).call(DATA + "PartitionBounds", bounds)
    assert refused.code == GrpcStatus.FAILED_PRECONDITION
    assert refused.text == f"Server not partition leader: broker {leader.broker} leads s/0"


@pytest.mark.parametrize("as_replica", [False, True])
def test_bounds_without_partitions_are_those_that_the_broker_leads_or_holds(world, as_replica):
    world.create(partitions=5)
    told = []
    for member in world.alive:
        request = data_pb2.PartitionBoundsRequest(stream="s", read_replica=as_replica)
        outcome = ClientCalls(member).call(DATA + "PartitionBounds", request)
        assert outcome.code == GrpcStatus.OK
        told.append([one.partition for one in outcome.messages[0].partitions])
        ids = {one.stream_id for one in outcome.messages[0].partitions}
        assert ids == {world.alive[0].node.state.stream("s").stream_id}
    together = sorted(itertools.chain.from_iterable(told))
    assert together == sorted([0, 1, 2, 3, 4] * (3 if as_replica else 1))


def test_metadata_of_all_streams_tell_no_end_that_another_broker_may_know_better(world):
    settled(world)
    world.create("alone", factor=1)
    for member in world.alive:
        request = api_pb2.FetchMetadataRequest()
        told = ClientCalls(member).call(API + "FetchMetadata", request).messages[0]
        ends = {stream.name: stream.partitions[0].highWatermark for stream in told.streamMetadata}
        assert ends == {"s": -1, "alone": -1}
    at = world.leader("alone")
    answers = world.publish(b"v", name="alone", at=at)
    world.until(lambda: answers.is_answered)
    told = ClientCalls(at).call(API + "FetchMetadata", api_pb2.FetchMetadataRequest()).messages[0]
    ends = {stream.name: stream.partitions[0].highWatermark for stream in told.streamMetadata}
    assert ends == {"s": -1, "alone": 0}


def test_the_place_of_a_time_is_never_beyond_what_is_committed(world):
    world.create()
    world.commit(b"v0")
    leader = world.leader()
    world.run(100)
    for other in followers(world):
        deafen(world, leader, other)
    world.publish(b"not yet", policy=POLICY_LEADER)
    later = world.wall_ns + 10**12
    request = data_pb2.PartitionBoundsRequest(stream="s", partitions=[0], timestamp=later)
    outcome = ClientCalls(leader).call(DATA + "PartitionBounds", request)
    told = outcome.messages[0].partitions[0]
    assert (told.timestamp_offset, told.high_watermark, told.log_end) == (1, 1, 2)


def offsets_in(descriptor, seen=()):
    """Whether a message, or one in it, has a field that places something in a log."""
    words = ("offset", "high_watermark", "highwatermark", "log_start", "log_end")
    return any(
        any(word in field.name.lower() for word in words)
        or (
            field.message_type is not None
            and field.message_type.full_name not in seen
            and offsets_in(field.message_type, (*seen, field.message_type.full_name))
        )
        for field in descriptor.fields
    )


ELSEWHERE = {
    "Publish": "acks: where a record was stored by who answers",
    "PublishToSubject": "acks",
    "PublishAsync": "acks",
    "PublishBatch": "acks",
    "FetchCursor": "what a consumer stored; test_cursor_calls and the gate in api/cursors",
    "BrokerStatus": "the broker's own copy, for operators",
    "ListPartitions": "the brokers' own copies, for operators",
    "VerifyRestart": "the broker's own copy against its last one",
}


def test_every_method_that_tells_offsets_is_asked_here():
    services = [
        module.DESCRIPTOR.services_by_name[name]
        for module, name in ((api_pb2, "API"), (data_pb2, "Data"), (admin_pb2, "Admin"))
    ]
    found = {
        f"/{service.full_name}/{method.name}"
        for service in services
        for method in service.methods
        if offsets_in(method.output_type) and method.name not in ELSEWHERE
    }
    assert found == set(RESPONSES)
