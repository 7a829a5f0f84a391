"""Deleted logs wait in `trash/` for a grace time before they are purged (storage policy 9).

A mistaken deletion can be undone by hand within that time. When the disk is full the log deleted
first is purged at once. Purging runs off the loop, one log at a time.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.ports.files import FileEvent, Files, Token
from liftbridge_broker.storage.directory import TrashedLog


class TrashBin:
    """Logs that wait to be purged, the one deleted first in front."""

    def __init__(self, files: Files, grace_ns: int, new_token: Callable[[], Token]) -> None:
        self._files = files
        self._grace_ns = grace_ns
        self._new_token = new_token
        self._waiting: deque[TrashedLog] = deque()
        self._deadline: Instant | None = None
        self._purging: tuple[Token, int] | None = None

    @property
    def count(self) -> int:
        """Logs in the trash, the one that is being purged included."""
        return len(self._waiting) + (self._purging is not None)

    def add(self, log: TrashedLog, now: Instant, wall_ns: int) -> None:
        """Take a deleted log; logs come in the order of their deletion."""
        self._waiting.append(log)
        self._arm(now, wall_ns)

    def next_deadline(self) -> Instant | None:
        """When `on_timer` wants to be called, `None` for never."""
        return None if self._purging is not None else self._deadline

    def on_timer(self, now: Instant) -> None:
        """Begin to purge the oldest log when its time has come."""
        if self._purging is not None or self._deadline is None or self._deadline > now:
            return
        self._purge_first()

    def set_grace(self, grace_ns: int, now: Instant, wall_ns: int) -> None:
        """Keep deleted logs for another time from now on, those that wait already too."""
        self._grace_ns = grace_ns
        self._arm(now, wall_ns)

    def on_pressure(self) -> None:
        """The disk is full: purge the oldest log now."""
        if self._purging is None and self._waiting:
            self._purge_first()

    def owns(self, token: Token) -> bool:
        """Whether an event belongs to the purge under way."""
        return self._purging is not None and self._purging[0] == token

    def on_event(self, event: FileEvent, now: Instant, wall_ns: int) -> int:
        """The purge ended; the bytes that are free now.

        Raises:
            FilesError: It failed; the log stays where it is until the next start.
        """
        assert self._purging is not None
        assert self._purging[0] == event.token
        size = self._purging[1]
        self._purging = None
        self._arm(now, wall_ns)
        if event.error is not None:
            raise event.error
        return size

    def _purge_first(self) -> None:
        log = self._waiting.popleft()
        token = self._new_token()
        self._purging = token, self._size(log)
        self._files.submit_remove(token, log.path)

    def _size(self, log: TrashedLog) -> int:
        """Bytes of the files of a log; blocking, some microseconds for each."""
        size = 0
        for name in self._files.list(log.path):
            # What cannot be opened is not counted; whether it can be removed will show.
            with suppress(FilesError):
                handle = self._files.open(f"{log.path}/{name}")
                size += self._files.size(handle)
                self._files.close(handle)
        return size

    def _arm(self, now: Instant, wall_ns: int) -> None:
        if not self._waiting:
            self._deadline = None
            return
        wait_ns = max(0, self._waiting[0].deleted_wall_ns + self._grace_ns - wall_ns)
        # A log deleted "in the future", because the clock was set back, does not stay for ever.
        self._deadline = Instant(now + min(wait_ns, self._grace_ns))
