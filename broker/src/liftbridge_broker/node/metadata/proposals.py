"""Proposals of this broker to the metadata group, until their outcome is known.

An entry holds `<origin: 16 bytes><token: u64, big-endian><command>`. The origin is the random name
of a process, so every process recognises its own proposals among the applied entries. No answer is
sent: the proposer learns the outcome when it applies the entry.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.ports.metadata import ProposalToken, Urgency
from liftbridge_broker.wire.peer.bodies import ORIGIN_SIZE

PROPOSALS_MAX: Final = 10_000
"""Maximum number of proposals with open outcome; more are refused."""

WAIT_NS: Final = 5_000 * MILLISECOND_NS
"""Time for which a proposal waits for a leader."""

OPEN_NS: Final = 30_000 * MILLISECOND_NS
"""Time for which a proposal is tracked; its proposer has timed out long before."""

ORIGINS_MAX: Final = 1_024
"""Processes whose last proposal is remembered."""

TOKEN_SIZE: Final = 8
PREFIX_SIZE: Final = ORIGIN_SIZE + TOKEN_SIZE
NOBODY: Final = ProposalToken(0)


class Waiting(NamedTuple):
    """A proposal that is neither appended nor sent yet."""

    token: ProposalToken
    command: bytes
    urgency: Urgency
    entered_at: Instant


class OwnProposals:
    """Proposals of this process by their progress.

    Attributes:
        waiting: Those that were neither appended here nor sent to a leader, oldest first.
    """

    def __init__(self, origin: bytes) -> None:
        """Start empty; `origin` is random and unique to this process."""
        assert len(origin) == ORIGIN_SIZE
        self.origin = origin
        self.waiting: deque[Waiting] = deque()
        self._open: dict[ProposalToken, Instant] = {}
        self._places: dict[int, ProposalToken] = {}

    def __len__(self) -> int:
        """Number of proposals without outcome."""
        return len(self.waiting) + len(self._open)

    def data_of(self, proposal: Waiting) -> bytes:
        """Return the entry data of a proposal."""
        return self.origin + proposal.token.to_bytes(TOKEN_SIZE, "big") + proposal.command

    def on_sent(self, proposal: Waiting) -> None:
        """Note that a proposal was sent to a leader."""
        self._open[proposal.token] = proposal.entered_at

    def on_appended(self, proposal: Waiting, index: int) -> None:
        """Note a proposal's index in this log; another leader may still overwrite the entry."""
        self._open[proposal.token] = proposal.entered_at
        self._places[index] = proposal.token

    def settle(self, token: ProposalToken) -> bool:
        """Close a proposal whose outcome is known; return whether it was open."""
        return self._open.pop(token, None) is not None

    def on_committed(self, index: int, data: bytes) -> tuple[ProposalToken, ProposalToken]:
        """Handle a committed entry.

        Returns:
            The open proposal of this process that it holds, and the proposal that it overwrote; 0
            for none. The overwritten proposal had no other index, so it is never committed.
        """
        token = NOBODY
        if data.startswith(self.origin):
            token = ProposalToken(int.from_bytes(data[ORIGIN_SIZE:PREFIX_SIZE], "big"))
            if not self.settle(token):
                token = NOBODY
        displaced = self._places.pop(index, NOBODY)
        if displaced in (token, NOBODY) or not self.settle(displaced):
            return token, NOBODY
        return token, displaced

    def on_restored(self, index: int) -> None:
        """Handle a snapshot up to an index; outcomes of proposals below it stay unknown."""
        self._places = {place: token for place, token in self._places.items() if place > index}

    def expire(self, now: Instant) -> Iterator[Waiting]:
        """Drop proposals older than `OPEN_NS`; yield those that waited too long for a leader."""
        while self._open:
            token = next(iter(self._open))
            if self._open[token] + OPEN_NS > now:
                break
            del self._open[token]
        while self.waiting and self.waiting[0].entered_at + WAIT_NS <= now:
            yield self.waiting.popleft()

    def next_deadline(self) -> Instant | None:
        """Time of the next `expire` call."""
        return Instant(self.waiting[0].entered_at + WAIT_NS) if self.waiting else None

    def take_open(self, index_last: int) -> Iterator[tuple[ProposalToken, bool]]:
        """Remove all open proposals; yield each with whether its index is above `index_last`."""
        behind = {token for index, token in self._places.items() if index > index_last}
        for token in self._open:
            yield token, token in behind
        self._open.clear()
        self._places.clear()


class LeaderClock:
    """Lower bound of the metadata leader's clock, from the clock values in its messages.

    Proposals state their append deadline in it. A message carries the clock value of its sending,
    so the deadline is never later than intended, and earlier by the latency of the message. Clocks
    of different processes have arbitrary origins, so a value is valid for one term, which one
    process leads.
    """

    def __init__(self) -> None:
        """Start without a clock value."""
        self._term = 0
        self._clock_ns = 0
        self._heard_at = Instant(0)

    def on_announced(self, term: int, clock_ns: int, now: Instant) -> None:
        """Record the clock value in a message of the leader of a term."""
        if term == self._term and clock_ns <= self._clock_ns:
            return  # a late or duplicate message
        self._term, self._clock_ns, self._heard_at = term, clock_ns, now

    def at(self, term: int, moment: Instant) -> int:
        """Return a lower bound of the clock of a term's leader at a local time.

        0 when that leader sent no clock value.
        """
        if term != self._term:
            return 0
        return max(0, self._clock_ns + moment - self._heard_at)


class SeenProposals:
    """Last proposal received from each process, so that none is appended twice.

    Tokens of a process rise, and a connection keeps the order of messages: a token that does not
    rise is a duplicate. Messages to another leader are not known here, so a proposal is for one
    term.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._last: dict[bytes, int] = {}

    def is_new(self, origin: bytes, token: int) -> bool:
        """Record a proposal; return whether it is new."""
        last = self._last.pop(origin, 0)
        self._last[origin] = max(last, token)
        if len(self._last) > ORIGINS_MAX:
            del self._last[next(iter(self._last))]
        return token > last
