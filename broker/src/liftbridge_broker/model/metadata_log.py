"""Values of the metadata log: members of the group, entries, what survives a crash, snapshots.

Everything here is plain data, compared by value. Indexes count from 1, and 0 is the position before
the first entry; terms count from 1 as well.
"""

from enum import IntEnum
from typing import NamedTuple

from liftbridge_broker.model.ids import BrokerId


class Peer(NamedTuple):
    """Identity of a voter or learner: a broker with one data directory.

    A broker with a wiped disk has a new directory id and so is another peer, which has promised
    nothing and may not vote in place of the old one.
    """

    broker: BrokerId
    data_dir_id: str


class EntryKind(IntEnum):
    """Kind of an entry; the numbers are stored."""

    COMMAND = 0
    """Bytes of the host."""
    NOOP = 1
    """No-op: a new leader commits it, and with it all entries before it (Raft 8)."""
    CONFIG = 2
    """A whole configuration (`configuration.encode`), in force from its append on."""


class Entry(NamedTuple):
    """One entry of the log."""

    entry_index: int
    term: int
    kind: EntryKind
    data: bytes


class HardState(NamedTuple):
    """State that must survive a crash besides the entries (Raft fig. 2).

    Attributes:
        term: Latest term seen; 0 before the first election.
        vote: Candidate that this peer voted for in `term`.
        commit: An index known to be committed. Written only along with something else, so after a
            crash it may be lower than it was; the leader sends it again.
    """

    term: int
    vote: Peer | None
    commit: int


class Configuration(NamedTuple):
    """Members of the group, both tuples sorted and disjoint; no voters = not yet bootstrapped."""

    voters: tuple[Peer, ...]
    learners: tuple[Peer, ...] = ()


class SnapshotMeta(NamedTuple):
    """Describes a snapshot: the state after entry `last_index`.

    Attributes:
        last_index: Last entry the state covers. 0 is the beginning of every log: no state, and
            `configuration` is that of the bootstrap.
        term: Term of that entry.
        configuration: The configuration in force at `last_index`.
        size_bytes: Length of the state.
        sha256: Its digest, 32 bytes; empty for index 0.
    """

    last_index: int
    term: int
    configuration: Configuration
    size_bytes: int
    sha256: bytes


class Snapshot(NamedTuple):
    """A whole snapshot, digest checked."""

    meta: SnapshotMeta
    state: bytes
