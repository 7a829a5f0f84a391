"""What was deleted waits in `trash/` for a grace time before it is purged (storage policy 9).

A mistaken deletion can be undone by hand within that time: of a stream, or of segments that
retention removed because of their age, which a wrong clock may have told. When the disk is full
what is due first is purged at once. Purging runs off the loop, one entry at a time.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import Instant, PartitionId
from liftbridge_broker.model.streams import MILLISECOND_NS
from liftbridge_broker.ports.files import FileEvent, Files, Token
from liftbridge_broker.storage.directory import DataDirectory, Trashed
from liftbridge_broker.storage.flush import StoredLog
from liftbridge_broker.storage.retention import trash_grace_ns

LOOK_NS: Final = 60_000 * MILLISECOND_NS
"""Time between two looks while the date is not known."""


class _Waiting(NamedTuple):
    """An entry of the trash.

    Attributes:
        grace_ns: How long it waits at most; `None` for the time of the settings.
        entry: What it is.
    """

    grace_ns: int | None
    entry: Trashed


class TrashBin:
    """Entries that wait to be purged."""

    def __init__(
        self,
        files: Files,
        directory: DataDirectory,
        grace_ns: int,
        new_token: Callable[[], Token],
    ) -> None:
        self._files = files
        self._directory = directory
        self._grace_ns = grace_ns
        self._new_token = new_token
        self._waiting: list[_Waiting] = []
        self._deadline: Instant | None = None
        self._purging: tuple[Token, int] | None = None

    @property
    def count(self) -> int:
        """Entries in the trash, the one that is being purged included."""
        return len(self._waiting) + (self._purging is not None)

    def begin(self, now: Instant) -> None:
        """Find what lies in the trash."""
        for entry in self._directory.trash():
            self._add(entry, now)

    def take_logs(self, partitions: Sequence[PartitionId], date_ns: int, now: Instant) -> None:
        """Take the closed logs of partitions, as far as they have one, durably; `FilesError`."""
        for entry in self._directory.trash_logs(partitions, date_ns):
            self._add(entry, now)

    def take_segments(
        self, stored: StoredLog, paths: Sequence[str], date_ns: int, now: Instant
    ) -> None:
        """Take files that a log let go because of their age; `FilesError`."""
        entry = self._directory.trash_files(stored.partition_id, paths, date_ns)
        self._add(entry, now, trash_grace_ns(stored.options))

    def next_deadline(self) -> Instant | None:
        """When `on_timer` wants to be called, `None` for never."""
        return None if self._purging is not None else self._deadline

    def on_timer(self, now: Instant, date_ns: int | None) -> None:
        """Begin to purge the entry that is due first when its time has come.

        Args:
            now: Present time.
            date_ns: Unix time by which entries are old; `None` while that is not known.
        """
        if self._purging is not None or self._deadline is None or self._deadline > now:
            return
        if not self._waiting:
            self._deadline = None
        elif date_ns is None:
            self._deadline = Instant(now + LOOK_NS)
        elif self._due(self._waiting[0]) <= date_ns:
            self._purge_first()
        else:
            first = self._waiting[0]
            if first.entry.deleted_wall_ns > date_ns:
                # By a clock that was ahead: it waits no longer than if that had been now.
                entry = first.entry._replace(deleted_wall_ns=date_ns)
                self._waiting[0] = first._replace(entry=entry)
                self._waiting.sort(key=self._due)
            self._deadline = Instant(now + self._due(self._waiting[0]) - date_ns)

    def set_grace(self, grace_ns: int, now: Instant) -> None:
        """Keep what was deleted for another time from now on, what waits already too."""
        self._grace_ns = grace_ns
        self._waiting.sort(key=self._due)
        self._deadline = now

    def on_pressure(self) -> None:
        """The disk is full: purge the entry that is due first now."""
        if self._purging is None and self._waiting:
            self._purge_first()

    def owns(self, token: Token) -> bool:
        """Whether an event belongs to the purge under way."""
        return self._purging is not None and self._purging[0] == token

    def on_event(self, event: FileEvent, now: Instant) -> int:
        """The purge ended; the bytes that are free now.

        Raises:
            FilesError: It failed; the entry stays where it is until the next start.
        """
        assert self._purging is not None
        assert self._purging[0] == event.token
        size = self._purging[1]
        self._purging = None
        self._deadline = now
        if event.error is not None:
            raise event.error
        return size

    def _add(self, entry: Trashed, now: Instant, grace_ns: int | None = None) -> None:
        insort(self._waiting, _Waiting(grace_ns, entry), key=self._due)
        self._deadline = now

    def _grace_of(self, waiting: _Waiting) -> int:
        own = waiting.grace_ns
        return self._grace_ns if own is None else min(own, self._grace_ns)

    def _due(self, waiting: _Waiting) -> int:
        return waiting.entry.deleted_wall_ns + self._grace_of(waiting)

    def _purge_first(self) -> None:
        entry = self._waiting.pop(0).entry
        token = self._new_token()
        self._purging = token, self._size(entry)
        self._files.submit_remove(token, entry.path)

    def _size(self, entry: Trashed) -> int:
        """Bytes of the files of an entry; blocking, some microseconds for each."""
        size = 0
        for name in self._files.list(entry.path):
            # What cannot be opened is not counted; whether it can be removed will show.
            with suppress(FilesError):
                handle = self._files.open(f"{entry.path}/{name}")
                size += self._files.size(handle)
                self._files.close(handle)
        return size
