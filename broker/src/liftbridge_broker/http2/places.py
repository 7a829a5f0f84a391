"""Who gives up a place when all places for connections are taken.

A connection with an open call never does. Of the others, those go first that have not said yet that
they speak HTTP/2, or are leaving; then those without a call, idle the longest. Of either the source
with most of them gives one up, so that one that opens thousands takes no place from the others.

All steps take the same time however many connections there are. Of sources with equally many, the
one that came to have so many first is the heaviest: with one each, the one idle the longest.
"""

from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

from liftbridge_broker.http2.limits import SECOND_NS

FRESH_NS: Final = SECOND_NS
"""A client that has just come is not sent away for having said nothing yet."""

T = TypeVar("T")


class Standing(Enum):
    """What a connection does."""

    SILENT = auto()
    UNSETTLED = auto()
    IDLE = auto()
    BUSY = auto()
    LEAVING = auto()
    ENDED = auto()


class Rank(Enum):
    """How readily a connection is given up."""

    FIRST = auto()
    NEXT = auto()
    NEVER = auto()


RANKS: Final = {
    Standing.SILENT: Rank.FIRST,
    Standing.UNSETTLED: Rank.FIRST,
    Standing.LEAVING: Rank.FIRST,
    Standing.IDLE: Rank.NEXT,
    Standing.BUSY: Rank.NEVER,
    Standing.ENDED: Rank.NEVER,
}


class _Entry(NamedTuple):
    """What is known of a connection."""

    source: str
    rank: Rank
    since: int


class _Crowd(Generic[T]):
    """Connections of one rank by source, each in the order in which they came to it."""

    def __init__(self) -> None:
        self._members: dict[str, dict[T, None]] = {}
        self._sources: dict[int, dict[str, None]] = {}
        self.most = 0

    def add(self, one: T, source: str) -> None:
        members = self._members.setdefault(source, {})
        self._count(source, len(members), len(members) + 1)
        members[one] = None

    def remove(self, one: T, source: str) -> None:
        members = self._members[source]
        del members[one]
        self._count(source, len(members) + 1, len(members))
        if not members:
            del self._members[source]

    def first(self) -> T | None:
        """The oldest of the source with most."""
        if not self.most:
            return None
        source = next(iter(self._sources[self.most]))
        return next(iter(self._members[source]))

    def _count(self, source: str, before: int, after: int) -> None:
        sources = self._sources
        if before:
            del sources[before][source]
        if after:
            sources.setdefault(after, {})[source] = None
        if before and not sources[before]:
            del sources[before]
        # Counts change by one, so that whoever had most has most still, or one less.
        if after > self.most or (before == self.most and before not in sources):
            self.most = after


class Places(Generic[T]):
    """A bounded number of places, and who has them.

    Attributes:
        limit: How many there are.
    """

    def __init__(self, limit: int) -> None:
        """All are free."""
        self.limit = limit
        self._entries: dict[T, _Entry] = {}
        self._crowds: dict[Rank, _Crowd[T]] = {Rank.FIRST: _Crowd(), Rank.NEXT: _Crowd()}

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, one: T, source: str, now: int) -> tuple[bool, T | None]:
        """Give a new connection a place; whether it has one, and who has lost it for that."""
        loser = None
        if len(self._entries) >= self.limit:
            loser = self._expendable(now)
            if loser is None:
                return False, None
            self.leave(loser)
        self._enter(one, _Entry(source, RANKS[Standing.SILENT], now))
        return True, loser

    def stand(self, one: T, standing: Standing, since: int) -> None:
        """A connection does something else, or has done it again; nothing of one without a place.

        Args:
            one: Which.
            standing: What it does.
            since: When it became idle, in nanoseconds.
        """
        entry = self._entries.get(one)
        if entry is None:
            return
        rank = RANKS[standing]
        if rank is not entry.rank or (rank is Rank.NEXT and since != entry.since):
            self.leave(one)
            self._enter(one, _Entry(entry.source, rank, since))

    def leave(self, one: T) -> None:
        """A connection gives its place up, if it has one."""
        entry = self._entries.pop(one, None)
        if entry is not None and entry.rank is not Rank.NEVER:
            self._crowds[entry.rank].remove(one, entry.source)

    def _enter(self, one: T, entry: _Entry) -> None:
        self._entries[one] = entry
        if entry.rank is not Rank.NEVER:
            self._crowds[entry.rank].add(one, entry.source)

    def _expendable(self, now: int) -> T | None:
        """Who goes; `None` when all have calls."""
        ready, unready = self._crowds[Rank.NEXT], self._crowds[Rank.FIRST]
        idle, silent = ready.first(), unready.first()
        if idle is None or silent is None:
            return idle if silent is None else silent
        since = self._entries[silent].since
        is_fresh = now - since < FRESH_NS and since >= self._entries[idle].since
        return idle if is_fresh and ready.most > unready.most else silent
