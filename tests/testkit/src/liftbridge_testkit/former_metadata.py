"""Writes a metadata directory as the version before did: one voter, files `<first index>.log`."""

from struct import Struct

from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.storage.smallfile import write_small_file
from liftbridge_testkit.memory_files import MemoryFiles

_FILE = Struct(">4sHHQI")
_COVERED = Struct(">IQQQ")
_SNAPSHOT = Struct(">QQ")
TERM = 1


class FormerLog:
    """A log that syncs and marks after each command."""

    def __init__(self, files: MemoryFiles, directory: str = "metadata") -> None:
        """Begin an empty log."""
        self._files = files
        self._directory = directory
        self._chain = 0
        self._last_index = 0
        self._path = ""
        files.make_directory(directory)
        files.sync_directory("")
        self._begin_file()

    def append(self, command: bytes) -> None:
        """Write a command and the mark behind its sync."""
        self._last_index += 1
        self._write(b"LBME", command, self._last_index - 1)
        self._write(b"LBMK", b"", self._last_index)

    def snapshot(self, state: bytes) -> None:
        """Write a snapshot of everything and begin a new file."""
        path = f"{self._directory}/{self._last_index:020}.snapshot"
        write_small_file(self._files, path, _SNAPSHOT.pack(self._last_index, TERM) + state)
        self._begin_file()

    def _begin_file(self) -> None:
        self._path = f"{self._directory}/{self._last_index + 1:020}.log"
        body = _FILE.pack(b"LBML", 1, 0, self._last_index + 1, self._chain)
        self._chain = crc32c(body)
        self._append(body + self._chain.to_bytes(4, "big"))
        self._files.sync_directory(self._directory)

    def _write(self, magic: bytes, command: bytes, synced: int) -> None:
        covered = _COVERED.pack(self._chain, self._last_index, TERM, synced)
        self._chain = crc32c(covered + command)
        head = magic + len(command).to_bytes(4, "big") + self._chain.to_bytes(4, "big")
        self._append(head + covered + command)

    def _append(self, data: bytes) -> None:
        handle = self._files.open(self._path, create=True)
        self._files.append(handle, data)
        self._files.sync(handle)
        self._files.close(handle)
