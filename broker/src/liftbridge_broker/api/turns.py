"""Whose turn it is: work of clients in slices, one connection after the other.

Whatever clients send, a turn of the event loop does so much of it and no more: then timers, other
brokers and NATS have theirs. What is left waits in one line, and whoever has more to do after a
slice goes to its end (round robin), so that a thousand requests of one client keep nobody else
waiting for more than a slice.

While nobody has to wait, work is done where it comes up, at the cost of reading a clock twice.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

TURN_NS: Final = 5_000_000
"""Work of clients in one turn of the loop; the last slice of it may end later."""

SLICE_NS: Final = 2_000_000
"""Work of one client before it is another one's turn; one request or event may end later."""


class Worker(Protocol):
    """Somebody who stands in line; once, until it is its turn."""

    def work(self) -> bool:
        """Do a slice; whether there is more."""
        ...


class Turns:
    """The line of all connections of a server."""

    __slots__ = ("_clock", "_has_overflow", "_is_due", "_line", "_spent_ns")

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        """Nobody waits."""
        self._clock = clock
        self._line: deque[Worker] = deque()
        self._is_due = False
        self._has_overflow = False
        self._spent_ns = 0

    @property
    def is_free(self) -> bool:
        """Whether work may be done at once, instead of in line."""
        return not self._has_overflow

    def now(self) -> int:
        """Clock of slices, nanoseconds."""
        return self._clock()

    def spend(self, nanoseconds: int) -> None:
        """Count work that was done at once."""
        self._spent_ns += nanoseconds
        if self._spent_ns >= TURN_NS and not self._has_overflow:
            # Until the loop has turned, who comes goes in line.
            self._has_overflow = True
            self._call_soon()

    def join(self, worker: Worker) -> None:
        """Give a slice in the next turn of the loop; it is the caller's to come once."""
        self._line.append(worker)
        self._call_soon()

    def _call_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """Slices of those in line, as many as fit a turn."""
        self._is_due = False
        self._spent_ns = 0
        line = self._line
        clock = self._clock
        end = clock() + TURN_NS
        try:
            for _ in range(len(line)):
                worker = line.popleft()
                if worker.work():
                    line.append(worker)
                if clock() >= end:
                    break
        finally:
            self._has_overflow = bool(line) and clock() >= end
            if line:
                self._call_soon()


class Waker:
    """Does something at once while nobody has to wait, and in line otherwise, once.

    One append wakes all who wait for records of its partition, ten thousand perhaps.
    """

    __slots__ = ("_act", "_is_in_line", "_turns")

    def __init__(self, turns: Turns, act: Callable[[], None]) -> None:
        """Nothing is to be done."""
        self._turns = turns
        self._act = act
        self._is_in_line = False

    def wake(self) -> None:
        """Act, now or soon; who acts counts what it took by `Turns.spend`."""
        if self._turns.is_free:
            self._act()
        elif not self._is_in_line:
            self._is_in_line = True
            self._turns.join(self)

    def work(self) -> bool:
        """Act, since it is its turn."""
        self._is_in_line = False
        self._act()
        return False


class Chore:
    """Steps that no call waits for, a slice at a time."""

    __slots__ = ("_steps", "_turns")

    def __init__(self, turns: Turns, steps: Iterator[None]) -> None:
        """Stand in line."""
        self._turns = turns
        self._steps = steps
        turns.join(self)

    def work(self) -> bool:
        """Do some steps; whether there are more."""
        now = self._turns.now
        end = now() + SLICE_NS
        return any(now() >= end for _ in self._steps)
