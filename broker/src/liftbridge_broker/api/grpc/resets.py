"""Counts streams that clients open and reset, over all connections (CVE-2023-44487).

Each connection has its own budget (`http2.guard`). A thousand connections within their budgets
could still occupy the broker completely. So there is also a common bound per second; above it, the
broker ends the connection with the most resets.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from liftbridge_broker.model.units import SECOND_NS

RESETS_MAX: Final = 10_000
"""Per second: ten times the bound of one connection. Each takes about 10 us: a tenth of a core."""

WINDOW_NS: Final = SECOND_NS

User = TypeVar("User", bound=Hashable)


class Resets(Generic[User]):
    """Resets by user since the current second started."""

    __slots__ = ("_began_ns", "_by_user", "_max", "_total")

    def __init__(self, resets_max: int = RESETS_MAX) -> None:
        """Start without resets."""
        self._max = resets_max
        self._by_user: dict[User, int] = {}
        self._total = 0
        self._began_ns = 0

    def count(self, user: User, resets: int, now: int) -> tuple[User, int] | None:
        """Count resets; beyond the bound, return the user to end and the number of its resets.

        That user's resets no longer count, so the total is within the bound again.
        """
        if now - self._began_ns >= WINDOW_NS:
            self._began_ns = now
            self._by_user.clear()
            self._total = 0
        self._total += resets
        self._by_user[user] = self._by_user.get(user, 0) + resets
        if self._total <= self._max:
            return None
        largest = max(self._by_user, key=self._by_user.__getitem__)
        most = self._by_user[largest]
        self.forget(largest)
        return largest, most

    def forget(self, user: User) -> None:
        """Drop the resets of a user that has disconnected."""
        self._total -= self._by_user.pop(user, 0)
