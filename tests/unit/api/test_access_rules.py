"""The service that operators change access rules with."""

from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf.message import Message

from liftbridge_broker.access.rules import (
    OPERATIONS,
    AccessRule,
    NameMatch,
    Operation,
    ResourceKind,
    super_rules,
)
from liftbridge_broker.api.access.control import AccessControl
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.api.operators.access_rules import REPORTED_MAX, fill_rule, rule_of
from liftbridge_broker.controller.callers.access import CHANGES_MAX
from liftbridge_broker.controller.callers.commands import ACCESS_LEVEL, ChangeRules, SetAccess
from liftbridge_broker.controller.commands import SetFeatureLevel
from liftbridge_broker.errors import GrpcStatus, InvalidRequestError, LiftbridgeError
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.server.admin import ACCESS, register_admin
from liftbridge_proto.ext.v1 import access_pb2 as pb
from liftbridge_testkit.admin_calls import admin_of
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.served_calls import Served


class RefusedError(Exception):
    """Status and text of a refused call."""


class Service:
    """The service of the only broker of a world."""

    def __init__(self, *, level: int = ACCESS_LEVEL) -> None:
        self.world = ClusterWorld(1)
        outcome = self.world.propose(SetFeatureLevel(feature_level=level))
        assert not isinstance(outcome, LiftbridgeError), outcome
        self.member = self.world[1]
        self.clients = AccessControl()
        server = GrpcServer()
        register_admin(server, admin_of(self.world, 1).context, self.clients, self.member)
        self.served = Served(self.world, server)

    def call(self, name: str, request: Message) -> Any:
        port = self.served.call(ACCESS + name, [request.SerializeToString()])
        assert port.end is not None
        if port.end[0]:
            raise RefusedError(*port.end)
        return getattr(pb, f"{name}Response").FromString(bytes(port.sent[5:]))

    @property
    def rules(self) -> list[AccessRule]:
        return list(self.member.node.state.access.rules)


def message(name: str, **fields: Any) -> pb.AccessRule:
    made = {
        "principal": "alice",
        "kind": pb.RESOURCE_KIND_STREAM,
        "match": pb.NAME_MATCH_EXACT,
        "operations": [pb.OPERATION_READ],
    }
    return pb.AccessRule(name=name, **{**made, **fields})


@pytest.fixture
def service() -> Service:
    return Service()


async def test_every_rule_is_the_same_after_the_wire() -> None:
    for kind, operations in OPERATIONS.items():
        for match in NameMatch:
            for operation in (*operations, Operation.ALL, sum(operations)):
                rule = AccessRule(
                    principal="p",
                    is_group=True,
                    kind=kind,
                    match=match,
                    name="n",
                    is_denied=True,
                    operations=int(operation),
                )
                wire = pb.AccessRule()
                fill_rule(wire, rule)
                assert rule_of(wire) == rule
    assert set(pb.Operation.values()) == {0, *(one.bit_length() for one in Operation)}
    assert set(pb.ResourceKind.values()) == {0, *ResourceKind}
    assert set(pb.NameMatch.values()) == {0, *NameMatch}


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": 0},
        {"kind": 9},
        {"match": 0},
        {"match": 7},
        {"operations": [0]},
        {"operations": [31]},
    ],
)
def test_unknown_words_of_a_rule_are_refused(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="unknown value"):
        rule_of(message("s", **wrong))


async def test_a_change_is_tried_made_reported_and_listed_by_pages(service: Service) -> None:
    granted = [message(f"s{number}") for number in range(5)]
    request = pb.ChangeRulesRequest(granted=granted, is_dry_run=True)
    assert list(service.call("ChangeRules", request).changed) == granted
    assert service.rules == []

    request.is_dry_run = False
    assert list(service.call("ChangeRules", request).changed) == granted
    assert not service.call("ChangeRules", request).changed
    assert service.member.told_count("access_rules_changed") == 1

    first = service.call("ListRules", pb.ListRulesRequest(page_size=3))
    assert (first.is_on, first.is_enforced) == (False, False)
    token = first.next_page_token
    rest = service.call("ListRules", pb.ListRulesRequest(page_size=3, page_token=token))
    assert [*first.rules, *rest.rules] == granted
    assert not rest.next_page_token

    gone = service.call("ChangeRules", pb.ChangeRulesRequest(revoked=granted[:2]))
    assert [list(rule.operations) for rule in gone.changed] == [[], []]
    assert len(service.rules) == 3


async def test_a_large_change_is_reported_in_parts(service: Service) -> None:
    granted = [message(f"s{number}") for number in range(REPORTED_MAX + 1)]
    service.call("ChangeRules", pb.ChangeRulesRequest(granted=granted))
    assert service.member.told_count("access_rules_changed") == 2


