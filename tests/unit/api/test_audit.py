"""What the audit shows of calls, and of which; `test_access` checks that each leaves one event."""

from typing import Final

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from liftbridge_broker.access.identities import Identity, Proof
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.api.access.audit import AUDITED, FAILURES_MAX, UNANSWERED
from liftbridge_broker.api.access.control import OPERATORS, AccessControl
from liftbridge_broker.api.access.summaries import SUMMARY_LENGTH_MAX, summary_of
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import access_pb2, quotas_pb2, tokens_pb2
from liftbridge_testkit.guarded_calls import (
    API,
    DATA,
    ROOT,
    STREAM,
    GuardedBroker,
    guarded_broker,
)
from liftbridge_testkit.identities import Seen
from liftbridge_testkit.request_lists import SERVICES
from liftbridge_testkit.served_calls import Port

EXT: Final = "/liftbridge.ext.v1."
READS: Final = (
    *(f"{API}{one}" for one in ("Subscribe", "FetchMetadata", "FetchPartitionMetadata")),
    *(f"{API}{one}" for one in ("FetchCursor", "FetchConsumerGroupAssignments")),
    *(f"{DATA}{one}" for one in ("ListStreams", "PartitionBounds", "AwaitNews")),
    *(f"{DATA}{one}" for one in ("FetchBatches", "WhoAmI")),
    *(f"{EXT}Admin/{one}" for one in ("Identity", "ClusterStatus", "ListBrokers", "BrokerStatus")),
    *(f"{EXT}Admin/{one}" for one in ("ListPartitions", "CheckRestart", "ListReassignments")),
    *(f"{EXT}Admin/{one}" for one in ("ListSettings", "KeysStatus")),
    *(f"{EXT}Groups/{one}" for one in ("ListGroups", "DescribeGroup", "GroupLag")),
    *(f"{EXT}Access/{one}" for one in ("ListRules", "CheckAccess", "ConvertPolicy")),
    *(f"{EXT}{one}" for one in ("Access/NatsPermissions", "Tokens/ListTokens")),
    f"{EXT}Quotas/ListQuotas",
)
"""Methods that change nothing."""

OF_THE_CALLER: Final = (
    *(f"{API}{one}" for one in ("Publish", "PublishAsync", "PublishToSubject", "SetCursor")),
    *(f"{API}{one}" for one in ("JoinConsumerGroup", "LeaveConsumerGroup")),
    f"{API}ReportConsumerGroupCoordinator",
    *(f"{DATA}{one}" for one in ("InitPublisher", "PublishBatch", "SetCursor")),
    *(f"{EXT}Groups/{one}" for one in ("Heartbeat", "Leave", "CommitPositions")),
)
"""Methods for messages, cursors and memberships, which belong to their caller."""

SECRETS: Final = (
    "secret",
    "token",
    "password",
    "verifier",
    "private",
    "credential",
    "authorization",
)


@pytest.fixture
def guarded() -> GuardedBroker:
    return guarded_broker()


def test_a_method_is_audited_unless_it_is_known_to_change_nothing_for_others() -> None:
    described = {f"/{one.full_name}/{each.name}" for one in SERVICES for each in one.methods}
    assert described - set(READS) - set(OF_THE_CALLER) == AUDITED


async def test_an_event_tells_who_did_what_to_what_from_where(guarded: GuardedBroker) -> None:
    raw = api_pb2.DeleteStreamRequest(name=STREAM).SerializeToString()
    guarded.served.call(API + "DeleteStream", [raw], principal=ROOT)
    assert guarded.audited() == [
        {
            "principal": ROOT,
            "proof": "anonymous",
            "peer": "",
            "listener": "main",
            "method": API + "DeleteStream",
            "resource": f"stream:{STREAM}",
            "request": f"name: '{STREAM}'",
            "outcome": "OK",
            "unreported": 0,
        }
    ]


async def test_a_created_token_is_in_no_event(guarded: GuardedBroker) -> None:
    request = tokens_pb2.CreateTokenRequest(principal="billing", groups=["ops"])
    path = EXT + "Tokens/CreateToken"
    port = guarded.served.call(path, [request.SerializeToString()], principal=ROOT)
    secret = tokens_pb2.CreateTokenResponse.FromString(bytes(port.sent[5:])).secret
    (event,) = guarded.audited()
    assert event["request"] == "principal: 'billing' groups: 'ops'"
    assert secret
    assert secret not in str(guarded.world[1].told)


