"""Inputs of the core: its log on disk, a random source, and its options."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from liftbridge_broker.raft.types import Entry, HardState, SnapshotMeta

MS: Final = 1_000_000
KIB: Final = 1024
MIB: Final = 1024 * KIB


class Rng(Protocol):
    """Random source of one node; `random.Random` is one."""

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 to `stop` - 1."""
        ...


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


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Times and bounds; the defaults of times are those of docs/reference/configuration.md.

    Attributes:
        heartbeat_ns: Between heartbeats of a leader.
        election_ns: Least silence of the leader before an election; a leader that has no quorum for
            as long steps down, and a peer that heard a leader within it refuses to vote.
        election_spread_ns: Random addition to it.
        append_bytes_max: Data of the entries of one message; one entry always fits.
        append_entries_max: Entries of one message.
        inflight_messages_max: Unanswered appends to one follower.
        inflight_bytes_max: Data in them.
        entry_bytes_max: Length of one proposal.
        uncommitted_bytes_max: Proposals of a leader that are not committed; more are refused.
        unstable_bytes_max: Entries that wait for the disk; a follower drops appends beyond it.
        committed_bytes_max: Data of `Ready.committed`; one entry always fits.
        snapshot_bytes_max: Length of a snapshot that is taken from a leader.
        chunk_bytes_max: Data of one `InstallChunk`.
        reads_max: Reads that wait for an answer, those of followers included.
        messages_max: Messages that wait for the host; more are dropped, as a network may do.
        catch_up_entries_max: Maximum lag of a learner that is promoted.
        voters_max: Voters of a configuration.
        members_max: Voters and learners of a configuration.
    """

    heartbeat_ns: int = 100 * MS
    election_ns: int = 500 * MS
    election_spread_ns: int = 250 * MS
    append_bytes_max: int = 256 * KIB
    append_entries_max: int = 4_096
    inflight_messages_max: int = 64
    inflight_bytes_max: int = 4 * MIB
    entry_bytes_max: int = 1 * MIB
    uncommitted_bytes_max: int = 16 * MIB
    unstable_bytes_max: int = 64 * MIB
    committed_bytes_max: int = 1 * MIB
    snapshot_bytes_max: int = 256 * MIB
    chunk_bytes_max: int = 512 * KIB
    reads_max: int = 1_024
    messages_max: int = 4_096
    catch_up_entries_max: int = 100
    voters_max: int = 9
    members_max: int = 256

    def __post_init__(self) -> None:
        """Check the relations that the algorithm requires."""
        assert 0 < self.heartbeat_ns <= self.election_ns // 2
        assert self.election_spread_ns > 0
        assert self.inflight_messages_max > 0
        assert self.append_entries_max > 0
        assert self.chunk_bytes_max > 0
        assert 0 < self.voters_max <= self.members_max
