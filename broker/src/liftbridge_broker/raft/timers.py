"""Timers of a member: elections, heartbeats, and detection of a stalled loop."""

from typing import Final

from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.ports.rng import Rng
from liftbridge_broker.raft.options import RaftOptions

FIRST_TURN_NS: Final = 50 * MILLISECOND_NS
"""Time between the first elections of the voters of a new group.

Nobody leads a new group, so it gains nothing from silence: its voters try in turn, the first one at
once. A turn leaves time for the messages and syncs of an election, and nine voters, the most there
are, have theirs within the default election timeout. Who fails waits a random timeout, as after any
election, or `RETRY_NS`.
"""

RETRY_NS: Final = 20 * MILLISECOND_NS
"""Time until one of two candidates of the same term tries again, if nobody is elected by then.

Short beside a random timeout; a retry before the last vote has arrived only costs another term.
"""

WATCHES_PER_ELECTION: Final = 4
"""Wake-ups requested within an election timeout, so that a stalled loop shows as a gap."""


class Timers:
    """Deadlines in monotonic nanoseconds.

    Attributes:
        now: Time of the last call; never falls.
        election_deadline: Time at which a peer without contact to a leader starts an election.
        heartbeat_due: Time at which a leader sends its next heartbeats.
        leader_heard_at: Time of the last message of the leader of the current term.
    """

    __slots__ = (
        "_options",
        "_rng",
        "election_deadline",
        "heartbeat_due",
        "leader_heard_at",
        "now",
    )

    def __init__(self, options: RaftOptions, rng: Rng, now: int) -> None:
        """Begin with a full election timeout."""
        self._options = options
        self._rng = rng
        self.now = now
        self.heartbeat_due = now
        self.leader_heard_at = now - options.election_ns
        self.restart_election()

    def pass_to(self, now: int) -> bool:
        """Note the time; return whether this loop stalled for more than half an election timeout.

        After such a gap, messages may be unread. So silence proves nothing about other peers, and
        must not depose or elect a leader.
        """
        gap = now - self.now
        if gap <= 0:
            return False
        self.now = now
        return gap > self._options.election_ns // 2  # guard R.stall

    def restart_election(self) -> None:
        """Wait a full, random election timeout from now on (Raft 5.2)."""
        options = self._options
        spread = self._rng.randrange(options.election_spread_ns)
        self.election_deadline = self.now + options.election_ns + spread

    def await_first_turn(self, index: int) -> None:
        """Start the first election after the turns of `index` other voters."""
        self.election_deadline = self.now + index * FIRST_TURN_NS

    def restart_heartbeat(self) -> None:
        """Schedule the next heartbeats one interval from now."""
        self.heartbeat_due = self.now + self._options.heartbeat_ns

    def forget_leader(self, delay: int) -> None:
        """Count the leader as silent for long enough; start an election after `delay`."""
        self.leader_heard_at = self.now - self._options.election_ns
        self.election_deadline = self.now + delay

    def hasten_election(self, delay: int) -> None:
        """Start the next election after `delay` at the latest."""
        self.election_deadline = min(self.election_deadline, self.now + delay)

    def on_leader_heard(self) -> None:
        """Note that the leader was heard."""
        self.leader_heard_at = self.now
        self.restart_election()

    def is_leader_fresh(self) -> bool:
        """Return whether the leader was heard within the minimum election timeout."""
        return self.now - self.leader_heard_at < self._options.election_ns

    def follower_deadline(self) -> int:
        """Return the next wake-up time of a peer that does not lead."""
        watch = self.now + self._options.election_ns // WATCHES_PER_ELECTION
        return min(self.election_deadline, watch)
