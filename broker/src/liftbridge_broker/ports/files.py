"""The file system as storage sees it (architecture: port `Files`).

Paths are relative to the data directory, `/`-separated, without `.` or `..`. Everything raises
`FilesError`, with `is_full` for a full disk, and nothing is retried. Three kinds of call:

- *At once*: `append` writes to the page cache on the calling thread (measured 0.8 us for one
  record, 14 us for 40 KB), `try_read` returns only cached bytes.
- *By token*: `submit_*` return at once; the owner of the port delivers `FileEvent(token, ...)` to
  the node later, for one file in the order of submission of calls of one kind (reads may overtake
  syncs). These calls wait for a device.
- *Blocking*: for start, recovery, roll and rare administration; bounded work each.

Durability, which the simulated implementation enforces: appended bytes survive a crash only after a
sync of the file; a created, renamed or removed name only after a sync of its folder.
"""

from collections.abc import Sequence
from typing import NamedTuple, NewType, Protocol

from liftbridge_broker.errors import FilesError

FileHandle = NewType("FileHandle", int)
Token = NewType("Token", int)


class FileEvent(NamedTuple):
    """Outcome of a submitted call: `data` of a read, `error` when it failed."""

    token: Token
    data: bytes = b""
    error: FilesError | None = None


class Files(Protocol):
    """One data directory, exclusively locked by its owner."""

    def exists(self, path: str) -> bool:
        """Return whether a file or directory of this name exists."""
        ...

    def list(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted; empty when it does not exist."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents unless it exists. Not durable by itself."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all it holds, if it exists."""
        ...

    def submit_remove(self, token: Token, path: str) -> None:
        """Do as `remove`, off the calling thread (unlinking a large segment takes milliseconds)."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; an existing target file is replaced atomically."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def open(self, path: str, *, create: bool = False) -> FileHandle:
        """Open a file for reading and appending; with `create` an absent file is made."""
        ...

    def close(self, handle: FileHandle) -> None:
        """Close a handle; calls submitted on it are still carried out and answered."""
        ...

    def size(self, handle: FileHandle) -> int:
        """Length of the file in bytes."""
        ...

    def read(self, handle: FileHandle, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file."""
        ...

    def try_read(self, handle: FileHandle, position: int, length: int) -> bytes | None:
        """Do as `read` if the bytes are in memory, else return `None` (`preadv2`, `RWF_NOWAIT`)."""
        ...

    def submit_read(self, token: Token, handle: FileHandle, position: int, length: int) -> None:
        """Do as `read`, delivered as an event."""
        ...

    def append(self, handle: FileHandle, data: bytes) -> None:
        """Write all of `data` at the end.

        On an error the file is cut back to its former length before raising.
        """
        ...

    def truncate(self, handle: FileHandle, length: int) -> None:
        """Cut the file to `length` bytes."""
        ...

    def rewrite(self, handle: FileHandle, position: int) -> None:
        """Rewrite the file's bytes from `position` on in place, blocking.

        After a failed sync the kernel calls pages clean that never reached the disk: reads return
        them as usual, and no later sync writes them. The next sync writes the rewritten pages;
        until then a crash leaves these bytes or the earlier ones.
        """
        ...

    def sync(self, handle: FileHandle) -> None:
        """Make contents and length durable (`fdatasync`)."""
        ...

    def submit_sync(
        self, token: Token, handles: Sequence[FileHandle], directories: Sequence[str] = ()
    ) -> None:
        """Do as `sync` for several files, then as `sync_directory`; one event for all of them.

        A directory that has moved or gone meanwhile is passed over.
        """
        ...

    def free_bytes(self) -> int:
        """Free space of the volume that unprivileged processes may use."""
        ...

    def total_bytes(self) -> int:
        """Size of the volume."""
        ...
