"""Measure the duration of a turn of the event loop, relative to a reference loop.

Milliseconds alone would depend on the machine and its other load, and so would a loop measured some
minutes before.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from liftbridge_broker.server.process import GC_THRESHOLDS

LOOP_COUNT: Final = 200_000
"""Rounds of a reference loop that takes a tenth of the limit of a turn, about 6 ms."""

LOOPS_OF_A_TURN: Final = 10

ATTEMPTS: Final = 10
"""Maximum number of measurements; the shortest counts, because other load makes each longer."""


@dataclass
class Longest:
    """CPU time of the longest turn."""

    seconds: float = 0.0
    _began: float = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.seconds = max(self.seconds, time.thread_time() - self._began)


def share_of_a_turn(run: Callable[[Longest], None], enough: float) -> float:
    """Return the longest turn as a share of the limit; 1.0 is the whole limit.

    It repeats until an attempt takes at most `enough`, ten times at most, and the shortest attempt
    counts. Each attempt is compared with the faster of the reference loops before and after it.
    """
    share, loop = float("inf"), _loop()
    for _ in range(ATTEMPTS):
        watch = Longest()
        run(watch)
        before, loop = loop, _loop()
        share = min(share, watch.seconds / (LOOPS_OF_A_TURN * min(before, loop)))
        if share <= enough:
            break
    return share


def _loop() -> float:
    """Return the CPU seconds of the reference loop."""
    rounds = 0
    watch = Longest()
    with watch:
        for _ in range(LOOP_COUNT):
            rounds += 1
    return watch.seconds


@contextmanager
def garbage_as_in_a_process() -> Iterator[None]:
    """Collect garbage as rarely as a broker process does, and only from now on."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
