"""Who may call what: every method of every service, for callers of every kind.

Methods and requests come from the descriptors of the services, and the rules that let a caller in
from the table of what methods need: a method without an entry there fails here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from liftbridge_broker.access.principals import ANONYMOUS, Principal
from liftbridge_broker.access.rules import AccessRule, NameMatch, Operation, ResourceKind
from liftbridge_broker.api.access.control import REPORTS_MAX, AccessControl
from liftbridge_broker.api.access.needs import NEEDS, OPEN, Known, Need
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.grpc.health import Health
from liftbridge_broker.config.options import AccessOptions, BrokerOptions, GrpcOptions
from liftbridge_broker.controller.callers.commands import ACCESS_LEVEL, ChangeRules, SetAccess
from liftbridge_broker.controller.commands import SetFeatureLevel
from liftbridge_broker.controller.consumer_groups.commands import JoinGroup
from liftbridge_broker.errors import GrpcStatus, LiftbridgeError, PermissionDeniedError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.server.access import Enforcement
from liftbridge_broker.server.admin import register_admin, register_quotas, register_tokens
from liftbridge_broker.server.services import make_api
from liftbridge_broker.wire.snapshots import encode_state
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.admin_calls import admin_of
from liftbridge_testkit.client_calls import WorldClock
from liftbridge_testkit.cluster_world import ClusterWorld, Member
from liftbridge_testkit.request_lists import SERVICES
from liftbridge_testkit.served_calls import Port, Served

ROOT: Final = "root"
STREAM: Final = "present"
ABSENT: Final = "missing"
API: Final = "/proto.API/"
DATA: Final = "/liftbridge.ext.v1.Data/"
TEXTS: Final[Mapping[str, str]] = {
    "name": STREAM,
    "stream": STREAM,
    "subject": "a.subject",
    "cursorId": "a-cursor",
    "groupId": "a-group",
    "group_id": "a-group",
    "ackInbox": "an.inbox",
}
PUBLISHING: Final = (API + "PublishAsync", DATA + "PublishBatch")
BY_HAND: Final[Mapping[str, bytes]] = {path: b"" for path in NEEDS if path.startswith("/grpc.")}
"""Requests of services of gRPC itself."""


@dataclass
class Guarded:
    """A broker with access control on."""

    served: Served
    enforcement: Enforcement

    @property
    def world(self) -> ClusterWorld:
        return self.served.world

    def change(self, *granted: AccessRule, revoked: tuple[AccessRule, ...] = ()) -> None:
        outcome = self.world.propose(ChangeRules(granted=granted, revoked=revoked))
        assert not isinstance(outcome, LiftbridgeError), outcome

    def footprint(self) -> tuple[bytes, int]:
        """What a call could change: metadata and records."""
        member = self.world[1]
        partition = member.node.find_replica(STREAM, 0)
        return encode_state(member.node.state), partition.log.log_end_offset


def at_level(world: ClusterWorld) -> ClusterWorld:
    """The world, with the level that access rules need."""
    outcome = world.propose(SetFeatureLevel(feature_level=ACCESS_LEVEL))
    assert not isinstance(outcome, LiftbridgeError), outcome
    return world


def guard(world: ClusterWorld, number: int = 1) -> Guarded:
    member = world[number]
    options = BrokerOptions(grpc=GrpcOptions(has_reflection=True))
    clock = WorldClock(world)
    enforcement = Enforcement(AccessOptions(), member, clock, has_operators=True)
    enforcement.attach(member.node)
    health = Health()
    api = make_api(options, member.node, clock, member, health, access=enforcement.clients)
    api.context.turns = None
    admin = admin_of(world, number).context
    register_admin(api.server, admin, enforcement.clients, member)
    register_tokens(api.server, admin)
    register_quotas(api.server, admin)
    return Guarded(Served(world, api.server), enforcement)


@pytest.fixture
def guarded() -> Guarded:
    world = at_level(ClusterWorld(1))
    world.create(STREAM, factor=1)
    world.commit(b"v", name=STREAM)
    found = guard(world)
    outcome = world.propose(SetAccess(is_on=True, super_users=(ROOT,)))
    assert not isinstance(outcome, LiftbridgeError), outcome
    return found


def about(message: Message, stream: str = STREAM) -> Message:
    """The message with a name in every field that is one, also in messages within it."""
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            if field.name == "streams" and field.message_type is None:
                message.streams.append(stream)  # type: ignore[attr-defined] # by the descriptor
        elif field.message_type is not None:
            if field.name in ("stream", "cursor"):
                about(getattr(message, field.name), stream)
        elif field.name in TEXTS:
            setattr(message, field.name, TEXTS[field.name].replace(STREAM, stream))
    return message


def request_of(path: str, stream: str = STREAM) -> Message | bytes:
    if path in BY_HAND:
        return BY_HAND[path]
    service, _, name = path[1:].rpartition("/")
    (method,) = (
        one
        for known in SERVICES
        for one in known.methods
        if (known.full_name, one.name) == (service, name)
    )
    return about(GetMessageClass(method.input_type)(), stream)


def raw_of(request: Message | bytes) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


def rule(principal: str, need: Need, name: str, *, is_denied: bool = False) -> AccessRule:
    return AccessRule(
        principal=principal,
        is_group=False,
        kind=need.kind,
        match=NameMatch.EXACT,
        name=name,
        is_denied=is_denied,
        operations=int(Operation.ALL if is_denied else need.operation),
    )


READS_OTHER: Final = Need(Operation.READ, ResourceKind.STREAM, lambda _request: ("other",))


def rules_for(path: str, principal: str, request: Message | bytes) -> tuple[AccessRule, ...]:
    """Rules that allow a principal exactly one call."""
    needs = NEEDS[path]
    if isinstance(needs, Known):
        return (rule(principal, READS_OTHER, "other"),)
    return tuple(rule(principal, need, name) for need in needs for name in need.names(request))


def is_denied(path: str, port: Port) -> bool:
    """Whether a call, or the message of a publishing call, was refused; checks the text."""
    if path == API + "PublishAsync":
        response = api_pb2.PublishResponse.FromString(bytes(port.sent[5:]))
        return response.asyncError.code == api_pb2.PublishAsyncError.PERMISSION_DENIED
    if path == DATA + "PublishBatch":
        answer = data_pb2.PublishBatchResponse.FromString(bytes(port.sent[5:]))
        return answer.error == data_pb2.PublishBatchResponse.PERMISSION_DENIED
    if port.end is None or port.end[0] != GrpcStatus.PERMISSION_DENIED:
        return False
    rpc = path.rpartition("/")[2]
    assert port.end[1].startswith(f"The client is not authorized to call {rpc} on resource ")
    return True


def test_every_method_has_an_entry_and_every_entry_a_method(guarded: Guarded) -> None:
    described = {f"/{one.full_name}/{each.name}" for one in SERVICES for each in one.methods}
    assert set(NEEDS) == described | set(BY_HAND)
    assert set(guarded.served.server._methods) == set(NEEDS)


@pytest.mark.parametrize("path", sorted(NEEDS))
async def test_a_method_serves_exactly_those_whom_the_rules_allow(
    guarded: Guarded, path: str
) -> None:
    request = request_of(path)
    raw = raw_of(request)

    def answer(principal: str) -> bool:
        before = guarded.footprint()
        port = guarded.served.call(path, [raw], principal=principal)
        denied = is_denied(path, port)
        assert not denied or guarded.footprint() == before
        assert not denied or not port.sent or path in PUBLISHING
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


NAMED: Final = sorted(
    path
    for path, needs in NEEDS.items()
    if path.startswith((API, DATA)) and needs != OPEN and path != DATA + "ListStreams"
)


@pytest.mark.parametrize("path", NAMED)
async def test_a_stream_that_may_not_be_seen_looks_like_one_that_does_not_exist(
    guarded: Guarded, path: str
) -> None:
    assert len(STREAM) == len(ABSENT)
    guarded.change(rule("alice", READS_OTHER, "other"))
    answers = []
    for name in (STREAM, ABSENT):
        port = guarded.served.call(path, [raw_of(request_of(path, name))], principal="alice")
        assert port.end is not None or path == DATA + "AwaitNews"
        code, text = port.end or (0, "")
        sent = bytes(port.sent).replace(name.encode(), b"?")
        answers.append((code, text.replace(name, "?"), sent))
    assert answers[0] == answers[1]


def _listed(guarded: Guarded, principal: str) -> tuple[list[str], list[str], list[str]]:
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


async def test_listings_show_what_the_caller_may_see(guarded: Guarded) -> None:
    guarded.world.create("other", factor=1)
    guarded.change(rule("alice", READS_OTHER, "other"))
    assert _listed(guarded, ROOT) == ([STREAM, "other"], ["other", STREAM], [STREAM])
    # A stream that may not be seen has news, as one that does not exist.
    assert _listed(guarded, "alice") == (["other"], ["other"], [STREAM])


async def test_a_group_shows_itself_only_to_those_who_may_join_or_see_it(guarded: Guarded) -> None:
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


async def test_a_page_of_streams_is_full_and_names_no_hidden_one(guarded: Guarded) -> None:
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
def three() -> tuple[ClusterWorld, list[Guarded]]:
    world = at_level(ClusterWorld(3))
    world.create(STREAM, factor=3)
    world.commit(b"v", name=STREAM)
    world.run(100)
    everyone = [guard(world, number) for number in (1, 2, 3)]
    outcome = world.propose(SetAccess(is_on=True, super_users=(ROOT,)))
    assert not isinstance(outcome, LiftbridgeError), outcome
    world.run(200)
    return world, everyone


async def test_a_revocation_ends_running_reads_on_every_broker_within_two_seconds(
    three: tuple[ClusterWorld, list[Guarded]],
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
    running: list[tuple[Guarded, str, Call, Port]] = []
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


async def test_a_revocation_refuses_further_messages_of_a_running_call(guarded: Guarded) -> None:
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
    guarded: Guarded,
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
    guarded: Guarded,
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


async def test_a_stream_of_several_partitions_needs_all_its_subjects(guarded: Guarded) -> None:
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


async def test_brokers_store_cursors_without_any_right_to_publish(guarded: Guarded) -> None:
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


# -- what is in force on a broker ----------------------------------------------------------------


def _may(control: AccessControl, who: Principal, name: str = STREAM) -> bool:
    return control.gate.allows(who, Operation.READ, ResourceKind.STREAM, name)


def _enforcement(member: Member, world: ClusterWorld, **options: object) -> Enforcement:
    found = Enforcement(
        AccessOptions(**options),  # type: ignore[arg-type] # as the caller says
        member,
        WorldClock(world),
        has_operators=True,
    )
    found.attach(member.node)
    return found


def test_a_broker_whose_settings_ask_for_it_turns_it_on_for_all(
    three: tuple[ClusterWorld, list[Guarded]],
) -> None:
    world, everyone = three
    world.propose(SetAccess(is_on=False))
    world.run(200)
    assert not any(one.enforcement.clients.gate.is_closed for one in everyone)
    asking = _enforcement(world[2], world, is_enabled=True, super_users=("eve",))
    asking.look()
    asking.look()
    world.run(500)
    for number in (1, 3):
        assert world[number].node.state.access.is_on
        assert everyone[number - 1].enforcement.clients.gate.is_closed
    # There were rules: the super-users of the setting come too late.
    assert not _may(asking.clients, Principal("eve"))
    assert _may(asking.clients, Principal(ROOT))


def test_before_it_is_on_in_the_cluster_only_super_users_are_let_in() -> None:
    world = at_level(ClusterWorld(1))
    before = Enforcement(
        AccessOptions(is_enabled=True, super_users=(ROOT,)),
        world[1],
        WorldClock(world),
        has_operators=True,
    )
    for control in (before.clients, before.operators):
        assert _may(control, Principal(ROOT))
        assert not _may(control, ANONYMOUS)
    before.attach(world[1].node)
    assert _may(before.clients, Principal(ROOT))
    before.look()
    world.run(100)
    assert world[1].node.state.access.is_on


def test_why_it_is_not_on_is_reported_once() -> None:
    world = at_level(ClusterWorld(1))
    lonely = _enforcement(world[1], world, is_enabled=True)
    for _ in range(3):
        lonely.look()
        world.run(100)
    assert world[1].told_count("access_control_not_on") == 1
    assert not _may(lonely.clients, Principal(ROOT))

    world[1].node.state.feature_level = 3
    old = _enforcement(world[1], world, is_enabled=True, super_users=(ROOT,))
    old.look()
    world.run(100)
    assert world[1].told_count("access_control_not_on") == 2
    assert _may(old.clients, Principal(ROOT))
    assert not world[1].node.state.access.is_on


def test_super_users_of_the_settings_can_always_mend_the_rules() -> None:
    world = at_level(ClusterWorld(1))
    world.propose(SetAccess(is_on=True, super_users=("other",)))
    found = _enforcement(world[1], world, is_enabled=True, super_users=(ROOT,))
    assert _may(found.operators, Principal(ROOT))
    assert not _may(found.clients, Principal(ROOT))
    assert _may(found.operators, Principal("other"))


def test_a_plain_operator_port_trusts_whoever_reaches_it() -> None:
    world = at_level(ClusterWorld(1))
    plain = Enforcement(
        AccessOptions(is_enabled=True, super_users=(ROOT,)),
        world[1],
        WorldClock(world),
        has_operators=False,
    )
    assert _may(plain.operators, ANONYMOUS)
    assert not _may(plain.clients, ANONYMOUS)
