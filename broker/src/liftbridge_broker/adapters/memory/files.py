"""The port `Files` in memory, with the durability of a real disk and the faults of a bad one.

Every file has the content that a process sees and the content that would survive a power cut; every
directory likewise. `crash` keeps a random part of the unsynced rest: a prefix of the writes of a
file, the last one torn, sometimes with a sector that never arrived, and any subset of the name
changes that is consistent with their order on one name. That is weaker than the guarantees of ext4
or XFS, so code that passes these tests is safe on them.

Calls by token wait until the owner pumps them; a submitted sync covers only what had been appended
when it was submitted. Every change is a write point, and power can be cut at any of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random
from typing import NamedTuple

from liftbridge_broker.adapters.memory.calls import SubmittedCalls
from liftbridge_broker.adapters.memory.inodes import File, crash_contents
from liftbridge_broker.adapters.memory.power import Power
from liftbridge_broker.adapters.memory.tree import Directory, Tree, leaves_first, parts
from liftbridge_broker.errors import FilesError
from liftbridge_broker.ports.files import FileHandle, Token


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


class MemoryFiles:
    """One data directory in memory.

    Attributes:
        power: Counts write points, and fails at a chosen one.
        calls: Calls by token, for the owner to pump.
        is_cold: While true `try_read` answers `None`, as if nothing were cached.
        capacity_bytes: Size of the volume.
        lost_sector_chance: Probability that a file loses a sector between kept ones when it
            crashes with unsynced bytes.
        lost_sector_count: Number of such losses.
    """

    def __init__(self, *, capacity_bytes: int = 1 << 50) -> None:
        self.power = Power()
        self.calls = SubmittedCalls(self.power)
        self.is_cold = False
        self.capacity_bytes = capacity_bytes
        self.lost_sector_chance = 0.1
        self.lost_sector_count = 0
        self._tree = Tree()
        self._handles: dict[FileHandle, _Open] = {}
        self._handle_former = 0
        self._handle_last = 0
        self._faults: list[Fault] = []
        self._used_bytes = 0

    # Names, as in the port.

    def exists(self, path: str) -> bool:
        """Implement `Files.exists`."""
        self.power.require()
        return self._tree.find(path) is not None

    def list(self, path: str) -> Sequence[str]:
        """Implement `Files.list`."""
        self.power.require()
        self._meet_fault("list", path)
        node = self._tree.find(path)
        return sorted(node.entries) if isinstance(node, Directory) else ()

    def make_directory(self, path: str) -> None:
        """Implement `Files.make_directory`."""
        self.power.require()
        self._meet_fault("make_directory", path)
        directory = self._tree.root
        for name in parts(path):
            node = directory.entries.get(name)
            if node is None:
                node = Directory()
                self._tree.change((directory, name, None, node))
                self.power.meet_point("make_directory", path)
            if not isinstance(node, Directory):
                raise FilesError(f"make directory {path}: Not a directory")
            directory = node

    def remove(self, path: str) -> None:
        """Implement `Files.remove`."""
        self.power.require()
        self._meet_fault("remove", path)
        directory, name = self._tree.place(path)
        if directory is None or name not in directory.entries:
            return
        for parent, entry, node in leaves_first(directory, name):
            self._tree.change((parent, entry, node, None))
            self.power.meet_point("remove", path)
            if isinstance(node, File):
                self._unlink(node)

    def submit_remove(self, token: Token, path: str) -> None:
        """Implement `Files.submit_remove`."""

        def run() -> bytes:
            self.remove(path)
            return b""

        self.calls.submit(token, run)

    def rename(self, source: str, target: str) -> None:
        """Implement `Files.rename`."""
        self.power.require()
        self._meet_fault("rename", source)
        from_directory, from_name = self._tree.place(source)
        to_directory, to_name = self._tree.place(target)
        node = None if from_directory is None else from_directory.entries.get(from_name)
        if from_directory is None or to_directory is None or node is None:
            raise FilesError(f"rename {source} to {target}: No such file or directory")
        replaced = to_directory.entries.get(to_name)
        if isinstance(replaced, Directory):
            raise FilesError(f"rename {source} to {target}: File exists")
        self._tree.change(
            (from_directory, from_name, node, None), (to_directory, to_name, replaced, node)
        )
        self.power.meet_point("rename", source)
        if replaced is not None:
            self._unlink(replaced)

    def sync_directory(self, path: str) -> None:
        """Implement `Files.sync_directory`."""
        self.power.require()
        directory = self._tree.find(path)
        if not isinstance(directory, Directory):
            raise FilesError(f"sync directory {path}: No such file or directory")
        self.power.meet_point("sync_directory", path)
        self._meet_fault("sync_directory", path)
        self._tree.sync(directory)

    # Contents, as in the port.

    def open(self, path: str, *, create: bool = False) -> FileHandle:
        """Implement `Files.open`."""
        self.power.require()
        self._meet_fault("open", path)
        directory, name = self._tree.place(path)
        node = None if directory is None else directory.entries.get(name)
        if node is None and create and directory is not None:
            node = File()
            self._tree.change((directory, name, None, node))
            self.power.meet_point("create", path)
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
        self.power.require()
        return len(self._handles[handle].file.data)

    def read(self, handle: FileHandle, position: int, length: int) -> bytes:
        """Implement `Files.read`."""
        self.power.require()
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

        self.calls.submit(token, run)

    def append(self, handle: FileHandle, data: bytes) -> None:
        """Implement `Files.append`."""
        self.power.require()
        file, path = self._handles[handle]
        self._meet_fault("append", path)
        if self._used_bytes + len(data) > self.capacity_bytes:
            raise FilesError(f"append to {path}: No space left on device", is_full=True)
        self._used_bytes += len(data) if file.is_linked else 0
        file.append(bytes(data))
        self.power.meet_point("append", path)

    def truncate(self, handle: FileHandle, length: int) -> None:
        """Implement `Files.truncate`."""
        self.power.require()
        file, path = self._handles[handle]
        self._meet_fault("truncate", path)
        assert 0 <= length <= len(file.data)
        self._used_bytes -= len(file.data) - length if file.is_linked else 0
        file.truncate(length)
        self.power.meet_point("truncate", path)

    def rewrite(self, handle: FileHandle, position: int) -> None:
        """Implement `Files.rewrite`."""
        self.power.require()
        file, path = self._handles[handle]
        self._meet_fault("rewrite", path)
        assert 0 <= position <= len(file.data)
        file.rewrite(position)
        self.power.meet_point("rewrite", path)

    def sync(self, handle: FileHandle) -> None:
        """Implement `Files.sync`."""
        file, path = self._handles[handle]
        self._sync(file, path, file.sequence)

    def submit_sync(
        self, token: Token, handles: Sequence[FileHandle], directories: Sequence[str] = ()
    ) -> None:
        """Implement `Files.submit_sync`."""
        wanted = [
            (*self._handles[handle], self._handles[handle].file.sequence) for handle in handles
        ]

        def run() -> bytes:
            for file, path, sequence in wanted:
                self._sync(file, path, sequence)
            for path in filter(self.exists, directories):
                self.sync_directory(path)
            return b""

        self.calls.submit(token, run)

    def free_bytes(self) -> int:
        """Implement `Files.free_bytes`."""
        return self.capacity_bytes - self._used_bytes

    def total_bytes(self) -> int:
        """Implement `Files.total_bytes`."""
        return self.capacity_bytes

    # For tests: crashes, faults.

    @property
    def open_count(self) -> int:
        """Number of open handles, to find leaks."""
        return len(self._handles)

    def crash(self, keep: Random | None) -> None:
        """Cut the power and restore it: volatile state is gone, handles are closed.

        Args:
            keep: Chooses the unsynced changes that survive; `None` keeps none.
        """
        self._tree.crash(keep)
        for file in self._tree.files():
            self.lost_sector_count += crash_contents(file, keep, self.lost_sector_chance)
        self.power.cut_at = 0
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
        return bytes(self._tree.file(path).data)

    def durable_content(self, path: str) -> bytes:
        """Return the contents of a file that would certainly survive, if its name does."""
        return bytes(self._tree.file(path).durable)

    def put(self, path: str, data: bytes) -> None:
        """Set durable contents of a file, as damage or an old version would; creates parents."""
        file = self._tree.plant(path)
        self._used_bytes += len(data) - len(file.data)
        file.data, file.durable = bytearray(data), bytearray(data)
        file.unsynced.clear()

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
            node = self._tree.find(path)
            if isinstance(node, File):
                found.append(path)
            elif node is not None:
                queue.extend(f"{path}/{name}" if path else name for name in node.entries)
        return tuple(sorted(found))

    # Inside.

    def _sync(self, file: File, path: str, sequence: int) -> None:
        self.power.require()
        self.power.meet_point("sync", path)
        try:
            self._meet_fault("sync", path)
        except FilesError:
            file.lose()
            raise
        file.sync(sequence)

    def _unlink(self, file: File) -> None:
        file.is_linked = False
        self._used_bytes -= len(file.data)

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

    def _restart(self) -> None:
        self._handles.clear()
        self._handle_former = self._handle_last
        self.calls.waiting.clear()
        self.power.is_cut = False
        self._used_bytes = sum(len(file.data) for file in self._tree.files())
