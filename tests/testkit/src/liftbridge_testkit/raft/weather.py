"""Causes rare events in the lives of a group, with a random generator of its own.

The lives of `chaos` draw nothing for it, so that a seed stays what it is for all else.

- Answers and requests of long ago arrive once more, most of them in another term.
- A former leader that transferred leadership receives nothing more, and believes to lead.
- Reads are asked of everyone who believes to lead while several do.
- A slow disk is done with one write and as slow with the next.
- No peer receives the candidate of a new term, so that it is ahead of a group that continues.
"""

from random import Random
from typing import Final, Protocol

from liftbridge_broker.raft.types import Message, TimeoutNow, Vote
from liftbridge_testkit.raft.cluster import Host, RaftCluster

KEPT_MAX: Final = 60
"""Messages of long ago that are kept."""


class Group(Protocol):
    """The life that is added to."""

    @property
    def cluster(self) -> RaftCluster:
        """Its members and their network."""
        ...

    def count(self, name: str) -> None:
        """Note that something happened."""
        ...

    def read_at(self, host: Host) -> None:
        """Ask a member for a read."""
        ...


class Weather:
    """Adds to one life."""

    def __init__(self, chaos: Group, seed: int) -> None:
        self._chaos = chaos
        self._rng = Random(f"weather {seed}")
        # Not in all lives: what comes late also ends what would go wrong without it.
        self._is_late = bool(self._rng.randrange(2))
        self._is_candidate_alone = bool(self._rng.randrange(2))
        self._kept: list[Message] = []

    def after_step(self) -> None:
        """Do what is due now, mostly nothing."""
        draw = self._rng.randrange(40)
        if draw == 0 and self._is_late:
            self._keep()
        elif draw == 1 and self._is_late:
            self._deliver_late()
        elif draw < 12:
            self._read_at_leaders()
        elif draw < 30 and self._is_candidate_alone:
            self._lose_votes()
        elif draw < 36:
            self._cut_former_leader()
        else:
            self._finish_write()

    def _keep(self) -> None:
        network = self._chaos.cluster.network
        if network:
            self._kept.append(self._rng.choice(network))
            del self._kept[:-KEPT_MAX]

    def _deliver_late(self) -> None:
        if self._kept:
            self._chaos.cluster.deliver(self._rng.choice(self._kept))
            self._chaos.count("late")

    def _read_at_leaders(self) -> None:
        running = self._chaos.cluster.running()
        leaders = [host for host in running if host.core is not None and host.core.is_leader]
        if len(leaders) > 1:
            for host in leaders:
                self._chaos.read_at(host)

    def _lose_votes(self) -> None:
        """Lose the requests of one candidate for votes, all that are on their way."""
        network = self._chaos.cluster.network
        asked = [message for message in network if isinstance(message, Vote)]
        if asked and not self._rng.randrange(3):
            sender = self._rng.choice(asked).sender
            network[:] = [one for one in network if one.sender != sender or one not in asked]
            self._chaos.count("votes lost")

    def _cut_former_leader(self) -> None:
        """Cut off a peer that asks another one to lead, after this request; or lose the request."""
        cluster = self._chaos.cluster
        asked = [one for one in cluster.network if isinstance(one, TimeoutNow)]
        if asked and not self._rng.randrange(4):
            cluster.network.remove(asked[0])
            if self._rng.randrange(2):
                self._chaos.count("hand-over lost")
                return
            cluster.deliver(asked[0])
            others = [peer for peer in cluster.hosts if peer != asked[0].sender]
            cluster.partition([others])
            self._chaos.count("former leader cut off")

    def _finish_write(self) -> None:
        """Let a disk that holds its writes finish the present one only."""
        holding = [host for host in self._chaos.cluster.running() if host.is_holding]
        if holding:
            self._chaos.cluster.sync(self._rng.choice(holding).peer)
