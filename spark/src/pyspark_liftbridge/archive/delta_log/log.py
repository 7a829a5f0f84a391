"""The log of a table: read its current state, and write the next entry.

    _delta_log/00000000000000000042.json                  an entry
    _delta_log/00000000000000000100.checkpoint.parquet    the result of entries up to 100
    _delta_log/_last_checkpoint                           a hint where to begin

An entry is written once, to exactly the number after the last one. So of two writers that read the
same snapshot, one loses, and must read the winner's entry before it plans again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark_liftbridge.archive.delta_log import checkpoint, delta
from pyspark_liftbridge.archive.delta_log.fields import Fields, parse_json
from pyspark_liftbridge.archive.errors import ConflictError, DamagedError
from pyspark_liftbridge.archive.stores.store import Store

FOLDER: Final = "_delta_log/"
LAST_CHECKPOINT: Final = f"{FOLDER}_last_checkpoint"
VERSION_MAX: Final = 10**15
_ENTRIES_MAX: Final = 10_000_000
"""Maximum number of entries read in one loop: years of commits."""

_HINT_BYTES_MAX: Final = 1 << 20
_CHECKPOINT_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True)
class Snapshot:
    """State of a table after one entry of its log. Immutable.

    Attributes:
        version: Number of that entry, -1 for none.
        versions: Versions that a reader and a writer must support; `None` before the first entry.
        metadata: Metadata of the table; `None` before the first entry.
        files: Live files by path.
        removed: Files that were removed, by path, as far as the log still has them.
        ends: Version of each application by its id.
        checkpoint_version: Number of the newest checkpoint known, -1 for none.
    """

    version: int = -1
    versions: delta.Versions | None = None
    metadata: delta.Metadata | None = None
    files: Mapping[str, delta.Add] = field(default_factory=dict)
    removed: Mapping[str, delta.Remove] = field(default_factory=dict)
    ends: Mapping[str, delta.Txn] = field(default_factory=dict)
    checkpoint_version: int = -1

    def after(self, entries: Iterable[Sequence[delta.Action]]) -> "Snapshot":
        """Apply further entries.

        Raises:
            DamagedError: The entries do not fit this snapshot.
        """
        replay = _Replay(self)
        for actions in entries:
            replay.apply(actions)
        return replay.snapshot(self.checkpoint_version)

    def actions(self) -> list[delta.Action]:
        """Return actions that result in this snapshot, as a checkpoint holds them."""
        found: list[delta.Action] = [one for one in (self.versions, self.metadata) if one]
        return [*found, *self.ends.values(), *self.files.values(), *self.removed.values()]


class _Replay:
    """A snapshot while entries are applied to it."""

    def __init__(self, before: Snapshot) -> None:
        self._version = before.version
        self._versions = before.versions
        self._metadata = before.metadata
        self._files = dict(before.files)
        self._removed = dict(before.removed)
        self._ends = dict(before.ends)

    def apply(self, actions: Sequence[delta.Action]) -> None:
        self._version += 1
        for action in actions:
            match action:
                case delta.Versions():
                    self._versions = action
                case delta.Metadata():
                    self._metadata = action
                case delta.Txn():
                    self._advance(action)
                case delta.Add():
                    self._files[action.path] = action
                    self._removed.pop(action.path, None)
                case delta.Remove():
                    self._files.pop(action.path, None)
                    self._removed[action.path] = action
                case delta.CommitInfo():
                    pass  # describes the entry, not the table
        if self._versions is None or self._metadata is None:
            raise DamagedError(
                f"entry {self._version}: no protocol or no metaData up to here; the first entry "
                "of a table must have both"
            )

    def _advance(self, txn: delta.Txn) -> None:
        before = self._ends.get(txn.app_id)
        if before is not None and txn.version < before.version:  # guard Archive.backwards
            # Archived records would be archived again.
            raise DamagedError(
                f"entry {self._version}: txn of {txn.app_id} decreases from {before.version} "
                f"to {txn.version}"
            )
        self._ends[txn.app_id] = txn

    def snapshot(self, checkpoint_version: int) -> Snapshot:
        return Snapshot(
            self._version,
            self._versions,
            self._metadata,
            self._files,
            self._removed,
            self._ends,
            checkpoint_version,
        )


def entry_path(version: int) -> str:
    """Return the path of an entry."""
    return f"{FOLDER}{version:020}.json"


def checkpoint_path(version: int) -> str:
    """Return the path of a checkpoint."""
    return f"{FOLDER}{version:020}.checkpoint.parquet"


def load(store: Store) -> Snapshot:
    """Load the current state of a table.

    Args:
        store: The folder of the table.

    Returns:
        A snapshot of version -1 if there is no table.

    Raises:
        DamagedError: The log is damaged; the text names the place.
        UnsupportedTableError: The log is of a later protocol.
        StoreError: The store does not answer.
    """
    hint = _hint(store)
    names = [one.path for one in store.listing(FOLDER, after=checkpoint_path(hint)[:-1])]
    newest = _newest_checkpoint(names)
    if newest < 0 and hint > 0:
        # The hint is wrong: a checkpoint was removed, or it is of another table.
        names = [one.path for one in store.listing(FOLDER)]
        newest = _newest_checkpoint(names)
    snapshot = follow(store, _from_checkpoint(store, newest) if newest >= 0 else Snapshot())
    later = [version for version in map(_entry_version, names) if version > snapshot.version]
    if later:  # guard Archive.missing
        raise DamagedError(
            f"{entry_path(snapshot.version + 1)} is missing, but entry {min(later)} exists: "
            "it was removed by hand, or the log was copied only in part"
        )
    return snapshot


def follow(store: Store, snapshot: Snapshot) -> Snapshot:
    """Read the entries written since; return the snapshot after them.

    Raises:
        DamagedError, UnsupportedTableError, StoreError: As for `load`.
    """
    return snapshot.after(_entries_behind(store, snapshot.version))


def _entries_behind(store: Store, version: int) -> Iterable[Sequence[delta.Action]]:
    for number in range(version + 1, version + 1 + _ENTRIES_MAX):
        entry = read_entry(store, number)
        if entry is None:
            return
        yield entry


def read_entry(store: Store, version: int) -> tuple[delta.Action, ...] | None:
    """Read the actions of an entry, `None` if it does not exist.

    Raises:
        DamagedError, UnsupportedTableError, StoreError: As for `load`.
    """
    data = store.read(entry_path(version), bytes_max=delta.ENTRY_BYTES_MAX)
    return None if data is None else delta.decode(data, version)


def versions_there(store: Store) -> list[int]:
    """List the numbers of existing entries, ascending."""
    versions = (_entry_version(one.path) for one in store.listing(FOLDER))
    return sorted(version for version in versions if version >= 0)


def append(store: Store, snapshot: Snapshot, actions: Sequence[delta.Action]) -> Snapshot:
    """Write the entry after a snapshot.

    Args:
        store: The folder of the table.
        snapshot: Snapshot that the actions were planned on.
        actions: Actions of the entry.

    Returns:
        The snapshot after the entry.

    Raises:
        ConflictError: The number is taken; perhaps by an earlier attempt with the same actions.
        StoreError: The entry may have been written, or may still be.
    """
    data = delta.encode(actions)
    assert len(data) <= delta.ENTRY_BYTES_MAX, len(data)
    assert len(actions) <= delta.ENTRY_ACTIONS_MAX, len(actions)
    version = snapshot.version + 1
    if not store.create(entry_path(version), data):  # guard Archive.next
        raise ConflictError(version)
    return snapshot.after([actions])


def is_checkpoint_due(snapshot: Snapshot) -> bool:
    """Return whether there are enough entries after the newest checkpoint for another."""
    return snapshot.version - snapshot.checkpoint_version >= checkpoint.EVERY


def with_checkpoint(store: Store, snapshot: Snapshot, *, now_ms: int) -> Snapshot:
    """Write a checkpoint if one is due; return the snapshot with it.

    Raises:
        StoreError: The store does not answer.
    """
    if not is_checkpoint_due(snapshot):
        return snapshot
    return write_checkpoint(store, snapshot, now_ms=now_ms)


def write_checkpoint(store: Store, snapshot: Snapshot, *, now_ms: int) -> Snapshot:
    """Write a snapshot as a checkpoint, so that readers need not begin at the first entry.

    It may fail at any step, or run twice at once, because a checkpoint adds no information.

    Args:
        store: The folder of the table.
        snapshot: Snapshot of version 0 or later.
        now_ms: Current time; removed files are forgotten after `checkpoint.FORGET_AFTER_MS`.

    Returns:
        The snapshot, with the checkpoint's number.

    Raises:
        StoreError: The store does not answer.
    """
    assert snapshot.version >= 0, snapshot.version
    actions = [
        action
        for action in snapshot.actions()
        if not isinstance(action, delta.Remove)
        or action.deleted_ms > now_ms - checkpoint.FORGET_AFTER_MS
    ]
    data = checkpoint.encode(actions)
    store.create(checkpoint_path(snapshot.version), data)
    store.replace(LAST_CHECKPOINT, checkpoint.encode_hint(snapshot.version, actions, len(data)))
    return Snapshot(**{**vars(snapshot), "checkpoint_version": snapshot.version})


def _hint(store: Store) -> int:
    """Read the hint at a checkpoint; 0 if it is absent or damaged."""
    try:
        data = store.read(LAST_CHECKPOINT, bytes_max=_HINT_BYTES_MAX)
        if data is None:
            return 0
        fields = Fields.of(parse_json(data, LAST_CHECKPOINT), LAST_CHECKPOINT)
        return fields.whole("version", most=VERSION_MAX)
    except DamagedError:
        return 0


def _newest_checkpoint(paths: Sequence[str]) -> int:
    """Find the newest single-file checkpoint; checkpoints in parts are of other writers."""
    numbers = [_number(path, ".checkpoint.parquet") for path in paths]
    return max(numbers, default=-1)


def _entry_version(path: str) -> int:
    return _number(path, ".json")


def _number(path: str, ending: str) -> int:
    """Parse the number of a name with this ending, -1 for any other name."""
    digits = path.removeprefix(FOLDER).removesuffix(ending)
    is_one = path.endswith(ending) and len(digits) == 20 and digits.isascii() and digits.isdigit()
    return int(digits) if is_one else -1


def _from_checkpoint(store: Store, version: int) -> Snapshot:
    path = checkpoint_path(version)
    data = store.read(path, bytes_max=_CHECKPOINT_BYTES_MAX)
    if data is None:
        raise DamagedError(f"{path} was listed but no longer exists: read the log again")
    try:
        snapshot = Snapshot(version=version - 1).after([checkpoint.decode(data)])
    except DamagedError as error:
        raise DamagedError(
            f"{path}: {error}; while entry 0 exists, the checkpoint can be removed"
        ) from error
    return Snapshot(**{**vars(snapshot), "checkpoint_version": version})
