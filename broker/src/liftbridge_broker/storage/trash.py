"""Deleted data waits in `trash/` for a grace time before it is purged (storage policy 9).

Within that time a user can undo a mistaken deletion by hand: of a stream, or of segments that
retention removed because of a wrong clock. On a full disk, the entry due first is purged
immediately. Purging runs off the loop, one entry at a time.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import Instant, PartitionId
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.ports.files import FileEvent, Files, Token
from liftbridge_broker.storage.directory import DataDirectory, Trashed
from liftbridge_broker.storage.stored_log import StoredLog

LOOK_NS: Final = 60_000 * MILLISECOND_NS
"""Interval between two checks while the date is unknown."""
AGE_PARTS_IN_TRASH: Final = 8
"""Expired segments stay in the trash for a fraction (1/8) of the age, to bound the disk usage."""


class _Waiting(NamedTuple):
    """An entry of the trash.

    Attributes:
        grace_ns: Maximum wait; `None` for the time in the settings.
        entry: The entry.
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
        """Return the number of entries in the trash, including the entry being purged."""
        return len(self._waiting) + (self._purging is not None)

    def begin(self, now: Instant) -> None:
        """Find the entries of the trash."""
        for entry in self._directory.trash():
            self._add(entry, now)

    def take_logs(self, partitions: Sequence[PartitionId], date_ns: int, now: Instant) -> None:
        """Move the closed logs of partitions, if any, to the trash durably; raises `FilesError`."""
        for entry in self._directory.trash_logs(partitions, date_ns):
            self._add(entry, now)

    def take_segments(
        self, stored: StoredLog, paths: Sequence[str], date_ns: int, now: Instant
    ) -> None:
        """Move files that a log dropped because of their age to the trash; raises `FilesError`."""
        entry = self._directory.trash_files(stored.partition_id, paths, date_ns)
        age_ns_max = stored.options.retention_age_ms_max * MILLISECOND_NS
        self._add(entry, now, age_ns_max // AGE_PARTS_IN_TRASH)

    def next_deadline(self) -> Instant | None:
        """Return the next time to call `on_timer`, `None` for never."""
        return None if self._purging is not None else self._deadline

    def on_timer(self, now: Instant, date_ns: int | None) -> None:
        """Start to purge the entry that is due first, once it is due.

        Args:
            now: Current time.
            date_ns: Unix time for the age of entries; `None` while it is unknown.
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
                # Its date is in the future because the clock was ahead: wait as if it were dated
                # now.
                entry = first.entry._replace(deleted_wall_ns=date_ns)
                self._waiting[0] = first._replace(entry=entry)
                self._waiting.sort(key=self._due)
            self._deadline = Instant(now + self._due(self._waiting[0]) - date_ns)

    def set_grace(self, grace_ns: int, now: Instant) -> None:
        """Apply another grace time, also to entries that already wait."""
        self._grace_ns = grace_ns
        self._waiting.sort(key=self._due)
        self._deadline = now

    def on_pressure(self) -> None:
        """Purge the entry that is due first immediately, because the disk is full."""
        if self._purging is None and self._waiting:
            self._purge_first()

    def owns(self, token: Token) -> bool:
        """Return whether an event belongs to the purge in progress."""
        return self._purging is not None and self._purging[0] == token

    def on_event(self, event: FileEvent, now: Instant) -> int:
        """Complete the purge; return the bytes freed.

        Raises:
            FilesError: The purge failed; the entry stays in place until the next start.
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
        """Sum the sizes of the files of an entry; blocking, a few microseconds for each."""
        size = 0
        for name in self._files.list(entry.path):
            # A file that cannot be opened is not counted; its removal may still succeed.
            with suppress(FilesError):
                handle = self._files.open(f"{entry.path}/{name}")
                size += self._files.size(handle)
                self._files.close(handle)
        return size
