"""Random source: chance is an argument of the deterministic layers."""

from typing import Protocol


class Rng(Protocol):
    """Random source of one node; `random.Random` is one."""

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 to `stop` - 1."""
        ...
