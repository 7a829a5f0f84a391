"""What access control does not defend, as the page about security says: it stays known and true."""

import pytest

from liftbridge_broker.access.principals import Principal
from liftbridge_broker.access.rules import NameMatch, Operation, ResourceKind
from liftbridge_broker.api.access.needs import Need
from liftbridge_broker.errors import GrpcStatus
from liftbridge_broker.model.subjects import RESERVED_STREAMS
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2, groups_pb2
from liftbridge_testkit.guarded_calls import (
    API,
    DATA,
    READS_OTHER,
    STREAM,
    GuardedBroker,
    guarded_broker,
    raw_of,
    request_of,
    rule,
)

GROUPS = "/liftbridge.ext.v1.Groups/"
READS = Need(Operation.READ, ResourceKind.STREAM, lambda _request: ())
JOINS = Need(Operation.JOIN, ResourceKind.GROUP, lambda _request: ())
CREATES = Need(Operation.CREATE, ResourceKind.STREAM, lambda _request: ())
ATTACHES = Need(Operation.ATTACH, ResourceKind.SUBJECT, lambda _request: ())
PUBLISHES = Need(Operation.PUBLISH, ResourceKind.STREAM, lambda _request: ())


@pytest.fixture
def guarded() -> GuardedBroker:
    return guarded_broker()


async def test_whoever_may_create_a_name_learns_whether_it_exists(guarded: GuardedBroker) -> None:
    guarded.change(rule("alice", CREATES, STREAM), rule("alice", ATTACHES, "a.subject"))
    raw = raw_of(request_of(API + "CreateStream"))
    port = guarded.served.call(API + "CreateStream", [raw], principal="alice")
    assert port.end is not None
    assert port.end[0] == GrpcStatus.ALREADY_EXISTS


async def test_any_right_shows_the_brokers_but_no_stream(guarded: GuardedBroker) -> None:
    guarded.change(rule("alice", READS_OTHER, "other"))
    port = guarded.served.call(API + "FetchMetadata", [b""], principal="alice")
    answer = api_pb2.FetchMetadataResponse.FromString(bytes(port.sent[5:]))
    assert [one.id for one in answer.brokers] == ["b1"]
    assert not answer.streamMetadata


async def test_all_streams_include_those_of_brokers(guarded: GuardedBroker) -> None:
    everything = rule("alice", READS, "")._replace(match=NameMatch.PREFIX)
    guarded.change(everything, rule("bob", READS, STREAM))
    allows = guarded.enforcement.clients.gate.allows
    for name in RESERVED_STREAMS:
        assert allows(Principal("alice"), Operation.READ, ResourceKind.STREAM, name)
        assert not allows(Principal("bob"), Operation.READ, ResourceKind.STREAM, name)


async def test_a_member_may_act_for_the_others_of_its_group(guarded: GuardedBroker) -> None:
    for name in ("alice", "bob"):
        guarded.change(rule(name, JOINS, "g"), rule(name, READS, STREAM))
    request = groups_pb2.HeartbeatRequest(group_id="g", member_id="of-alice", streams=[STREAM])
    path, raw = GROUPS + "Heartbeat", request.SerializeToString()
    assert guarded.served.call(path, [raw], principal="alice").end == (0, "")
    leaves = groups_pb2.LeaveRequest(group_id="g", member_id="of-alice").SerializeToString()
    assert guarded.served.call(GROUPS + "Leave", [leaves], principal="bob").end == (0, "")
    assert not guarded.world[1].node.state.groups


async def test_a_publisher_takes_over_the_name_of_another(guarded: GuardedBroker) -> None:
    epochs = []
    for name in ("alice", "bob"):
        guarded.change(rule(name, PUBLISHES, STREAM))
        request = data_pb2.InitPublisherRequest(stream=STREAM, publisher="of-alice")
        path, raw = DATA + "InitPublisher", request.SerializeToString()
        port = guarded.served.call(path, [raw], principal=name)
        assert port.end == (0, "")
        answer = data_pb2.InitPublisherResponse.FromString(bytes(port.sent[5:]))
        epochs.append((answer.publisher_id, answer.publisher_epoch))
    assert epochs[0][0] == epochs[1][0]
    assert epochs[0][1] < epochs[1][1]
