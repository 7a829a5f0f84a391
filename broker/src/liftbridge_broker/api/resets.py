"""Streams that clients open and reset, of all connections together (CVE-2023-44487).

Each connection has a budget of its own (`http2.guard`). A thousand of them that stay within theirs
would still have the broker do nothing else: together they may reset so many in a second, and who
reset most of them is ended first.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from liftbridge_broker.http2.limits import SECOND_NS

RESETS_MAX: Final = 10_000
"""In a second: ten times what one connection may. Each takes about 10 us, so a tenth of a core."""

WINDOW_NS: Final = SECOND_NS

User = TypeVar("User", bound=Hashable)


class Resets(Generic[User]):
    """Who has reset how many streams since the second began."""

    __slots__ = ("_began_ns", "_by_user", "_max", "_total")

    def __init__(self, resets_max: int = RESETS_MAX) -> None:
        """Nobody has reset any."""
        self._max = resets_max
        self._by_user: dict[User, int] = {}
        self._total = 0
        self._began_ns = 0

    def count(self, user: User, resets: int, now: int) -> tuple[User, int] | None:
        """Count resets; who has to go for what all have reset, and how many of them were its.

        What that one has reset is forgotten with it: the others are within the bound again.
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
        """Count what a user has reset no more: it is gone."""
        self._total -= self._by_user.pop(user, 0)
