"""Proposals of this broker to the metadata group, until their outcome is known.

An entry holds `<origin: 16 bytes><token: u64, big-endian><command>`. The origin is the random name
of a process, so every process knows its own proposals among the entries that are applied, and no
answer has to travel: the proposer learns the outcome when it applies the entry itself.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.streams import MILLISECOND_NS
from liftbridge_broker.ports.metadata import ProposalToken, Urgency
from liftbridge_broker.wire.peer_bodies import ORIGIN_SIZE

PROPOSALS_MAX: Final = 10_000
"""Proposals whose outcome is not known; more are refused."""

WAIT_NS: Final = 5_000 * MILLISECOND_NS
"""How long a proposal waits for somebody who leads."""

OPEN_NS: Final = 30_000 * MILLISECOND_NS
"""How long the outcome of a proposal is looked for; its proposer has long given up by then."""

ORIGINS_MAX: Final = 1_024
"""Processes whose last proposal is remembered."""

TOKEN_SIZE: Final = 8
PREFIX_SIZE: Final = ORIGIN_SIZE + TOKEN_SIZE
NOBODY: Final = ProposalToken(0)


class Waiting(NamedTuple):
    """A proposal that was not appended and not sent yet."""

    token: ProposalToken
    command: bytes
    urgency: Urgency
    entered_at: Instant


class OwnProposals:
    """Proposals of this process by what is known of them.

    Attributes:
        waiting: Those that were neither appended here nor sent to a leader, oldest first.
    """

    def __init__(self, origin: bytes) -> None:
        """Begin with none; `origin` is random and unique to this process."""
        assert len(origin) == ORIGIN_SIZE
        self.origin = origin
        self.waiting: deque[Waiting] = deque()
        self._open: dict[ProposalToken, Instant] = {}
        self._places: dict[int, ProposalToken] = {}

    def __len__(self) -> int:
        """Proposals without outcome."""
        return len(self.waiting) + len(self._open)

    def data_of(self, proposal: Waiting) -> bytes:
        """Data of the entry of a proposal."""
        return self.origin + proposal.token.to_bytes(TOKEN_SIZE, "big") + proposal.command

    def on_sent(self, proposal: Waiting) -> None:
        """It was sent to a leader."""
        self._open[proposal.token] = proposal.entered_at

    def on_appended(self, proposal: Waiting, index: int) -> None:
        """It got a place in the log here, which another leader may still give to something else."""
        self._open[proposal.token] = proposal.entered_at
        self._places[index] = proposal.token

    def settle(self, token: ProposalToken) -> bool:
        """Its outcome is known; whether it was open."""
        return self._open.pop(token, None) is not None

    def on_committed(self, index: int, data: bytes) -> tuple[ProposalToken, ProposalToken]:
        """An entry is committed.

        Returns:
            The open proposal of this process that it is, and one whose place it took; 0 for none.
            The place was the only one that proposal had, so it will never be committed.
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
        """A snapshot covers everything up to an index; what became of places in it stays open."""
        self._places = {place: token for place, token in self._places.items() if place > index}

    def expire(self, now: Instant) -> Iterator[Waiting]:
        """Forget what is older than `OPEN_NS`; gives what waited too long for a leader."""
        while self._open:
            token = next(iter(self._open))
            if self._open[token] + OPEN_NS > now:
                break
            del self._open[token]
        while self.waiting and self.waiting[0].entered_at + WAIT_NS <= now:
            yield self.waiting.popleft()

    def next_deadline(self) -> Instant | None:
        """When `expire` has something to give."""
        return Instant(self.waiting[0].entered_at + WAIT_NS) if self.waiting else None

    def take_open(self, index_last: int) -> Iterator[tuple[ProposalToken, bool]]:
        """Give up everything that is open; tells of each whether its place is behind an index."""
        behind = {token for index, token in self._places.items() if index > index_last}
        for token in self._open:
            yield token, token in behind
        self._open.clear()
        self._places.clear()


class LeaderClock:
    """What the clock of the metadata leader shows at the least, by what its messages tell of it.

    By it a proposal says until when it may be appended. A message shows what the clock showed
    before it arrived, so the deadline that comes of it is never after the moment that is meant, and
    before it by the time that the message took. Clocks of different processes begin anywhere, so
    what is known belongs to one term: there one process leads.
    """

    def __init__(self) -> None:
        """Begin with nothing told."""
        self._term = 0
        self._clock_ns = 0
        self._heard_at = Instant(0)

    def on_told(self, term: int, clock_ns: int, now: Instant) -> None:
        """A message of the leader of a term arrived."""
        if term == self._term and clock_ns <= self._clock_ns:
            return  # it came late, or twice
        self._term, self._clock_ns, self._heard_at = term, clock_ns, now

    def at(self, term: int, moment: Instant) -> int:
        """What the clock of the leader of a term shows at a moment of the own clock, or less.

        0 when that leader told nothing of its clock.
        """
        if term != self._term:
            return 0
        return max(0, self._clock_ns + moment - self._heard_at)


class SeenProposals:
    """Last proposal of each process that came by message, so that none is appended twice.

    Tokens of a process rise, and messages keep their order on a connection: one that does not rise
    came twice. What came to another leader is not known here, so a proposal is for one term.
    """

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._last: dict[bytes, int] = {}

    def is_new(self, origin: bytes, token: int) -> bool:
        """Whether a proposal comes for the first time; it is remembered."""
        last = self._last.pop(origin, 0)
        self._last[origin] = max(last, token)
        if len(self._last) > ORIGINS_MAX:
            del self._last[next(iter(self._last))]
        return token > last
