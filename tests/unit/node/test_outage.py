"""Outages of own connections: for how long they excuse the silence of others."""

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.node.peers.outage import (
    CREDIT_NS_MAX,
    CREDIT_NS_MIN,
    LOOK_NS,
    REFILL,
    Outage,
)

START = Instant(1_000 * CREDIT_NS_MAX)


def test_connected_broker_excuses_nobody():
    outage = Outage(START)
    assert not outage.excuses(START)
    assert outage.next_deadline(START) is None
    assert not outage.end(START)


def test_outage_excuses_until_its_end():
    outage = Outage(START)
    outage.begin(START)
    assert outage.next_deadline(START) == START + LOOK_NS
    outage.begin(START + LOOK_NS)
    assert outage.excuses(START + CREDIT_NS_MAX - 1)
    assert outage.end(START + CREDIT_NS_MAX - 1)
    assert not outage.excuses(START + CREDIT_NS_MAX - 1)


def test_long_outage_excuses_nobody_from_a_time_on():
    outage = Outage(START)
    outage.begin(START)
    assert not outage.excuses(START + CREDIT_NS_MAX)
    assert outage.next_deadline(START + CREDIT_NS_MAX) is None
    assert not outage.end(START + CREDIT_NS_MAX)


def test_outages_without_rest_use_up_the_credit():
    outage = Outage(START)
    now, excused = START, 0
    for _ in range(100):
        outage.begin(now)
        excused += outage.end(now)
        now = Instant(now + 1)
    assert excused == CREDIT_NS_MAX // CREDIT_NS_MIN


def test_time_refills_the_credit():
    outage = Outage(START)
    outage.begin(START)
    empty_at = Instant(START + CREDIT_NS_MAX)
    outage.end(empty_at)
    outage.begin(Instant(empty_at + REFILL * CREDIT_NS_MIN - 1))
    assert not outage.end(Instant(empty_at + REFILL * CREDIT_NS_MIN - 1))
    again = Outage(START)
    again.begin(START)
    again.end(empty_at)
    again.begin(Instant(empty_at + REFILL * CREDIT_NS_MIN))
    assert again.excuses(Instant(empty_at + REFILL * CREDIT_NS_MIN))
