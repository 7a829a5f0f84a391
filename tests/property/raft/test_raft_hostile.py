"""Messages of any content from any peer: dropped or answered, never an exception."""

from random import Random
from typing import get_args

import pytest

from liftbridge_broker.model.metadata_log import Configuration, Entry, EntryKind, SnapshotMeta
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.raft.configuration import encode
from liftbridge_broker.raft.types import TERM_LEAP_MAX, Drop, Message
from liftbridge_testkit.raft.chaos import OPTIONS
from liftbridge_testkit.raft.cluster import RaftCluster, Watch, peer_of

KINDS = get_args(Message)
NAMES = ("1", "2", "3", "3'", "9")
MESSAGES = 1_500


class Forger:
    """Makes messages whose fields are near what they should be, or nowhere near."""

    def __init__(self, seed):
        self.rng = Random(seed)

    def number(self):
        rng = self.rng
        return rng.choice((rng.randrange(8), rng.randrange(8), rng.randrange(40), -1, 2**63))

    def entries(self, prev):
        rng = self.rng
        found = []
        for index in range(prev + 1, prev + 1 + rng.randrange(4)):
            kind = rng.choice(tuple(EntryKind))
            data = b"x" * rng.randrange(4)
            if kind is EntryKind.CONFIG and rng.randrange(2):
                data = encode(
                    Configuration(tuple(peer_of(n) for n in NAMES[: rng.randrange(1, 5)]))
                )
            place = index if rng.randrange(8) else self.number()
            found.append(Entry(place, rng.randrange(5), kind, data))
        return tuple(found)

    def message(self):
        rng = self.rng
        kind = rng.choice(KINDS)
        values = {}
        for name in kind._fields:
            if name in ("sender", "target"):
                values[name] = peer_of(rng.choice(NAMES))
            elif name.startswith("is_"):
                values[name] = bool(rng.randrange(2))
            elif name == "entries":
                values[name] = self.entries(values["prev_index"])
            elif name == "snapshot":
                voters = Configuration((peer_of("1"), peer_of("2")), (peer_of("9"),))
                size = rng.choice((0, 3, 50, 10**12, -1))
                digest = bytes(rng.choice((32, 32, 32, 5)))
                values[name] = SnapshotMeta(self.number(), rng.randrange(5), voters, size, digest)
            elif name == "data":
                values[name] = bytes(rng.randrange(6))
            elif name == "term":
                values[name] = rng.choice((1, 2, 3, 4, self.number()))
            else:
                values[name] = self.number()
        return kind(**values)


class NoWatch(Watch):
    """The invariants of a group do not hold when peers lie; only that nobody falls over."""

    def on_step(self, core, commit_before):
        pass

    def on_write(self, core, storage, ready):
        pass

    def on_synced(self, peer, ready):
        pass

    def on_apply(self, index, state):
        pass


@pytest.mark.parametrize("seed", range(12))
def test_forged_messages_raise_nothing(seed):
    forger = Forger(seed)
    configuration = Configuration(tuple(peer_of(n) for n in "123"))
    cluster = RaftCluster(OPTIONS, seed, NoWatch())
    for peer in configuration.voters:
        cluster.add(peer, configuration)
        cluster.start(peer)
    for _ in range(MESSAGES):
        cluster.deliver(forger.message())
        if not forger.rng.randrange(5):
            cluster.settle()
        if not forger.rng.randrange(10):
            cluster.now += forger.rng.randrange(300 * MILLISECOND_NS)
            for peer in configuration.voters:
                cluster.tick(peer)
    assert sum(sum(h.core.dropped) for h in cluster.running()) > MESSAGES // 2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_message_of_any_kind_whose_term_leaps_changes_nothing(kind):
    """One of them, believed, and no election is possible any more."""
    configuration = Configuration(tuple(peer_of(n) for n in "123"))
    cluster = RaftCluster(OPTIONS, 1, NoWatch())
    for peer in configuration.voters:
        cluster.add(peer, configuration)
        cluster.start(peer)
    forger, (target, sender) = Forger(1), configuration.voters[:2]
    message = next(one for one in iter(forger.message, None) if isinstance(one, kind))
    core = cluster.hosts[target].core
    for leap in (1, 2, TERM_LEAP_MAX, 2**61):
        term = core.term + TERM_LEAP_MAX + leap
        cluster.deliver(message._replace(sender=sender, target=target, term=term))
    assert core.dropped[Drop.TERM_LEAP] == 4
    assert core.term == 0
