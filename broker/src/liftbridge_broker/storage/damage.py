"""Notes of damaged log files, so that the next start verifies those files even after a clean stop.

A full disk may refuse to create a note. The store then tries again with its reserve, and once more
when it closes; the next start does not know of damage without a note.
"""

from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.log.segment import DAMAGED_SUFFIX, LOG_SUFFIX


class DamageNotes:
    """Notes of one log.

    Attributes:
        is_known: Whether any file of the log is known to be damaged.
    """

    def __init__(self) -> None:
        """Start without damage."""
        self.is_known = False
        self._unwritten: set[str] = set()

    @property
    def has_unwritten(self) -> bool:
        """Return whether a note is not written yet."""
        return bool(self._unwritten)

    def add(self, path: str) -> None:
        """Record a damaged file.

        Only log files need a note, since an index is rebuilt from its log.
        """
        self.is_known = True
        if path.endswith(LOG_SUFFIX):
            self._unwritten.add(path)

    def write(self, files: Files) -> None:
        """Write the waiting notes durably.

        Raises:
            FilesError: The disk failed; unwritten notes still wait.
        """
        for path in sorted(self._unwritten):
            files.close(files.open(path + DAMAGED_SUFFIX, create=True))
            files.sync_directory(path.rpartition("/")[0])
            self._unwritten.discard(path)
