"""Exclusive use of a data directory, held by the kernel so that it ends with the process.

`flock` on `.lock` in the directory; the text inside names the holder for operators, and the program
never trusts it.
"""

import fcntl
import os
import socket
from pathlib import Path
from typing import Final

from liftbridge_broker.errors import FilesError

LOCK_NAME: Final = ".lock"
_TEXT_BYTES_MAX: Final = 256


class DirectoryLock:
    """The lock of one directory from construction until `release`."""

    def __init__(self, directory: Path) -> None:
        """Take the lock immediately, or fail.

        Raises:
            FilesError: Another process holds it (the text names it), or `.lock` cannot be opened.
        """
        path = directory / LOCK_NAME
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise FilesError(f"open {path}: {error.strerror}") from error
        try:
            _take(self._descriptor, fcntl.LOCK_EX, directory)
        except FilesError:
            os.close(self._descriptor)
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(
            self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0
        )

    def release(self) -> None:
        """Release the lock; the file stays, because removing it would race with the next holder."""
        os.close(self._descriptor)


class SharedLock:
    """Keeps brokers out of a directory while tools read it.

    Takes no lock in a directory that was never locked.
    """

    def __init__(self, directory: Path) -> None:
        """Take the lock immediately, or fail.

        Raises:
            FilesError: A running broker holds the directory.
        """
        path = directory / LOCK_NAME
        self._descriptor: int | None = None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise FilesError(f"open {path}: {error.strerror}") from error
        try:
            _take(descriptor, fcntl.LOCK_SH, directory)
        except FilesError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock, so that brokers can use the directory again."""
        if self._descriptor is not None:
            os.close(self._descriptor)


def _take(descriptor: int, kind: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        text = os.pread(descriptor, _TEXT_BYTES_MAX, 0).decode(errors="replace").strip()
        holder = text or "another process"
        raise FilesError(f"data directory {directory} is in use by {holder}") from error
    except OSError as error:
        raise FilesError(f"lock {directory}: {error.strerror}") from error
