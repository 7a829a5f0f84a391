"""Names of files in memory: their visible state, and the state that would survive."""

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from liftbridge_broker.adapters.memory.inodes import File

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(slots=True, eq=False)
class Directory:
    """One directory: names that processes see and names that are durable."""

    entries: dict[str, "Entry"] = field(default_factory=dict)
    durable: dict[str, "Entry"] = field(default_factory=dict)


Entry = File | Directory
NameChange = tuple[Directory, str, Entry | None, Entry | None]
"""Change of a name: its directory, the name, the node before, the node after.

One change creates or removes a name, two that are made together move it.
"""


class Tree:
    """All directories, with the changes of names that no sync has made durable.

    Attributes:
        root: The directory with the empty path.
    """

    def __init__(self) -> None:
        self.root = Directory()
        self._number = 0
        self._unsynced: dict[int, tuple[NameChange, ...]] = {}
        # Numbers of these changes by directory, and by directory and name.
        self._of_directory: defaultdict[int, set[int]] = defaultdict(set)
        self._of_name: defaultdict[tuple[int, str], set[int]] = defaultdict(set)

    def find(self, path: str) -> Entry | None:
        """Return what has a path; `None` for nothing."""
        node: Entry | None = self.root
        for name in parts(path):
            if not isinstance(node, Directory):
                return None
            node = node.entries.get(name)
        return node

    def file(self, path: str) -> File:
        """Return the file that has a path."""
        node = self.find(path)
        assert isinstance(node, File), f"{path} is not a file"
        return node

    def place(self, path: str) -> tuple[Directory | None, str]:
        """Return the directory of a path, `None` if it does not exist, and the name in it."""
        parent, _, name = path.rpartition("/")
        node = self.find(parent)
        assert name
        return (node, name) if isinstance(node, Directory) else (None, name)

    def plant(self, path: str) -> File:
        """Return the file of a path, with a durable name; create it and its parents if absent."""
        directory = self.root
        *parents, name = parts(path)
        for parent in parents:
            node = directory.entries.setdefault(parent, Directory())
            assert isinstance(node, Directory)
            directory.durable.setdefault(parent, node)
            directory = node
        file = directory.entries.get(name) or File()
        assert isinstance(file, File)
        directory.entries[name] = directory.durable[name] = file
        return file

    def change(self, *changes: NameChange) -> None:
        """Make changes together, not durably."""
        for directory, name, _, after in changes:
            if after is None:
                del directory.entries[name]
            else:
                directory.entries[name] = after
            self._of_directory[id(directory)].add(self._number)
            self._of_name[id(directory), name].add(self._number)
        self._unsynced[self._number] = changes
        self._number += 1

    def sync(self, directory: Directory) -> None:
        """Make the changes of a directory durable."""
        waiting = sorted(self._of_directory.get(id(directory), ()))
        durable = set(waiting)
        bounds: dict[tuple[int, str], int] = {}
        while waiting:
            number = waiting.pop()
            # A change includes earlier changes of its names, also in other directories.
            for parent, name, _, _ in self._unsynced[number]:
                key = id(parent), name
                bound = bounds.get(key, -1)
                if number > bound:
                    bounds[key] = number
                    earlier = {one for one in self._of_name[key] if bound < one < number}
                    waiting += earlier - durable
                    durable |= earlier
        for number in sorted(durable):
            changes = self._unsynced.pop(number)
            _make_durable(changes)
            for parent, name, _, _ in changes:
                _discard(self._of_directory, id(parent), number)
                _discard(self._of_name, (id(parent), name), number)

    def crash(self, keep: Random | None) -> None:
        """Leave the durable names, and those of unsynced changes that `keep` chooses."""
        for changes in self._unsynced.values():
            if keep is None or keep.random() < 0.5:
                continue
            # Dependencies need no extra check: a change survives only together with the state that
            # it was made on.
            if _is_possible(changes):
                _make_durable(changes)
        self._unsynced.clear()
        self._of_directory.clear()
        self._of_name.clear()
        for directory in self._directories():
            directory.entries = dict(directory.durable)

    def files(self) -> Iterator[File]:
        """Yield all files."""
        for directory in self._directories():
            yield from (node for node in directory.entries.values() if isinstance(node, File))

    def _directories(self) -> Iterator[Directory]:
        """Yield all directories, the root first."""
        queue = [self.root]
        while queue:
            directory = queue.pop()
            yield directory
            queue.extend(node for node in directory.entries.values() if isinstance(node, Directory))


def parts(path: str) -> list[str]:
    """Return the names along a path."""
    names = path.split("/") if path else []
    assert all(name not in ("", ".", "..") and "\0" not in name for name in names), path
    return names


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


def _discard(table: dict[_Key, set[int]], key: _Key, number: int) -> None:
    """Remove a number from a set of a table, and the set when it is empty."""
    table[key].discard(number)
    if not table[key]:
        del table[key]


def _make_durable(changes: tuple[NameChange, ...]) -> None:
    """Apply changes of names to the durable state."""
    for directory, name, _, after in changes:
        if after is None:
            directory.durable.pop(name, None)
        else:
            directory.durable[name] = after


def _is_possible(changes: tuple[NameChange, ...]) -> bool:
    """Return whether changes of names still match the durable state."""
    first = changes[0]
    is_removal = len(changes) == 1 and first[3] is None
    if is_removal and isinstance(first[2], Directory) and first[2].durable:
        return False
    return all(parent.durable.get(name) is before for parent, name, before, _ in changes)
