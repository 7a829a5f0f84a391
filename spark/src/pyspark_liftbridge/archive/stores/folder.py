"""Objects in a local folder: a new object is written under a temporary name, synced, and linked.

A hard link fails if its name is taken, so two writers cannot both win, and a reader gets either the
whole file or none. `rename` would replace an existing file.
"""

import io
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from pyspark_liftbridge.archive.errors import DamagedError, StoreError
from pyspark_liftbridge.archive.stores.found import Found

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LEFT_OVER: Final = ".tmp-"
"""Suffix of a file that is being written; the file of a killed writer stays."""


class LocalFolder:
    """A `Store` in a folder, which is created on the first write."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()

    def create(self, path: str, data: bytes) -> bool:
        """See `Store`."""
        target = self._path(path)
        try:
            written = self._write_beside(target, data)
            try:
                os.link(written, target)  # guard Archive.link
            except FileExistsError:
                return False
            finally:
                written.unlink()
            _sync_folder(target.parent)
        except OSError as error:
            raise StoreError(
                f"{target}: cannot be written ({error.strerror}); an archive in a folder needs "
                "free space, write permission, and a file system with hard links"
            ) from error
        return True

    def replace(self, path: str, data: bytes) -> None:
        """See `Store`."""
        target = self._path(path)
        try:
            self._write_beside(target, data).replace(target)
            _sync_folder(target.parent)
        except OSError as error:
            raise StoreError(f"{target}: cannot be written ({error.strerror})") from error

    def read(self, path: str, *, bytes_max: int) -> bytes | None:
        """See `Store`."""
        target = self._path(path)
        try:
            with target.open("rb") as file:
                data = file.read(bytes_max + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{target}: cannot be read ({error.strerror})") from error
        if len(data) > bytes_max:
            raise DamagedError(f"{target}: more than the maximum of {bytes_max} bytes")
        return data

    def open(self, path: str) -> BinaryIO | None:
        """See `Store`."""
        target = self._path(path)
        try:
            return io.BufferedReader(_File(target))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{target}: cannot be read ({error.strerror})") from error

    def listing(self, prefix: str, *, after: str = "") -> Sequence[Found]:
        """See `Store`."""
        folder = self._path(prefix) if prefix else self._root
        try:
            return sorted(one for one in self._walk(folder) if one.path > after)
        except OSError as error:
            raise StoreError(f"{folder}: cannot be listed ({error.strerror})") from error

    def delete(self, path: str) -> None:
        """See `Store`."""
        target = self._path(path)
        try:
            target.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{target}: cannot be removed ({error.strerror})") from error

    def _path(self, path: str) -> Path:
        assert ".." not in path.split("/"), path
        assert not path.startswith("/"), path
        return self._root / path

    def _write_beside(self, target: Path, data: bytes) -> Path:
        _make(target.parent)
        written = target.with_name(f"{target.name}{LEFT_OVER}{secrets.token_hex(8)}")
        with written.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return written

    def _walk(self, folder: Path) -> Iterator[Found]:
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # removed since, or the temporary name of a finished write
                relative = path.relative_to(self._root).as_posix()
                yield Found(relative, status.st_size, status.st_mtime_ns // 1_000_000)


class _File(io.FileIO):
    """A file to read that raises `StoreError` for failures.

    Readers treat other errors as damage.
    """

    def readinto(self, buffer: "WriteableBuffer") -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise StoreError(f"{self.name}: cannot be read ({error.strerror})") from error

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return super().seek(offset, whence)
        except OSError as error:
            raise StoreError(f"{self.name}: cannot be read ({error.strerror})") from error


def _make(folder: Path) -> None:
    """Create a folder whose name survives a crash of the machine."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        _sync_folder(one.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