def _fields(kind: Descriptor) -> set[FieldDescriptor]:
    """Fields of a message and of all messages within it."""
    found: set[FieldDescriptor] = set()
    left = [kind]
    while left:
        for field in left.pop().fields:
            if field not in found:
                found.add(field)
                if field.message_type is not None:
                    left.append(field.message_type)
    return found


def test_no_audited_request_has_a_place_for_a_secret() -> None:
    methods = {f"/{one.full_name}/{each.name}": each for one in SERVICES for each in one.methods}
    for path in AUDITED:
        for field in _fields(methods[path].input_type):
            if field.type == FieldDescriptor.TYPE_BYTES:
                continue  # never shown
            assert not any(word in field.name.lower() for word in SECRETS), (path, field.name)


# -- one audit -----------------------------------------------------------------------------------


class _Calls:
    """Calls at the port for operators."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.now = Instant(SECOND_NS)
        self.access = AccessControl(self.seen, lambda: self.now, OPERATORS)

    def open(self, **more: str) -> Call:
        call = Call(
            Port(),
            1,
            method=EXT + "Quotas/SetQuota",
            peer="10.0.0.9:1",
            deadline=None,
            authorize=self.access.authorize,
            **more,
        )
        call.identity = Identity(Principal("ops"), Proof.CERTIFICATE)
        call.authorize(quotas_pb2.SetQuotaRequest())
        return call

    def outcomes(self) -> list[tuple[object, object]]:
        return [
            (fields["outcome"], fields["unreported"])
            for kind, fields in self.seen.events
            if kind == "audit"
        ]


def test_the_port_the_address_and_the_proof_are_named() -> None:
    calls = _Calls()
    calls.open().finish()
    calls.open(listener="vpn").finish()
    (_, first), (_, second) = calls.seen.events
    assert (first["listener"], second["listener"]) == ("admin", "vpn")
    assert (first["peer"], first["proof"]) == ("10.0.0.9:1", "certificate")
    assert first["resource"] == "cluster"


def test_a_call_that_ends_before_its_answer_may_have_done_its_work() -> None:
    calls = _Calls()
    call = calls.open()
    assert calls.outcomes() == []
    call.cancel()
    call.finish()
    assert calls.outcomes() == [(UNANSWERED, 0)]


def test_failures_cannot_hide_a_success() -> None:
    calls = _Calls()
    for _ in range(FAILURES_MAX + 5):
        calls.open().finish(5, "no such thing", "NOT_FOUND")
    assert calls.outcomes() == [("NOT_FOUND", 0)] * FAILURES_MAX
    calls.open().finish()
    assert calls.outcomes()[-1] == ("OK", 5)
    calls.now = Instant(calls.now + SECOND_NS)
    calls.open().finish(3)
    assert calls.outcomes()[-1] == ("INVALID_ARGUMENT", 0)


def test_a_second_request_of_the_same_call_is_no_second_event() -> None:
    calls = _Calls()
    call = calls.open()
    call.authorize(quotas_pb2.SetQuotaRequest())
    call.finish()
    assert calls.outcomes() == [("OK", 0)]


# -- what an event shows of a request ------------------------------------------------------------


def test_a_summary_shows_fields_by_name() -> None:
    request = access_pb2.ChangeRulesRequest(is_dry_run=True)
    rule = request.granted.add(principal="alice", name="orders")
    rule.kind = access_pb2.RESOURCE_KIND_STREAM
    rule.operations.extend([access_pb2.OPERATION_READ, access_pb2.OPERATION_PUBLISH])
    text = summary_of(request)
    assert text == (
        "granted { principal: 'alice' kind: RESOURCE_KIND_STREAM name: 'orders' "
        "operations: OPERATION_READ operations: OPERATION_PUBLISH } is_dry_run: true"
    )


def test_a_summary_has_a_bound_whatever_the_request_holds() -> None:
    request = access_pb2.ChangeRulesRequest()
    for number in range(50_000):
        request.granted.add(principal=f"p{number}" * 50)
    text = summary_of(request)
    assert len(text) == SUMMARY_LENGTH_MAX
    assert text.endswith("...")
    assert summary_of(access_pb2.ConvertPolicyRequest(model=b"x" * 9)) == "model: (9 bytes)"
