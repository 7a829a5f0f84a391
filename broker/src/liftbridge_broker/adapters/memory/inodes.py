"""Files and directories in memory: their visible state, and the state that would survive.

A power cut keeps the durable part and a random part of the unsynced changes, as long as a disk
could have kept exactly that.
"""

from collections import deque
from collections.abc import Iterator
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


@dataclass(slots=True, eq=False)
class Directory:
    """One directory: names that processes see and names that are durable."""

    entries: dict[str, "Entry"] = field(default_factory=dict)
    durable: dict[str, "Entry"] = field(default_factory=dict)


Entry = File | Directory


class NameChange(NamedTuple):
    """An unsynced change of names, atomic: each (directory, name, node before, node after).

    One entry creates or removes a name, two entries move it.
    """

    changes: tuple[tuple[Directory, str, Entry | None, Entry | None], ...]


def replay(data: bytearray, write: Write) -> None:
    """Apply a change."""
    if write.data is None:
        del data[write.position :]
    elif write.position is None:
        data += write.data
    else:
        data[write.position : write.position + len(write.data)] = write.data


def make_durable(rename: NameChange) -> None:
    """Apply a change of names to the durable state."""
    for directory, name, _, after in rename.changes:
        if after is None:
            directory.durable.pop(name, None)
        else:
            directory.durable[name] = after


def is_possible(rename: NameChange) -> bool:
    """Return whether a change of names still matches the durable state."""
    first = rename.changes[0]
    is_removal = len(rename.changes) == 1 and first[3] is None
    if is_removal and isinstance(first[2], Directory) and first[2].durable:
        return False
    return all(parent.durable.get(name) is before for parent, name, before, _ in rename.changes)


def leaves_first(directory: Directory, name: str) -> Iterator[tuple[Directory, str, Entry]]:
    """List the entries to remove one by one to remove a directory, itself last."""
    leaves: list[tuple[Directory, str, Entry]] = []
    queue = [(directory, name)]
    while queue:
        parent, entry = queue.pop()
        node = parent.entries[entry]
        leaves.append((parent, entry, node))
        if isinstance(node, Directory):
            queue.extend((node, child) for child in sorted(node.entries))
    return reversed(leaves)


def directories_below(root: Directory) -> Iterator[Directory]:
    """Yield all directories of a tree, its root first."""
    queue = [root]
    while queue:
        directory = queue.pop()
        yield directory
        queue.extend(node for node in directory.entries.values() if isinstance(node, Directory))


def files_below(root: Directory) -> Iterator[File]:
    """Yield all files of a tree."""
    for directory in directories_below(root):
        yield from (node for node in directory.entries.values() if isinstance(node, File))


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
