"""What is decided about tokens and certificates at the edges that lives rarely meet."""

from dataclasses import replace

import pytest

from liftbridge_operator.cluster.certificates.port import Known
from liftbridge_operator.model.user import UserSpec
from liftbridge_operator.streams.observation import ClusterState, SeenCluster
from liftbridge_operator.users.actions import IssueCertificate, MakeToken, RevokeToken
from liftbridge_operator.users.decide import (
    CLOCK_SECONDS,
    OVERLAP_SECONDS,
    TOKENS_MAX,
    decide_user,
)
from liftbridge_operator.users.observation import (
    ObservedSecret,
    ObservedToken,
    Offer,
    Resource,
    Seen,
)

NOW = 1_000_000
DAY = 86_400
LIFETIME = 90 * DAY
AUTHORITY = Known("f", "k", "k", NOW - DAY, NOW + 1_000 * DAY)


def resource(**authentication):
    given = {"clusterRef": {"name": "c"}, "authentication": authentication}
    return Resource(
        namespace="shop",
        name="billing",
        uid="u",
        generation=1,
        created="2026-11-21T10:00:00Z",
        spec=UserSpec.model_validate(given),
        principal="billing",
        has_finalizer=True,
    )


def token(name, born, ends=0):
    return ObservedToken(name, "billing", ("mark",), born, ends or born + LIFETIME)


def seen(*tokens, certificate=None, **secret):
    return Seen(
        SeenCluster("shop/c", ClusterState.PRESENT),
        NOW,
        tokens=tokens,
        offer=Offer(address="a:1", authority=AUTHORITY),
        secret=ObservedSecret(is_own=True, is_current=True, certificate=certificate, **secret),
    )


def decided(observation, **authentication):
    return decide_user(resource(**(authentication or {"token": {}})), observation).action


def test_token_that_was_never_handed_out_ends_at_once():
    held, lost = token("held", NOW - DAY), token("lost", NOW - 60)
    assert decided(seen(held, lost, token_id="held")) == RevokeToken("lost", 0)


def test_former_token_keeps_its_overlap_also_after_a_step_of_the_clock_of_brokers():
    held, former = token("held", NOW - DAY), token("former", NOW - 60)
    action = decided(seen(held, former, token_id="held", former_id="former"))
    assert action == RevokeToken("former", OVERLAP_SECONDS)


def test_former_token_that_ends_within_the_overlap_is_left_to_its_end():
    held = token("held", NOW - 60)
    former = token("former", NOW - DAY, NOW + OVERLAP_SECONDS)
    assert decided(seen(held, former, token_id="held")) is None


@pytest.mark.parametrize("ahead_s", [1, CLOCK_SECONDS])
def test_end_that_brokers_set_by_a_clock_that_is_ahead_is_not_asked_for_again_and_again(ahead_s):
    held = token("held", NOW - 60)
    former = token("former", NOW - DAY, NOW + OVERLAP_SECONDS + ahead_s)
    assert decided(seen(held, former, token_id="held")) is None


@pytest.mark.parametrize("left", range(TOKENS_MAX))
def test_tokens_are_bounded_whatever_fails(left):
    tokens = [token(f"t{number}", NOW - DAY + number) for number in range(left + 1)]
    action = decided(seen(*tokens))
    made = MakeToken(LIFETIME)
    assert action == (RevokeToken("t0", 0) if len(tokens) >= TOKENS_MAX else made)


@pytest.mark.parametrize(
    ("left_s", "is_due"),
    [(LIFETIME // 3, True), (LIFETIME // 3 + 1, False), (LIFETIME + 301, True), (LIFETIME, False)],
)
def test_credentials_are_replaced_after_two_thirds_or_when_they_should_end_sooner(left_s, is_due):
    held = token("held", NOW - DAY, NOW + left_s)
    assert isinstance(decided(seen(held, token_id="held")), MakeToken) is is_due
    known = Known("g", "x", "k", NOW - DAY, NOW + left_s)
    action = decided(seen(certificate=known), certificate={})
    assert isinstance(action, IssueCertificate) is is_due


def test_certificate_ends_with_its_authority_and_is_not_issued_again_for_nothing():
    ending = replace(AUTHORITY, not_after_s=NOW + DAY)
    held = Known("g", "x", "k", NOW - DAY, NOW + DAY)
    observation = replace(seen(certificate=held), offer=Offer(authority=ending))
    assert decided(observation, certificate={}) is None
    other = replace(
        seen(certificate=replace(held, issuer_key_id="former")), offer=observation.offer
    )
    action = decided(other, certificate={})
    assert action == IssueCertificate(NOW - 300, NOW + DAY)


def test_rights_are_given_before_the_credential_and_everything_before_former_tokens_end():
    held, former = token("held", NOW - LIFETIME + 60), token("former", NOW - LIFETIME + 30)
    observation = seen(held, former, token_id="held")
    assert decided(observation) == MakeToken(LIFETIME)
