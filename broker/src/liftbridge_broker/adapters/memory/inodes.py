"""Contents of files in memory: their visible state, and the state that would survive.

A power cut keeps the durable part and a random part of the unsynced changes, as long as a disk
could have kept exactly that.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

SECTOR_BYTES = 512


class Write(NamedTuple):
    """An unsynced change of a file.

    `data` written at `position`, or, if `None`, a truncation there.

    At a `position` of `None` the data are appended.
    """

    sequence: int
    data: bytes | None
    position: int | None


@dataclass(slots=True, eq=False)
class File:
    """One inode: its visible state, its durable state, and the changes between them."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: deque[Write] = field(default_factory=deque)
    sequence: int = 0
    is_linked: bool = True

    def append(self, data: bytes) -> None:
        """Add bytes at the end, not durable."""
        self.sequence += 1
        self.data += data
        self.unsynced.append(Write(self.sequence, data, None))

    def rewrite(self, position: int) -> None:
        """Rewrite the visible bytes from a position on."""
        self.sequence += 1
        data = bytes(memoryview(self.data)[position:])
        self.unsynced.append(Write(self.sequence, data, position))

    def truncate(self, length: int) -> None:
        """Cut, not durably."""
        self.sequence += 1
        del self.data[length:]
        self.unsynced.append(Write(self.sequence, None, length))

    def sync(self, up_to: int) -> None:
        """Make the changes up to a sequence number durable."""
        while self.unsynced and self.unsynced[0].sequence <= up_to:
            replay(self.durable, self.unsynced.popleft())

    def lose(self) -> None:
        """Simulate a failed sync: the kernel marks pages clean, later syncs do not write them."""
        self.unsynced = deque(
            write._replace(data=bytes(len(write.data)))
            if write.data is not None and write.position is None
            else write
            for write in self.unsynced
            if write.data is None or write.position is None
        )


def replay(data: bytearray, write: Write) -> None:
    """Apply a change."""
    if write.data is None:
        del data[write.position :]
    elif write.position is None:
        data += write.data
    else:
        data[write.position : write.position + len(write.data)] = write.data


def crash_contents(file: File, keep: Random | None, lost_sector_chance: float) -> bool:
    """Keep a prefix of the unsynced writes, perhaps torn; return whether a sector was lost."""
    is_sector_lost = False
    if keep is not None and file.unsynced:
        durable_bytes = len(file.durable)
        for _ in range(keep.randint(0, len(file.unsynced))):
            replay(file.durable, file.unsynced.popleft())
        if file.unsynced and (data := file.unsynced[0].data) is not None:
            torn = file.unsynced[0]
            replay(file.durable, torn._replace(data=data[: keep.randint(0, len(data))]))
        if len(file.durable) > durable_bytes and keep.random() < lost_sector_chance:
            _lose_sector(file.durable, durable_bytes, keep)
            is_sector_lost = True
    file.unsynced.clear()
    file.data = bytearray(file.durable)
    return is_sector_lost


def _lose_sector(data: bytearray, start: int, keep: Random) -> None:
    """Zero the part of one sector after `start`: the length was written, the data was not."""
    position = keep.randrange(start, len(data))
    first = max(start, position - position % SECTOR_BYTES)
    end = min(len(data), position - position % SECTOR_BYTES + SECTOR_BYTES)
    data[first:end] = bytes(end - first)
