"""Deadlines of a connection, by name, and of its streams."""

import heapq
from typing import Final

from liftbridge_broker.http2.stream import Stream

NEVER: Final = 1 << 63
DUE_MAX: Final = 256
"""Maximum number of streams reported at once; other connections run before the next streams."""

ENTRIES_SPARE: Final = 64


class Deadlines:
    """A few named points in time, and a lower bound of the earliest.

    The owner arms one timer at `wake`. Removing or postponing a deadline leaves `wake` unchanged,
    so frequent changes cost nothing and the timer sometimes fires needlessly.

    Attributes:
        wake: Lower bound of all deadlines, in nanoseconds; `NEVER` without deadlines.
    """

    __slots__ = ("_at", "wake")

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self.wake = NEVER

    def set(self, name: str, at: int) -> None:
        """Set a deadline, replacing an earlier one of the same name."""
        self._at[name] = at
        self.wake = min(self.wake, at)

    def bring_forward(self, name: str, at: int) -> None:
        """Set a deadline unless it has an earlier time."""
        if at < self._at.get(name, NEVER):
            self.set(name, at)

    def clear(self, name: str) -> None:
        """Remove a deadline, if there is one."""
        self._at.pop(name, None)

    def take_due(self, now: int) -> list[str]:
        """Remove and return due names, in the order of setting; `wake` becomes exact."""
        due = [name for name, at in self._at.items() if at <= now]
        for name in due:
            del self._at[name]
        self.wake = min(self._at.values(), default=NEVER)
        return due


class StreamDeadlines:
    """Deadlines of calls and of their requests.

    The cost depends only on the number of due deadlines.

    A stream has one valid entry, `Stream.wake_ns`, at its earliest deadline or before. Deadlines
    that are removed or postponed leave it unchanged, as each completed message does; when the entry
    is due, the state of the stream decides. Entries of closed streams, or of streams with an
    earlier entry since, are dropped once they are the majority.

    Attributes:
        entries: A heap of times and numbers of streams.
    """

    __slots__ = ("_streams", "entries")

    def __init__(self, streams: dict[int, Stream]) -> None:
        """Start with nothing due; `streams` are the open streams, by number."""
        self._streams = streams
        self.entries: list[tuple[int, int]] = []

    def watch(self, stream: Stream, at: int) -> None:
        """Check a stream at a time, or earlier."""
        if stream.wake_ns and stream.wake_ns <= at:
            return
        stream.wake_ns = at
        entries = self.entries
        heapq.heappush(entries, (at, stream.id))
        if len(entries) > 2 * len(self._streams) + ENTRIES_SPARE:
            entries[:] = [(one.wake_ns, one.id) for one in self._streams.values() if one.wake_ns]
            heapq.heapify(entries)

    def take_due(self, now: int) -> list[Stream]:
        """Return streams with an expired deadline, at most `DUE_MAX`.

        A caller that keeps a stream open must watch it again.
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
