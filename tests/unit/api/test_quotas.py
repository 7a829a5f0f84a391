"""Quotas at a broker: who is above one is slowed down or refused, on every way in and out."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from google.protobuf.message import Message

from liftbridge_broker.access.identities import Identity
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.access.quotas import Direction, Quota, QuotaKey, QuotaKind
from liftbridge_broker.api.context import Context
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.grpc.health import Health
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.api.quota_gate import LOOK_NS
from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.errors import GrpcStatus
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.server.services import make_api
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.client_calls import WorldClock
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.served_calls import Port

API = "/proto.API/"
DATA = "/liftbridge.ext.v1.Data/"
VALUE = b"v" * 101  # an even request
LOOK_SECONDS = LOOK_NS / SECOND_NS


@dataclass
class ReadingPort(Port):
    """A connection that knows whether its call is read."""

    is_read: bool = True

    def set_reading(self, _stream_id: int, *, is_reading: bool) -> None:
        """Keep whether the call is read."""
        self.is_read = is_reading


@dataclass
class Timers:
    """The timers of an event loop that time never reaches by itself."""

    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def call_later(self, seconds: float, act: Callable[[], None]) -> "Timers":
        """Keep an action."""
        self.due.append((seconds, act))
        return self

    def time(self) -> float:
        """Return the time at which calls have all of their time left."""
        return 0.0

    def cancel(self) -> None:
        """Cancel all, as there is one."""
        self.due.clear()

    def fire(self) -> float:
        """Run the first action; return after how many seconds it was due."""
        seconds, act = self.due.pop(0)
        act()
        return seconds


@dataclass
class Clients:
    """Clients of the only broker of a world."""

    world: ClusterWorld
    server: GrpcServer
    context: Context
    timers: Timers

    def quota(self, kind: QuotaKind, name: str, quota: Quota) -> None:
        """Set a quota, as the metadata do."""
        self.world[1].node.state.quotas[QuotaKey(kind, name)] = quota

    def call(self, path: str, *messages: bytes, of: str = "billing") -> tuple[Call, ReadingPort]:
        """Begin a call and send its requests."""
        port = ReadingPort()
        call = Call(port, 1, method=path, peer="", deadline=60.0)
        call.identity = Identity(Principal(of))
        handler = self.server.method(path)
        assert handler is not None
        handler(call)
        call.on_messages(list(messages))
        if self.server.is_unary(path):
            steps = call.on_half_close()
            if steps is not None:
                port.steps.append(steps)
        self.settle(port)
        return call, port

    def settle(self, port: ReadingPort) -> None:
        """Run all steps of a call, and the broker."""
        while port.steps or self.world[1].take_turn():
            if port.steps and next(port.steps[0], self) is self:
                port.steps.popleft()


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    world, timers = ClusterWorld(1), Timers()
    world.create(factor=1)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    api = make_api(BrokerOptions(), world[1].node, WorldClock(world), world[1], Health())
    api.context.turns = None
    return Clients(world, api.server, api.context, timers)


def publish(value: bytes = VALUE) -> bytes:
    return api_pb2.PublishRequest(stream="s", value=value).SerializeToString()


def batch(count: int) -> bytes:
    request = data_pb2.PublishBatchRequest(stream="s", values=[VALUE] * count)
    return request.SerializeToString()


HEADERS = {"h": VALUE}


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        (API + "Publish", api_pb2.PublishRequest(stream="s", headers=HEADERS)),
        (API + "PublishAsync", api_pb2.PublishRequest(stream="s", headers=HEADERS)),
        (API + "PublishToSubject", api_pb2.PublishToSubjectRequest(subject="x", headers=HEADERS)),
        (
            DATA + "PublishBatch",
            data_pb2.PublishBatchRequest(
                stream="s", values=[b""], headers=[data_pb2.RecordHeaders(headers=HEADERS)]
            ),
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_bytes_in_headers_are_charged_on_every_way_in(
    clients: Clients, path: str, request_: Message
) -> None:
    """Else a client could put everything there."""
    clients.quota(QuotaKind.PRINCIPAL, "billing", Quota(publish_bytes=1))
    raw = request_.SerializeToString()
    clients.call(path, raw)
    owed = clients.context.quotas.debt_of("billing", Direction.PUBLISH)
    assert owed == (len(raw) - 1) * SECOND_NS


OWNERS = [(QuotaKind.PRINCIPAL, "billing"), (QuotaKind.PRINCIPAL, "*"), (QuotaKind.STREAM, "s")]
# A batch of a size that three divides, as thirty messages have.
STREAMING = [(API + "PublishAsync", [publish()] * 30), (DATA + "PublishBatch", [batch(30)])]


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize(("path", "requests"), STREAMING)
@pytest.mark.parametrize("limit", ["publish_messages", "publish_bytes"])
def test_publishers_above_a_rate_are_read_no_further_until_they_have_paid(
    clients: Clients, owner: tuple[QuotaKind, str], path: str, requests: list[bytes], limit: str
) -> None:
    used = {"publish_messages": 30, "publish_bytes": sum(map(len, requests))}
    clients.quota(*owner, Quota(**{limit: used[limit] // 3}))
    _, port = clients.call(path, *requests)
    assert clients.world[1].node.find_led("s", 0).log.log_end_offset == 30
    assert not port.is_read
    assert [seconds for seconds, _ in clients.timers.due] == [2.0]
    clients.timers.fire()
    assert not port.is_read  # a timer may fire early
    clients.world.now = Instant(clients.world.now + 2 * SECOND_NS)
    clients.timers.fire()
    assert port.is_read
    assert clients.context.quotas.delays_ns == {(owner[0], "publish"): 2 * SECOND_NS}


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize(("path", "requests"), STREAMING)
def test_a_larger_quota_frees_publishers_that_wait(
    clients: Clients, owner: tuple[QuotaKind, str], path: str, requests: list[bytes]
) -> None:
    clients.quota(*owner, Quota(publish_messages=1))
    _, port = clients.call(path, *requests)
    assert clients.timers.fire() == LOOK_SECONDS
    assert not port.is_read
    clients.quota(*owner, Quota(publish_messages=1_000_000))
    clients.world.now = Instant(clients.world.now + SECOND_NS)
    assert clients.timers.fire() == LOOK_SECONDS
    clients.world.now = Instant(clients.world.now + SECOND_NS)
    assert clients.timers.fire() < 0.01  # what is owed takes no longer by now
    assert port.is_read
    assert not clients.timers.due


@pytest.mark.parametrize("owner", OWNERS)
def test_the_ack_of_a_single_message_comes_later(
    clients: Clients, owner: tuple[QuotaKind, str]
) -> None:
    clients.quota(*owner, Quota(publish_bytes=len(publish()) // 2))
    _, port = clients.call(API + "Publish", publish())
    assert port.end is None
    assert clients.world[1].node.find_led("s", 0).log.log_end_offset == 1
    assert clients.timers.fire() == 1.0
    assert port.end == (GrpcStatus.OK, "")


def test_the_ack_comes_before_the_deadline_of_its_call(clients: Clients) -> None:
    clients.quota(QuotaKind.STREAM, "s", Quota(publish_bytes=1))
    _, port = clients.call(API + "Publish", publish())
    assert clients.timers.fire() == 30.0
    assert port.end == (GrpcStatus.OK, "")


def test_an_ack_that_waited_longer_than_its_call_is_dropped(clients: Clients) -> None:
    clients.quota(QuotaKind.STREAM, "s", Quota(publish_bytes=1))
    call, port = clients.call(API + "Publish", publish())
    call.cancel()
    clients.timers.fire()
    assert port.end is None


def test_who_owes_too_much_is_refused_and_nothing_is_stored(clients: Clients) -> None:
    clients.quota(QuotaKind.PRINCIPAL, "billing", Quota(publish_bytes=10))
    clients.call(API + "PublishAsync", *[publish()] * 3)
    end = clients.world[1].node.find_led("s", 0).log.log_end_offset
    with pytest.raises(Exception, match="quota of principal billing exceeded: 10 bytes/s, 30 s"):
        clients.call(API + "Publish", publish())
    _, port = clients.call(API + "PublishAsync", publish(), publish())
    answer = api_pb2.PublishResponse.FromString(bytes(port.sent[5 : 5 + port.sent[4]]))
    assert "publish more slowly or get a larger quota" in answer.asyncError.message
    _, port = clients.call(DATA + "PublishBatch", batch(2))
    response = data_pb2.PublishBatchResponse.FromString(bytes(port.sent[5:]))
    assert response.error == data_pb2.PublishBatchResponse.UNAVAILABLE
    assert clients.world[1].node.find_led("s", 0).log.log_end_offset == end
    assert clients.context.quotas.refusal_counts == {("publish",): 5}
    _, port = clients.call(API + "Publish", publish(), of="another")
    assert port.end == (GrpcStatus.OK, "")


SUBSCRIBE = api_pb2.SubscribeRequest(stream="s", startPosition=api_pb2.EARLIEST).SerializeToString()
FETCH = data_pb2.FetchBatchesRequest(stream="s", follow=True).SerializeToString()
READS = [(API + "Subscribe", SUBSCRIBE), (DATA + "FetchBatches", FETCH)]


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize(("path", "request_bytes"), READS)
@pytest.mark.parametrize("quota", [Quota(read_messages=10), Quota(read_bytes=1_000)])
def test_readers_above_a_rate_get_nothing_more_until_they_have_paid(
    clients: Clients,
    owner: tuple[QuotaKind, str],
    path: str,
    request_bytes: bytes,
    quota: Quota,
) -> None:
    clients.call(DATA + "PublishBatch", batch(50), of="another")
    clients.quota(*owner, quota)
    call, port = clients.call(path, request_bytes)
    received = len(port.sent)
    assert received > 0
    assert call.on_writable is not None
    call.on_writable()
    assert len(port.sent) == received
    for _ in range(100):
        if not clients.timers.due:
            break
        seconds, _ = clients.timers.due[0]
        clients.world.now = Instant(clients.world.now + int(seconds * SECOND_NS) + 1)
        clients.timers.fire()
        clients.settle(port)
    assert port.sent.count(VALUE) == 50
    call.cancel()
    assert not clients.timers.due


@pytest.mark.parametrize(("path", "request_bytes"), READS)
def test_a_larger_quota_frees_readers_that_wait(
    clients: Clients, path: str, request_bytes: bytes
) -> None:
    clients.call(DATA + "PublishBatch", batch(50), of="another")
    clients.call(DATA + "PublishBatch", batch(50), of="another")
    clients.quota(QuotaKind.STREAM, "s", Quota(read_messages=1, read_bytes=1_000))
    _, port = clients.call(path, request_bytes)
    assert port.sent.count(VALUE) < 100
    assert clients.timers.fire() == LOOK_SECONDS
    assert port.sent.count(VALUE) < 100
    clients.quota(QuotaKind.STREAM, "s", Quota(read_messages=1_000_000, read_bytes=10**9))
    clients.world.now = Instant(clients.world.now + SECOND_NS)
    assert clients.timers.fire() == LOOK_SECONDS
    while port.sent.count(VALUE) < 100:
        clients.world.now = Instant(clients.world.now + SECOND_NS)
        assert clients.timers.fire() < 0.1


@pytest.mark.parametrize(("path", "request_bytes"), READS)
def test_open_subscriptions_of_a_principal_are_bounded(
    clients: Clients, path: str, request_bytes: bytes
) -> None:
    clients.quota(QuotaKind.PRINCIPAL, "billing", Quota(subscriptions=2))
    first, _ = clients.call(path, request_bytes)
    clients.call(path, request_bytes)
    _, port = clients.call(path, request_bytes)
    assert port.end is not None
    assert port.end[0] == GrpcStatus.RESOURCE_EXHAUSTED
    assert "quota of principal billing exceeded: 2 subscriptions are open" in port.end[1]
    assert clients.call(path, request_bytes, of="another")[1].end is None
    first.cancel()
    assert clients.call(path, request_bytes)[1].end is None


def test_a_full_partition_takes_messages_again_once_retention_made_room(clients: Clients) -> None:
    clients.call(API + "PublishAsync", *[publish()] * 3)
    size = clients.world[1].node.find_led("s", 0).log.size_bytes
    clients.quota(QuotaKind.STREAM, "s", Quota(stored_bytes=size))
    _, port = clients.call(API + "Publish", publish())
    assert port.end is not None
    assert port.end[0] == GrpcStatus.UNAVAILABLE
    assert f"holds {size} bytes, at most {size} are allowed" in port.end[1]
    clients.quota(QuotaKind.STREAM, "s", Quota(stored_bytes=size + 1))
    assert clients.call(API + "Publish", publish())[1].end == (GrpcStatus.OK, "")


@pytest.mark.parametrize("service", ["API", "Data"])
def test_a_stream_belongs_to_its_creator(clients: Clients, service: str) -> None:
    stream = api_pb2.CreateStreamRequest(name="own", subject="own")
    path, request = API + "CreateStream", stream.SerializeToString()
    if service == "Data":
        path = DATA + "CreateStream"
        request = data_pb2.CreateStreamRequest(stream=stream).SerializeToString()
    state = clients.world[1].node.state
    state.feature_level = 4
    clients.call(path, request)
    created = state.stream("own")
    assert created is not None
    assert created.created_by == "billing"


def test_callers_see_their_quota_and_what_they_use(clients: Clients) -> None:
    def who_am_i() -> data_pb2.WhoAmIResponse:
        _, port = clients.call(DATA + "WhoAmI", data_pb2.WhoAmIRequest().SerializeToString())
        return data_pb2.WhoAmIResponse.FromString(bytes(port.sent[5:]))

    assert not who_am_i().HasField("quota")
    half = len(publish()) // 2
    clients.quota(QuotaKind.PRINCIPAL, "*", Quota(publish_bytes=half, subscriptions=3))
    clients.call(API + "PublishAsync", publish())
    clients.call(API + "Subscribe", SUBSCRIBE)
    quota = who_am_i().quota
    assert (quota.limits.publish_bytes, quota.limits.subscriptions) == (half, 3)
    assert (quota.publish_delay_ms, quota.read_delay_ms, quota.subscriptions) == (1_000, 0, 1)
