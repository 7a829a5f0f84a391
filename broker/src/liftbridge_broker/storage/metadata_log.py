"""The metadata log of a single broker: commands in files, synced before anything is told.

Follows storage policies 1, 7 and 8. Proposals that arrive while a sync runs are written together
when it ends and share the next one. Behind `ports.metadata` the Raft of several brokers takes this
place; terms are written from the beginning so that it can go on with the files.

Files in `metadata/`: `<first index>.log` (layout in `metadata_file`), each begun after a snapshot;
`<index>.snapshot`, small files (`smallfile`) with u64 index, u64 term and the state; the last two
snapshots are kept, and the log from the older one on, so that one damaged snapshot costs nothing;
`reserve`, space for essential commands on a full disk; `<log>.cut`, what the last recovery cut.

A file gets its name only when its header is durable, and a snapshot only when it is whole, so
nothing but the end of the last log file can be torn by a crash.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from liftbridge_broker.errors import (
    FilesError,
    LiftbridgeError,
    OutcomeUnknownError,
    StorageFullError,
    UnavailableError,
)
from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.ports.files import FileEvent, Files, Token
from liftbridge_broker.ports.metadata import (
    Committed,
    Failed,
    MetadataEvent,
    ProposalToken,
    RecoveredMetadata,
    Refused,
    Urgency,
)
from liftbridge_broker.storage.metadata_file import encode_entry, encode_mark
from liftbridge_broker.storage.metadata_recovery import (
    SNAPSHOTS_KEPT,
    RecoveredLog,
    create_log_file,
    recover,
    remove_older,
    write_snapshot,
)
from liftbridge_broker.storage.smallfile import SMALL_FILE_BYTES_MAX

PROPOSALS_MAX: Final = 10_000
"""Proposals that wait for a sync; more are refused."""

RESERVE_BYTES: Final = 1024 * 1024
"""Space kept back for essential commands on a full disk: some ten thousand deletions."""

SNAPSHOT_BYTES_MAX: Final = SMALL_FILE_BYTES_MAX - 16
NO_INDEX: Final = MetadataIndex(0)
TERM: Final = 1
"""Term of every entry of a single voter."""

_FULL_TEXT: Final = "not written: the disk is full"


class _Proposal(NamedTuple):
    token: ProposalToken
    command: bytes
    urgency: Urgency


class MetadataLog:
    """Single-voter log; implements `MetadataConsensus`.

    Invariants: `snapshot_index <= synced_index <= last_index`; entries above `synced_index` are
    exactly those of the group in flight, and nothing is written while one is.

    Attributes:
        last_index: Index of the last entry written.
        synced_index: Index of the last entry that is durable and was told as committed.
        snapshot_index: Index of the newest snapshot, 0 for none.
        is_full: Whether the reserve is spent, so that only essential commands are taken.
        failure: Why nothing can be written any more, `None` while all is well.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        sync_token: Token,
        found: RecoveredLog,
        snapshots_kept: int,
    ) -> None:
        """Take over what `open` recovered."""
        assert snapshots_kept > 0
        self._snapshots_kept = snapshots_kept
        self._files = files
        self._directory = directory
        self._sync_token = sync_token
        self._handle = found.handle
        self._first_indexes = list(found.first_indexes)
        self._snapshots = list(found.snapshots)
        self._chain = found.chain
        self.last_index = found.last_index
        self.synced_index = found.last_index
        self.snapshot_index = found.recovered.snapshot_index
        self.is_full = False
        self.failure: FilesError | None = None
        self._is_roll_due = False
        self._waiting: deque[_Proposal] = deque()
        self._in_flight: Sequence[Committed] = ()
        self._events: list[MetadataEvent] = []

    @classmethod
    def open(
        cls,
        files: Files,
        *,
        sync_token: Token,
        directory: str = "metadata",
        index_min: MetadataIndex = NO_INDEX,
        snapshots_kept: int = SNAPSHOTS_KEPT,
    ) -> tuple["MetadataLog", RecoveredMetadata]:
        """Open the log of a data directory, or make an empty one.

        Args:
            files: The data directory.
            sync_token: Token of every sync the log submits; the owner hands its events back.
            directory: Where the files lie.
            index_min: An index that other files of the data directory prove to have been durable,
                such as the broker epoch in the clean marker or the greatest stream id on disk.
            snapshots_kept: Snapshots that are kept, 1 or more.

        Raises:
            CorruptionError: Entries that may have been answered are damaged or missing; the
                message names file and position. Nothing was changed.
            FilesError: The disk refused.
        """
        found = recover(files, directory, index_min)
        log = cls(files, directory, sync_token, found, snapshots_kept)
        log._try(log._keep_reserve)
        if log.failure is not None:
            raise log.failure
        return log, found.recovered

    def close(self) -> None:
        """Close the files; what is in flight has an unknown outcome."""
        self._files.close(self._handle)

    def take_events(self) -> Sequence[MetadataEvent]:
        """Events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def propose(self, token: ProposalToken, command: bytes, urgency: Urgency) -> None:
        """Write a command as soon as no sync runs; its outcome is an event."""
        if self.failure is not None:
            self._refuse(token, UnavailableError(f"metadata log failed: {self.failure.text}"))
        elif len(self._waiting) >= PROPOSALS_MAX:
            self._refuse(token, UnavailableError(f"more than {PROPOSALS_MAX} changes wait"))
        else:
            self._waiting.append(_Proposal(token, command, urgency))
            self._write_group()

    def on_file_event(self, event: FileEvent) -> None:
        """The sync in flight ended."""
        assert event.token == self._sync_token
        assert self._in_flight
        if event.error is not None:
            self._fail(event.error)
            return
        self._events += self._in_flight
        self._in_flight = ()
        self.synced_index = self.last_index
        self._write_group()
        if not self._in_flight and self.failure is None:
            self._try(self._write_mark)

    def snapshot(self, index: MetadataIndex, state: bytes) -> None:
        """Keep the state after `index`, then begin a new file and drop what two snapshots cover."""
        assert self.snapshot_index < index <= self.synced_index
        if self.failure is not None or len(state) > SNAPSHOT_BYTES_MAX:
            return
        self._try(lambda: self._write_snapshot(index, state))

    def _write_snapshot(self, index: MetadataIndex, state: bytes) -> None:
        write_snapshot(self._files, self._directory, index, TERM, state)
        self._snapshots.append(index)
        self.snapshot_index = index
        self._is_roll_due = True
        self._roll()

    # -- groups of entries --------------------------------------------------------------------

    def _write_group(self) -> None:
        """Write all that waits and submit its sync, unless one runs."""
        if self._in_flight or not self._waiting or self.failure is not None:
            return
        self._try(self._roll)
        if self.is_full and self._files.free_bytes() > 2 * RESERVE_BYTES:
            self._try(self._keep_reserve)
        if self.failure is not None:
            return
        group: Sequence[_Proposal] = tuple(self._waiting)
        self._waiting.clear()
        if self.is_full:
            group = self._essential(group)
        self._in_flight = self._append_group(group)
        if self._in_flight:
            self._files.submit_sync(self._sync_token, (self._handle,))

    def _try(self, change: Callable[[], None]) -> None:
        """Do something that a full disk may put off; any other error ends the log."""
        try:
            change()
        except FilesError as error:
            if error.is_full:
                self.is_full = True
            else:
                self._fail(error)

    def _essential(self, group: Sequence[_Proposal]) -> Sequence[_Proposal]:
        """The essential ones; the others are refused for want of space."""
        for proposal in group:
            if proposal.urgency is not Urgency.ESSENTIAL:
                self._refuse(proposal.token, StorageFullError(_FULL_TEXT))
        return [proposal for proposal in group if proposal.urgency is Urgency.ESSENTIAL]

    def _append_group(self, group: Sequence[_Proposal]) -> Sequence[Committed]:
        """Write a group; on a full disk the reserve is given up for its essential commands."""
        try:
            return self._append(group)
        except FilesError as error:
            if not error.is_full:
                self._fail(error, group)
                return ()
        essential = self._essential(group)
        self.is_full = True
        try:
            self._files.remove(self._reserve_path)
            return self._append(essential)
        except FilesError as error:
            if not error.is_full:
                self._fail(error, essential)
                return ()
        for proposal in essential:
            self._refuse(proposal.token, StorageFullError(_FULL_TEXT))
        return ()

    def _append(self, group: Sequence[_Proposal]) -> Sequence[Committed]:
        """Write a group with one call; all of it or, on an error, nothing."""
        chain, index = self._chain, self.last_index
        pieces: list[bytes] = []
        written: list[Committed] = []
        for token, command, _ in group:
            index = MetadataIndex(index + 1)
            piece, chain = encode_entry(
                index, TERM, command, synced_index=self.synced_index, chain=chain
            )
            pieces.append(piece)
            written.append(Committed(index, command, token))
        if pieces:
            self._files.append(self._handle, b"".join(pieces))
        self._chain, self.last_index = chain, index
        return written

    def _write_mark(self) -> None:
        """Note that everything is synced, for a recovery that finds the last entries damaged."""
        mark, chain = encode_mark(self.synced_index, TERM, self._chain)
        self._files.append(self._handle, mark)
        self._chain = chain

    # -- files --------------------------------------------------------------------------------

    def _roll(self) -> None:
        """Begin a new file once a snapshot asks for it and nothing is in flight."""
        if not self._is_roll_due or self._in_flight:
            return
        self._is_roll_due = False
        first_index = MetadataIndex(self.last_index + 1)
        if first_index != self._first_indexes[-1]:
            # The mark at the end is part of the chain that the new file continues.
            self._files.sync(self._handle)
            handle = create_log_file(self._files, self._directory, first_index, self._chain)
            self._files.close(self._handle)
            self._handle = handle.handle
            self._chain = handle.chain
            self._first_indexes.append(first_index)
        remove_older(
            self._files,
            self._directory,
            self._first_indexes,
            self._snapshots,
            self._snapshots_kept,
        )

    @property
    def _reserve_path(self) -> str:
        return f"{self._directory}/reserve"

    def _keep_reserve(self) -> None:
        """Have the reserve on disk; without it the disk counts as full."""
        reserve = self._files.open(self._reserve_path, create=True)
        try:
            missing = RESERVE_BYTES - self._files.size(reserve)
            if missing > 0:
                self._files.append(reserve, bytes(missing))
        finally:
            self._files.close(reserve)
        self.is_full = False

    # -- failure ------------------------------------------------------------------------------

    def _refuse(self, token: ProposalToken, error: LiftbridgeError) -> None:
        self._events.append(Refused(token, error))

    def _fail(self, error: FilesError, group: Sequence[_Proposal] = ()) -> None:
        """The disk refused: nothing is written any more, and no sync is tried again.

        A sync that failed may have written anything, so its entries have an unknown outcome;
        proposals that were not written have a known one.
        """
        if self.failure is not None:
            return
        self.failure = error
        for entry in self._in_flight:
            self._refuse(entry.token, OutcomeUnknownError(f"outcome unknown: {error.text}"))
        for proposal in (*group, *self._waiting):
            self._refuse(proposal.token, UnavailableError(f"not written: {error.text}"))
        self._events.append(Failed(error))
