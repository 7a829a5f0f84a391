"""Who may call what: every method of every service, for callers of every kind.

Methods and requests come from the descriptors of the services, and the rules that let a caller in
from the table of what methods need: a method without an entry there fails here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from unittest.mock import ANY

import pytest

from liftbridge_broker.access.rule_set import RuleSet
from liftbridge_broker.access.rules import NameMatch, Operation, ResourceKind
from liftbridge_broker.api.access.audit import AUDITED, UNANSWERED
from liftbridge_broker.api.access.control import NAMES_MAX, REPORTS_MAX, AccessControl
from liftbridge_broker.api.access.needs import NEEDS, OPEN, Known, Need
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.config.options import AccessOptions
from liftbridge_broker.controller.callers.commands import SetAccess
from liftbridge_broker.controller.consumer_groups.commands import JoinGroup
from liftbridge_broker.errors import GrpcStatus, LiftbridgeError, PermissionDeniedError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.server.access import Enforcement
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2, groups_pb2
from liftbridge_testkit.client_calls import WorldClock
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.guarded_calls import (
    ABSENT,
    API,
    BY_HAND,
    DATA,
    PUBLISHING,
    READS_OTHER,
    ROOT,
    STREAM,
    GuardedBroker,
    at_level,
    guarded_broker,
    guarded_cluster,
    is_denied,
    raw_of,
    request_of,
    rule,
    rules_for,
)
from liftbridge_testkit.request_lists import SERVICES
from liftbridge_testkit.served_calls import Port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.message import Message


@pytest.fixture
def guarded() -> GuardedBroker:
    return guarded_broker()


def test_every_method_has_an_entry_and_every_entry_a_method(guarded: GuardedBroker) -> None:
    described = {f"/{one.full_name}/{each.name}" for one in SERVICES for each in one.methods}
    assert set(NEEDS) == described | set(BY_HAND)
    assert set(guarded.served.server._methods) == set(NEEDS)


@pytest.mark.parametrize("path", sorted(NEEDS))
async def test_a_method_serves_exactly_those_whom_the_rules_allow(
    guarded: GuardedBroker, path: str
) -> None:
    request = request_of(path)
    raw = raw_of(request)

    def answer(principal: str) -> bool:
        before, events = guarded.footprint(), len(guarded.audited())
        port = guarded.served.call(path, [raw], principal=principal)
        denied = is_denied(path, port)
        assert not denied or guarded.footprint() == before
        assert not denied or not port.sent or path in PUBLISHING
        _check_audit(path, principal, port, guarded.audited()[events:])
        return not denied

    mine = rules_for(path, "allowed", request)
    theirs = rules_for(path, "denied", request)
    denies = [one._replace(is_denied=True, operations=int(Operation.ALL)) for one in theirs]
    guarded.change(*mine, *(() if isinstance(NEEDS[path], Known) else theirs), *denies)

    is_open = NEEDS[path] == OPEN
    assert answer("") == is_open
    assert answer("stranger") == is_open
    assert answer("denied") == is_open
    assert answer("allowed")
    if guarded.world[1].node.state.stream(STREAM) is None:
        return  # the caller deleted it
    guarded.world.propose(SetAccess(is_on=True))
    guarded.change(revoked=mine)
    assert answer("allowed") == is_open
    assert answer(ROOT)


def _check_audit(
    path: str, principal: str, port: Port, events: Sequence[Mapping[str, object]]
) -> None:
    """Check that a changing call left one event, with its outcome, and any other call none."""
    assert len(events) == (path in AUDITED)
    for event in events:
        assert (event["principal"], event["method"], event["listener"]) == (principal, path, "main")
        assert event["resource"]
        status = None if port.end is None else port.end[0]
        assert (event["outcome"] == "PERMISSION_DENIED") == is_denied(path, port)
        assert (event["outcome"] == "OK") == (status == 0)
        assert (event["outcome"] == UNANSWERED) == (status is None)


OF_OPERATORS: Final = (ResourceKind.CLUSTER,)
"""Rights on these show all streams: whoever has them sees the cluster."""


def _names_a_stream(path: str) -> bool:
    needs = NEEDS[path]
    if not isinstance(needs, Known) and any(need.kind in OF_OPERATORS for need in needs):
        return False
    return raw_of(request_of(path, STREAM)) != raw_of(request_of(path, ABSENT))


NAMED: Final = sorted(filter(_names_a_stream, NEEDS))


def test_calls_of_every_service_for_clients_name_streams() -> None:
    services = {path.rpartition("/")[0] + "/" for path in NAMED}
    assert services == {API, DATA, "/liftbridge.ext.v1.Groups/"}
    assert len(NAMED) >= 20


@pytest.mark.parametrize("path", NAMED)
async def test_a_stream_that_may_not_be_seen_looks_like_one_that_does_not_exist(
    guarded: GuardedBroker, path: str
) -> None:
    """Also for a caller with every other right that the call needs, such as on its group."""
    assert len(STREAM) == len(ABSENT)
    known = NEEDS[path]
    needs = () if isinstance(known, Known) else known
    others = {
        rule("alice", need, name)
        for need in needs
        if need.kind not in (ResourceKind.STREAM, ResourceKind.CURSOR)
        for name in need.names(request_of(path))
    }
    guarded.change(rule("alice", READS_OTHER, "other"), *others)
    answers = []
    for name in (STREAM, ABSENT):
        before = guarded.footprint()
        port = guarded.served.call(path, [raw_of(request_of(path, name))], principal="alice")
        assert guarded.footprint() == before
        assert port.end is not None or path == DATA + "AwaitNews"
        code, text = port.end or (0, "")
        sent = bytes(port.sent).replace(name.encode(), b"?")
        answers.append((code, text.replace(name, "?"), sent))
    assert answers[0] == answers[1]


def _listed(guarded: GuardedBroker, principal: str) -> tuple[list[str], list[str], list[str]]:
    """Names in listings of all streams, and among streams with news."""
    metadata = guarded.served.call(API + "FetchMetadata", [b""], principal=principal)
    fetched = api_pb2.FetchMetadataResponse.FromString(bytes(metadata.sent[5:]))
    listing = guarded.served.call(DATA + "ListStreams", [b""], principal=principal)
    page = data_pb2.ListStreamsResponse.FromString(bytes(listing.sent[5:]))
    asked = data_pb2.AwaitNewsRequest()
    for name in (STREAM, "other"):
        asked.streams.add(name=name).high_watermarks[0] = 0
    news = guarded.served.call(DATA + "AwaitNews", [asked.SerializeToString()], principal=principal)
    told = data_pb2.AwaitNewsResponse.FromString(bytes(news.sent[5:])).streams
    names = [one.name for one in fetched.streamMetadata]
    return names, [one.settings.name for one in page.streams], sorted(told)


async def test_listings_show_what_the_caller_may_see(guarded: GuardedBroker) -> None:
    guarded.world.create("other", factor=1)
    guarded.change(rule("alice", READS_OTHER, "other"))
    assert _listed(guarded, ROOT) == ([STREAM, "other"], ["other", STREAM], [STREAM])
    # A stream that may not be seen has news, as one that does not exist.
    assert _listed(guarded, "alice") == (["other"], ["other"], [STREAM])


async def test_a_group_shows_itself_only_to_those_who_may_join_or_see_it(
    guarded: GuardedBroker,
) -> None:
    joined = JoinGroup(group_id="g", member_id="m", streams=(STREAM,))
    assert not isinstance(guarded.world.propose(joined), LiftbridgeError)
    guarded.change(
        rule("alice", Need(Operation.JOIN, ResourceKind.GROUP, lambda _: ()), "g"),
        rule("bob", READS_OTHER, "other"),
    )
    raw = api_pb2.FetchMetadataRequest(groups=["g"]).SerializeToString()
    seen = {}
    for principal in (ROOT, "alice", "bob"):
        port = guarded.served.call(API + "FetchMetadata", [raw], principal=principal)
        (group,) = api_pb2.FetchMetadataResponse.FromString(bytes(port.sent[5:])).groupMetadata
        seen[principal] = group.error == api_pb2.ConsumerGroupMetadata.OK, bool(group.coordinator)
    assert seen == {ROOT: (True, True), "alice": (True, True), "bob": (False, False)}


JOINS: Final = Need(Operation.JOIN, ResourceKind.GROUP, lambda _request: ("g",))
SEES: Final = Need(Operation.DESCRIBE, ResourceKind.GROUP, lambda _request: ("g",))
READS: Final = Need(Operation.READ, ResourceKind.STREAM, lambda _request: ())
GROUPS: Final = "/liftbridge.ext.v1.Groups/"


def _beat(guarded: GuardedBroker, *streams: str, epoch: int = 0) -> Port:
    request = groups_pb2.HeartbeatRequest(
        group_id="g", member_id="m", member_epoch=epoch, streams=streams
    )
    raw = request.SerializeToString()
    return guarded.served.call(GROUPS + "Heartbeat", [raw], principal="alice")


async def test_a_pattern_that_matches_a_denied_stream_is_refused(guarded: GuardedBroker) -> None:
    """Else the group would give its reader a stream that nobody may read, and name it."""
    everything = rule("alice", READS, "")._replace(match=NameMatch.PREFIX)
    guarded.change(rule("alice", JOINS, "g"), everything)
    assert _beat(guarded, "pre*").end == (GrpcStatus.INVALID_ARGUMENT, ANY)
    guarded.change(rule("alice", READS, STREAM, is_denied=True))
    for pattern in (">", "*"):
        port = _beat(guarded, pattern)
        assert is_denied(GROUPS + "Heartbeat", port)
        assert not guarded.world[1].node.state.groups
    assert _beat(guarded, "other.>").end == (0, "")
    five = [f"other.{number}.>" for number in range(5)]
    assert _beat(guarded, *five).end == (
        GrpcStatus.INVALID_ARGUMENT,
        "streams: 5 patterns listed, at most 4",
    )


async def test_a_group_names_no_stream_that_the_caller_may_not_see(guarded: GuardedBroker) -> None:
    granted = rule("alice", READS, STREAM)
    guarded.change(rule("alice", JOINS, "g"), rule("alice", SEES, "g"), granted)
    joined = groups_pb2.HeartbeatResponse.FromString(bytes(_beat(guarded, STREAM).sent[5:]))
    assert [one.stream for one in joined.assigned] == [STREAM]

    def described() -> list[str]:
        raw = groups_pb2.DescribeGroupRequest(group_id="g").SerializeToString()
        port = guarded.served.call(GROUPS + "DescribeGroup", [raw], principal="alice")
        (member,) = groups_pb2.DescribeGroupResponse.FromString(bytes(port.sent[5:])).members
        parts = (*member.target, *member.held)
        return [*member.streams, *(one.stream for one in parts)]

    assert described() == [STREAM] * 3
    guarded.change(revoked=(granted,))
    assert described() == []
    answer = _beat(guarded, epoch=joined.member_epoch)
    assert answer.end == (0, "")
    assert not groups_pb2.HeartbeatResponse.FromString(bytes(answer.sent[5:])).assigned


async def test_a_position_needs_the_right_to_read_its_stream(guarded: GuardedBroker) -> None:
    granted = rule("alice", READS, STREAM)
    guarded.change(rule("alice", JOINS, "g"), granted)
    joined = groups_pb2.HeartbeatResponse.FromString(bytes(_beat(guarded, STREAM).sent[5:]))
    request = groups_pb2.CommitPositionsRequest(
        group_id="g",
        member_id="m",
        member_epoch=joined.member_epoch,
        group_epoch=joined.group_epoch,
    )
    request.positions.add(stream=STREAM, offset=0)

    def commit() -> Port:
        path, raw = GROUPS + "CommitPositions", request.SerializeToString()
        return guarded.served.call(path, [raw], principal="alice")

    assert commit().end == (GrpcStatus.INTERNAL, "Cursors stream does not exist")
    guarded.change(revoked=(granted,))
    assert is_denied(GROUPS + "CommitPositions", commit())


@pytest.mark.parametrize("path", [API + "JoinConsumerGroup", GROUPS + "Heartbeat"])
async def test_a_request_names_only_as_many_resources_as_can_be_checked_in_a_turn(
    guarded: GuardedBroker, path: str
) -> None:
    everything = rule("alice", READS, "")._replace(match=NameMatch.PREFIX)
    guarded.change(rule("alice", JOINS, "a-group"), everything)
    request = request_of(path)
    assert isinstance(request, api_pb2.JoinConsumerGroupRequest | groups_pb2.HeartbeatRequest)
    request.streams.extend(map(str, range(NAMES_MAX)))
    port = guarded.served.call(path, [request.SerializeToString()], principal="alice")
    assert port.end == (
        GrpcStatus.INVALID_ARGUMENT,
        f"streams: more than {NAMES_MAX} listed; send several requests",
    )


async def test_a_page_of_streams_is_full_and_names_no_hidden_one(guarded: GuardedBroker) -> None:
    for name in ("a", "b", "c", "d"):
        guarded.world.create(name, factor=1)
    guarded.change(
        *(rule("alice", READS_OTHER, name) for name in ("a", "c", "d")),
    )
    request = data_pb2.ListStreamsRequest(page_size=2).SerializeToString()
    port = guarded.served.call(DATA + "ListStreams", [request], principal="alice")
    page = data_pb2.ListStreamsResponse.FromString(bytes(port.sent[5:]))
    assert [one.settings.name for one in page.streams] == ["a", "c"]
    assert page.next_page_token == "c"


@pytest.fixture
def three() -> tuple[ClusterWorld, list[GuardedBroker]]:
    return guarded_cluster()


async def test_a_revocation_ends_running_reads_on_every_broker_within_two_seconds(
    three: tuple[ClusterWorld, list[GuardedBroker]],
) -> None:
    world, everyone = three
    reads = Need(Operation.READ, ResourceKind.STREAM, lambda _request: ())
    granted = rule("alice", reads, STREAM)
    everyone[0].change(granted)
    world.run(200)
    requests: Mapping[str, Message] = {
        API + "Subscribe": api_pb2.SubscribeRequest(stream=STREAM, readISRReplica=True),
        DATA + "FetchBatches": data_pb2.FetchBatchesRequest(
            stream=STREAM, follow=True, read_replica=True
        ),
    }
    running: list[tuple[GuardedBroker, str, Call, Port]] = []
    for one in everyone:
        for path, request in requests.items():
            raw = request.SerializeToString()
            call, port = one.served.open(path, [raw], principal="alice")
            assert port.end is None, port.end
            other, _ = one.served.open(path, [raw], principal=ROOT)
            running.append((one, path, call, port))
            assert other.is_open
    world.run(500)
    assert all(port.sent for *_, port in running)
    began = world.now
    everyone[0].change(revoked=(granted,))
    world.run(500)
    assert world.now - began < 2 * SECOND_NS
    for one, path, call, port in running:
        assert is_denied(path, port), port.end
        assert not call.is_open
        assert one.enforcement.clients.followed_count == 2  # those of root


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        (
            API + "Subscribe",
            api_pb2.SubscribeRequest(
                stream=STREAM, readISRReplica=True, startPosition=api_pb2.LATEST
            ),
        ),
        (DATA + "FetchBatches", data_pb2.FetchBatchesRequest(stream=STREAM, read_replica=True)),
    ],
)
async def test_a_read_begins_by_the_rules_of_its_begin(
    three: tuple[ClusterWorld, list[GuardedBroker]], path: str, request_: Message
) -> None:
    world, everyone = three
    reads = Need(Operation.READ, ResourceKind.STREAM, lambda _request: ())
    granted = rule("alice", reads, STREAM)
    everyone[0].change(granted)
    world.run(200)
    follower = next(one for one in (1, 2, 3) if world[one] is not world.leader(STREAM))
    guarded = everyone[follower - 1]
    call, port = guarded.served.open(path, [request_.SerializeToString()], principal="alice")
    assert call.is_open
    assert not port.sent  # it asks the leader where the log ends
    guarded.enforcement.clients.gate.enforce([RuleSet()])
    world.run(500)
    assert is_denied(path, port), port.end
    assert not port.sent
    assert guarded.enforcement.clients.followed_count == 0


async def test_rules_of_a_snapshot_are_in_force_at_once(guarded: GuardedBroker) -> None:
    reads = Need(Operation.READ, ResourceKind.STREAM, lambda _request: ())
    granted = rule("alice", reads, STREAM)
    guarded.change(granted)
    raw = api_pb2.SubscribeRequest(stream=STREAM).SerializeToString()
    path = API + "Subscribe"
    call, port = guarded.served.open(path, [raw], principal="alice")
    assert call.is_open
    node = guarded.world[1].node
    node.state.access.rules.put(granted._replace(operations=0))
    node.on_restored()
    assert is_denied(path, port), port.end


async def test_a_revocation_refuses_further_messages_of_a_running_call(
    guarded: GuardedBroker,
) -> None:
    publishes = Need(Operation.PUBLISH, ResourceKind.STREAM, lambda _request: ())
    granted = rule("alice", publishes, STREAM)
    guarded.change(granted)
    path = API + "PublishAsync"
    message = api_pb2.PublishRequest(stream=STREAM, value=b"x", correlationId="c")
    raw = message.SerializeToString()
    call, port = guarded.served.open(path, [raw], principal="alice")
    assert not is_denied(path, port)
    end = guarded.footprint()[1]
    guarded.change(revoked=(granted,))
    port.sent.clear()
    guarded.served.send(call, port, [raw])
    assert is_denied(path, port)
    response = api_pb2.PublishResponse.FromString(bytes(port.sent[5:]))
    assert response.correlationId == "c"
    assert response.asyncError.message == (
        f"The client is not authorized to call PublishAsync on resource {STREAM}"
    )
    assert guarded.footprint()[1] == end


async def test_a_partition_stays_paused_for_a_subscriber_that_may_not_read(
    guarded: GuardedBroker,
) -> None:
    """The original resumes it first."""
    path = API + "PauseStream"
    pause = api_pb2.PauseStreamRequest(name=STREAM).SerializeToString()
    assert guarded.served.call(path, [pause], principal=ROOT).end == (0, "")
    raw = api_pb2.SubscribeRequest(stream=STREAM, resume=True).SerializeToString()
    port = guarded.served.call(API + "Subscribe", [raw], principal="alice")
    assert is_denied(API + "Subscribe", port)
    state = guarded.world[1].node.state.stream(STREAM)
    assert state is not None
    assert state.partitions[0].paused


async def test_an_ack_goes_to_no_subject_that_the_caller_may_not_publish_to(
    guarded: GuardedBroker,
) -> None:
    publishes = Need(Operation.PUBLISH, ResourceKind.STREAM, lambda _request: ())
    guarded.change(rule("alice", publishes, STREAM))
    message = api_pb2.PublishRequest(stream=STREAM, value=b"x", ackInbox="bank.transfers")
    before = guarded.footprint()
    port = guarded.served.call(API + "Publish", [message.SerializeToString()], principal="alice")
    assert port.end == (
        GrpcStatus.PERMISSION_DENIED,
        "The client is not authorized to call Publish on resource bank.transfers",
    )
    assert guarded.footprint() == before


async def test_a_stream_of_several_partitions_needs_all_its_subjects(
    guarded: GuardedBroker,
) -> None:
    creates = Need(Operation.CREATE, ResourceKind.STREAM, lambda _request: ())
    attaches = Need(Operation.ATTACH, ResourceKind.SUBJECT, lambda _request: ())
    guarded.change(rule("alice", creates, "new"), rule("alice", attaches, "shop"))
    request = api_pb2.CreateStreamRequest(name="new", subject="shop", partitions=2)
    raw = request.SerializeToString()
    port = guarded.served.call(API + "CreateStream", [raw], principal="alice")
    assert port.end == (
        GrpcStatus.PERMISSION_DENIED,
        "The client is not authorized to call CreateStream on resource shop.*",
    )
    more = rule("alice", attaches, "shop.*")._replace(match=NameMatch.PATTERN)
    guarded.change(more)
    assert guarded.served.call(API + "CreateStream", [raw], principal="alice").end == (0, "")


async def test_brokers_store_cursors_without_any_right_to_publish(guarded: GuardedBroker) -> None:
    """`SetCursor` needs a right on the cursor alone; in the original, also on `__cursors`."""
    sets = Need(Operation.SET, ResourceKind.CURSOR, lambda _request: ())
    guarded.change(rule("alice", sets, f"{STREAM}/c"))
    request = api_pb2.SetCursorRequest(stream=STREAM, cursorId="c", offset=1)
    port = guarded.served.call(API + "SetCursor", [request.SerializeToString()], principal="alice")
    assert port.end == (GrpcStatus.INTERNAL, "Cursors stream does not exist")


def test_denials_are_counted_all_and_reported_ten_a_second() -> None:
    world = at_level(ClusterWorld(1))
    member, now = world[1], [Instant(1)]
    access = AccessControl(member, lambda: now[0])
    enforced = Enforcement(
        AccessOptions(is_enabled=True), member, WorldClock(world), has_operators=True
    )
    access.gate.enforce(enforced.clients.gate._sets)
    call = Call(Port(), 1, method=API + "DeleteStream", peer="p", deadline=None)
    request = api_pb2.DeleteStreamRequest(name="s" * 1_000)
    for _ in range(REPORTS_MAX + 5):
        with pytest.raises(PermissionDeniedError, match="s" * 256 + "$"):
            access.authorize(call, request)
    assert access.denied_counts == {"DeleteStream": REPORTS_MAX + 5}
    assert member.told_count("access_denied") == REPORTS_MAX
    now[0] = Instant(now[0] + SECOND_NS)
    with pytest.raises(PermissionDeniedError):
        access.authorize(call, request)
    assert member.told_count("access_denied") == REPORTS_MAX + 1


def test_a_method_without_an_entry_is_refused() -> None:
    world = at_level(ClusterWorld(1))
    enforcement = Enforcement(
        AccessOptions(is_enabled=True, super_users=(ROOT,)),
        world[1],
        WorldClock(world),
        has_operators=True,
    )
    call = Call(Port(principal=ROOT), 1, method="/new.Service/New", peer="", deadline=None)
    with pytest.raises(PermissionDeniedError):
        enforcement.clients.authorize(call, object())
