"""The disk of a machine: in-memory files with slow calls in simulated time, and damage.

`MemoryFiles` decides which data survive a power cut and which calls fail. This module decides when
calls by token end, and adds faults that change bytes: rot, and writes that go to another file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random
from typing import NamedTuple

from liftbridge_broker.adapters.memory.inodes import File
from liftbridge_broker.model.units import MICROSECOND_NS
from liftbridge_broker.ports.files import FileHandle, Token
from liftbridge_testkit.memory_files import MemoryFiles

LOG_FILES = "*.log"
"""Files of records."""

VOLUME_BYTES = 1 << 40


@dataclass(slots=True)
class DiskSpeed:
    """Durations of calls, nanoseconds.

    Attributes:
        read_ns: Duration of a read by token.
        sync_ns_min: Minimum duration of a sync.
        sync_ns_jitter: Maximum random addition.
        factor: Factor of all durations while the disk is slow.
    """

    read_ns: int = 80 * MICROSECOND_NS
    sync_ns_min: int = 100 * MICROSECOND_NS
    sync_ns_jitter: int = 400 * MICROSECOND_NS
    factor: int = 1


class Damage(NamedTuple):
    """Bytes that differ from those written.

    Attributes:
        file: The damaged file.
        path: Its name at the time of the damage.
        position: Position of the first damaged byte.
        original: Correct bytes.
    """

    file: File
    path: str
    position: int
    original: bytes


class SimFiles(MemoryFiles):
    """The port `Files` of a machine.

    Attributes:
        speed: Durations of calls.
        on_busy: Called with the duration of a call by token, when it is submitted.
        on_blocked: Called with the time that a blocking call delayed the process; only while it is
            slow.
        on_append: Called with the path and bytes of each successful append, before damage.
        cold_ppm: Share of reads that are not served from memory, in millionths.
        misdirected: Pattern of the file whose next append goes to another one; empty for none.
        misdirected_count: Number of misdirected writes.
        damages: Damages since this disk was new.
        lying: Pattern of files whose syncs succeed without effect, as on a disk that does not flush
            its cache; empty for none.
    """

    def __init__(self, random: Random) -> None:
        super().__init__(capacity_bytes=VOLUME_BYTES)
        self.speed = DiskSpeed()
        self.on_busy: Callable[[int], None] = _ignore
        self.on_blocked: Callable[[int], None] = _ignore
        self.on_append: Callable[[str, bytes], None] = _ignore_append
        self.cold_ppm = 0
        self.misdirected = ""
        self.misdirected_count = 0
        self.damages: list[Damage] = []
        self.lying = ""
        self._chance = random

    def try_read(self, handle: FileHandle, position: int, length: int) -> bytes | None:
        """Implement `Files.try_read`: memory cannot fail, and sometimes has nothing."""
        if self.cold_ppm and self._chance.randrange(1_000_000) < self.cold_ppm:
            return None
        faults, self._faults = self._faults, []
        try:
            return super().try_read(handle, position, length)
        finally:
            self._faults = faults

    def submit_read(self, token: Token, handle: FileHandle, position: int, length: int) -> None:
        """Implement `Files.submit_read`; ends after `read_ns`."""
        super().submit_read(token, handle, position, length)
        self.on_busy(self.speed.read_ns * self.speed.factor)

    def submit_sync(
        self, token: Token, handles: Sequence[FileHandle], directories: Sequence[str] = ()
    ) -> None:
        """Implement `Files.submit_sync`; ends after the time of a sync."""
        super().submit_sync(token, handles, directories)
        self.on_busy(self._sync_ns())

    def submit_remove(self, token: Token, path: str) -> None:
        """Implement `Files.submit_remove`; takes as long as a sync."""
        super().submit_remove(token, path)
        self.on_busy(self._sync_ns())

    def sync(self, handle: FileHandle) -> None:
        """Implement `Files.sync`; a slow disk delays the process."""
        super().sync(handle)
        if self.speed.factor > 1:
            self.on_blocked(self._sync_ns())

    def append(self, handle: FileHandle, data: bytes) -> None:
        """Append as the port does, or write the bytes to another file and zeros in their place."""
        path, written = self._handles[handle].path, data
        if self.misdirected and fnmatchcase(path, self.misdirected) and self._misdirect(path, data):
            file = self._handles[handle].file
            self.damages.append(Damage(file, path, len(file.data), data))
            written = bytes(len(data))
        super().append(handle, written)
        self.on_append(path, data)

    def _sync_ns(self) -> int:
        speed = self.speed
        return (speed.sync_ns_min + self._chance.randrange(speed.sync_ns_jitter + 1)) * speed.factor

    def _misdirect(self, path: str, data: bytes) -> bool:
        """Write `data` over a part of another file of that kind, if there is one large enough."""
        others = [
            other
            for other in self.paths()
            if other != path
            and fnmatchcase(other, self.misdirected)
            and len(self.durable_content(other)) >= len(data)
        ]
        if not others:
            return False
        other = self._chance.choice(others)
        content = self.content(other)
        at = self._chance.randrange(len(content) - len(data) + 1)
        self.damages.append(Damage(self._tree.file(other), other, at, content[at : at + len(data)]))
        self.put(other, content[:at] + data + content[at + len(data) :])
        self.misdirected = ""
        self.misdirected_count += 1
        return True

    @property
    def is_damaged(self) -> bool:
        """Return whether damaged bytes are still in use."""
        self.damages = [damage for damage in self.damages if self._is_there(damage)]
        return bool(self.damages)

    @property
    def is_losing(self) -> bool:
        """Return whether a power cut or a failing sync is still pending."""
        return bool(self.power.cut_at) or any(
            fault.operation == "sync" and fault.count for fault in self._faults
        )

    @property
    def is_refusing(self) -> bool:
        """Return whether failing reads are still pending."""
        return any(fault.operation == "read" and fault.count for fault in self._faults)

    def call_off_loss(self) -> None:
        """Call off every pending power cut and failing sync."""
        self.power.cut_at = 0
        self._faults = [fault for fault in self._faults if fault.operation != "sync"]

    def _is_there(self, damage: "Damage") -> bool:
        file, end = damage.file, damage.position + len(damage.original)
        return (
            self._tree.find(damage.path) is file
            and damage.position < len(file.data)
            and file.data[damage.position : end] != damage.original
        )

    def _sync(self, file: File, path: str, sequence: int) -> None:
        is_done = not (self.lying and fnmatchcase(path, self.lying))
        super()._sync(file, path, sequence if is_done else 0)

    def enlarge(self) -> None:
        """End the lack of space."""
        self.capacity_bytes = VOLUME_BYTES

    def mend(self) -> None:
        """End all faults; damaged bytes stay damaged."""
        self.heal()
        self.enlarge()
        self.power.cut_at = 0
        self.speed.factor = 1
        self.cold_ppm = 0
        self.misdirected = ""

    # Damage.

    def rot(self, pattern: str = LOG_FILES, *, durable_only: bool = True) -> str:
        """Flip one bit of one file. Return the place, empty when there is no byte to damage.

        Args:
            pattern: Pattern of the files to damage.
            durable_only: Damage only synced bytes, as rot of a disk does.
        """
        sizes = {}
        for path in self.paths():
            if fnmatchcase(path, pattern):
                size = len(self.durable_content(path) if durable_only else self.content(path))
                if size:
                    sizes[path] = size
        if not sizes:
            return ""
        path = self._chance.choice(list(sizes))
        bit = self._chance.randrange(sizes[path] * 8)
        self.spoil(path, bit)
        return f"{path}:{bit // 8}.{bit % 8}"

    def misdirect(self, pattern: str) -> str:
        """Move the last write of one file to a part of another file, and leave zeros.

        Return the place; empty when no two files are long enough.
        """
        length = self._chance.randrange(1, 200)
        found = [
            path
            for path in self.paths()
            if fnmatchcase(path, pattern) and len(self.durable_content(path)) >= length
        ]
        if len(found) < 2:
            return ""
        path, other = self._chance.sample(found, 2)
        end = len(self.durable_content(path))
        data = self.durable_content(path)[end - length :]
        at = self._chance.randrange(len(self.durable_content(other)) - length + 1)
        self._overwrite(other, at, data)
        self._overwrite(path, end - length, bytes(length))
        return f"{path}:{end - length}+{length} to {other}:{at}"

    def _overwrite(self, path: str, at: int, data: bytes) -> None:
        """Change bytes in the visible and the durable content; syncs stay pending."""
        file = self._tree.file(path)
        end = at + len(data)
        self.damages.append(Damage(file, path, at, bytes(file.data[at:end])))
        for content in (file.data, file.durable):
            content[at:end] = data

    def spoil(self, path: str, bit: int) -> None:
        """Flip one bit in the visible and the durable content; syncs stay pending."""
        file, at = self._tree.file(path), bit // 8
        self.damages.append(Damage(file, path, at, bytes(file.data[at : at + 1])))
        for data in (file.data, file.durable):
            if bit // 8 < len(data):
                data[bit // 8] ^= 1 << bit % 8

    def lose_power(self, keep: Random | None) -> int:
        """Cut the power and restore it. Return the number of bytes or names that were lost."""
        before = {path: len(self.content(path)) for path in self.paths()}
        self.crash(keep)
        after = {path: len(self.content(path)) for path in self.paths()}
        return sum(
            max(1, size - after.get(path, 0))
            for path, size in before.items()
            if after.get(path, -1) < size
        )

    def wipe(self) -> None:
        """Lose all files, as with a new disk, and call off a pending power cut."""
        self.kill()
        self.power.cut_at = 0
        for name in self.list(""):
            self.remove(name)
        self.sync_directory("")
        self.damages.clear()


def _ignore(nanoseconds: int) -> None:
    """No-op: no caller waits."""
    del nanoseconds


def _ignore_append(path: str, data: bytes) -> None:
    """No-op: no observer is set."""
    del path, data
