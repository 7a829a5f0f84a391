"""Turns: schedules the work of clients in slices, one connection after the other.

Whatever clients send, a turn of the event loop handles a bounded part of it: then timers, other
brokers and NATS run. The rest waits in two queues, as packets do in RFC 8290 (FQ-CoDel).
Connections with new work are served before connections with work left after a slice. The latter are
served in turn (round robin) and always get half of the time. So clients that request much delay one
another, but not clients that request little.

While no connection waits, work is done at once, at the cost of reading a clock twice.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from liftbridge_broker.api.grpc.call import Call

TURN_NS: Final = 5_000_000
"""Time for work of clients in a turn of the loop; the last slice may end later."""

SLICE_NS: Final = 2_000_000
"""Time for work of a client before the next client runs; a request or event may end later."""


class Worker(Protocol):
    """A queued task; queued once, until it runs."""

    def work(self) -> bool:
        """Do a slice; return whether more is left."""
        ...


def _raise(error: Exception) -> None:
    raise error


class Turns:
    """The queues of all connections of a server.

    Attributes:
        on_bug: Called with an exception of queued work; by default, the event loop gets the
            exception.
    """

    __slots__ = ("_clock", "_continuing", "_has_overflow", "_is_due", "_new", "_spent_ns", "on_bug")

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        """Start with empty queues."""
        self._clock = clock
        self._new: deque[Worker] = deque()
        self._continuing: deque[Worker] = deque()
        self._is_due = False
        self._has_overflow = False
        self._spent_ns = 0
        self.on_bug: Callable[[Exception], None] = _raise

    @property
    def is_free(self) -> bool:
        """Return whether work may be done immediately, without queueing."""
        return not self._has_overflow

    def now(self) -> int:
        """Return the time of the clock of slices, in nanoseconds."""
        return self._clock()

    def spend(self, nanoseconds: int) -> None:
        """Count work that was done immediately."""
        self._spent_ns += nanoseconds
        if self._spent_ns >= TURN_NS and not self._has_overflow:
            # Until the loop has turned, new work is queued.
            self._has_overflow = True
            self._call_soon()

    def join(self, worker: Worker) -> None:
        """Queue a worker for the next turn of the loop; the caller must not queue it twice."""
        self._new.append(worker)
        self._call_soon()

    def _call_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """Run slices of queued workers, as many as fit in a turn, at most one of each."""
        self._is_due = False
        self._spent_ns = 0
        clock = self._clock
        begin = clock()
        end = begin + TURN_NS
        continuing = len(self._continuing)
        try:
            self._serve(self._new, len(self._new), begin + TURN_NS // 2)
            self._serve(self._continuing, continuing, end)
            if clock() < end:
                self._serve(self._new, len(self._new), end)
        except Exception as error:  # noqa: BLE001 - the pump: the owner ends all
            self.on_bug(error)
        finally:
            is_left = bool(self._new or self._continuing)
            self._has_overflow = is_left and clock() >= end
            if is_left:
                self._call_soon()

    def _serve(self, line: deque[Worker], count: int, until: int) -> None:
        """Run slices of at most `count` workers, at least of one, until a time."""
        for _ in range(count):
            worker = line.popleft()
            if worker.work():
                self._continuing.append(worker)
            if self._clock() >= until:
                break


class Waker:
    """Acts immediately while no connection waits; otherwise once, in the work of its connection.

    One append wakes all readers that wait for records of its partition, perhaps ten thousand. In a
    queue of their own they would delay every other client until each of them was served.
    """

    __slots__ = ("_act", "_call", "_is_in_line", "_turns")

    def __init__(self, turns: Turns, call: Call, act: Callable[[], None]) -> None:
        """Start with nothing to do; no action follows the end of the call."""
        self._turns = turns
        self._call = call
        self._act = act
        self._is_in_line = False

    def wake(self) -> None:
        """Act now or soon; the action counts its time by `Turns.spend`."""
        if self._turns.is_free:
            self._act()
        elif not self._is_in_line:
            self._is_in_line = True
            self._call.go_on(self._steps())

    def _steps(self) -> Iterator[None]:
        self._is_in_line = False
        self._act()
        yield


class Chore:
    """Runs steps without a waiting call, a slice at a time."""

    __slots__ = ("_steps", "_turns")

    def __init__(self, turns: Turns, steps: Iterator[None]) -> None:
        """Queue the steps."""
        self._turns = turns
        self._steps = steps
        turns.join(self)

    def work(self) -> bool:
        """Do some steps; return whether more are left."""
        now = self._turns.now
        end = now() + SLICE_NS
        return any(now() >= end for _ in self._steps)
