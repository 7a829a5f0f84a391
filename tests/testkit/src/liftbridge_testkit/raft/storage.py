"""A durable log in memory that loses unsynced writes at a crash."""

import hashlib
from collections.abc import Sequence

from liftbridge_broker.model.metadata_log import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    SnapshotMeta,
)
from liftbridge_broker.raft.types import Ready


class MemoryLog:
    """Implement `StableLog`; `sync` makes all or a part of the writes durable.

    Attributes:
        staged: Written and not synced.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._meta = SnapshotMeta(0, 0, configuration, 0, b"")
        self._states: dict[int, bytes] = {0: b""}
        self._base = (0, 0)  # index and term before the first entry kept
        self._entries: list[Entry] = []
        self._hard_state = HardState(0, None, 0)
        self.staged: Ready | None = None

    # --- StableLog ------------------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        return self._base[0] + 1

    @property
    def last_index(self) -> int:
        return self._base[0] + len(self._entries)

    @property
    def snapshot_meta(self) -> SnapshotMeta:
        return self._meta

    def term_at(self, index: int) -> int | None:
        base, term = self._base
        if index == base:
            return term
        position = index - base - 1
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    def entries(self, low: int, high: int, bytes_max: int) -> Sequence[Entry]:
        base = self._base[0]
        assert base < low < high <= self.last_index + 1
        found = self._entries[low - base - 1 : high - base - 1]
        size = 0
        for count, entry in enumerate(found):
            size += len(entry.data)
            if count and size > bytes_max:
                return found[:count]
        return found

    def hard_state(self) -> HardState:
        return self._hard_state

    def config_entries(self) -> Sequence[Entry]:
        behind = self._meta.last_index
        return [e for e in self._entries if e.kind is EntryKind.CONFIG and e.entry_index > behind]

    def read_snapshot(self, index: int, position: int, bytes_max: int) -> bytes | None:
        state = self._states.get(index)
        return None if state is None else state[position : position + bytes_max]

    # --- Host -----------------------------------------------------------------------------------

    @property
    def state(self) -> bytes:
        """Return the state of the newest snapshot."""
        return self._states[self._meta.last_index]

    def write(self, ready: Ready) -> None:
        """Write the state, entries and snapshot of `ready`. A crash may still lose them."""
        assert self.staged is None
        self.staged = ready

    @property
    def write_count(self) -> int:
        """Return the number of steps in which `sync` and `crash` handle the staged data."""
        return 0 if self.staged is None else 2 + len(self.staged.entries)

    def sync(self) -> Ready:
        """Make the staged writes durable."""
        assert self.staged is not None
        ready = self.staged
        self.crash(self.write_count)
        return ready

    def crash(self, steps: int) -> None:
        """Keep the first `steps` of the staged writes: the snapshot, each entry, the hard state."""
        ready, count = self.staged, self.write_count
        self.staged = None
        if ready is None or steps == 0:
            return
        if ready.snapshot is not None:
            self._meta = ready.snapshot.meta
            self._states = {self._meta.last_index: ready.snapshot.state}
            self._base = (self._meta.last_index, self._meta.term)
            self._entries = []
        for entry in ready.entries[: steps - 1]:
            del self._entries[entry.entry_index - self._base[0] - 1 :]
            self._entries.append(entry)
        if steps >= count and ready.hard_state is not None:
            self._hard_state = ready.hard_state

    def keep_snapshot(
        self, index: int, state: bytes, configuration: Configuration, entries_kept: int
    ) -> None:
        """Store a snapshot at `index`, and drop all but the last `keep` entries before it."""
        term = self.term_at(index)
        assert term is not None
        digest = hashlib.sha256(state).digest()
        self._meta = SnapshotMeta(index, term, configuration, len(state), digest)
        self._states = {index: state}
        base = max(self._base[0], index - entries_kept)
        base_term = self.term_at(base)
        assert base_term is not None
        del self._entries[: base - self._base[0]]
        self._base = (base, base_term)

    def load(self, entries: Sequence[Entry], hard_state: HardState) -> None:
        """Set the initial log of a scenario."""
        self._entries = list(entries)
        self._hard_state = hard_state
