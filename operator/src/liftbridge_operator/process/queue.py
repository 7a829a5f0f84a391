"""Work queue: order and time of passes. Pure; time and randomness are arguments.

A key is queued once, however often it is requested, and is given to one worker at a time. A request
during a pass leads to another pass after it. Times are seconds of a monotonic clock.
"""

import heapq
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from liftbridge_operator.process.reconciler import Key, RequeueAfter

KEYS_MAX: Final = 50_000
"""Maximum number of keys; the next resync finds keys that did not fit."""

SPACING_S: Final = 0.2
"""Minimum time between the starts of two passes of a key, so that the events of one write cause
one pass."""

BACKOFF_MIN_S: Final = 0.5
BACKOFF_MAX_S: Final = 60.0
FAILURE_SPACING_S: Final = 1.0
"""Minimum time from a failed pass to the next one of its key, when events request it."""

REQUEUE_MAX_S: Final = 3_600.0


class Taken(NamedTuple):
    """A key that was given to a worker.

    Attributes:
        key: The key.
        waited_s: Time for which it was due.
    """

    key: Key
    waited_s: float


@dataclass(slots=True)
class _Item:
    """State of one key.

    Attributes:
        due_s: Time of the requested pass; None without a request.
        earliest_s: Earliest time of the next pass.
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
        rng: Source of jitter.
        dropped: Number of requests refused for lack of room.
        retries: Number of failed passes.
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
        """Number of keys that wait for a pass, at any time."""
        return sum(item.due_s is not None for item in self._items.values())

    @property
    def running(self) -> int:
        """Number of keys with a running pass."""
        return sum(item.is_running for item in self._items.values())

    def oldest_s(self, now: float) -> float:
        """Return the age of the longest due key; 0 for none."""
        due = [
            max(item.due_s, item.earliest_s)
            for item in self._items.values()
            if item.due_s is not None and not item.is_running
        ]
        return max(0.0, now - min(due)) if due else 0.0

    def add(self, key: Key, now: float, after_s: float = 0.0) -> bool:
        """Request a pass for a key within this time; an earlier requested time stays.

        Returns:
            Whether there was room for the key.
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
        """Take the longest due key and mark it as running; None for none."""
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
        """Return when the next key is due; None when only a new request can add one."""
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
        """Record the success of a pass; `again` requests the next one."""
        item = self._end(key)
        item.failures = 0
        if again is not None:
            self.add(key, now, max(again.seconds, 0.0))
        self._settle(key, item)

    def fail(self, key: Key, now: float) -> float:
        """Record a failed pass; the next one follows after an exponential back-off with jitter.

        An event may start it earlier, but not before `FAILURE_SPACING_S`.

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
        """After a pass, forget a key without a request, else queue it again."""
        if item.due_s is None:
            del self._items[key]  # its spacing is forgotten too, which costs one pass at most
        else:
            self._push(key, item)

    def _push(self, key: Key, item: _Item) -> None:
        assert item.due_s is not None, "only what is due comes up"
        if item.is_running:
            return  # the end of its pass queues it
        self._sequence += 1
        heapq.heappush(self._heap, (max(item.due_s, item.earliest_s), self._sequence, key))
