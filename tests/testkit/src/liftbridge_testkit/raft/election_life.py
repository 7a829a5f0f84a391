"""Random lives of a Raft group whose members hear that a process has ended, all of them at once.

Links take a millisecond and lose nothing. The end of the leader must give another one soon and in
few terms, even when two voters start their elections at the same moment; the end of a follower, and
false news about one, must not disturb the leader (ADR 0031).
"""

from functools import partial
from random import Random
from typing import Final

from liftbridge_broker.model.metadata_log import Configuration, Peer
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.metadata.consensus import STAGGER_NS
from liftbridge_broker.raft.core import RaftCore
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_testkit.raft.cluster import RaftCluster, peer_of

ROUNDS: Final = 8
TURN_NS: Final = MILLISECOND_NS
"""Time that a message takes."""

ELECTION_NS_MAX: Final = 250 * MILLISECOND_NS
"""Time from the news to another leader."""

QUIET_NS: Final = 3 * SECOND_NS
"""Time in which a needless election would come about."""


class ElectionLife:
    """One group of three or five.

    Attributes:
        random: Choices of the seed.
        cluster: The group.
    """

    def __init__(self, seed: int) -> None:
        """Elect the first leader."""
        self.random = Random(seed)
        self.cluster = RaftCluster(RaftOptions(), seed)
        names = range(1, 1 + self.random.choice((3, 5)))
        self.voters = [peer_of(str(number)) for number in names]
        for peer in self.voters:
            self.cluster.add(peer, Configuration(tuple(self.voters)))
            self.cluster.start(peer)
        self._run(QUIET_NS)

    def run(self) -> int:
        """Play the life; return the number of its rounds."""
        for _ in range(ROUNDS):
            self.random.choice((self._end, self._mistake))()
        return ROUNDS

    def _leader(self) -> RaftCore:
        leader = self.cluster.leader()
        assert leader is not None, "nobody leads"
        return leader

    def _run(self, duration_ns: int) -> None:
        """Let time pass; what is due at the same moment happens at all peers, then messages go."""
        cluster = self.cluster
        end = cluster.now + duration_ns
        while cluster.now < end:
            cluster.now += TURN_NS
            arriving, cluster.network = cluster.network, []
            for message in self.random.sample(arriving, len(arriving)):
                cluster.deliver(message)
            for host in cluster.running():
                assert host.core is not None
                deadline = host.core.next_deadline()
                if deadline is not None and deadline <= cluster.now:
                    cluster.tick(host.peer)

    def _end(self) -> None:
        """End a process; all others hear of it."""
        before = self._leader()
        ended = self.random.choice((before.me, self.random.choice(self.voters)))
        self.cluster.hosts[ended].crash(0)
        hearing = [peer for peer in self.voters if peer != ended]
        self._tell(hearing, ended)
        if ended == before.me:
            self._run(ELECTION_NS_MAX)
            terms = self._leader().term - before.term
            assert 1 <= terms <= len(hearing), f"{terms} terms for one leader"
        self._stay()
        self.cluster.start(ended)
        self._stay()

    def _mistake(self) -> None:
        """Have some voters believe that the process of another follower has ended."""
        leader = self._leader().me
        blamed = self.random.choice([peer for peer in self.voters if peer != leader])
        count = self.random.randrange(1, len(self.voters) + 1)
        self._tell(self.random.sample(self.voters, count), blamed)
        self._stay()

    def _tell(self, hearing: list[Peer], ended: Peer) -> None:
        """Tell that a process has ended; the elections of two may all the same be due at once."""
        stagger = 0 if len(self.voters) == 3 and self.random.random() < 0.5 else STAGGER_NS
        for rank, peer in enumerate(self.random.sample(hearing, len(hearing))):
            delay = TURN_NS + rank * stagger
            self.cluster.act(peer, partial(self._abandon, ended, delay))

    def _abandon(self, ended: Peer, delay: int, core: RaftCore) -> None:
        core.abandon(ended, delay, self.cluster.now)

    def _stay(self) -> None:
        """Let time pass, in which the leader must stay."""
        leader, term = self._leader().me, self._leader().term
        self._run(QUIET_NS)
        assert (self._leader().me, self._leader().term) == (leader, term), "a needless election"


def life(seed: int) -> int:
    """Play the life of a seed; return the number of its rounds."""
    return ElectionLife(seed).run()
