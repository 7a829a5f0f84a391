"""The port `Files` in memory, with the durability of a real disk and the faults of a bad one.

Every file has the content that a process sees and the content that would survive a power cut; every
directory likewise. `crash` keeps a random part of the unsynced rest: a prefix of the writes of a
file, the last one torn, sometimes with a sector that never arrived, and any subset of the name
changes that is consistent with their order on one name. That is weaker than the guarantees of ext4
or XFS, so code that passes these tests is safe on them.

Calls by token wait until the owner calls `pump`, which runs them in order; a submitted sync covers
only what had been appended when it was submitted. Write points (each append, rewrite,
truncate, sync and change of a name) are counted in `points`, and power can be cut at any of them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random
from typing import NamedTuple

from liftbridge_broker.adapters.memory.inodes import (
    Directory,
    Entry,
    File,
    NameChange,
    crash_contents,
    directories_below,
    files_below,
    is_possible,
    leaves_first,
    make_durable,
)
from liftbridge_broker.errors import FilesError
from liftbridge_broker.ports.files import FileEvent, FileHandle, Token


class PowerCutError(Exception):
    """Power failed at the chosen write point; only `crash` brings the files back.

    Not a `LiftbridgeError`, so that no handler of refusals swallows it.
    """


@dataclass(slots=True)
class Fault:
    """A planned failure of calls.

    Attributes:
        operation: `append`, `rewrite`, `read`, `sync`, `truncate`, `open`, `rename`, `remove`,
            `list`, `make_directory` or `sync_directory`.
        path: Pattern (`fnmatch`) of the affected paths.
        skip: Number of matching calls that first succeed.
        count: Number of calls that then fail; negative for all.
        is_full: Whether the failure is that of a full disk rather than a broken disk.
    """

    operation: str
    path: str = "*"
    skip: int = 0
    count: int = 1
    is_full: bool = False


class _Open(NamedTuple):
    file: File
    path: str


class _Submitted(NamedTuple):
    token: Token
    run: Callable[[], bytes]


class MemoryFiles:
    """One data directory in memory.

    Attributes:
        on_submitted: Called for each call by token, so that an owner can schedule a `pump`.
        points: Write points passed so far.
        log: Operation and path of each write point, for messages of failing tests.
        is_cold: While true `try_read` answers `None`, as if nothing were cached.
        is_stalled: While true no call by token ends: the device does not answer.
        capacity_bytes: Size of the volume.
        lost_sector_chance: Probability that a file loses a sector between kept ones when it
            crashes with unsynced bytes.
        lost_sector_count: Number of such losses.
    """

    def __init__(self, *, capacity_bytes: int = 1 << 50) -> None:
        self.on_submitted: Callable[[], None] = _nobody
        self.points = 0
        self.log: deque[tuple[str, str]] = deque(maxlen=64)
        self.is_cold = False
        self.is_stalled = False
        self.capacity_bytes = capacity_bytes
        self.lost_sector_chance = 0.1
        self.lost_sector_count = 0
        self._root = Directory()
        self._renames: list[NameChange] = []
        self._handles: dict[FileHandle, _Open] = {}
        self._handle_former = 0
        self._handle_last = 0
        self._submitted: deque[_Submitted] = deque()
        self._faults: list[Fault] = []
        self._cut_at: int | None = None
        self._is_cut = False
        self._used_bytes = 0

    # Names, as in the port.

    def exists(self, path: str) -> bool:
        """Implement `Files.exists`."""
        self._require_power()
        return self._find(path) is not None

    def list(self, path: str) -> Sequence[str]:
        """Implement `Files.list`."""
        self._require_power()
        self._meet_fault("list", path)
        node = self._find(path)
        return sorted(node.entries) if isinstance(node, Directory) else ()

    def make_directory(self, path: str) -> None:
        """Implement `Files.make_directory`."""
        self._require_power()
        self._meet_fault("make_directory", path)
        directory = self._root
        for name in _parts(path):
            node = directory.entries.get(name)
            if node is None:
                node = Directory()
                self._change_names("make_directory", path, ((directory, name, None, node),))
            if not isinstance(node, Directory):
                raise FilesError(f"make directory {path}: Not a directory")
            directory = node

    def remove(self, path: str) -> None:
        """Implement `Files.remove`."""
        self._require_power()
        self._meet_fault("remove", path)
        directory, name = self._place(path)
        if directory is None or name not in directory.entries:
            return
        for parent, entry, node in leaves_first(directory, name):
            self._change_names("remove", path, ((parent, entry, node, None),))
            if isinstance(node, File):
                self._unlink(node)

    def submit_remove(self, token: Token, path: str) -> None:
        """Implement `Files.submit_remove`."""

        def run() -> bytes:
            self.remove(path)
            return b""

        self._submit(token, run)

    def rename(self, source: str, target: str) -> None:
        """Implement `Files.rename`."""
        self._require_power()
        self._meet_fault("rename", source)
        from_directory, from_name = self._place(source)
        to_directory, to_name = self._place(target)
        node = None if from_directory is None else from_directory.entries.get(from_name)
        if from_directory is None or to_directory is None or node is None:
            raise FilesError(f"rename {source} to {target}: No such file or directory")
        replaced = to_directory.entries.get(to_name)
        if isinstance(replaced, Directory):
            raise FilesError(f"rename {source} to {target}: File exists")
        changes = ((from_directory, from_name, node, None), (to_directory, to_name, replaced, node))
        self._change_names("rename", source, changes)
        if replaced is not None:
            self._unlink(replaced)

    def sync_directory(self, path: str) -> None:
        """Implement `Files.sync_directory`."""
        self._require_power()
        directory = self._find(path)
        if not isinstance(directory, Directory):
            raise FilesError(f"sync directory {path}: No such file or directory")
        self._meet_point("sync_directory", path)
        self._meet_fault("sync_directory", path)
        kept: deque[NameChange] = deque()
        durable: deque[NameChange] = deque()
        names: set[tuple[int, str]] = set()
        for rename in reversed(self._renames):
            keys = {(id(change[0]), change[1]) for change in rename.changes}
            # A change includes earlier changes of its names, also in other directories.
            if not keys.isdisjoint(names) or any(c[0] is directory for c in rename.changes):
                names |= keys
                durable.appendleft(rename)
            else:
                kept.appendleft(rename)
        for rename in durable:
            make_durable(rename)
        self._renames = list(kept)

    # Contents, as in the port.

    def open(self, path: str, *, create: bool = False) -> FileHandle:
        """Implement `Files.open`."""
        self._require_power()
        self._meet_fault("open", path)
        directory, name = self._place(path)
        node = None if directory is None else directory.entries.get(name)
        if node is None and create and directory is not None:
            node = File()
            self._change_names("create", path, ((directory, name, None, node),))
        if not isinstance(node, File):
            raise FilesError(f"open {path}: No such file or directory")
        self._handle_last += 1
        handle = FileHandle(self._handle_last)
        self._handles[handle] = _Open(node, path)
        return handle

    def close(self, handle: FileHandle) -> None:
        """Implement `Files.close`; no-op for a handle of a process that `kill` ended."""
        if handle > self._handle_former:
            del self._handles[handle]

    def size(self, handle: FileHandle) -> int:
        """Implement `Files.size`."""
        self._require_power()
        return len(self._handles[handle].file.data)

    def read(self, handle: FileHandle, position: int, length: int) -> bytes:
        """Implement `Files.read`."""
        self._require_power()
        file, path = self._handles[handle]
        self._meet_fault("read", path)
        with memoryview(file.data) as view:
            return bytes(view[position : position + length])

    def try_read(self, handle: FileHandle, position: int, length: int) -> bytes | None:
        """Implement `Files.try_read`."""
        return None if self.is_cold else self.read(handle, position, length)

    def submit_read(self, token: Token, handle: FileHandle, position: int, length: int) -> None:
        """Implement `Files.submit_read`."""
        file, path = self._handles[handle]

        def run() -> bytes:
            self._meet_fault("read", path)
            with memoryview(file.data) as view:
                return bytes(view[position : position + length])

        self._submit(token, run)

    def append(self, handle: FileHandle, data: bytes) -> None:
        """Implement `Files.append`."""
        self._require_power()
        file, path = self._handles[handle]
        self._meet_fault("append", path)
        if self._used_bytes + len(data) > self.capacity_bytes:
            raise FilesError(f"append to {path}: No space left on device", is_full=True)
        self._used_bytes += len(data) if file.is_linked else 0
        file.append(bytes(data))
        self._meet_point("append", path)

    def truncate(self, handle: FileHandle, length: int) -> None:
        """Implement `Files.truncate`."""
        self._require_power()
        file, path = self._handles[handle]
        self._meet_fault("truncate", path)
        assert 0 <= length <= len(file.data)
        self._used_bytes -= len(file.data) - length if file.is_linked else 0
        file.truncate(length)
        self._meet_point("truncate", path)

    def rewrite(self, handle: FileHandle, position: int) -> None:
        """Implement `Files.rewrite`."""
        self._require_power()
        file, path = self._handles[handle]
        self._meet_fault("rewrite", path)
        assert 0 <= position <= len(file.data)
        file.rewrite(position)
        self._meet_point("rewrite", path)

    def sync(self, handle: FileHandle) -> None:
        """Implement `Files.sync`."""
        file, path = self._handles[handle]
        self._sync(file, path, file.sequence)

    def submit_sync(self, token: Token, handles: Sequence[FileHandle]) -> None:
        """Implement `Files.submit_sync`."""
        wanted = [
            (*self._handles[handle], self._handles[handle].file.sequence) for handle in handles
        ]

        def run() -> bytes:
            for file, path, sequence in wanted:
                self._sync(file, path, sequence)
            return b""

        self._submit(token, run)

    def free_bytes(self) -> int:
        """Implement `Files.free_bytes`."""
        return self.capacity_bytes - self._used_bytes

    def total_bytes(self) -> int:
        """Implement `Files.total_bytes`."""
        return self.capacity_bytes

    # For tests: submitted calls, power, faults.

    @property
    def submitted_count(self) -> int:
        """Return the number of calls by token that wait for `pump`."""
        return len(self._submitted)

    @property
    def is_cut(self) -> bool:
        """Return whether the power is off."""
        return self._is_cut

    @property
    def open_count(self) -> int:
        """Number of open handles, to find leaks."""
        return len(self._handles)

    def pump(self, limit: int | None = None) -> tuple[FileEvent, ...]:
        """Run submitted calls in order, at most `limit`; their events belong to the caller."""
        events: deque[FileEvent] = deque()
        while self._submitted and not self.is_stalled and (limit is None or len(events) < limit):
            self._require_power()
            token, run = self._submitted.popleft()
            try:
                events.append(FileEvent(token, run()))
            except FilesError as error:
                events.append(FileEvent(token, error=error))
        return tuple(events)

    def cut_power_at(self, point: int) -> None:
        """Raise `PowerCutError` at the write point number `point` (see `points`), from 1."""
        self._cut_at = point

    def crash(self, keep: Random | None) -> None:
        """Cut the power and restore it: volatile state is gone, handles are closed.

        Args:
            keep: Chooses the unsynced changes that survive; `None` keeps none.
        """
        self._crash_names(keep)
        for file in files_below(self._root):
            self.lost_sector_count += crash_contents(file, keep, self.lost_sector_chance)
        self._cut_at = None
        self._restart()

    def kill(self) -> None:
        """End the process but not the machine: all written data stays, handles are closed."""
        self._restart()

    def fail(self, fault: Fault) -> None:
        """Plan a failure; failures occur in the order they were planned."""
        self._faults.append(fault)

    def heal(self) -> None:
        """Drop all planned failures."""
        self._faults.clear()

    # For tests: inspection and damage.

    def content(self, path: str) -> bytes:
        """Return the contents of a file that a process reads."""
        return bytes(self._file(path).data)

    def durable_content(self, path: str) -> bytes:
        """Return the contents of a file that would certainly survive, if its name does."""
        return bytes(self._file(path).durable)

    def put(self, path: str, data: bytes) -> None:
        """Set durable contents of a file, as damage or an old version would; creates parents."""
        directory = self._root
        *parents, name = _parts(path)
        for parent in parents:
            node = directory.entries.setdefault(parent, Directory())
            assert isinstance(node, Directory)
            directory.durable.setdefault(parent, node)
            directory = node
        old = directory.entries.get(name)
        assert not isinstance(old, Directory)
        file = old or File()
        self._used_bytes += len(data) - len(file.data)
        file.data, file.durable = bytearray(data), bytearray(data)
        file.unsynced.clear()
        directory.entries[name] = directory.durable[name] = file

    def flip_bit(self, path: str, bit: int) -> None:
        """Flip one bit, counted from the start of the file."""
        data = bytearray(self.content(path))
        data[bit // 8] ^= 1 << bit % 8
        self.put(path, bytes(data))

    def paths(self, under: str = "") -> tuple[str, ...]:
        """Return the paths of all files below a directory, sorted."""
        found = []
        queue = [under]
        while queue:
            path = queue.pop()
            node = self._find(path)
            if isinstance(node, File):
                found.append(path)
            elif node is not None:
                queue.extend(f"{path}/{name}" if path else name for name in node.entries)
        return tuple(sorted(found))

    # Inside.

    def _submit(self, token: Token, run: Callable[[], bytes]) -> None:
        self._submitted.append(_Submitted(token, run))
        self.on_submitted()

    def _sync(self, file: File, path: str, sequence: int) -> None:
        self._require_power()
        self._meet_point("sync", path)
        try:
            self._meet_fault("sync", path)
        except FilesError:
            file.lose()
            raise
        file.sync(sequence)

    def _unlink(self, file: File) -> None:
        file.is_linked = False
        self._used_bytes -= len(file.data)

    def _require_power(self) -> None:
        if self._is_cut:
            raise PowerCutError("power is cut")

    def _meet_point(self, operation: str, path: str) -> None:
        self.points += 1
        self.log.append((operation, path))
        if self.points == self._cut_at:
            self._is_cut = True
            raise PowerCutError(f"power cut at point {self.points}: {operation} {path}")

    def _meet_fault(self, operation: str, path: str) -> None:
        for fault in self._faults:
            if fault.operation != operation or not fnmatchcase(path, fault.path):
                continue
            if fault.skip:
                fault.skip -= 1
            elif fault.count:
                fault.count -= 1
                text = "No space left on device" if fault.is_full else "Input/output error"
                raise FilesError(f"{operation} {path}: {text}", is_full=fault.is_full)

    def _change_names(
        self,
        operation: str,
        path: str,
        changes: tuple[tuple[Directory, str, Entry | None, Entry | None], ...],
    ) -> None:
        for directory, name, _, after in changes:
            if after is None:
                del directory.entries[name]
            else:
                directory.entries[name] = after
        self._renames.append(NameChange(changes))
        self._meet_point(operation, path)

    def _find(self, path: str) -> Entry | None:
        node: Entry | None = self._root
        for name in _parts(path):
            if not isinstance(node, Directory):
                return None
            node = node.entries.get(name)
        return node

    def _file(self, path: str) -> File:
        node = self._find(path)
        assert isinstance(node, File), f"{path} is not a file"
        return node

    def _place(self, path: str) -> tuple[Directory | None, str]:
        parent, _, name = path.rpartition("/")
        node = self._find(parent)
        assert name
        return (node, name) if isinstance(node, Directory) else (None, name)

    def _crash_names(self, keep: Random | None) -> None:
        for rename in self._renames:
            if keep is None or keep.random() < 0.5:
                continue
            # Dependencies need no extra check: a change survives only together with the state that
            # it was made on.
            if is_possible(rename):
                make_durable(rename)
        self._renames = []
        for directory in directories_below(self._root):
            directory.entries = dict(directory.durable)

    def _restart(self) -> None:
        self._handles.clear()
        self._handle_former = self._handle_last
        self._submitted.clear()
        self._is_cut = False
        self._used_bytes = sum(len(file.data) for file in files_below(self._root))


def _parts(path: str) -> list[str]:
    parts = path.split("/") if path else []
    assert all(part not in ("", ".", "..") and "\0" not in part for part in parts), path
    return parts


def _nobody() -> None:
    """Ignore the submission: the caller of `pump` runs it."""
