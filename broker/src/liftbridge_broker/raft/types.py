"""Values of Raft: messages, refusals, and effects of the core.

All values are plain data, compared by value. Messages name sender and target by identity, that is
broker *and* data directory, so a message for a lost disk reaches no peer (KIP-853). Indexes count
from 1, and 0 is the position before the first entry; terms count from 1 as well.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from liftbridge_broker.model.metadata_log import (
    Entry,
    HardState,
    Peer,
    Snapshot,
    SnapshotMeta,
)

TERM_MAX: Final = 2**62
"""Highest term accepted in a message: terms rise by one, so no honest peer exceeds it."""

TERM_LEAP_MAX: Final = 2**24
"""Difference to the peer's own term from which a message is refused.

Otherwise one forged or broken message could use up all terms, and after the last term no leader can
be elected any more. This costs no liveness. A term begins only when a majority grants a pre-vote,
at most once per election timeout, and a group with a leader begins no term. A peer would have to be
down for 97 days of nothing but elections (0.5 s each) to be left behind. The highest term is 2**38
such steps away, each of which must be made durable.
"""


# --- Messages -----------------------------------------------------------------------------------


class PreVote(NamedTuple):
    """Request for a pre-vote; changes no state of the receiver (Diss. 9.6).

    `term` is that of the possible election: the sender's own plus one.
    """

    sender: Peer
    target: Peer
    term: int
    last_index: int
    last_term: int


class PreVoteReply(NamedTuple):
    """Answer to `PreVote`: `term` is the asked one when granted, else the sender's own."""

    sender: Peer
    target: Peer
    term: int
    is_granted: bool


class Vote(NamedTuple):
    """RequestVote (Raft 5.2); `is_transfer`: the leader itself asked for this election."""

    sender: Peer
    target: Peer
    term: int
    last_index: int
    last_term: int
    is_transfer: bool


class VoteReply(NamedTuple):
    """Answer to `Vote`."""

    sender: Peer
    target: Peer
    term: int
    is_granted: bool


class Append(NamedTuple):
    """AppendEntries (Raft 5.3): entries after `prev_index`; empty to send `commit` or to probe."""

    sender: Peer
    target: Peer
    term: int
    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int


class AppendReply(NamedTuple):
    """Answer to `Append`.

    Attributes:
        is_success: Whether `prev_index` matched.
        log_index: On success the last index known to be equal to the leader's and durable;
            otherwise the `prev_index` that was refused.
        hint_index: On refusal the last index the follower may share with the leader.
        hint_term: Term of the follower at `hint_index`; 0 = unknown.
    """

    sender: Peer
    target: Peer
    term: int
    is_success: bool
    log_index: int
    hint_index: int = 0
    hint_term: int = 0


class Heartbeat(NamedTuple):
    """Sign of life of the leader; independent of flow control.

    Attributes:
        commit: Committed index, no higher than what the target has acknowledged in this term.
        read_context: Highest read round so far; an answer confirms all rounds up to it.
    """

    sender: Peer
    target: Peer
    term: int
    commit: int
    read_context: int


class HeartbeatReply(NamedTuple):
    """Answer to `Heartbeat`, with its `read_context`."""

    sender: Peer
    target: Peer
    term: int
    read_context: int


class InstallChunk(NamedTuple):
    """A piece of a snapshot, `data` beginning at byte `position` of the state."""

    sender: Peer
    target: Peer
    term: int
    snapshot: SnapshotMeta
    position: int
    data: bytes


class InstallChunkReply(NamedTuple):
    """Answer to `InstallChunk`.

    Attributes:
        snapshot_index: Index of the snapshot.
        position: Next byte the follower needs.
        is_done: Whether the follower holds everything up to `snapshot_index`, durably.
    """

    sender: Peer
    target: Peer
    term: int
    snapshot_index: int
    position: int
    is_done: bool


class TimeoutNow(NamedTuple):
    """The leader asks the target to hold an election at once (Diss. 3.10)."""

    sender: Peer
    target: Peer
    term: int


class ReadIndex(NamedTuple):
    """A follower asks for an index that a linearizable read must wait for (Diss. 6.4)."""

    sender: Peer
    target: Peer
    term: int
    context: int


class ReadIndexReply(NamedTuple):
    """Answer to `ReadIndex`: `read_index` covers everything acknowledged before the query."""

    sender: Peer
    target: Peer
    term: int
    context: int
    read_index: int


Message = (
    PreVote
    | PreVoteReply
    | Vote
    | VoteReply
    | Append
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | InstallChunk
    | InstallChunkReply
    | TimeoutNow
    | ReadIndex
    | ReadIndexReply
)


FromLeader = Append | Heartbeat | InstallChunk
"""Messages that show that the leader is alive."""

ToLeader = AppendReply | HeartbeatReply | InstallChunkReply
"""Answers to these messages."""


# --- Membership changes -------------------------------------------------------------------------


class AddLearner(NamedTuple):
    """Let `peer` receive the log without a vote."""

    peer: Peer


