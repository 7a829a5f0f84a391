"""Power cuts at chosen writes."""

from collections import deque


class PowerCutError(Exception):
    """Power failed at the chosen write point; only a crash of the files restores it.

    Not a `LiftbridgeError`, so that no handler of refusals swallows it.
    """


class Power:
    """Power of a machine with files in memory: on, until the chosen write point.

    Write points are each append, rewrite, truncate, sync and change of a name.

    Attributes:
        points: Write points passed so far.
        log: Operation and path of each write point, for messages of failing tests.
        cut_at: Number of the write point, from 1, that raises `PowerCutError`; 0 for none.
        is_cut: Whether the power is off.
    """

    def __init__(self) -> None:
        self.points = 0
        self.log: deque[tuple[str, str]] = deque(maxlen=64)
        self.cut_at = 0
        self.is_cut = False

    def require(self) -> None:
        """Raise `PowerCutError` while the power is off."""
        if self.is_cut:
            raise PowerCutError("power is cut")

    def meet_point(self, operation: str, path: str) -> None:
        """Pass a write point, and raise `PowerCutError` if it is the chosen one."""
        self.points += 1
        self.log.append((operation, path))
        if self.points == self.cut_at:
            self.is_cut = True
            raise PowerCutError(f"power cut at point {self.points}: {operation} {path}")
