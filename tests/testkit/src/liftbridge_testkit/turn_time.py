"""How long a turn of the event loop takes, as processor time beside that of a loop in the same run.

Milliseconds alone would tell of the machine and of who else is at work on it.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from liftbridge_broker.server.process import GC_THRESHOLD

LOOP_COUNT: Final = 2_000_000
"""Rounds of a loop that counts, which take as long as a turn may: some 70 ms."""

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


def seconds_of_a_turn() -> float:
    """Processor time that a turn may take on this machine: of a loop, the fastest of three."""
    took: list[float] = []
    for _ in range(ATTEMPTS):
        rounds = 0
        watch = Longest()
        with watch:
            for _ in range(LOOP_COUNT):
                rounds += 1
        took.append(watch.seconds)
    return min(took)


@contextmanager
def garbage_as_in_a_process() -> Iterator[None]:
    """Have garbage looked for as seldom as in the process of a broker, and only in what follows."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
