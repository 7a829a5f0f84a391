"""`liftbridge.ext.v1.Tokens` over nodes in memory, and what its events say."""

import pytest

from liftbridge_broker.access.api_tokens import parse_token
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.errors import GrpcStatus
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_testkit.admin_calls import AdminCalls, admin_of
from liftbridge_testkit.cluster_world import ClusterWorld


@pytest.fixture
def world() -> ClusterWorld:
    """Three brokers that know of tokens."""
    world = ClusterWorld(3)
    admin_of(world, 1).call("SetFeatureLevel", feature_level=4)
    return world


def create(calls: AdminCalls, **more: object):
    return calls.call("CreateToken", **{"principal": "billing", **more})


@pytest.mark.parametrize("number", [1, 2, 3])
def test_token_is_created_listed_and_revoked_at_every_broker(world, number) -> None:
    calls = admin_of(world, number)
    made = create(calls, groups=["ops"], lifetime_seconds=60)
    token = parse_token(made.secret)
    assert token is not None
    assert token.token_id == made.token.id
    (listed,) = calls.call("ListTokens").tokens
    assert listed == made.token
    assert (listed.principal, list(listed.groups)) == ("billing", ["ops"])
    assert listed.expires_seconds - listed.created_seconds in (60, 61)
    assert token.secret not in str(calls.call("ListTokens"))
    known = {one: world[one].node.state.tokens for one in (1, 2, 3)}
    assert token.secret not in str(known[number])
    calls.call("RevokeToken", id=token.token_id)
    world.until(lambda: not any(known.values()))
    assert not calls.call("ListTokens").tokens


def test_token_that_is_replaced_ends_later(world) -> None:
    calls = admin_of(world, 1)
    made = create(calls)
    assert made.token.expires_seconds == 0
    calls.call("RevokeToken", id=made.token.id, after_seconds=3_600)
    (listed,) = calls.call("ListTokens").tokens
    assert listed.expires_seconds >= world.wall_ns // SECOND_NS + 3_599


def test_pages_cover_all_tokens_although_some_are_revoked(world) -> None:
    calls = admin_of(world, 1)
    made = sorted(create(calls).token.id for _ in range(5))
    first = calls.call("ListTokens", page_size=2)
    calls.call("RevokeToken", id=first.next_page_token)
    second = calls.call("ListTokens", page_size=2, page_token=first.next_page_token)
    third = calls.call("ListTokens", page_size=2, page_token=second.next_page_token)
    pages = (first, second, third)
    assert [[token.id for token in page.tokens] for page in pages] == [
        made[:2],
        made[2:4],
        made[4:],
    ]
    assert third.next_page_token == ""


@pytest.mark.parametrize(
    ("method", "fields", "status", "text"),
    [
        ("CreateToken", {}, GrpcStatus.INVALID_ARGUMENT, "principal '' has a name that is not"),
        (
            "CreateToken",
            {"principal": "p", "groups": ["a", "a"]},
            GrpcStatus.INVALID_ARGUMENT,
            "has a group twice",
        ),
        (
            "CreateToken",
            {"principal": "p", "lifetime_seconds": 2**60},
            GrpcStatus.INVALID_ARGUMENT,
            "lifetime_seconds 1152921504606846976: must be at most",
        ),
        (
            "RevokeToken",
            {"id": "x", "after_seconds": 2**60},
            GrpcStatus.INVALID_ARGUMENT,
            "after_seconds 1152921504606846976: must be at most",
        ),
        ("RevokeToken", {"id": "a" * 12}, GrpcStatus.NOT_FOUND, "no such token: aaaa"),
        ("ListTokens", {"page_size": 1_001}, GrpcStatus.INVALID_ARGUMENT, "must be 1 to 1000"),
    ],
)
def test_refusals_name_the_value_and_the_rule(world, method, fields, status, text) -> None:
    found = admin_of(world, 1).refusal(method, **fields)
    assert found[0] is status
    assert text in found[1]


@pytest.mark.parametrize("method", ["CreateToken", "RevokeToken"])
def test_nothing_is_proposed_that_an_older_broker_could_not_read(method) -> None:
    world = ClusterWorld(2)
    calls, before = admin_of(world, 2), world[1].node.state.applied_index
    fields = {"principal": "p"} if method == "CreateToken" else {"id": "a" * 12}
    status, text = calls.refusal(method, **fields)
    assert status is GrpcStatus.FAILED_PRECONDITION
    assert "API tokens need feature level 4" in text
    assert world[1].node.state.applied_index == before


def test_call_without_a_proof_is_anonymous() -> None:
    call = Call(None, 1, method="", peer="", deadline=None)  # type: ignore[arg-type]  # unused
    assert call.principal.name == ""
