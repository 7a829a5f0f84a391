"""A peer's term and vote, and the votes received from other peers (Raft 5.2)."""

from liftbridge_broker.model.metadata_log import HardState, Peer
from liftbridge_broker.raft.log import Log
from liftbridge_broker.raft.quorum import tally


class Ballot:
    """Term and vote, in memory and durable, and the votes for this peer.

    Invariants: the term never falls; within a term the vote is set once.

    Attributes:
        term: Latest term seen.
        vote: Candidate that this peer voted for in `term`.
        votes: Answers to the election this peer holds, by voter.
    """

    __slots__ = ("_durable_term", "_durable_vote", "term", "vote", "votes")

    def __init__(self, hard_state: HardState, last_term: int) -> None:
        """Start from the durable state.

        Entries are written before the hard state, so a crash may leave entries of a term that the
        hard state lacks. This peer cannot have voted in that term: the vote would have been durable
        earlier.
        """
        self.term = max(hard_state.term, last_term)
        self.vote = hard_state.vote if self.term == hard_state.term else None
        self._durable_term, self._durable_vote = self.term, self.vote
        self.votes: dict[Peer, bool] = {}

    @property
    def is_term_durable(self) -> bool:
        """Return whether the term survives a crash."""
        return self._durable_term == self.term

    @property
    def is_durable(self) -> bool:
        """Return whether term and vote survive a crash."""
        return self._durable_term == self.term and self._durable_vote == self.vote

    def raise_to(self, term: int) -> None:
        """Enter `term` without a vote; no-op for the current term."""
        assert term >= self.term
        if term > self.term:
            self.term = term
            self.vote = None

    def cast(self, candidate: Peer) -> None:
        """Vote for `candidate` in this term."""
        assert self.vote in (None, candidate)
        self.vote = candidate

    def on_persisted(self, written: HardState) -> None:
        """Note that `written` is durable."""
        self._durable_term, self._durable_vote = written.term, written.vote

    def result(self, log: Log) -> bool | None:
        """Return whether the voters in force elect this peer; `None` while the election is open."""
        return tally(log.membership.latest.voters, self.votes)
