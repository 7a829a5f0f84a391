"""Slots for connections, and which connection is evicted when a new one needs a slot.

A connection with an open call is never evicted. Connections whose HTTP/2 handshake is incomplete,
or that are draining, are evicted first; then idle connections, the longest idle first. In each
class the source address with the most connections loses one, so that an address with thousands of
connections evicts only its own.

Every operation takes constant time. Of sources with equally many connections, the source that
reached that number first counts as the largest; with one connection each, that is the longest idle.
"""

from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

from liftbridge_broker.model.units import SECOND_NS

GRACE_NS: Final = SECOND_NS
"""Handshake time of a new client, during which an idle connection is evicted instead."""

T = TypeVar("T")


class ConnectionState(Enum):
    """State of a connection: handshake steps, no call, a call, draining, closed."""

    SILENT = auto()
    UNSETTLED = auto()
    IDLE = auto()
    BUSY = auto()
    DRAINING = auto()
    ENDED = auto()


class Eviction(Enum):
    """Condition for the eviction of a connection."""

    FIRST = auto()
    NEXT = auto()
    NEVER = auto()


EVICTION: Final = {
    ConnectionState.SILENT: Eviction.FIRST,
    ConnectionState.UNSETTLED: Eviction.FIRST,
    ConnectionState.DRAINING: Eviction.FIRST,
    ConnectionState.IDLE: Eviction.NEXT,
    ConnectionState.BUSY: Eviction.NEVER,
    ConnectionState.ENDED: Eviction.NEVER,
}


class _Entry(NamedTuple):
    """The slot of one connection."""

    source: str
    eviction: Eviction
    since: int


class _Candidates(Generic[T]):
    """Connections of one eviction class by source, in the order of entering it."""

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
        """Return the oldest connection of the source with the most connections."""
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
        # A count changes by one, so the largest stays the same or falls by one.
        if after > self.most or (before == self.most and before not in sources):
            self.most = after


class ConnectionSlots(Generic[T]):
    """A bounded number of slots and the connections that hold them.

    Attributes:
        limit: Number of slots.
    """

    def __init__(self, limit: int) -> None:
        """Make empty slots."""
        self.limit = limit
        self._entries: dict[T, _Entry] = {}
        self._candidates: dict[Eviction, _Candidates[T]] = {
            Eviction.FIRST: _Candidates(),
            Eviction.NEXT: _Candidates(),
        }

    def __len__(self) -> int:
        return len(self._entries)

    def admit(self, one: T, source: str, now: int) -> tuple[bool, T | None]:
        """Give a new connection a slot.

        Return whether it got a slot, and the evicted connection.
        """
        evicted = None
        if len(self._entries) >= self.limit:
            evicted = self._expendable(now)
            if evicted is None:
                return False, None
            self.release(evicted)
        self._enter(one, _Entry(source, EVICTION[ConnectionState.SILENT], now))
        return True, evicted

    def update(self, one: T, state: ConnectionState, since: int) -> None:
        """Record the state of a connection; no-op without a slot.

        Args:
            one: The connection.
            state: Its state.
            since: Time at which it became idle, in nanoseconds.
        """
        entry = self._entries.get(one)
        if entry is None:
            return
        eviction = EVICTION[state]
        if eviction is not entry.eviction or (eviction is Eviction.NEXT and since != entry.since):
            self.release(one)
            self._enter(one, _Entry(entry.source, eviction, since))

    def release(self, one: T) -> None:
        """Free the slot of a connection, if it has one."""
        entry = self._entries.pop(one, None)
        if entry is not None and entry.eviction is not Eviction.NEVER:
            self._candidates[entry.eviction].remove(one, entry.source)

    def _enter(self, one: T, entry: _Entry) -> None:
        self._entries[one] = entry
        if entry.eviction is not Eviction.NEVER:
            self._candidates[entry.eviction].add(one, entry.source)

    def _expendable(self, now: int) -> T | None:
        """Return the connection to evict; `None` if all have calls."""
        ready, unready = self._candidates[Eviction.NEXT], self._candidates[Eviction.FIRST]
        idle, silent = ready.first(), unready.first()
        if idle is None or silent is None:
            return idle if silent is None else silent
        since = self._entries[silent].since
        is_fresh = now - since < GRACE_NS and since >= self._entries[idle].since
        return idle if is_fresh and ready.most > unready.most else silent