class Promote(NamedTuple):
    """Make the learner `peer`, which has caught up, a voter."""

    peer: Peer


class Remove(NamedTuple):
    """Remove `peer`, a voter or learner, from the group."""

    peer: Peer


ConfigChange = AddLearner | Promote | Remove


# --- Effects of the core ------------------------------------------------------------------------


class Role(IntEnum):
    """Role of a peer."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class Drop(IntEnum):
    """Reason why a message was dropped; counted in `RaftCore.dropped`.

    No value of a peer is asserted. Reasons up to `REPEATED` occur in healthy groups; the rest mean
    a broken or forged peer.
    """

    STALE_TERM = 0
    """Message of an older term."""
    IN_LEASE = 1
    """An election while the leader is heard (Diss. 6.4, check-quorum)."""
    NOT_LEADER = 2
    """Message for a leader, which this peer is not."""
    NOT_A_MEMBER = 3
    """Answer from, or election by, a peer that is not a member."""
    OVERLOADED = 4
    """A bound is reached."""
    REPEATED = 5
    """Answer to a query that is no longer pending."""
    WRONG_TARGET = 6
    """Message for another identity, such as this broker with its former disk, or from itself."""
    BAD_TERM = 7
    """No term at all."""
    SECOND_LEADER = 8
    """Message of a second leader in a term with a known leader."""
    MALFORMED = 9
    """Fields that no honest peer sends together."""
    BELOW_COMMIT = 10
    """Contradicts committed entries of this peer."""
    BEYOND_LOG = 11
    """Refers to entries that do not exist."""
    BAD_SNAPSHOT = 12
    """The bytes do not match the digest, or cannot be a snapshot."""
    TERM_LEAP = 13
    """Message of a term that no honest peer can have reached by now."""


class ReadState(NamedTuple):
    """The read `token` is linearizable once everything up to `read_index` is applied."""

    token: int
    read_index: int


class LeaderChange(NamedTuple):
    """Presumed leader of `term`, `None` while unknown."""

    leader: Peer | None
    term: int


class Ready(NamedTuple):
    """Work for the host, in this order; empty parts are skipped.

    1. Send `messages_before`.
    2. Apply `committed`, then handle `reads`, `reads_failed` and `leader_change`. Committed entries
        are already durable.
    3. If `must_persist`: write `snapshot`, then `entries`, then `hard_state`, make all of it
       durable by one sync, and call `RaftCore.persisted`. A crash in between may leave any prefix
       of these writes. No other `Ready` has anything to persist before that call.
    4. Replace the state by `snapshot`, if there is one.
    5. Send `messages_after`: they promise the state written in 3.

    Attributes:
        hard_state: New value, `None` when it need not be written.
        entries: To be appended, contiguous. The host first drops all log entries from the first
            one's index on: they are not committed, and another leader's entries replace them.
        snapshot: Replaces the whole log: the first entry then follows it.
        messages_before: Messages that may be sent before anything is written.
        messages_after: Messages that may be sent only after step 3.
        committed: Next committed entries, contiguous over all `Ready`s, each returned once.
        reads: Reads that may be served once `committed` is applied.
        reads_failed: Tokens of reads that got no answer in time or lost their leader.
        leader_change: Set when the leader or the term of a known leader changed.
    """

    hard_state: HardState | None = None
    entries: tuple[Entry, ...] = ()
    snapshot: Snapshot | None = None
    messages_before: tuple[Message, ...] = ()
    messages_after: tuple[Message, ...] = ()
    committed: tuple[Entry, ...] = ()
    reads: tuple[ReadState, ...] = ()
    reads_failed: tuple[int, ...] = ()
    leader_change: LeaderChange | None = None

    @property
    def must_persist(self) -> bool:
        """Return whether the host must write and call `RaftCore.persisted`."""
        return self.hard_state is not None or bool(self.entries) or self.snapshot is not None


# --- Refusals -----------------------------------------------------------------------------------


class RaftRefusalError(Exception):
    """A call that cannot be served now; nothing was done, and the host reports it to its caller."""


class NotRaftLeaderError(RaftRefusalError):
    """Only the leader accepts this call.

    Attributes:
        leader: The leader known to this peer, `None` if unknown.
    """

    def __init__(self, leader: Peer | None) -> None:
        """Create the error with the peer to call instead."""
        who = "no leader is known" if leader is None else f"the leader is {leader.broker}"
        super().__init__(f"not the metadata leader: {who}")
        self.leader = leader


class RaftBusyError(RaftRefusalError):
    """A bound is reached or leadership is being transferred; the same call may succeed later."""


class RaftTooLargeError(RaftRefusalError):
    """A proposal exceeds the limit of an entry."""


class ConfigChangeRefusedError(RaftRefusalError):
    """The membership change is not allowed now, or is invalid."""


class TransferRefusedError(RaftRefusalError):
    """Leadership cannot go to that peer."""


class BadConfigurationError(RaftRefusalError):
    """The bytes are not a configuration."""
