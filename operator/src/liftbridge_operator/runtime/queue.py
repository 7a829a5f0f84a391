"""The work queue: which key is looked at next, and when. Pure; time and chance are arguments.

A key stands in it once, however often it is asked for, and is handed out to one worker at a time.
What is asked for while a pass runs, is done after it. Times are seconds of a monotonic clock.
"""

import heapq
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from liftbridge_operator.runtime.reconciler import Key, RequeueAfter

KEYS_MAX: Final = 50_000
"""Keys that are remembered; what does not fit is found again by the next resync."""

SPACING_S: Final = 0.2
"""Least time from the begin of a pass to the next one of its key, so that the events of one write
make one pass."""

BACKOFF_MIN_S: Final = 0.5
BACKOFF_MAX_S: Final = 60.0
FAILURE_SPACING_S: Final = 1.0
"""Least time from a failed pass to the next one of its key, when events ask for it."""

REQUEUE_MAX_S: Final = 3_600.0


class Taken(NamedTuple):
    """A key that was handed out.

    Attributes:
        key: Which.
        waited_s: For how long it was due.
    """

    key: Key
    waited_s: float


@dataclass(slots=True)
class _Item:
    """What is known of one key.

    Attributes:
        due_s: When it is to be looked at; None when nobody asks for it.
        earliest_s: When it may be looked at.
        failures: Passes that failed since one succeeded.
        is_running: Whether a worker has it.
    """

    due_s: float | None = None
    earliest_s: float = 0.0
    failures: int = 0
    is_running: bool = False


@dataclass(slots=True)
class WorkQueue:
    """Keys and their times.

    Invariants: a key is running at most once; every key that is due and not running has an entry
    in the heap at its time or before; entries that no longer hold are dropped when they come up.

    Attributes:
        rng: Of the jitter.
        dropped: How many requests were refused for lack of room.
        retries: How many passes failed.
    """

    rng: Random
    keys_max: int = KEYS_MAX
    dropped: int = 0
    retries: int = 0
    _items: dict[Key, _Item] = field(default_factory=dict)
    _heap: list[tuple[float, int, Key]] = field(default_factory=list)
    _sequence: int = 0

    @property
    def depth(self) -> int:
        """Keys that wait for a pass, at whatever time."""
        return sum(item.due_s is not None for item in self._items.values())

    @property
    def running(self) -> int:
        """Keys that are being looked at."""
        return sum(item.is_running for item in self._items.values())

    def oldest_s(self, now: float) -> float:
        """For how long the key is due that waits longest; 0 for none."""
        due = [
            max(item.due_s, item.earliest_s)
            for item in self._items.values()
            if item.due_s is not None and not item.is_running
        ]
        return max(0.0, now - min(due)) if due else 0.0

    def add(self, key: Key, now: float, after_s: float = 0.0) -> bool:
        """Have a key looked at within this time; an earlier time that was set before stands.

        Returns:
            Whether there was room for it.
        """
        assert after_s >= 0, "time does not go back"
        item = self._items.get(key)
        if item is None:
            if len(self._items) >= self.keys_max:
                self.dropped += 1
                return False
            item = self._items[key] = _Item()
        due = now + min(after_s, REQUEUE_MAX_S)
        if item.due_s is None or due < item.due_s:
            item.due_s = due
            self._push(key, item)
        return True

    def take(self, now: float) -> Taken | None:
        """The key that is due for longest, which is running from now on; None for none."""
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            item = self._items.get(key)
            if item is None or item.due_s is None or item.is_running:
                continue
            ready = max(item.due_s, item.earliest_s)
            if ready > now:
                continue  # a later entry of it holds
            item.due_s = None
            item.is_running = True
            item.earliest_s = now + SPACING_S
            return Taken(key, now - at)
        return None

    def next_s(self) -> float | None:
        """When to ask for a key again; None when only a new request can bring one."""
        while self._heap:
            at, _, key = self._heap[0]
            item = self._items.get(key)
            if item is not None and item.due_s is not None and not item.is_running:
                if at >= max(item.due_s, item.earliest_s):
                    return at
                return max(item.due_s, item.earliest_s)
            heapq.heappop(self._heap)
        return None

    def succeed(self, key: Key, now: float, again: RequeueAfter | None) -> None:
        """A pass has ended; `again` says when the next one is wanted."""
        item = self._end(key)
        item.failures = 0
        if again is not None:
            self.add(key, now, max(again.seconds, 0.0))
        self._settle(key, item)

    def fail(self, key: Key, now: float) -> float:
        """A pass has failed; another one follows after a back-off that doubles, with jitter.

        An event may bring it forward, but not to less than `FAILURE_SPACING_S`.

        Returns:
            The back-off in seconds.
        """
        item = self._end(key)
        self.retries += 1
        longest = min(BACKOFF_MIN_S * 2.0 ** min(item.failures, 16), BACKOFF_MAX_S)
        item.failures += 1
        wait = longest * (0.5 + 0.5 * self.rng.random())
        item.earliest_s = now + min(wait, FAILURE_SPACING_S)
        self.add(key, now, wait)
        self._settle(key, item)
        return wait

    def _end(self, key: Key) -> _Item:
        item = self._items[key]
        assert item.is_running, "only what was taken can end"
        item.is_running = False
        return item

    def _settle(self, key: Key, item: _Item) -> None:
        """After a pass: forget a key that nobody asks for, else have it come up."""
        if item.due_s is None:
            del self._items[key]  # its spacing is forgotten too, which costs one pass at most
        else:
            self._push(key, item)

    def _push(self, key: Key, item: _Item) -> None:
        assert item.due_s is not None, "only what is due comes up"
        if item.is_running:
            return  # its end brings it up
        self._sequence += 1
        heapq.heappush(self._heap, (max(item.due_s, item.earliest_s), self._sequence, key))
