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
    """Interface of the durable log.

    The core reads only entries that `RaftCore.persisted` reported as durable, or that existed at
    the start; entries being written stay in the core's memory. The host may take snapshots and drop
    entries up to them at any time, never above the last `Ready.committed`.
    """

    @property
    def first_index(self) -> int:
        """Lowest index with an entry; `last_index` + 1 if the log is empty."""
        ...

    @property
    def last_index(self) -> int:
        """Highest index with an entry, or the snapshot's index if no entry follows it."""
        ...

    @property
    def snapshot_meta(self) -> SnapshotMeta:
        """Newest snapshot; index 0 without a snapshot, with the configuration of the bootstrap.

        `first_index` <= `snapshot_meta.last_index` + 1.
        """
        ...

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry or snapshot at `index`: 0 for index 0, `None` if unknown."""
        ...

    def entries(self, low: int, high: int, bytes_max: int) -> Sequence[Entry]:
        """Return entries from `low` to `high` - 1: at most `bytes_max` of data, at least one entry.

        Called with `first_index` <= `low` < `high` <= `last_index` + 1 only.
        """
        ...

    def hard_state(self) -> HardState:
        """Return the last hard state written; called once, at the start."""
        ...

    def config_entries(self) -> Sequence[Entry]:
        """Return the `CONFIG` entries after the snapshot, in order; called once, at the start."""
        ...

    def read_snapshot(self, index: int, position: int, bytes_max: int) -> bytes | None:
        """Return bytes of snapshot `index` from `position` on; `None` if it was removed."""
        ...


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Times and bounds; the defaults of times are those of docs/reference/configuration.md.

    Attributes:
        heartbeat_ns: Time between heartbeats of a leader.
        election_ns: Minimum silence of the leader before an election. A leader without a quorum for
            this time steps down, and a peer that heard a leader within this time refuses to vote.
        election_spread_ns: Maximum random addition to `election_ns`.
        append_bytes_max: Maximum data of the entries of a message; one entry always fits.
        append_entries_max: Maximum number of entries of a message.
        inflight_messages_max: Maximum number of unanswered appends to a follower.
        inflight_bytes_max: Maximum data in unanswered appends.
        entry_bytes_max: Maximum length of a proposal.
        uncommitted_bytes_max: Maximum size of a leader's uncommitted proposals; further proposals
            are refused.
        unstable_bytes_max: Maximum size of entries that wait for the disk; a follower drops further
            appends.
        committed_bytes_max: Maximum data of `Ready.committed`; one entry always fits.
        snapshot_bytes_max: Maximum length of a snapshot accepted from a leader.
        chunk_bytes_max: Maximum data of an `InstallChunk`.
        reads_max: Maximum number of pending reads, including those of followers.
        messages_max: Maximum number of messages that wait for the host; more are dropped, as a
            network may do.
        catch_up_entries_max: Maximum lag, in entries, of a learner to promote.
        voters_max: Maximum number of voters of a configuration.
        members_max: Maximum number of voters and learners of a configuration.
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
