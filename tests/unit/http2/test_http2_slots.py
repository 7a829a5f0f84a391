"""Which connection is evicted, for all states of connections, against a model that searches all."""

import random
from time import process_time
from typing import NamedTuple

import pytest

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.connection import Connection
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.http2.slots import (
    EVICTION,
    GRACE_NS,
    ConnectionSlots,
    ConnectionState,
    Eviction,
)
from liftbridge_testkit.http2_peer import Http2Peer

HELLO = Http2Peer.hello()
SAID = {
    ConnectionState.SILENT: b"",
    ConnectionState.UNSETTLED: frames.PREFACE,
    ConnectionState.IDLE: HELLO,
    ConnectionState.BUSY: HELLO + Http2Peer().request(1, "/x/Y"),
    ConnectionState.DRAINING: HELLO,
    ConnectionState.ENDED: b"nonsense",
}
"""What a client has said to a connection of each kind."""

MANY = 10_000


def test_every_state_has_an_eviction_class():
    assert set(EVICTION) == set(ConnectionState)


def test_every_state_is_reached():
    assert set(SAID) == set(ConnectionState)


@pytest.mark.parametrize("state", ConnectionState)
def test_connection_reports_its_state(state):
    connection = Connection(Limits(), 0)
    connection.receive(SAID[state], 1)
    if state is ConnectionState.DRAINING:
        connection.lifecycle.begin_drain(2)
    assert connection.lifecycle.state is state


def test_pings_do_not_make_a_connection_less_idle():
    connection = Connection(Limits(), 5)
    connection.receive(HELLO + frames.ping_frame(b"12345678"), 7)
    assert connection.lifecycle.idle_since_ns == 5


def test_end_of_a_call_does_also_without_a_limit_of_idle_time():
    connection = Connection(Limits(idle_ns=0), 5)
    connection.receive(SAID[ConnectionState.BUSY], 7)
    connection.finish(1, 0, "")
    connection.take_output(9)
    assert connection.lifecycle.state is ConnectionState.IDLE
    assert connection.lifecycle.idle_since_ns == 9


class Known(NamedTuple):
    """What the model knows of one connection; `order` is when it entered its class."""

    source: str
    eviction: Eviction
    since: int
    order: int


class Model:
    """Slots, evicted from by a search of all of them."""

    def __init__(self):
        self.known = {}
        self._order = 0

    def put(self, one, source, state, since):
        """Note the state of one."""
        before = self.known.get(one)
        eviction = EVICTION[state]
        is_same = before is not None and before.eviction is eviction
        if not is_same or (eviction is Eviction.NEXT and since != before.since):
            self._order += 1
            self.known[one] = Known(source, eviction, since, self._order)

    def evictable(self, now):
        """Who may go; several where sources have equally many."""
        unready, ready = self._oldest(Eviction.FIRST), self._oldest(Eviction.NEXT)
        if not unready or not ready:
            return set(unready) | set(ready)
        is_crowd = self._most(Eviction.FIRST) >= self._most(Eviction.NEXT)
        found = set()
        for silent in unready:
            for idle in ready:
                since = self.known[silent].since
                waits = now - since >= GRACE_NS or since < self.known[idle].since
                found.add(silent if is_crowd or waits else idle)
        return found

    def _by_source(self, eviction):
        found = {}
        for one, known in self.known.items():
            if known.eviction is eviction:
                found.setdefault(known.source, []).append((known.order, one))
        return found

    def _most(self, eviction):
        return max(map(len, self._by_source(eviction).values()), default=0)

    def _oldest(self, eviction):
        most = self._most(eviction)
        return [min(of)[1] for of in self._by_source(eviction).values() if len(of) == most]


@pytest.mark.parametrize("seed", range(200))
def test_evicted_connection_is_one_that_the_rules_name(seed):
    chance = random.Random(seed)
    limit = chance.choice([1, 2, 5, 20])
    sources = [f"source {number}" for number in range(chance.choice([1, 2, 6]))]
    slots, model, now = ConnectionSlots(limit), Model(), 0
    for one in range(200):
        now += chance.choice([1, GRACE_NS // 3])
        source = chance.choice(sources)
        is_full = len(model.known) == limit
        evictable = model.evictable(now) if is_full else set()
        has_slot, evicted = slots.admit(one, source, now)
        assert has_slot == (not is_full or bool(evictable))
        assert evicted in evictable if evictable else evicted is None
        model.known.pop(evicted, None)
        if has_slot:
            model.put(one, source, ConnectionState.SILENT, now)
        for other in chance.sample(sorted(model.known), min(3, len(model.known))):
            state, since = chance.choice([*ConnectionState]), chance.choice([0, now])
            slots.update(other, state, since)
            model.put(other, model.known[other].source, state, since)
        if model.known and chance.random() < 0.2:
            gone = chance.choice(sorted(model.known))
            slots.release(gone)
            del model.known[gone]
        assert len(slots) == len(model.known)


def test_evicted_connection_gets_no_slot_by_its_state():
    slots = ConnectionSlots(1)
    slots.admit(0, "source", 0)
    assert slots.admit(1, "source", 1) == (True, 0)
    slots.update(0, ConnectionState.IDLE, 0)
    slots.release(0)
    assert len(slots) == 1


def test_one_idle_connection_of_each_source_goes_in_the_order_of_idleness():
    slots = ConnectionSlots(3)
    for one in range(3):
        slots.admit(one, f"source {one}", one)
        slots.update(one, ConnectionState.IDLE, one)
    slots.update(0, ConnectionState.BUSY, 0)
    slots.update(0, ConnectionState.IDLE, 9)
    evictable = [slots.admit(one, f"source {one}", 10)[1] for one in (3, 4, 5)]
    assert evictable[0] == 1


def seconds_of(limit):
    """Processor time of 1,000 connections that each evict another one."""
    slots = ConnectionSlots(limit)
    for one in range(limit):
        slots.admit(one, f"source {one % 100}", one)
        slots.update(one, ConnectionState.IDLE, one)
    began = process_time()
    for one in range(limit, limit + 1_000):
        slots.admit(one, f"source {one % 100}", one)
        slots.update(one, ConnectionState.IDLE, one)
    return process_time() - began


def test_eviction_costs_the_same_however_many_there_are():
    """A search of ten thousand takes some 500 us, an eviction a few."""
    assert min(seconds_of(MANY) for _ in range(10)) < 20 * min(seconds_of(10) for _ in range(10))
