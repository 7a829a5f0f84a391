"""The durable log of a member of the metadata group, as its Raft core reads it."""

from collections.abc import Sequence
from typing import Protocol

from liftbridge_broker.model.metadata_log import Entry, HardState, SnapshotMeta


class StableLog(Protocol):
    """The durable log as the core reads it.

    The core reads only entries that `RaftCore.persisted` reported as durable, or that existed at
    the start; it holds entries being written in memory. The host may take snapshots and drop
    entries up to them at any time, never above the last `Ready.committed`.
    """

    @property
    def first_index(self) -> int:
        """Lowest index with an entry; `last_index` + 1 when the log has none."""
        ...

    @property
    def last_index(self) -> int:
        """Highest index with an entry, or the snapshot's index when no entry follows it."""
        ...

    @property
    def snapshot_meta(self) -> SnapshotMeta:
        """Newest snapshot; index 0 for none, then with the configuration of the bootstrap.

        `first_index` <= `snapshot_meta.last_index` + 1.
        """
        ...

    def term_at(self, index: int) -> int | None:
        """Term of the entry or of the snapshot at `index`, 0 for index 0; `None` = not known."""
        ...

    def entries(self, low: int, high: int, bytes_max: int) -> Sequence[Entry]:
        """Entries from `low` to `high` - 1, as many as `bytes_max` of data hold but at least one.

        Called with `first_index` <= `low` < `high` <= `last_index` + 1 only.
        """
        ...

    def hard_state(self) -> HardState:
        """Last hard state written; read once, at the start."""
        ...

    def config_entries(self) -> Sequence[Entry]:
        """Entries of kind `CONFIG` after the snapshot, in order; read once, at the start."""
        ...

    def read_snapshot(self, index: int, position: int, bytes_max: int) -> bytes | None:
        """Bytes of the state of snapshot `index` from `position` on; `None` when it was removed."""
        ...