@pytest.mark.parametrize(
    ("name", "request_", "said"),
    [
        ("ListRules", pb.ListRulesRequest(page_size=1_001), "page_size 1001: must be 1 to 1000"),
        ("ListRules", pb.ListRulesRequest(page_token="x"), "page_token 'x'"),
        ("ChangeRules", pb.ChangeRulesRequest(granted=[message("")]), "Name cannot be empty"),
        (
            "ChangeRules",
            pb.ChangeRulesRequest(granted=[message("s")] * (CHANGES_MAX + 1)),
            "granted and revoked: 501 listed",
        ),
        (
            "CheckAccess",
            pb.CheckAccessRequest(kind=pb.RESOURCE_KIND_STREAM),
            "operations: unknown value 0",
        ),
        (
            "CheckAccess",
            pb.CheckAccessRequest(
                groups=["g"] * 101,
                operation=pb.OPERATION_READ,
                kind=pb.RESOURCE_KIND_STREAM,
            ),
            "groups: 101 listed",
        ),
        ("ConvertPolicy", pb.ConvertPolicyRequest(model=b"\xff"), "must be UTF-8"),
        ("ConvertPolicy", pb.ConvertPolicyRequest(model=b"x"), "model, line 1"),
        ("NatsPermissions", pb.NatsPermissionsRequest(principal="x\n"), "principal"),
    ],
)
async def test_a_wrong_request_is_refused(
    service: Service, name: str, request_: Message, said: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        service.call(name, request_)
    status, text = caught.value.args
    assert status == GrpcStatus.INVALID_ARGUMENT
    assert said in text


async def test_rules_wait_for_the_level_before_anything_is_proposed() -> None:
    service = Service(level=ACCESS_LEVEL - 1)
    applied = service.member.node.state.applied_index
    for name, request in (
        ("ChangeRules", pb.ChangeRulesRequest(granted=[message("s")])),
        ("DisableAccess", pb.DisableAccessRequest()),
    ):
        with pytest.raises(RefusedError, match="feature-level 4"):
            service.call(name, request)
    assert service.member.node.state.applied_index == applied


async def test_a_check_names_the_rules_that_decide(service: Service) -> None:
    prefix = message("or", match=pb.NAME_MATCH_PREFIX)
    denied = message("orders", principal="ops", is_group=True, is_denied=True)
    other = message("orders", operations=[pb.OPERATION_ALTER])
    service.call("ChangeRules", pb.ChangeRulesRequest(granted=[prefix, denied, other]))
    asked = pb.CheckAccessRequest(
        principal="alice",
        operation=pb.OPERATION_READ,
        kind=pb.RESOURCE_KIND_STREAM,
        name="orders",
    )
    found = service.call("CheckAccess", asked)
    assert (found.is_allowed, list(found.rules)) == (True, [prefix])
    asked.groups.append("ops")
    found = service.call("CheckAccess", asked)
    assert (found.is_allowed, list(found.rules)) == (False, [prefix, denied])


async def test_it_is_turned_off_and_that_is_reported(service: Service) -> None:
    outcome = service.world.propose(SetAccess(is_on=True, super_users=("root",)))
    assert not isinstance(outcome, LiftbridgeError)
    assert service.call("ListRules", pb.ListRulesRequest()).is_on
    service.call("DisableAccess", pb.DisableAccessRequest())
    assert not service.member.node.state.access.is_on
    assert service.member.told_count("access_control_disabled") == 1
    assert tuple(service.rules) == super_rules("root")


async def test_nats_permissions_are_those_of_streams_and_subjects(service: Service) -> None:
    service.world.create("orders", partitions=2, factor=1)
    service.world.create("hidden", factor=1)
    service.world.create("seen", factor=1)
    changes = [
        message("orders", operations=[pb.OPERATION_PUBLISH]),
        message("hidden", operations=[pb.OPERATION_DESCRIBE]),
        message("seen", operations=[pb.OPERATION_READ]),
        *(
            message(name, kind=pb.RESOURCE_KIND_SUBJECT, match=match, **fields)
            for name, match, fields in (
                ("a.b", pb.NAME_MATCH_EXACT, {"operations": [pb.OPERATION_PUBLISH]}),
                ("c.>", pb.NAME_MATCH_PATTERN, {"operations": [pb.OPERATION_PUBLISH]}),
                ("d.>", pb.NAME_MATCH_PATTERN, {"operations": [pb.OPERATION_ALL]}),
                (
                    "d.no",
                    pb.NAME_MATCH_EXACT,
                    {"operations": [pb.OPERATION_ALL], "is_denied": True},
                ),
                ("_LIFTBRIDGE.x", pb.NAME_MATCH_EXACT, {"operations": [pb.OPERATION_PUBLISH]}),
                ("g", pb.NAME_MATCH_EXACT, {"operations": [pb.OPERATION_ATTACH]}),
            )
        ),
    ]
    outcome = service.world.propose(ChangeRules(granted=tuple(map(rule_of, changes))))
    assert not isinstance(outcome, LiftbridgeError), outcome
    found = service.call("NatsPermissions", pb.NatsPermissionsRequest(principal="alice"))
    assert list(found.publish_allow) == ["a.b", "c.>", "d.>", "orders", "orders.1"]
    namespace = service.member.node.context.options.namespace
    own = {"_LIFTBRIDGE.>", f"{namespace}.>", "$SYS.>"}
    assert set(found.publish_deny) == own | {"d.no"}
    assert list(found.subscribe_allow) == ["seen"]
    assert set(found.subscribe_deny) == own
    assert service.member.node.state.stream(StreamName("orders")) is not None


async def test_who_may_do_nothing_gets_no_nats_subject(service: Service) -> None:
    service.world.create("orders", factor=1)
    found = service.call("NatsPermissions", pb.NatsPermissionsRequest(principal="alice"))
    # NATS takes an empty list of allowed subjects for all of them.
    assert (list(found.publish_allow), list(found.subscribe_allow)) == ([], [])
    assert ">" in found.publish_deny
    assert ">" in found.subscribe_deny


async def test_a_policy_is_converted_and_nothing_changes(service: Service) -> None:
    model = (
        "[request_definition]\nr = sub, obj, act\n[policy_definition]\np = sub, obj, act\n"
        "[policy_effect]\ne = some(where (p.eft == allow))\n"
        "[matchers]\nm = r.sub == p.sub && r.obj == p.obj && r.act == p.act\n"
    )
    request = pb.ConvertPolicyRequest(
        model=model.encode(), policy=b"p, alice, orders, DeleteStream"
    )
    found = service.call("ConvertPolicy", request)
    assert list(found.rules) == [message("orders", operations=[pb.OPERATION_DELETE])]
    assert service.rules == []
