"""Notes beside log files that are damaged: the next start verifies those, however clean the stop.

A disk that is full may refuse a note: it is owed then, and a stop is not clean while one is.
"""

from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.segment import DAMAGED_SUFFIX, LOG_SUFFIX


class DamageNotes:
    """Notes of one log.

    Attributes:
        is_known: Whether any file is known to be damaged.
    """

    def __init__(self) -> None:
        """Begin without damage."""
        self.is_known = False
        self._owed: set[str] = set()

    @property
    def is_owed(self) -> bool:
        """Whether a note is still to be written."""
        return bool(self._owed)

    def add(self, path: str) -> None:
        """Owe a note of a file; what is no log file is made anew from one."""
        self.is_known = True
        if path.endswith(LOG_SUFFIX):
            self._owed.add(path)

    def write(self, files: Files) -> None:
        """Write what is owed, durably.

        Raises:
            FilesError: The disk refused; the rest is still owed.
        """
        for path in sorted(self._owed):
            files.close(files.open(path + DAMAGED_SUFFIX, create=True))
            files.sync_directory(path.rpartition("/")[0])
            self._owed.discard(path)
