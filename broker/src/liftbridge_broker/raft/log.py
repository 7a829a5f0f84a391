"""The log of a peer: entries on disk, followed by entries not yet written.

The tail in memory takes precedence over the disk: it holds all entries that are not durable or not
yet handed out as committed, so that entries are not read back from disk while followers keep up.
Follows `log.go` and `log_unstable.go` of etcd/raft.
"""

from typing import Final

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.model.metadata_log import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Snapshot,
)
from liftbridge_broker.model.units import MIB
from liftbridge_broker.ports.stable_log import StableLog
from liftbridge_broker.raft import configuration
from liftbridge_broker.raft.membership import Membership
from liftbridge_broker.raft.types import BadConfigurationError

TAIL_BYTES_KEPT: Final = 4 * MIB
"""Size of the tail above which durable, uncommitted entries leave the memory."""


class Log:
    """Entries by index, and their progress.

    Invariants: `delivered <= commit <= last_index`; `durable <= handed <= last_index`;
    `delivered <= durable`; the tail holds exactly the entries from `_tail_first` on.

    Attributes:
        last_index: Index of the last entry, durable or not.
        commit: Last index known to be committed.
        delivered: Last index returned in `Ready.committed`.
        handed: Last index handed to the host for writing.
        durable: Last index that the host reported as durable, and that has not been truncated
            since.
        tail_bytes: Data of the entries in memory.
        pending_snapshot: Snapshot that replaces the log; not durable yet.
        membership: Configurations of this log.
    """

    __slots__ = (
        "_is_snapshot_handed",
        "_storage",
        "_tail",
        "_tail_first",
        "commit",
        "delivered",
        "durable",
        "handed",
        "last_index",
        "membership",
        "pending_snapshot",
        "tail_bytes",
    )

    def __init__(self, storage: StableLog, hard_state: HardState) -> None:
        """Start from the durable state.

        Raises:
            CorruptionError: The log has lost entries below the commit index of the hard state, or a
                configuration in it cannot be read.
        """
        meta = storage.snapshot_meta
        self._storage = storage
        self._tail: list[Entry] = []
        self.last_index = self.handed = self.durable = storage.last_index
        self._tail_first = self.last_index + 1
        self.tail_bytes = 0
        if hard_state.commit > self.last_index:
            raise CorruptionError(
                f"the metadata log ends at {self.last_index}, "
                f"but {hard_state.commit} was known to be committed"
            )
        self.commit = max(hard_state.commit, meta.last_index)
        self.delivered = meta.last_index
        self.pending_snapshot: Snapshot | None = None
        self._is_snapshot_handed = False
        self.membership = Membership(meta.last_index, meta.configuration)
        for entry in storage.config_entries():
            try:
                self.membership.add(entry.entry_index, configuration.decode(entry.data))
            except BadConfigurationError as error:
                raise CorruptionError(f"metadata entry {entry.entry_index}: {error}") from error

    @property
    def first_index(self) -> int:
        """Lowest index with an entry."""
        if self.pending_snapshot is not None:
            return self.pending_snapshot.meta.last_index + 1
        return self._storage.first_index

    @property
    def last_term(self) -> int:
        """Term of the last entry, 0 for an empty log."""
        return self.term_at(self.last_index) or 0

    @property
    def is_configuration_committed(self) -> bool:
        """Return whether the configuration in force is committed."""
        return self.membership.latest_index <= self.commit

    def configuration_at(self, index: int) -> Configuration:
        """Return the configuration for a snapshot at `index`, which is at most `delivered`."""
        assert index <= self.delivered
        return self.membership.at(index)

    def term_at(self, index: int) -> int | None:
        """Term at `index`, 0 for index 0; `None` when it is compacted or not written yet."""
        if index >= self._tail_first:
            return self._tail[index - self._tail_first].term if index <= self.last_index else None
        if self.pending_snapshot is not None:
            meta = self.pending_snapshot.meta
            return meta.term if index == meta.last_index else None
        if index <= 0:
            return 0 if index == 0 else None
        return self._storage.term_at(index)

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Return whether a log with this end has all entries that may be committed (Raft 5.4.1)."""
        mine = self.last_term
        return last_term > mine or (last_term == mine and last_index >= self.last_index)

    def last_not_above(self, index: int, term: int) -> tuple[int, int]:
        """Return the last index up to `index` whose term is at most `term`, and that term.

        This is `findConflictByTerm` of etcd/raft, but by bisection: a hint from a peer must not
        cost a scan of the log. Without such an entry, return (`0`, `0`), or the index just below
        the log with term 0.
        """
        high = min(index, self.last_index)
        low = self.first_index - 1
        while low < high:
            middle = (low + high + 1) // 2
            found = self.term_at(middle)
            if found is not None and found <= term:
                low = middle
            else:
                high = middle - 1
        found = self.term_at(low)
        return (low, found) if found is not None and found <= term else (max(low, 0), 0)

    def entries(self, low: int, high: int, bytes_max: int, count_max: int) -> tuple[Entry, ...]:
        """Return entries from `low` to `high` - 1 within both bounds, at least one if it exists."""
        high = min(high, low + count_max, self.last_index + 1)
        if low >= high:
            return ()
        if low >= self._tail_first:
            return self._cut(
                self._tail[low - self._tail_first : high - self._tail_first], bytes_max
            )
        stored = self._storage.entries(low, min(high, self._tail_first), bytes_max)
        return tuple(stored)

    @staticmethod
    def _cut(found: list[Entry], bytes_max: int) -> tuple[Entry, ...]:
        size = 0
        for count, entry in enumerate(found):
            size += len(entry.data)
            if size > bytes_max and count:
                return tuple(found[:count])
        return tuple(found)

    def append(self, entries: tuple[Entry, ...]) -> None:
        """Replace everything from the first entry's index on by `entries`, contiguous.

        The caller ensures that they are above `commit`, and that configurations are readable.
        """
        first = entries[0].entry_index
        assert self.commit < first <= self.last_index + 1
        if first <= self.last_index:
            self._truncate(first)
        self._tail += entries
        self.last_index = entries[-1].entry_index
        for entry in entries:
            self.tail_bytes += len(entry.data)
            if entry.kind is EntryKind.CONFIG:
                self.membership.forget(self._storage.snapshot_meta.last_index)
                self.membership.add(entry.entry_index, configuration.decode(entry.data))

    def _truncate(self, first: int) -> None:
        """Drop all entries from `first` on; their writes in flight no longer count."""
        if first < self._tail_first:
            self._tail.clear()
            self._tail_first = first
            self.tail_bytes = 0
        else:
            gone = self._tail[first - self._tail_first :]
            del self._tail[first - self._tail_first :]
            self.tail_bytes -= sum(len(entry.data) for entry in gone)
        self.last_index = first - 1
        self.handed = min(self.handed, self.last_index)
        self.durable = min(self.durable, self.last_index)  # guard R.truncated_durable
        self.membership.truncate(first)  # guard R.change_undone

    def commit_to(self, index: int) -> bool:
        """Advance the commit index to `index`, which the log holds; never move it back."""
        if index <= self.commit:
            return False
        assert index <= self.last_index
        self.commit = index
        return True

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the log by a leader's snapshot, whose index is above `commit`."""
        meta = snapshot.meta
        assert meta.last_index > self.commit
        self.pending_snapshot = snapshot
        self._is_snapshot_handed = False
        self._tail.clear()
        self.tail_bytes = 0
        self._tail_first = meta.last_index + 1
        self.last_index = self.commit = self.delivered = meta.last_index
        self.handed = self.durable = meta.last_index
        self.membership.reset(meta.last_index, meta.configuration)

    def is_durable(self, index: int) -> bool:
        """Return whether all entries up to `index` survive a crash."""
        return index <= self.durable and self.pending_snapshot is None

    def take_unwritten(self) -> tuple[Snapshot | None, tuple[Entry, ...]]:
        """Return the entries to write now; called only without a write in flight."""
        snapshot = None
        if self.pending_snapshot is not None and not self._is_snapshot_handed:
            snapshot = self.pending_snapshot
            self._is_snapshot_handed = True
        if self.handed == self.last_index:
            return snapshot, ()
        entries = tuple(self._tail[self.handed + 1 - self._tail_first :])
        self.handed = self.last_index
        return snapshot, entries

    def has_unwritten(self) -> bool:
        """Return whether `take_unwritten` has anything to write."""
        return self.handed < self.last_index or (
            self.pending_snapshot is not None and not self._is_snapshot_handed
        )

    def on_persisted(self, snapshot: Snapshot | None) -> None:
        """Mark the last taken write as durable, except parts truncated or replaced since."""
        if snapshot is not None and self.pending_snapshot is snapshot:
            self.pending_snapshot = None
        self.durable = self.handed
        if self.tail_bytes > TAIL_BYTES_KEPT:
            self._trim(self.durable)

    def has_committed(self) -> bool:
        """Return whether `take_committed` has entries."""
        return self.delivered < min(self.commit, self.durable)

    @property
    def applicable(self) -> int:
        """Index of the host's state once it has applied all committed entries; -1 = not known.

        A snapshot replaces the state only when it is durable.
        """
        return self.delivered if self.pending_snapshot is None else -1

    def take_committed(self, bytes_max: int) -> tuple[Entry, ...]:
        """Return the next entries that are committed and durable."""
        high = min(self.commit, self.durable)  # guard R.told_durable
        if self.delivered >= high:
            return ()
        entries = self.entries(self.delivered + 1, high + 1, bytes_max, high - self.delivered)
        self.delivered = entries[-1].entry_index
        self._trim(self.delivered)
        return entries

    def _trim(self, index: int) -> None:
        """Drop durable entries up to `index` from memory."""
        drop = index + 1 - self._tail_first
        if drop > 0:
            for entry in self._tail[:drop]:
                self.tail_bytes -= len(entry.data)
            del self._tail[:drop]
            self._tail_first += drop
