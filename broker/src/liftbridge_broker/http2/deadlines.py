"""The times at which a connection must look at itself, by name, and those of its streams."""

import heapq
from typing import Final

from liftbridge_broker.http2.stream import Stream

NEVER: Final = 1 << 63
DUE_MAX: Final = 256
"""Streams that are told of at once; others have their turn before the next ones."""

ENTRIES_SPARE: Final = 64


class Deadlines:
    """A few named points in time, and a lower bound of the earliest.

    The owner arms one timer at `wake`. Removing or moving a deadline later leaves `wake` alone, so
    frequent changes cost nothing and the timer now and then fires for nothing.

    Attributes:
        wake: No deadline is due before this time, in nanoseconds; `NEVER` without any.
    """

    __slots__ = ("_at", "wake")

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self.wake = NEVER

    def set(self, name: str, at: int) -> None:
        """Give a deadline a time, replacing an earlier one of the name."""
        self._at[name] = at
        self.wake = min(self.wake, at)

    def bring_forward(self, name: str, at: int) -> None:
        """Give a deadline a time unless it has an earlier one."""
        if at < self._at.get(name, NEVER):
            self.set(name, at)

    def clear(self, name: str) -> None:
        """Remove a deadline, if there is one."""
        self._at.pop(name, None)

    def take_due(self, now: int) -> list[str]:
        """Remove and name what is due, in the order of setting; `wake` becomes exact."""
        due = [name for name, at in self._at.items() if at <= now]
        for name in due:
            del self._at[name]
        self.wake = min(self._at.values(), default=NEVER)
        return due


class StreamDeadlines:
    """When calls must be over and their requests complete: time costs by what is due.

    A stream has one entry that counts, `Stream.wake_ns`, at its earliest deadline or before.
    Deadlines that are removed or moved later leave it alone, as a message that is completed does
    each time; what the entry finds when its time comes decides. Entries of streams that are gone,
    or have an earlier one since, are dropped when they are most of all.

    Attributes:
        entries: A heap of times and numbers of streams.
    """

    __slots__ = ("_streams", "entries")

    def __init__(self, streams: dict[int, Stream]) -> None:
        """Nothing is due; `streams` are those that are open, by number."""
        self._streams = streams
        self.entries: list[tuple[int, int]] = []

    def watch(self, stream: Stream, at: int) -> None:
        """Look at a stream at a time, or earlier."""
        if stream.wake_ns and stream.wake_ns <= at:
            return
        stream.wake_ns = at
        entries = self.entries
        heapq.heappush(entries, (at, stream.id))
        if len(entries) > 2 * len(self._streams) + ENTRIES_SPARE:
            entries[:] = [(one.wake_ns, one.id) for one in self._streams.values() if one.wake_ns]
            heapq.heapify(entries)

    def take_due(self, now: int) -> list[Stream]:
        """Streams with a deadline that is over; not all of them, if they are many.

        Whoever keeps one open watches it again.
        """
        due: list[Stream] = []
        entries = self.entries
        for _ in range(DUE_MAX):
            if not entries or entries[0][0] > now:
                break
            at, stream_id = heapq.heappop(entries)
            stream = self._streams.get(stream_id)
            if stream is None or stream.wake_ns != at:
                continue
            stream.wake_ns = 0
            deadline = stream.next_deadline_ns()
            if deadline > now:
                self.watch(stream, deadline)
            elif deadline:
                due.append(stream)
        return due
