"""Rare events in the runs of a group, drawn from a random generator of its own.

The runs of `chaos` draw nothing for it, so a seed gives the same other events as before.

- Old answers and requests arrive again, most of them in another term.
- A former leader that transferred leadership receives nothing more, and still acts as leader.
- While several peers act as leader, each of them gets read requests.
- A slow disk completes one write and is as slow with the next.
- No peer receives the messages of a candidate, so its term is ahead of a group that continues.
"""

from random import Random
from typing import Final, Protocol

from liftbridge_broker.raft.types import Message, TimeoutNow, Vote
from liftbridge_testkit.raft.cluster import Host, RaftCluster

KEPT_MAX: Final = 60
"""Maximum number of old messages kept."""


class Group(Protocol):
    """The run that `Weather` adds events to."""

    @property
    def cluster(self) -> RaftCluster:
        """Return the members and their network."""
        ...

    def count(self, name: str) -> None:
        """Count an event."""
        ...

    def read_at(self, host: Host) -> None:
        """Ask a member for a read."""
        ...


class Weather:
    """Adds rare events to one run."""

    def __init__(self, chaos: Group, seed: int) -> None:
        self._chaos = chaos
        self._rng = Random(f"weather {seed}")
        # Not in every run: late messages also end faults that would last without them.
        self._is_late = bool(self._rng.randrange(2))
        self._is_candidate_alone = bool(self._rng.randrange(2))
        self._kept: list[Message] = []

    def after_step(self) -> None:
        """Add the events that are due now, mostly none."""
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
        """Lose all vote requests of one candidate that are in flight."""
        network = self._chaos.cluster.network
        asked = [message for message in network if isinstance(message, Vote)]
        if asked and not self._rng.randrange(3):
            sender = self._rng.choice(asked).sender
            network[:] = [one for one in network if one.sender != sender or one not in asked]
            self._chaos.count("votes lost")

    def _cut_former_leader(self) -> None:
        """Cut off a peer after it asks another one to take over, or lose that request."""
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
        """Complete only the present write of a disk that holds back its writes."""
        holding = [host for host in self._chaos.cluster.running() if host.is_holding]
        if holding:
            self._chaos.cluster.sync(self._rng.choice(holding).peer)
