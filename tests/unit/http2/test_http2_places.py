"""Who loses a place, for all states of connections, against a model that looks at everybody."""

import random
from time import process_time
from typing import NamedTuple

import pytest

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.connection import Connection
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.http2.places import FRESH_NS, RANKS, Places, Rank, Standing
from liftbridge_testkit.http2_peer import Http2Peer

HELLO = Http2Peer.hello()
SAID = {
    Standing.SILENT: b"",
    Standing.UNSETTLED: frames.PREFACE,
    Standing.IDLE: HELLO,
    Standing.BUSY: HELLO + Http2Peer().request(1, "/x/Y"),
    Standing.LEAVING: HELLO,
    Standing.ENDED: b"nonsense",
}
"""What a client has said to a connection of each kind."""

MANY = 10_000


def test_every_standing_has_a_rank():
    assert set(RANKS) == set(Standing)


def test_every_standing_is_reached():
    assert set(SAID) == set(Standing)


@pytest.mark.parametrize("standing", Standing)
def test_connection_tells_how_it_stands(standing):
    connection = Connection(Limits(), 0)
    connection.receive(SAID[standing], 1)
    if standing is Standing.LEAVING:
        connection.begin_drain(2)
    assert connection.standing is standing


def test_pings_do_not_make_a_connection_less_idle():
    connection = Connection(Limits(), 5)
    connection.receive(HELLO + frames.ping_frame(b"12345678"), 7)
    assert connection.idle_since_ns == 5


def test_end_of_a_call_does_also_without_a_limit_of_idle_time():
    connection = Connection(Limits(idle_ns=0), 5)
    connection.receive(SAID[Standing.BUSY], 7)
    connection.finish(1, 0, "")
    connection.take_output(9)
    assert (connection.standing, connection.idle_since_ns) == (Standing.IDLE, 9)


class Known(NamedTuple):
    """What the model knows of one connection; `order` is when it came to its rank."""

    source: str
    rank: Rank
    since: int
    order: int


class Model:
    """Places, given by a look at everybody."""

    def __init__(self):
        self.known = {}
        self._order = 0

    def put(self, one, source, standing, since):
        """Note how one stands."""
        before = self.known.get(one)
        rank = RANKS[standing]
        is_same = before is not None and before.rank is rank
        if not is_same or (rank is Rank.NEXT and since != before.since):
            self._order += 1
            self.known[one] = Known(source, rank, since, self._order)

    def losers(self, now):
        """Who may go; several where sources have equally many."""
        unready, ready = self._oldest(Rank.FIRST), self._oldest(Rank.NEXT)
        if not unready or not ready:
            return set(unready) | set(ready)
        is_crowd = self._most(Rank.FIRST) >= self._most(Rank.NEXT)
        found = set()
        for silent in unready:
            for idle in ready:
                since = self.known[silent].since
                waits = now - since >= FRESH_NS or since < self.known[idle].since
                found.add(silent if is_crowd or waits else idle)
        return found

    def _by_source(self, rank):
        found = {}
        for one, known in self.known.items():
            if known.rank is rank:
                found.setdefault(known.source, []).append((known.order, one))
        return found

    def _most(self, rank):
        return max(map(len, self._by_source(rank).values()), default=0)

    def _oldest(self, rank):
        most = self._most(rank)
        return [min(of)[1] for of in self._by_source(rank).values() if len(of) == most]


@pytest.mark.parametrize("seed", range(200))
def test_loser_is_one_that_the_rules_name(seed):
    chance = random.Random(seed)
    limit = chance.choice([1, 2, 5, 20])
    sources = [f"source {number}" for number in range(chance.choice([1, 2, 6]))]
    places, model, now = Places(limit), Model(), 0
    for one in range(200):
        now += chance.choice([1, FRESH_NS // 3])
        source = chance.choice(sources)
        is_full = len(model.known) == limit
        losers = model.losers(now) if is_full else set()
        has_place, loser = places.take(one, source, now)
        assert has_place == (not is_full or bool(losers))
        assert loser in losers if losers else loser is None
        model.known.pop(loser, None)
        if has_place:
            model.put(one, source, Standing.SILENT, now)
        for other in chance.sample(sorted(model.known), min(3, len(model.known))):
            standing, since = chance.choice([*Standing]), chance.choice([0, now])
            places.stand(other, standing, since)
            model.put(other, model.known[other].source, standing, since)
        if model.known and chance.random() < 0.2:
            gone = chance.choice(sorted(model.known))
            places.leave(gone)
            del model.known[gone]
        assert len(places) == len(model.known)


def test_who_has_no_place_is_not_given_one_by_what_it_does():
    places = Places(1)
    places.take(0, "source", 0)
    assert places.take(1, "source", 1) == (True, 0)
    places.stand(0, Standing.IDLE, 0)
    places.leave(0)
    assert len(places) == 1


def test_one_idle_connection_of_each_source_goes_in_the_order_of_idleness():
    places = Places(3)
    for one in range(3):
        places.take(one, f"source {one}", one)
        places.stand(one, Standing.IDLE, one)
    places.stand(0, Standing.BUSY, 0)
    places.stand(0, Standing.IDLE, 9)
    losers = [places.take(one, f"source {one}", 10)[1] for one in (3, 4, 5)]
    assert losers[0] == 1


def seconds_of(limit):
    """Time of as many connections that each take the place of another one."""
    places = Places(limit)
    for one in range(limit):
        places.take(one, f"source {one % 100}", one)
        places.stand(one, Standing.IDLE, one)
    began = process_time()
    for one in range(limit, limit + 1_000):
        places.take(one, f"source {one % 100}", one)
        places.stand(one, Standing.IDLE, one)
    return process_time() - began


def test_loser_costs_the_same_however_many_there_are():
    """One look at all of ten thousand takes some 500 us; a place takes a few."""
    assert min(seconds_of(MANY) for _ in range(10)) < 20 * min(seconds_of(10) for _ in range(10))
