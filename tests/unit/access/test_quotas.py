"""Rates: who obeys never gets more than its quota, and never less for long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.access.quotas import (
    BUCKETS_MAX,
    DEBT_NS_MAX,
    EVERY_PRINCIPAL,
    NO_QUOTA,
    Direction,
    Quota,
    QuotaKey,
    QuotaKind,
    Rates,
    quota_of,
)
from liftbridge_broker.errors import LimitError
from liftbridge_broker.model.units import SECOND_NS

BILLING = QuotaKey(QuotaKind.PRINCIPAL, "billing")
EVERYONE = QuotaKey(QuotaKind.PRINCIPAL, EVERY_PRINCIPAL)
ORDERS = QuotaKey(QuotaKind.STREAM, "orders")
BATCHES = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 5_000), st.integers(0, 3 * SECOND_NS)),
    min_size=1,
    max_size=40,
)


def limits(direction: Direction, in_bytes: int, messages: int) -> Quota:
    if direction is Direction.PUBLISH:
        return Quota(publish_bytes=in_bytes, publish_messages=messages)
    return Quota(read_bytes=in_bytes, read_messages=messages)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("owner", [BILLING, EVERYONE, ORDERS])
@given(batches=BATCHES, bytes_rate=st.integers(0, 9_000), rate=st.integers(0, 40))
def test_whoever_waits_as_told_gets_the_rate_and_a_second_of_it(
    direction: Direction,
    owner: QuotaKey,
    batches: list[tuple[int, int, int]],
    bytes_rate: int,
    rate: int,
) -> None:
    quotas = {owner: limits(direction, bytes_rate, rate)}
    rates, now, start = Rates(), 10 * SECOND_NS, 10 * SECOND_NS
    sent = size = 0
    for count, length, pause in batches:
        charge = rates.charge(
            quotas, "billing", "orders", direction, messages=count, size=length, now=now
        )
        sent, size = sent + count, size + length
        assert charge.delay_ns == 0 or charge.kind is owner.kind
        now += max(charge.delay_ns, pause)
        seconds = (now - start) / SECOND_NS + 1
        # What was sent is paid for, but for the rounding of each batch to nanoseconds.
        assert not rate or sent <= rate * seconds + 1e-3
        assert not bytes_rate or size <= bytes_rate * seconds + 1e-3
    if not rate and not bytes_rate:
        assert now == start + sum(pause for _, _, pause in batches)


def test_below_the_rate_nobody_waits() -> None:
    quotas, rates = {BILLING: Quota(publish_messages=10)}, Rates()
    for second in range(100):
        now = second * SECOND_NS
        charge = rates.charge(
            quotas, "billing", "", Direction.PUBLISH, messages=10, size=1, now=now
        )
        assert charge.delay_ns == 0


def test_one_principal_does_not_pay_for_another() -> None:
    quotas, rates = {EVERYONE: Quota(publish_bytes=1)}, Rates()
    rates.charge(quotas, "greedy", "", Direction.PUBLISH, messages=1, size=10**9, now=0)
    with pytest.raises(LimitError, match="quota of principal greedy exceeded: 1 bytes/s"):
        rates.check(quotas, "greedy", "", Direction.PUBLISH, 0)
    rates.check(quotas, "greedy", "", Direction.READ, 0)
    rates.check(quotas, "modest", "", Direction.PUBLISH, 0)
    assert rates.debt_of(quotas, "modest", Direction.PUBLISH, 0) == 0


def test_debts_beyond_the_longest_are_refused_until_they_are_paid() -> None:
    quotas, rates = {ORDERS: Quota(publish_messages=2)}, Rates()
    rates.charge(quotas, "p", "orders", Direction.PUBLISH, messages=24, size=0, now=0)
    with pytest.raises(LimitError, match="quota of stream orders exceeded: 2 messages/s, 11 s"):
        rates.check(quotas, "p", "orders", Direction.PUBLISH, 0)
    rates.check(quotas, "p", "orders", Direction.PUBLISH, 11 * SECOND_NS - DEBT_NS_MAX)


@pytest.mark.parametrize(("before", "after"), [(1, 1_000), (1_000, 1), (1, 0), (0, 1)])
def test_another_quota_counts_at_once(before: int, after: int) -> None:
    """What is owed are units: a debt of hours ends soon under a larger rate, and not before."""
    rates, owner = Rates(), {ORDERS: Quota(publish_bytes=before, publish_messages=10**9)}
    rates.charge(owner, "p", "orders", Direction.PUBLISH, messages=1, size=50_001, now=0)
    changed = {ORDERS: Quota(publish_bytes=after, publish_messages=10**9)}
    owed = 50_000 if before == 1 else 49_001 if before else 0
    due = owed * SECOND_NS // after if after else 0
    now = max(0, due - DEBT_NS_MAX)
    if now:
        with pytest.raises(LimitError):
            rates.check(changed, "p", "orders", Direction.PUBLISH, 0)
    rates.check(changed, "p", "orders", Direction.PUBLISH, now)
    charge = rates.charge(changed, "p", "orders", Direction.PUBLISH, messages=0, size=0, now=0)
    assert charge.delay_ns == due


def test_a_removed_quota_counts_at_once() -> None:
    rates, small = Rates(), {BILLING: Quota(publish_bytes=1)}
    rates.charge(small, "billing", "", Direction.PUBLISH, messages=1, size=10**6, now=0)
    assert rates.debt_of(small, "billing", Direction.PUBLISH, 0) > 0
    rates.check({}, "billing", "", Direction.PUBLISH, 0)
    charge = rates.charge({}, "billing", "", Direction.PUBLISH, messages=1, size=1, now=0)
    assert charge.delay_ns == 0
    assert rates.debt_of({}, "billing", Direction.PUBLISH, 0) == 0


def test_the_own_quota_of_a_principal_replaces_that_of_all() -> None:
    own, all_ = Quota(streams=1), Quota(streams=2, publish_bytes=3)
    assert quota_of({EVERYONE: all_, BILLING: own}, "billing") == own
    assert quota_of({EVERYONE: all_, BILLING: own}, "") == all_
    assert quota_of({}, "billing") == NO_QUOTA


def test_readers_get_no_more_at_once_than_in_a_second() -> None:
    rates = Rates()
    quotas = {ORDERS: Quota(read_bytes=70), EVERYONE: Quota(read_bytes=50)}
    assert rates.bytes_at_once(quotas, "p", "orders", 100) == 50
    assert rates.bytes_at_once(quotas, "p", "orders", 20) == 20
    assert rates.bytes_at_once({}, "p", "orders", 100) == 100


def test_rates_of_many_are_bounded() -> None:
    quotas, rates = {EVERYONE: Quota(publish_bytes=1)}, Rates()
    for number in range(BUCKETS_MAX + 10):
        rates.charge(quotas, f"p{number}", "", Direction.PUBLISH, messages=1, size=9, now=0)
    assert len(rates._buckets) == BUCKETS_MAX
    assert rates.debt_of(quotas, "p0", Direction.PUBLISH, 0) == 0
    assert rates.debt_of(quotas, f"p{BUCKETS_MAX}", Direction.PUBLISH, 0) == 8 * SECOND_NS
