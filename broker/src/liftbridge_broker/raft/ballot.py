"""The promise a peer makes once per term, and what it knows of the others' (Raft 5.2)."""

from liftbridge_broker.raft.log import Log
from liftbridge_broker.raft.quorum import tally
from liftbridge_broker.raft.types import HardState, Peer


class Ballot:
    """Term and vote, in memory and as they are durable, and the votes for this peer.

    Invariants: the term never falls; within a term the vote is set once.

    Attributes:
        term: Latest term seen.
        vote: Whom this peer voted for in it.
        votes: Answers to the election this peer holds, by voter.
    """

    __slots__ = ("_durable_term", "_durable_vote", "term", "vote", "votes")

    def __init__(self, hard_state: HardState, last_term: int) -> None:
        """Begin with what is durable.

        Entries are written before the hard state, so a crash can leave them without their term. A
        vote in that term cannot have been promised: it would have been durable earlier.
        """
        self.term = max(hard_state.term, last_term)
        self.vote = hard_state.vote if self.term == hard_state.term else None
        self._durable_term, self._durable_vote = self.term, self.vote
        self.votes: dict[Peer, bool] = {}

    @property
    def is_term_durable(self) -> bool:
        """Whether a crash would not lower the term."""
        return self._durable_term == self.term

    @property
    def is_durable(self) -> bool:
        """Whether a crash would leave term and vote as they are."""
        return self._durable_term == self.term and self._durable_vote == self.vote

    def raise_to(self, term: int) -> None:
        """Enter `term`, not voted yet; nothing when it is the present one."""
        assert term >= self.term
        if term > self.term:
            self.term = term
            self.vote = None

    def cast(self, candidate: Peer) -> None:
        """Vote for `candidate` in this term."""
        assert self.vote in (None, candidate)
        self.vote = candidate

    def on_persisted(self, written: HardState) -> None:
        """`written` is durable."""
        self._durable_term, self._durable_vote = written.term, written.vote

    def result(self, log: Log) -> bool | None:
        """Whether the voters in force elect this peer; `None` while it is open."""
        return tally(log.membership.latest.voters, self.votes)
