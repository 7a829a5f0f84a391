"""The port `Files` on a file system.

Appends and cached reads run on the calling thread, because that is cheaper than any hand-over
(ext4: `write` of 300 bytes 1.1 us, of 40 KB 20 us, cached read of 256 KiB 54 us; a round trip
through a thread 62 us more). Calls that wait for a device run on two threads, one for syncs, one
for reads and removals. `RWF_NOWAIT` distinguishes these reads; where the file system does not
support the flag (tmpfs, some overlays) every read goes to the thread.
"""

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from typing import ClassVar, Final

from liftbridge_broker.adapters.disk.lock import DirectoryLock
from liftbridge_broker.adapters.disk.worker import Done, Job, Outbox, Worker
from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.units import MIB
from liftbridge_broker.ports.files import FileEvent, FileHandle, Token

_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_FILE_MODE: Final = 0o640
_DIRECTORY_MODE: Final = 0o750
_SCRATCH_BYTES: Final = 512 * 1024
READ_AHEAD_BYTES: Final = 2 * MIB
"""Bytes that the kernel prefetches after a read that had to wait."""


REWRITE_BYTES: Final = MIB
"""Bytes rewritten in one call."""


class LocalFiles:
    """One directory, not locked: for tools and helpers; a broker uses `DiskFiles`.

    Owned by one thread, and only that thread may call it. Events arrive through `deliver` on the
    loop, those of one turn in one call; jobs of one thread keep their order. Threads start with
    the first call that needs them.

    Attributes:
        open_flags: Flags that files are opened with.
        append_times: Nanoseconds that appends took.
    """

    open_flags: ClassVar[int] = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW

    def __init__(
        self,
        root: Path,
        *,
        post: Callable[[Callable[[], None]], object],
        deliver: Callable[[Sequence[FileEvent]], None],
    ) -> None:
        """Use an existing directory.

        Args:
            root: The data directory.
            post: `call_soon_threadsafe` of the event loop.
            deliver: Receives events on the loop.
        """
        self._root = root
        self._deliver = deliver
        self._descriptors: dict[FileHandle, int] = {}
        self.append_times = Histogram()
        self._paths: dict[FileHandle, str] = {}
        self._busy: dict[FileHandle, int] = {}
        self._closing: set[FileHandle] = set()
        self._handle_last = 0
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._scratch_view = memoryview(self._scratch)
        outbox = Outbox(post, self._on_done)
        self._writer = Worker("liftbridge-sync", outbox)
        self._reader = Worker("liftbridge-read", outbox)

    def shut_down(self) -> None:
        """Finish submitted calls and close every file; no event follows."""
        self._deliver = _drop
        self._writer.close()
        self._reader.close()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        # Files to close after their last call are closed: that call may still be reported.
        self._closing.clear()

    @property
    def open_count(self) -> int:
        """Number of open files."""
        return len(self._descriptors)

    def exists(self, path: str) -> bool:
        """Implement `Files.exists`."""
        return os.path.lexists(self._place(path))

    def list(self, path: str) -> Sequence[str]:
        """Implement `Files.list`."""
        try:
            return sorted(entry.name for entry in self._place(path).iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise translated(error, "list", path) from error

    def make_directory(self, path: str) -> None:
        """Implement `Files.make_directory`."""
        try:
            self._place(path).mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise translated(error, "make directory", path) from error

    def remove(self, path: str) -> None:
        """Implement `Files.remove`."""
        _remove(self._place(path), path)

    def submit_remove(self, token: Token, path: str) -> None:
        """Implement `Files.submit_remove`."""
        place = self._place(path)

        def run() -> bytes:
            _remove(place, path)
            return b""

        self._reader.submit(Job(token, run, ()))

    def rename(self, source: str, target: str) -> None:
        """Implement `Files.rename`."""
        try:
            self._place(source).replace(self._place(target))
        except OSError as error:
            raise translated(error, f"rename to {target}", source) from error

    def sync_directory(self, path: str) -> None:
        """Implement `Files.sync_directory`."""
        try:
            _sync_names(self._place(path), path)
        except FileNotFoundError as error:
            raise translated(error, "sync directory", path) from error

    def open(self, path: str, *, create: bool = False) -> FileHandle:
        """Implement `Files.open`."""
        flags = self.open_flags | (os.O_CREAT if create else 0)
        try:
            descriptor = os.open(self._place(path), flags, _FILE_MODE)
        except OSError as error:
            raise translated(error, "open", path) from error
        self._handle_last += 1
        handle = FileHandle(self._handle_last)
        self._descriptors[handle] = descriptor
        self._paths[handle] = path
        return handle

    def close(self, handle: FileHandle) -> None:
        """Implement `Files.close`; the descriptor is closed after the last call submitted on it."""
        if handle in self._busy:
            self._closing.add(handle)
            return
        os.close(self._descriptors.pop(handle))
        del self._paths[handle]

    def size(self, handle: FileHandle) -> int:
        """Implement `Files.size`."""
        try:
            return os.fstat(self._descriptors[handle]).st_size
        except OSError as error:
            raise translated(error, "stat", self._paths[handle]) from error

    def read(self, handle: FileHandle, position: int, length: int) -> bytes:
        """Implement `Files.read`."""
        return _read(self._descriptors[handle], position, length, self._paths[handle])

    def try_read(self, handle: FileHandle, position: int, length: int) -> bytes | None:
        """Implement `Files.try_read`. Benchmark: `tests/bench/bench_store.py`."""
        descriptor = self._descriptors[handle]
        view = self._scratch_view
        if length > _SCRATCH_BYTES:
            view = memoryview(bytearray(length))
        try:
            count = os.preadv(descriptor, (view[:length],), position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                return None  # the file system does not support the flag
            raise translated(error, "read", self._paths[handle]) from error
        if count < length and position + count < os.fstat(descriptor).st_size:
            return None  # the rest is not in memory
        return bytes(view[:count])

    def submit_read(self, token: Token, handle: FileHandle, position: int, length: int) -> None:
        """Implement `Files.submit_read`; requests read-ahead for the next read."""
        descriptor, path = self._descriptors[handle], self._paths[handle]

        def run() -> bytes:
            data = _read(descriptor, position, length, path)
            end = position + len(data)
            os.posix_fadvise(descriptor, end, READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            return data

        self._submit(self._reader, Job(token, run, (handle,)))

    def append(self, handle: FileHandle, data: bytes) -> None:
        """Implement `Files.append`. Benchmark: `tests/bench/bench_store.py`."""
        descriptor = self._descriptors[handle]
        begun = perf_counter_ns()
        try:
            written = os.write(descriptor, data)
        except OSError as error:
            raise translated(error, "append to", self._paths[handle]) from error
        if written < len(data):
            append_rest(descriptor, data, written, self._paths[handle])
        self.append_times.observe(perf_counter_ns() - begun)

    def truncate(self, handle: FileHandle, length: int) -> None:
        """Implement `Files.truncate`."""
        try:
            os.ftruncate(self._descriptors[handle], length)
        except OSError as error:
            raise translated(error, "truncate", self._paths[handle]) from error

    def rewrite(self, handle: FileHandle, position: int) -> None:
        """Implement `Files.rewrite`; uses another descriptor, as `handle` can only append."""
        path = self._paths[handle]
        flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            target = os.open(self._place(path), flags)
            try:
                _rewrite(self._descriptors[handle], target, position)
            finally:
                os.close(target)
        except OSError as error:
            raise translated(error, "write again", path) from error

    def sync(self, handle: FileHandle) -> None:
        """Implement `Files.sync`."""
        _sync(self._descriptors[handle], self._paths[handle])

    def submit_sync(
        self, token: Token, handles: Sequence[FileHandle], directories: Sequence[str] = ()
    ) -> None:
        """Implement `Files.submit_sync`."""
        wanted = [(self._descriptors[handle], self._paths[handle]) for handle in handles]

        def run() -> bytes:
            for descriptor, path in wanted:
                _sync(descriptor, path)
            for path in directories:
                with suppress(FileNotFoundError):  # it moved to the trash
                    _sync_names(self._place(path), path)
            return b""

        self._submit(self._writer, Job(token, run, tuple(handles)))

    def free_bytes(self) -> int:
        """Implement `Files.free_bytes`."""
        state = self._volume()
        return state.f_bavail * state.f_frsize

    def total_bytes(self) -> int:
        """Implement `Files.total_bytes`."""
        state = self._volume()
        return state.f_blocks * state.f_frsize

    def _volume(self) -> os.statvfs_result:
        try:
            return os.statvfs(self._root)
        except OSError as error:
            raise translated(error, "stat volume of", str(self._root)) from error

    def _place(self, path: str) -> Path:
        """Return the path in the file system; refuse anything that could leave the directory."""
        if not path:
            return self._root
        for part in path.split("/"):
            if part in ("", ".", "..") or "\0" in part:
                raise FilesError(f"path {path!r} leaves the data directory")
        return self._root / path

    def _submit(self, worker: Worker, job: Job) -> None:
        for handle in job.handles:
            self._busy[handle] = self._busy.get(handle, 0) + 1
        worker.submit(job)

    def _on_done(self, done: Sequence[Done]) -> None:
        for _, handles in done:
            for handle in handles:
                count = self._busy.pop(handle) - 1
                if count:
                    self._busy[handle] = count
                elif handle in self._closing:
                    self._closing.discard(handle)
                    self.close(handle)
        self._deliver([event for event, _ in done])


class DiskFiles(LocalFiles):
    """The data directory of a broker, locked for the lifetime of this object."""

    def __init__(
        self,
        root: Path,
        *,
        post: Callable[[Callable[[], None]], object],
        deliver: Callable[[Sequence[FileEvent]], None],
    ) -> None:
        """Create the directory if needed and lock it; see `LocalFiles` for the arguments.

        Raises:
            FilesError: The directory cannot be created, or another process holds it.
        """
        try:
            root.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise translated(error, "make directory", str(root)) from error
        self._lock = DirectoryLock(root)
        super().__init__(root, post=post, deliver=deliver)

    def shut_down(self) -> None:
        """See the base class; releases the lock."""
        super().shut_down()
        self._lock.release()


def translated(error: OSError, operation: str, path: str) -> FilesError:
    """Convert an error of the operating system to the port's error."""
    text = f"{operation} {path}: {error.strerror}"
    return FilesError(text, is_full=error.errno in _FULL)


def append_rest(descriptor: int, data: bytes, written: int, path: str) -> None:
    """Finish a short write, or cut the file back to its length before the write.

    Raises:
        FilesError: The rest does not fit; nothing of `data` is left in the file unless that also
            failed, which the text then states.
    """
    view = memoryview(data)
    try:
        while written < len(data):
            written += os.write(descriptor, view[written:])
    except OSError as error:
        try:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
        except OSError as cut_error:
            raise translated(cut_error, "cut back a short append to", path) from error
        raise translated(error, "append to", path) from error


def _read(descriptor: int, position: int, length: int, path: str) -> bytes:
    try:
        data = os.pread(descriptor, length, position)
        while len(data) < length:
            more = os.pread(descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
    except OSError as error:
        raise translated(error, "read", path) from error
    return data


def _rewrite(source: int, target: int, position: int) -> None:
    """Copy a file from a position on onto itself; raises `OSError` untranslated."""
    while block := os.pread(source, REWRITE_BYTES, position):
        view = memoryview(block)
        while view:
            written = os.pwrite(target, view, position)
            position += written
            view = view[written:]


def _sync_names(place: Path, path: str) -> None:
    """Make the names in a directory durable; raise `FileNotFoundError` without one."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise translated(error, "sync directory", path) from error


def _sync(descriptor: int, path: str) -> None:
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        raise translated(error, "sync", path) from error


def _remove(place: Path, path: str) -> None:
    try:
        place.unlink()
    except FileNotFoundError:
        return
    except IsADirectoryError:
        _remove_tree(place, path)
    except OSError as error:
        raise translated(error, "remove", path) from error


def _remove_tree(place: Path, path: str) -> None:
    try:
        shutil.rmtree(place)
    except OSError as error:
        raise translated(error, "remove", path) from error


def _drop(events: Sequence[FileEvent]) -> None:
    """Drop events after the end."""
    del events
