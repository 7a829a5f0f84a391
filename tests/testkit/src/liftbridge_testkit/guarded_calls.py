"""Calls of every method of a broker whose access rules are in force, and rules that allow them.

Requests come from the descriptors of the services, and the rules that let a caller in from the
table of what methods need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from google.protobuf.message_factory import GetMessageClass

from liftbridge_broker.access.rules import AccessRule, NameMatch, Operation, ResourceKind
from liftbridge_broker.api.access.needs import NEEDS, Known, Need
from liftbridge_broker.api.grpc.health import Health
from liftbridge_broker.config.options import AccessOptions, BrokerOptions, GrpcOptions
from liftbridge_broker.controller.callers.commands import ACCESS_LEVEL, ChangeRules, SetAccess
from liftbridge_broker.controller.commands import SetFeatureLevel
from liftbridge_broker.errors import GrpcStatus, LiftbridgeError
from liftbridge_broker.server.access import Enforcement
from liftbridge_broker.server.admin import register_admin, register_quotas, register_tokens
from liftbridge_broker.server.services import make_api
from liftbridge_broker.wire.snapshots import encode_state
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.admin_calls import admin_of
from liftbridge_testkit.client_calls import WorldClock
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.request_lists import SERVICES
from liftbridge_testkit.served_calls import Port, Served

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

    from liftbridge_broker.ports.authenticator import Authenticator

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
    "consumerId": "a-member",
    "member_id": "a-member",
}
PUBLISHING: Final = (API + "PublishAsync", DATA + "PublishBatch")
BY_HAND: Final[Mapping[str, bytes]] = {path: b"" for path in NEEDS if path.startswith("/grpc.")}
"""Requests of services of gRPC itself."""


@dataclass
class GuardedBroker:
    """A broker with access control, and all services on one server.

    Attributes:
        served: Calls of it.
        enforcement: Rules in force.
    """

    served: Served
    enforcement: Enforcement

    @property
    def world(self) -> ClusterWorld:
        """Return its cluster."""
        return self.served.world

    def turn_on(self) -> None:
        """Enforce the rules; `ROOT` may do everything."""
        outcome = self.world.propose(SetAccess(is_on=True, super_users=(ROOT,)))
        assert not isinstance(outcome, LiftbridgeError), outcome

    def change(self, *granted: AccessRule, revoked: tuple[AccessRule, ...] = ()) -> None:
        """Change the rules."""
        outcome = self.world.propose(ChangeRules(granted=granted, revoked=revoked))
        assert not isinstance(outcome, LiftbridgeError), outcome

    def audited(self) -> list[dict[str, object]]:
        """Return the events of the audit so far."""
        return [dict(fields) for kind, fields in self.world[1].told if kind == "audit"]

    def footprint(self) -> tuple[bytes, int]:
        """Return what a call could change: metadata and records."""
        member = self.world[1]
        partition = member.node.find_replica(STREAM, 0)
        return encode_state(member.node.state), partition.log.log_end_offset


def at_level(world: ClusterWorld) -> ClusterWorld:
    """Return the world, at the level that access rules need."""
    outcome = world.propose(SetFeatureLevel(feature_level=ACCESS_LEVEL))
    assert not isinstance(outcome, LiftbridgeError), outcome
    return world


def guarded_broker(
    authenticator: Authenticator | None = None, *, has_turns: bool = False
) -> GuardedBroker:
    """Return the only broker of a cluster with the stream `STREAM` and access control on."""
    world = at_level(ClusterWorld(1))
    world.create(STREAM, factor=1)
    world.commit(b"v", name=STREAM)
    found = guard(world, authenticator=authenticator, has_turns=has_turns)
    found.turn_on()
    return found


def guard(
    world: ClusterWorld,
    number: int = 1,
    *,
    authenticator: Authenticator | None = None,
    has_turns: bool = False,
) -> GuardedBroker:
    """Serve every method of a broker under the rules of its cluster.

    Args:
        world: The cluster.
        number: Number of the broker.
        authenticator: Finds out who calls, if calls come over a network.
        has_turns: Whether callers take turns, as over a network.
    """
    member = world[number]
    options = BrokerOptions(grpc=GrpcOptions(has_reflection=True))
    clock = WorldClock(world)
    enforcement = Enforcement(AccessOptions(), member, clock, has_operators=True)
    enforcement.attach(member.node)
    health = Health()
    api = make_api(
        options,
        member.node,
        clock,
        member,
        health,
        access=enforcement.clients,
        authenticator=authenticator,
    )
    if not has_turns:
        api.context.turns = None
    admin = admin_of(world, number).context
    register_admin(api.server, admin, enforcement.clients, member)
    register_tokens(api.server, admin)
    register_quotas(api.server, admin)
    return GuardedBroker(Served(world, api.server), enforcement)


def about(message: Message, stream: str = STREAM) -> Message:
    """Return the message with a name in every field that is one, also in messages within it."""
    for field in message.DESCRIPTOR.fields:
        kind, value = field.message_type, getattr(message, field.name)
        if kind is not None and kind.GetOptions().map_entry:
            continue
        if kind is not None:
            if field.name in ("stream", "cursor", "streams") or "stream" in kind.fields_by_name:
                about(value.add() if field.is_repeated else value, stream)
        elif field.is_repeated:
            if field.name == "streams":
                value.append(stream)
        elif field.name in TEXTS:
            setattr(message, field.name, TEXTS[field.name].replace(STREAM, stream))
    return message


def request_of(path: str, stream: str = STREAM) -> Message | bytes:
    """Return a request of a method that names a stream wherever it can."""
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
    """Return the bytes of a request."""
    return request if isinstance(request, bytes) else request.SerializeToString()


def rule(principal: str, need: Need, name: str, *, is_denied: bool = False) -> AccessRule:
    """Return a rule that gives a principal what is needed on a resource, or denies everything."""
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
    """Return rules that allow a principal exactly one call."""
    needs = NEEDS[path]
    if isinstance(needs, Known):
        return (rule(principal, READS_OTHER, "other"),)
    return tuple(rule(principal, need, name) for need in needs for name in need.names(request))


def is_denied(path: str, port: Port) -> bool:
    """Return whether a call, or the message of a publishing call, was refused; checks the text."""
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


def guarded_cluster() -> tuple[ClusterWorld, list[GuardedBroker]]:
    """Return three brokers with access control and a replicated stream that has a message."""
    world = at_level(ClusterWorld(3))
    world.create(STREAM, factor=3)
    world.commit(b"v", name=STREAM)
    world.run(100)
    everyone = [guard(world, number) for number in (1, 2, 3)]
    outcome = world.propose(SetAccess(is_on=True, super_users=(ROOT,)))
    assert not isinstance(outcome, LiftbridgeError), outcome
    world.run(200)
    return world, everyone
