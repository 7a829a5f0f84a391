"""A log of the store: the log itself with the state of its flushing, retention and compaction."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.cipher import BatchCipher
from liftbridge_broker.model.ids import Offset, PartitionId, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.storage.damage import DamageNotes
from liftbridge_broker.storage.journal import Journal
from liftbridge_broker.storage.log.partition_log import PartitionLog

_NOTHING: Final = Offset(0)


def _ignore(_error: CorruptionError) -> None:
    """Ignore damage: no listener is set."""


@dataclass(slots=True)
class CleaningState:
    """State of the retention and compaction of one log.

    Attributes:
        is_compacting: Whether the log waits to be compacted or is being compacted.
        map_start: Start of the next pass that collects keys; 0 after a pass that held them all.
        tombstones_until: Offset up to which the last pass was allowed to drop tombstones.
        compacted_bytes: Size of the log after the last pass.
        awaits_cursor: Whether the cursor that holds retention back is being looked up.
        unknown_cursor: Reason why retention last waited for an unknown cursor; empty if known.
        awaits_key: Whether compaction waits for the key of an encrypted log.
    """

    is_compacting: bool = False
    map_start: Offset = _NOTHING
    tombstones_until: Offset = _NOTHING
    compacted_bytes: int = 0
    awaits_cursor: bool = False
    unknown_cursor: str = ""
    awaits_key: bool = False


@dataclass(slots=True, eq=False)
class StoredLog:
    """A log and its flush state; one for each open partition.

    Attributes:
        partition_id: Its partition.
        stream: Name of its stream, for messages.
        log: The log.
        options: Settings in force for its stream.
        policy: Effective policy; never `AUTO`.
        is_strict: Whether everything above the recovery point was written under `commit`.
        strict_from: Recovery point from which the log is strict, once the policy is `commit`.
        was_strict: Whether the log was strict when it was opened, and no record that counted was
            truncated.
        in_session: Whether the metadata group knows the result of this process's recovery. Before
            that, a log that may lack records must not become strict, or the next start would treat
            it as whole.
        is_fresh: Whether the journal on disk may not know the log yet.
        is_leader: Whether this broker moves the log start ("Retention" in docs/spec/storage.md).
        on_trimmed: Called when the log start moved; set by the component that announces it.
        on_damaged: Called when compaction finds damage.
        damage: Notes of damaged files for the next start.
        is_waiting: Whether it is in a queue of the flush driver.
        is_closed: Whether it left the store.
        snapshot_source: Returns the state of idempotent publishers to save, if there is any.
        counted_bytes: Size of the log when it last joined a flight.
        append_count: Appends since it started to wait.
        cut_count: Number of truncations and restarts of the log.
        cleaning: State of its retention and compaction.
        cipher: Cipher of its batches, for compaction; `None` if they are not encrypted.
    """

    partition_id: PartitionId
    stream: StreamName
    log: PartitionLog
    options: StreamOptions
    policy: FsyncPolicy
    is_strict: bool = False
    strict_from: Offset = _NOTHING
    was_strict: bool = False
    in_session: bool = False
    is_fresh: bool = False
    is_leader: bool = True
    on_trimmed: Callable[[], None] | None = None
    on_damaged: Callable[[CorruptionError], None] = _ignore
    damage: DamageNotes = field(default_factory=DamageNotes)
    is_waiting: bool = False
    is_closed: bool = False
    snapshot_source: Callable[[], bytes] | None = None
    counted_bytes: int = 0
    append_count: int = 0
    cut_count: int = 0
    cleaning: CleaningState = field(default_factory=CleaningState)
    cipher: BatchCipher | None = None

    def put_state(self, journal: Journal) -> None:
        """Pass the current state of the log to the journal."""
        if (
            self.policy is FsyncPolicy.COMMIT
            and self.in_session  # guard Log.session
            and self.log.recovery_point >= self.strict_from
        ):
            self.is_strict = True
        journal.put(self.partition_id, self.log.state, is_strict=self.is_strict)
