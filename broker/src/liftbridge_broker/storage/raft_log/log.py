"""The durable log of a member of the metadata group: entries, hard state, snapshots.

Follows storage policies 1, 7 and 8 and the contract in docs/internals/raft.md. The owner writes the
content of a `Ready` with one call, and submits one sync. Before the sync has ended, it sends
nothing that depends on it. It never retries after an error other than a full disk.

Files in `metadata/`: `<number>.wal` (layout in `raft_records`), a new file begins after each
snapshot and when a file is long; `<index>.snapshot` (layout in `raft_snapshots`), of which the last
few are kept; `reserve`, space for essential commands on a full disk; `<log>.cut`, the bytes that
the last recovery truncated. Entries after the oldest kept snapshot, and some before the newest for
followers that lag slightly, stay on disk and in memory.

A log file gets its name only when its first record is durable, and a snapshot only when it is
whole. So a crash can tear only the end of the last log file.
"""

from collections.abc import Sequence
from typing import Final

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.metadata_log import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Snapshot,
    SnapshotMeta,
)
from liftbridge_broker.model.units import MIB
from liftbridge_broker.ports.files import Files, Token
from liftbridge_broker.raft.configuration import EMPTY
from liftbridge_broker.storage.raft_log.records import KIND_OF_ENTRY, RecordKind, encode_record
from liftbridge_broker.storage.raft_log.recovery import (
    Found,
    LogFile,
    create_log_file,
    recover,
    remove_log_files,
)
from liftbridge_broker.storage.raft_log.snapshots import (
    STATE_BYTES_MAX,
    is_whole,
    read_snapshot,
    remove_snapshots,
    snapshot_of,
    write_snapshot,
)
from liftbridge_broker.storage.raft_log.state import LogState, encode_configuration, encode_vote

SNAPSHOTS_KEPT: Final = 2
"""Number of snapshots kept by default: with two, a damaged snapshot causes no loss."""

RESERVE_BYTES: Final = MIB
"""Space reserved for essential commands on a full disk: about ten thousand deletions."""

FULL_BYTES: Final = 64 * 1024
"""Free space below which ordinary commands are refused; a write of this size must still fit."""

FILE_BYTES_MAX: Final = 16 * MIB
"""Length at which a new log file is started."""

CATCH_UP_ENTRIES: Final = 1_024
"""Entries kept before the newest snapshot: a follower that lags by less needs no snapshot."""


