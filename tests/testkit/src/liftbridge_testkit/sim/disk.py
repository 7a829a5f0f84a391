"""The disk of a machine: files in memory whose slow calls take simulated time, and damage to them.

`MemoryFiles` says what survives a power cut and which calls fail; here are when calls by token end,
and the faults that change bytes: rot, and writes that land in another file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random
from typing import NamedTuple

from liftbridge_broker.adapters.memory.inodes import File
from liftbridge_broker.ports.files import FileHandle, Token
from liftbridge_testkit.memory_files import MemoryFiles
from liftbridge_testkit.sim.scheduler import MICROSECOND_NS

LOG_FILES = "*.log"
"""Files of records."""

VOLUME_BYTES = 1 << 40
NEVER = -1


@dataclass(slots=True)
class DiskSpeed:
    """Durations of calls, nanoseconds.

    Attributes:
        read_ns: A read by token.
        sync_ns_min: A sync at least.
        sync_ns_jitter: Maximum random addition.
        factor: All of it is multiplied by this while the disk is slow.
    """

    read_ns: int = 80 * MICROSECOND_NS
    sync_ns_min: int = 100 * MICROSECOND_NS
    sync_ns_jitter: int = 400 * MICROSECOND_NS
    factor: int = 1


class Damage(NamedTuple):
    """Bytes that are not what was written.

    Attributes:
        file: Where.
        path: Its name when it happened.
        position: First byte of it.
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
        on_busy: Told how long a call by token will take, when it was submitted.
        on_blocked: Told how long a blocking call held the process up; only while it is slow.
        on_append: Told the path and bytes of each append that succeeded, before damage.
        cold_ppm: Reads that find nothing in memory, in millionths.
        misdirected: Pattern of the file whose next append lands in another one; empty for none.
        misdirected_count: Number of misdirected writes.
        damages: Damages since this disk was new.
        lying: Pattern of files whose syncs are answered and not done, as by a disk that keeps its
            cache to itself; empty for none.
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
        """See the port: what memory holds cannot fail, and at times memory holds nothing."""
        if self.cold_ppm and self._chance.randrange(1_000_000) < self.cold_ppm:
            return None
        faults, self._faults = self._faults, []
        try:
            return super().try_read(handle, position, length)
        finally:
            self._faults = faults

    def submit_read(self, token: Token, handle: FileHandle, position: int, length: int) -> None:
        """See the port; ends after `read_ns`."""
        super().submit_read(token, handle, position, length)
        self.on_busy(self.speed.read_ns * self.speed.factor)

    def submit_sync(self, token: Token, handles: Sequence[FileHandle]) -> None:
        """See the port; ends after the time of a sync."""
        super().submit_sync(token, handles)
        self.on_busy(self._sync_ns())

    def submit_remove(self, token: Token, path: str) -> None:
        """See the port; takes as long as a sync."""
        super().submit_remove(token, path)
        self.on_busy(self._sync_ns())

    def sync(self, handle: FileHandle) -> None:
        """See the port; a slow disk holds the process up."""
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
        self.damages.append(Damage(self._file(other), other, at, content[at : at + len(data)]))
        self.put(other, content[:at] + data + content[at + len(data) :])
        self.misdirected = ""
        self.misdirected_count += 1
        return True

    @property
    def is_damaged(self) -> bool:
        """Return whether something that was spoiled is still in use."""
        self.damages = [one for one in self.damages if self._is_there(one)]
        return bool(self.damages)

    @property
    def is_losing(self) -> bool:
        """Return whether a power cut or a failing sync is still to come."""
        return self._cut_at not in (None, NEVER) or any(
            fault.operation == "sync" and fault.count for fault in self._faults
        )

    @property
    def is_refusing(self) -> bool:
        """Return whether reads are still to be refused."""
        return any(fault.operation == "read" and fault.count for fault in self._faults)

    def call_off_loss(self) -> None:
        """Neither cut the power nor fail a sync, whatever was to come."""
        self.cut_power_at(NEVER)
        self._faults = [fault for fault in self._faults if fault.operation != "sync"]

    def _is_there(self, damage: "Damage") -> bool:
        file, end = damage.file, damage.position + len(damage.original)
        return (
            self._find(damage.path) is file
            and damage.position < len(file.data)
            and file.data[damage.position : end] != damage.original
        )

    def _sync(self, file: File, path: str, sequence: int) -> None:
        is_done = not (self.lying and fnmatchcase(path, self.lying))
        super()._sync(file, path, sequence if is_done else 0)

    def enlarge(self) -> None:
        """End the shortage of space."""
        self.capacity_bytes = VOLUME_BYTES

    def mend(self) -> None:
        """Everything works again; what is damaged stays damaged."""
        self.heal()
        self.enlarge()
        self.cut_power_at(NEVER)
        self.speed.factor = 1
        self.cold_ppm = 0
        self.misdirected = ""

    # Damage.

    def rot(self, pattern: str = LOG_FILES, *, durable_only: bool = True) -> str:
        """Turn over one bit of one file; says where, empty when there is no byte to spoil.

        Args:
            pattern: Files it may hit.
            durable_only: Hit only what was synced, as rot of a disk does.
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
        """Let the last write to one file have gone over a part of another one, and zeros be there.

        Says where; empty when there are no two files that are long enough.
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
        """Change bytes in what processes see and in what is durable; syncs stay owed."""
        file = self._file(path)
        end = at + len(data)
        self.damages.append(Damage(file, path, at, bytes(file.data[at:end])))
        for content in (file.data, file.durable):
            content[at:end] = data

    def spoil(self, path: str, bit: int) -> None:
        """Turn over one bit, in what processes see and in what is durable; syncs stay owed."""
        file, at = self._file(path), bit // 8
        self.damages.append(Damage(file, path, at, bytes(file.data[at : at + 1])))
        for data in (file.data, file.durable):
            if bit // 8 < len(data):
                data[bit // 8] ^= 1 << bit % 8

    def lose_power(self, keep: Random | None) -> int:
        """Cut the power and restore it; says how many bytes or names did not survive."""
        before = {path: len(self.content(path)) for path in self.paths()}
        self.crash(keep)
        after = {path: len(self.content(path)) for path in self.paths()}
        return sum(
            max(1, size - after.get(path, 0))
            for path, size in before.items()
            if after.get(path, -1) < size
        )

    def wipe(self) -> None:
        """Lose all files: the disk was replaced, and a power cut that was to come does not."""
        self.kill()
        self.cut_power_at(NEVER)
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
