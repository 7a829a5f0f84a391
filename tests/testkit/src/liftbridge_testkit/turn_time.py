"""Measures the duration of a turn of the event loop, relative to a loop that runs next to it.

Milliseconds alone would show the machine and its other load, and so would a loop
that ran some minutes before.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from liftbridge_broker.server.process import GC_THRESHOLDS

LOOP_COUNT: Final = 200_000
"""Rounds of a loop that counts, which take a tenth of what a turn may: some 6 ms."""

LOOPS_OF_A_TURN: Final = 10

ATTEMPTS: Final = 10
"""Measurements at the most, of which the shortest counts: others at work make each longer."""


@dataclass
class Longest:
    """Processor time of the longest turn."""

    seconds: float = 0.0
    _began: float = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.seconds = max(self.seconds, time.thread_time() - self._began)


def share_of_a_turn(run: Callable[[Longest], None], enough: float) -> float:
    """Share of what a turn may take, 1.0 for all of it, of the longest turn of what is run.

    It runs until an attempt takes no more than `enough`, ten times at the most, and the shortest
    attempt counts. Each is compared with the faster one of the loops before and after it.
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
    """Processor seconds of a loop."""
    rounds = 0
    watch = Longest()
    with watch:
        for _ in range(LOOP_COUNT):
            rounds += 1
    return watch.seconds


@contextmanager
def garbage_as_in_a_process() -> Iterator[None]:
    """Have garbage looked for as seldom as in the process of a broker, and only in what follows."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