class RaftLog:
    """Entries, hard state and snapshots on disk; implements `StableLog`.

    Invariants: `first_index` <= `snapshot_meta.last_index` + 1 <= `last_index` + 1; while a sync
    runs, only marks and snapshots are written.

    Attributes:
        findings: Repairs of the recovery, for the log of the process.
        is_full: Whether the disk is full or nearly full: only essential commands may be proposed.
        has_reserve: Whether the reserve still exists.
    """

    def __init__(self, files: Files, directory: str, found: Found, snapshots_kept: int) -> None:
        """Take over the result of `open`."""
        assert snapshots_kept > 0
        self._files = files
        self._directory = directory
        self._snapshots_kept = snapshots_kept
        self._file = found.file
        self._bases = list(found.bases)
        self._state = found.state
        self._snapshots = list(found.snapshots)
        self._chain = found.file.chain
        self._size = self._synced_size = found.file.size
        self._submitted_size = 0
        self._is_syncing = False
        self._is_roll_due = False
        self._newest = found.snapshot
        self._meta = self._first_meta() if self._newest is None else self._newest.meta
        self.findings = found.findings
        self.is_full = False
        self.has_reserve = False

    @classmethod
    def open(
        cls,
        files: Files,
        *,
        directory: str = "metadata",
        bootstrap: Configuration = EMPTY,
        index_min: int = 0,
        snapshots_kept: int = SNAPSHOTS_KEPT,
    ) -> "RaftLog":
        """Open the log of a data directory, or create an empty one.

        Args:
            files: The data directory.
            directory: Directory of the metadata.
            bootstrap: Initial configuration of an empty directory; with an empty configuration, the
                member waits for a leader to add it. Also the configuration of a directory of the
                previous version.
            index_min: An index that other files of the data directory prove to have been durable
                and committed.
            snapshots_kept: Number of snapshots to keep, 1 or more.

        Raises:
            CorruptionError: Entries that may have been acknowledged are damaged or missing; the
                message names file and position. Nothing was changed.
            FilesError: The disk refused.
        """
        recovered = recover(files, directory, index_min=index_min, bootstrap=bootstrap)
        log = cls(files, directory, recovered, snapshots_kept)
        if recovered.is_reset_due:
            assert recovered.snapshot is not None
            log._reset(recovered.snapshot)
        log._keep_reserve()
        return log

    def close(self) -> None:
        """Close the file; unsynced data may be lost."""
        self._files.close(self._file.handle)

    # -- reading (`StableLog`) ----------------------------------------------------------------

    @property
    def first_index(self) -> int:
        """Lowest stored index; `last_index` + 1 for an empty log."""
        return self._state.base_index + 1

    @property
    def last_index(self) -> int:
        """Highest stored index, or the snapshot's index if no entry follows it."""
        return self._state.last_index

    @property
    def snapshot_meta(self) -> SnapshotMeta:
        """Newest snapshot; index 0 without a snapshot, with the configuration of the bootstrap."""
        return self._meta

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry or snapshot at `index`: 0 for index 0, `None` if unknown."""
        return self._meta.term if index == self._meta.last_index else self._state.term_at(index)

    def entries(self, low: int, high: int, bytes_max: int) -> Sequence[Entry]:
        """Return entries from `low` to `high` - 1.

        At most `bytes_max` of data, at least one entry.
        """
        base = self._state.base_index
        assert base < low < high <= self.last_index + 1
        found: list[Entry] = []
        size = 0
        for place in range(low - base - 1, high - base - 1):
            entry = self._state.entries[place]
            size += len(entry.data)
            if found and size > bytes_max:
                break
            found.append(entry)
        return found

    def hard_state(self) -> HardState:
        """Return the hard state written last; a snapshot covers committed entries only."""
        state = self._state.hard_state
        return state._replace(commit=max(state.commit, self._meta.last_index))

    def config_entries(self) -> Sequence[Entry]:
        """Return the `CONFIG` entries after the snapshot, in order."""
        return [
            entry
            for entry in self._state.entries
            if entry.kind is EntryKind.CONFIG and entry.entry_index > self._meta.last_index
        ]

    @property
    def configuration(self) -> Configuration:
        """The configuration in force at the end of the log."""
        return self._state.configuration_at(self.last_index)

    def newest_snapshot(self) -> Snapshot | None:
        """Return the newest snapshot, from recovery or the last read; `None` for none.

        Raises:
            FilesError: The disk failed to read.
        """
        index = self._meta.last_index
        if index and (self._newest is None or self._newest.meta.last_index != index):
            self._newest = read_snapshot(self._files, self._directory, index, EMPTY)
        return self._newest

    def read_snapshot(self, index: int, position: int, bytes_max: int) -> bytes | None:
        """Return bytes of snapshot `index` from `position` on; `None` if it was removed.

        The state stays in memory from the first read until `forget_snapshot`.
        """
        if index != self._meta.last_index:
            return None
        snapshot = self.newest_snapshot()
        return None if snapshot is None else snapshot.state[position : position + bytes_max]

    def forget_snapshot(self) -> None:
        """Release the state that reading keeps in memory."""
        self._newest = None

    # -- writing ------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry], hard_state: HardState | None) -> None:
        """Write entries, then a hard state, with one call; after an error, nothing is written.

        First drops the log from the first entry's index on. `submit_sync` makes it durable. On a
        full disk it removes the reserve first.

        Raises:
            FilesError: With `is_full`, nothing has changed and the call may succeed later;
                otherwise the log is unusable.
        """
        assert not self._is_syncing
        self._roll()
        state, pieces, chain = self._state, list[bytes](), self._chain
        index_last = self.last_index
        if entries and entries[0].entry_index <= index_last:
            index_last = entries[0].entry_index - 1
            piece, chain = self._encode_cut(index_last, chain)
            pieces.append(piece)
        for entry in entries:
            index_last += 1
            assert entry.entry_index == index_last
            piece, chain = encode_record(
                KIND_OF_ENTRY[entry.kind],
                index_last,
                entry.term,
                entry.data,
                synced_bytes=self._synced_size,
                chain=chain,
            )
            pieces.append(piece)
        if hard_state is not None:
            piece, chain = self._encode_hard_state(hard_state, chain)
            pieces.append(piece)
        self._write(b"".join(pieces))
        self._chain = chain
        if entries:
            state.cut(entries[0].entry_index - 1)
            state.entries += entries
        if hard_state is not None:
            state.hard_state = hard_state

    def submit_sync(self, token: Token) -> None:
        """Make all written data durable; `on_synced` follows."""
        assert not self._is_syncing
        self._is_syncing = True
        self._submitted_size = self._size
        self._files.submit_sync(token, (self._file.handle,))

    def on_synced(self) -> None:
        """Record that the sync succeeded; after a failed sync, nothing more may be written."""
        assert self._is_syncing
        self._is_syncing = False
        self._synced_size = self._submitted_size

    def mark(self, commit: int) -> None:
        """Write a mark with the synced length and the commit index; not durable on its own.

        From the mark, a recovery that finds the last records damaged knows that they were whole.

        Raises:
            FilesError: The disk refused; a full disk is not an error here.
        """
        assert not self._is_syncing
        state = self._state.hard_state
        state = state._replace(commit=max(state.commit, min(commit, self.last_index)))
        piece, chain = self._encode_hard_state(state, self._chain)
        try:
            self._files.append(self._file.handle, piece)
        except FilesError as error:
            if not error.is_full:
                raise
            return
        self._size += len(piece)
        self._chain = chain
        self._state.hard_state = state

    def _write(self, data: bytes) -> None:
        try:
            self._files.append(self._file.handle, data)
        except FilesError as error:
            if not error.is_full:
                raise
            self.is_full = True
            self._files.remove(self._reserve_path)
            self.has_reserve = False
            self._files.append(self._file.handle, data)
        self._size += len(data)

    def _encode_cut(self, index: int, chain: int) -> tuple[bytes, int]:
        assert index >= max(self._state.base_index, self._meta.last_index)
        term = self._state.term_at(index)
        assert term is not None
        payload = encode_configuration(self._state.configuration_at(index))
        return encode_record(
            RecordKind.CUT, index, term, payload, synced_bytes=self._synced_size, chain=chain
        )

    def _encode_hard_state(self, state: HardState, chain: int) -> tuple[bytes, int]:
        return encode_record(
            RecordKind.HARD_STATE,
            state.commit,
            state.term,
            encode_vote(state.vote),
            synced_bytes=self._synced_size,
            chain=chain,
        )

    # -- snapshots ----------------------------------------------------------------------------

    def save_snapshot(self, index: int, state: bytes) -> bool:
        """Store the state after a committed entry; drop old snapshots and the entries they cover.

        Returns:
            Whether the snapshot was stored; after a full disk, or with a state that is too long,
            the log stays whole.

        Raises:
            FilesError: The log is unusable.
        """
        assert self._meta.last_index < index <= self.last_index
        if len(state) > STATE_BYTES_MAX:
            return False
        term = self._state.term_at(index)
        assert term is not None
        snapshot = snapshot_of(index, term, self._state.configuration_at(index), state)
        try:
            write_snapshot(self._files, self._directory, snapshot)
        except FilesError as error:
            if not error.is_full:
                raise
            self.is_full = True
            return False
        self._snapshots.append(index)
        self._meta, self._newest = snapshot.meta, None
        self._is_roll_due = True
        if not self._is_syncing:
            self._roll()
        return True

    def install(self, snapshot: Snapshot) -> None:
        """Replace the whole log by a leader's snapshot; durable when this returns.

        Raises:
            FilesError: With `is_full` nothing has changed; otherwise the log is unusable.
        """
        assert not self._is_syncing
        assert is_whole(snapshot)
        assert snapshot.meta.last_index > self._meta.last_index
        write_snapshot(self._files, self._directory, snapshot)
        self._snapshots.append(snapshot.meta.last_index)
        self._reset(snapshot)

    def _reset(self, snapshot: Snapshot) -> None:
        """Restart the log after a durable snapshot."""
        meta = snapshot.meta
        hard_state = self._state.hard_state
        state = LogState(meta.last_index, meta.term, meta.configuration)
        state.hard_state = hard_state._replace(commit=max(hard_state.commit, meta.last_index))
        try:
            self._begin_file(state, RecordKind.RESET)
        except FilesError as error:
            # The snapshot has its name already, so the state in memory is no longer valid.
            raise FilesError(error.text) from error
        self._state = state
        self._meta, self._newest = meta, snapshot
        former, self._bases = self._bases, [(self._file.number, 0)]
        remove_log_files(self._files, self._directory, [number for number, _ in former])
        self._drop_covered()

    def _roll(self) -> None:
        """Start a new file once a snapshot or the length of the current file requires it."""
        if not self._is_roll_due and self._size < FILE_BYTES_MAX:
            return
        # Marks at the end are part of the chain that the new file continues.
        self._files.sync(self._file.handle)
        try:
            self._begin_file(self._state, RecordKind.BASE)
        except FilesError as error:
            if not error.is_full:
                raise
            self.is_full = True
            return
        self._is_roll_due = False
        self._bases.append((self._file.number, self.last_index))
        self._drop_covered()

    def _begin_file(self, state: LogState, kind: RecordKind) -> None:
        file: LogFile = create_log_file(
            self._files, self._directory, self._file.number + 1, self._chain, state, kind
        )
        self._files.close(self._file.handle)
        self._file, self._chain = file, file.chain
        self._size = self._synced_size = file.size

    def _drop_covered(self) -> None:
        """Drop old snapshots, and entries that the oldest remaining one covers.

        A crash may bring names back; recovery does not need them.
        """
        count = len(self._snapshots) - self._snapshots_kept
        if count > 0:
            remove_snapshots(self._files, self._directory, self._snapshots[:count])
            del self._snapshots[:count]
        if count < 0:
            return
        floor = min(self._snapshots[0], self._meta.last_index - CATCH_UP_ENTRIES)
        covered = 0
        while covered + 1 < len(self._bases) and self._bases[covered + 1][1] <= floor:
            covered += 1
        remove_log_files(
            self._files, self._directory, [number for number, _ in self._bases[:covered]]
        )
        del self._bases[:covered]
        self._state.drop_until(floor)

    # -- space --------------------------------------------------------------------------------

    def has_room(self, bytes_wanted: int, *, is_essential: bool) -> bool:
        """Return whether a command of this length may be proposed; checks the disk.

        Ordinary commands leave the reserve and `FULL_BYTES` untouched.

        Raises:
            FilesError: The reserve could not be written for a reason other than lack of space.
        """
        free = self._files.free_bytes()
        if self.is_full and free > 2 * RESERVE_BYTES:
            self._keep_reserve()
        self.is_full = self.is_full or free < FULL_BYTES + bytes_wanted
        if not self.is_full:
            return True
        spare = free + (RESERVE_BYTES if self.has_reserve else 0)
        return is_essential and spare > FULL_BYTES + bytes_wanted

    @property
    def _reserve_path(self) -> str:
        return f"{self._directory}/reserve"

    def _keep_reserve(self) -> None:
        """Ensure the reserve is on disk; without it the disk counts as full."""
        try:
            reserve = self._files.open(self._reserve_path, create=True)
            try:
                missing = RESERVE_BYTES - self._files.size(reserve)
                if missing > 0:
                    self._files.append(reserve, bytes(missing))
            finally:
                self._files.close(reserve)
        except FilesError as error:
            if not error.is_full:
                raise
            self._files.remove(self._reserve_path)
            self.has_reserve, self.is_full = False, True
        else:
            self.has_reserve, self.is_full = True, False

    def _first_meta(self) -> SnapshotMeta:
        """Return the position before the first entry if there is no snapshot."""
        return SnapshotMeta(0, 0, self._state.base_configuration, 0, b"")
