"""The times at which a connection must look at itself, by name."""

from typing import Final

NEVER: Final = 1 << 63


class Deadlines:
    """A few named points in time, and a lower bound of the earliest.

    The owner arms one timer at `wake`. Removing or moving a deadline later leaves `wake` alone, so
    frequent changes cost nothing and the timer now and then fires for nothing.

    Attributes:
        wake: No deadline is due before this time, in nanoseconds; `NEVER` without any.
    """

    __slots__ = ("_at", "wake")

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self.wake = NEVER

    def set(self, name: str, at: int) -> None:
        """Give a deadline a time, replacing an earlier one of the name."""
        self._at[name] = at
        self.wake = min(self.wake, at)

    def bring_forward(self, name: str, at: int) -> None:
        """Give a deadline a time unless it has an earlier one."""
        if at < self._at.get(name, NEVER):
            self.set(name, at)

    def clear(self, name: str) -> None:
        """Remove a deadline, if there is one."""
        self._at.pop(name, None)

    def take_due(self, now: int) -> list[str]:
        """Remove and name what is due, in the order of setting; `wake` becomes exact."""
        due = [name for name, at in self._at.items() if at <= now]
        for name in due:
            del self._at[name]
        self.wake = min(self._at.values(), default=NEVER)
        return due
