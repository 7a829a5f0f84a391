"""Full disks: early detection, definite refusals, and recovery (storage policy 8).

Below a limit of free space, publishes are refused while reads, deletes and retention continue. If
the disk fills up nevertheless, the reserve file is removed, so that the journal, metadata and
compaction can still write in order to free space. A full disk never causes records to be truncated
or deleted.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MIB, MILLISECOND_NS
from liftbridge_broker.ports.files import Files

CHUNK_BYTES: Final = MIB
CHECK_NS: Final = 250 * MILLISECOND_NS
"""Interval of free-space checks while records are appended."""
RETRY_NS: Final = 1_000 * MILLISECOND_NS
"""Interval of free-space checks while the disk is full."""


class SpaceLimits(NamedTuple):
    """Limits at which a disk counts as full.

    Attributes:
        reserve_bytes: Size of the reserve file, 0 for none.
        free_bytes_min: Free space below which publishes are refused.
    """

    reserve_bytes: int = 64 * MIB
    free_bytes_min: int = 64 * MIB


class SpaceGuard:
    """Decides whether there is space for publishes.

    Attributes:
        limits: Limits at which the disk counts as full.
        is_full: Whether publishes are refused.
        check_due: Time from which an append causes another check.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        limits: SpaceLimits,
        on_change: Callable[[int], None],
    ) -> None:
        """Start without a check; see `open`.

        Args:
            files: The data directory.
            path: Path of the reserve file.
            limits: Limits at which the disk counts as full.
            on_change: Called with the free bytes whenever `is_full` has changed.
        """
        self._files = files
        self._path = path
        self.limits = limits
        self._on_change = on_change
        self._has_reserve = False
        self.is_full = False
        self.check_due = Instant(0)

    def open(self, now: Instant) -> None:
        """Create the reserve file, or report the disk as full."""
        self._has_reserve = self._fill_reserve()
        self._set(now, is_full=not self._has_reserve or self._lacks(0))

    def set_free_bytes_min(self, free_bytes_min: int) -> None:
        """Apply another limit from the next check on."""
        self.limits = self.limits._replace(free_bytes_min=free_bytes_min)

    def next_deadline(self) -> Instant | None:
        """Return the next time to call `check` without an append."""
        return self.check_due if self.is_full else None

    def on_full(self, now: Instant) -> None:
        """Handle a write to a full disk: remove the reserve and refuse publishes."""
        self._has_reserve = False
        self._files.remove(self._path)
        self._set(now, is_full=True)

    def check(self, now: Instant) -> None:
        """Check the free space; costs one system call while there is enough.

        A disk is usable again once the reserve fits and an eighth of the limit is free beyond it,
        so that the state does not change with every publish.
        """
        if not self.is_full:
            self._set(now, is_full=self._lacks(0))
            return
        wanted = 0 if self._has_reserve else self.limits.reserve_bytes
        if self._lacks(wanted + self.limits.free_bytes_min // 8):
            self._set(now, is_full=True)
            return
        self._has_reserve = self._has_reserve or self._fill_reserve()
        self._set(now, is_full=not self._has_reserve or self._lacks(0))

    def _set(self, now: Instant, *, is_full: bool) -> None:
        self.check_due = Instant(now + (RETRY_NS if is_full else CHECK_NS))
        if is_full != self.is_full:
            self.is_full = is_full
            self._on_change(self._files.free_bytes())

    def _lacks(self, extra: int) -> bool:
        return self._files.free_bytes() < self.limits.free_bytes_min + extra

    def _fill_reserve(self) -> bool:
        """Create the reserve file in full size; if it does not fit, remove it and return false."""
        size = self.limits.reserve_bytes
        handle = self._files.open(self._path, create=True)
        try:
            have = self._files.size(handle)
            if have > size:
                self._files.truncate(handle, size)
            while have < size:
                step = min(CHUNK_BYTES, size - have)
                self._files.append(handle, bytes(step))
                have += step
        except FilesError as error:
            if not error.is_full:
                raise
            self._files.remove(self._path)
            return False
        finally:
            self._files.close(handle)
        return True
