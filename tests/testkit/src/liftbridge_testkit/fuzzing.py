"""Rounds of a fuzz test: few and always the same in `make test`, as many as a time holds otherwise.

A test takes its random numbers from `rounds` and says how many rounds it runs and with which seed.
`make fuzz` gives every such test a share of `FUZZ_SECONDS` and a seed that was never used before,
which is printed; `FUZZ_SEED` repeats a run.
"""

from collections.abc import Callable, Iterator
from random import Random, SystemRandom
from time import monotonic

_SEED_MAX = 2**32


def _ignore(_text: str) -> None:
    """Ignore progress texts."""


class Fuzz:
    """Rounds of one test.

    Attributes:
        count: Rounds that were begun.
        seed: Seed of a run that takes its time.
    """

    def __init__(
        self,
        *,
        seconds: float = 0.0,
        seed: int | None = None,
        tell: Callable[[str], None] = _ignore,
    ) -> None:
        """Prepare a run.

        Args:
            seconds: Duration; 0 for the number of rounds and the seed of the test.
            seed: Seed of a run that takes its time; `None` for a new one.
            tell: Told the seed before such a run, and the number of rounds after it.
        """
        self._seconds = seconds
        self._tell = tell
        self.count = 0
        self.seed = SystemRandom().randrange(_SEED_MAX) if seed is None else seed
        if self.is_long:
            tell(f"FUZZ_SEED={self.seed}")

    @property
    def is_long(self) -> bool:
        """Return whether the run has a time instead of a number of rounds."""
        return self._seconds > 0

    def rounds(self, seed: int, count: int) -> Iterator[Random]:
        """The random numbers of each round, all from one source, so that the seed repeats them.

        Args:
            seed: Seed of a short run.
            count: Rounds of a short run.
        """
        random = Random(self.seed if self.is_long else seed)
        until = monotonic() + self._seconds
        while monotonic() < until if self.is_long else self.count < count:
            self.count += 1
            yield random
        if self.is_long:
            self._tell(f"{self.count} rounds")
