"""Full disks: noticed early, refused definitely, survived, and left again (storage policy 8).

Below a limit of free space publishes are refused while reads, deletes and retention go on. A
reserve file gives its space back when the disk is full all the same, so that the journal, metadata
and compaction can still write what frees space. Nothing is ever cut or deleted because of a full
disk.
"""

from typing import Final, NamedTuple

from liftbridge_broker.errors import FilesError
from liftbridge_broker.ports.files import Files

CHUNK_BYTES: Final = 1024 * 1024


class SpaceLimits(NamedTuple):
    """When a disk counts as full.

    Attributes:
        reserve_bytes: Size of the reserve file, 0 for none.
        free_bytes_min: Free space below which publishes are refused.
    """

    reserve_bytes: int = 64 * 1024 * 1024
    free_bytes_min: int = 64 * 1024 * 1024


class SpaceGuard:
    """Whether there is room for publishes.

    Attributes:
        is_full: Publishes are refused.
    """

    def __init__(self, files: Files, path: str, limits: SpaceLimits) -> None:
        self._files = files
        self._path = path
        self._limits = limits
        self._has_reserve = False
        self.is_full = False

    def open(self) -> None:
        """Make the reserve, or find the disk full."""
        self._has_reserve = self._fill_reserve()
        self.is_full = not self._has_reserve or self._lacks(0)

    def on_full(self) -> None:
        """A write met a full disk: give the reserve back and refuse publishes."""
        self.is_full = True
        self._has_reserve = False
        self._files.remove(self._path)

    def check(self) -> None:
        """Look at the free space; costs one system call while there is enough.

        A disk is usable again when the reserve fits and an eighth of the limit is free beyond it,
        so that the state does not change with every publish.
        """
        if not self.is_full:
            self.is_full = self._lacks(0)
            return
        wanted = 0 if self._has_reserve else self._limits.reserve_bytes
        if self._lacks(wanted + self._limits.free_bytes_min // 8):
            return
        self._has_reserve = self._has_reserve or self._fill_reserve()
        self.is_full = not self._has_reserve or self._lacks(0)

    def _lacks(self, extra: int) -> bool:
        return self._files.free_bytes() < self._limits.free_bytes_min + extra

    def _fill_reserve(self) -> bool:
        """Bring the reserve file to its size; false, and no file, when it does not fit."""
        size = self._limits.reserve_bytes
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
