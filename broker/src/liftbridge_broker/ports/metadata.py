"""The replicated log of metadata commands as the node sees it.

Its members agree on it by Raft; a broker alone is a group of one. Proposals carry tokens, and their
outcomes arrive as events, in the order of the log. A command is reported as committed only when it
is durable at a majority and here: no answer is given before.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, NewType, Protocol

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.ports.files import FileEvent

ProposalToken = NewType("ProposalToken", int)
"""Number of a proposal of this node, from 1, rising; chosen by the proposer."""


class Urgency(IntEnum):
    """Permission of a proposal to use the space reserved for a full disk."""

    ORDINARY = 0
    ESSENTIAL = 1
    """Frees space or keeps the broker alive: deletion, registration."""


class Committed(NamedTuple):
    """An entry is durable and has its final place; it must now be applied.

    Attributes:
        entry_index: Its index, one above that of the event before.
        command: Its bytes; empty for an entry that is not a command.
        token: The originating proposal of this node; 0 for none.
    """

    entry_index: MetadataIndex
    command: bytes
    token: ProposalToken


class Refused(NamedTuple):
    """A proposal got no place in the log.

    `error` is an `OutcomeUnknownError` when the command may nevertheless be found after a restart;
    any other error is definite.
    """

    token: ProposalToken
    error: LiftbridgeError


class Failed(NamedTuple):
    """The log cannot be written any more: the process must end (storage policy 7)."""

    error: LiftbridgeError


class Restored(NamedTuple):
    """A leader's snapshot replaces the state; commands before it are not reported.

    Attributes:
        entry_index: Last index the state covers; the next `Committed` is one above it.
        state: Bytes that a member passed to `MetadataConsensus.snapshot`.
    """

    entry_index: MetadataIndex
    state: bytes


class LeaderChanged(NamedTuple):
    """The leader of the group changed or is unknown.

    Attributes:
        leader: The leader, `None` while unknown.
        term: The term it leads in, or the latest one seen.
        is_self: Whether this broker is the leader.
    """

    leader: BrokerId | None
    term: int
    is_self: bool


ReadToken = NewType("ReadToken", int)
"""Number of a read of this node; chosen by the reader."""


class ReadReady(NamedTuple):
    """The state holds every outcome announced before `read` was called."""

    token: ReadToken


class ReadFailed(NamedTuple):
    """No leader confirmed the read in time; the reader may ask again."""

    token: ReadToken
    error: LiftbridgeError


MetadataEvent = Committed | Refused | Failed | Restored | LeaderChanged | ReadReady | ReadFailed


class RecoveredMetadata(NamedTuple):
    """Contents of a log when it was opened.

    Attributes:
        snapshot_index: Last index the snapshot covers, 0 without one.
        snapshot: State bytes, empty without a snapshot.
        entries: Committed commands behind the snapshot, contiguous, with token 0.
        findings: Repairs made, for the process log; empty for none.
    """

    snapshot_index: MetadataIndex
    snapshot: bytes
    entries: Sequence[Committed]
    findings: Sequence[str]


class MetadataConsensus(Protocol):
    """A log of commands that this node, alone or with others, appends to.

    Calls that ask for a change of the group raise a `LiftbridgeError` when this broker does not
    lead it or the change is not allowed now; whether an allowed one succeeds shows in `voters` and
    `learners`.
    """

    @property
    def is_leader(self) -> bool:
        """Return whether this broker leads the group."""
        ...

    @property
    def leader(self) -> Peer | None:
        """Leader of the group as far as this broker knows."""
        ...

    @property
    def is_full(self) -> bool:
        """Return whether the log accepts only essential commands because the disk is full."""
        ...

    @property
    def term(self) -> int:
        """Latest term seen."""
        ...

    @property
    def voters(self) -> Sequence[Peer]:
        """Members with a vote, committed or not."""
        ...

    @property
    def learners(self) -> Sequence[Peer]:
        """Members without a vote, committed or not."""
        ...

    def match(self, peer: Peer) -> MetadataIndex | None:
        """Match index of a member, known to the leader; `None` elsewhere and for strangers."""
        ...

    def propose(self, token: ProposalToken, command: bytes, urgency: Urgency) -> None:
        """Propose a command; the outcome is an event, possibly at once, or never.

        It never comes when a message is lost: the proposer bounds its wait, and the outcome is
        unknown then.
        """
        ...

    def read(self, token: ReadToken) -> None:
        """Request an event for when the state holds every outcome announced before this call."""
        ...

    def transfer(self, broker: BrokerId) -> None:
        """Hand leadership to another voter; the attempt ends if that voter cannot take it."""
        ...

    def add_learner(self, peer: Peer) -> None:
        """Add a member without a vote."""
        ...

    def promote(self, peer: Peer) -> None:
        """Give a learner that has caught up a vote."""
        ...

    def remove(self, peer: Peer) -> None:
        """Remove a member."""
        ...

    def on_file_event(self, event: FileEvent) -> None:
        """Handle the outcome of a file call that this log submitted."""
        ...

    def on_timer(self, now: Instant) -> None:
        """Process timeouts; called at `next_deadline`, harmless at any other time."""
        ...

    def next_deadline(self) -> Instant | None:
        """Latest time of the next `on_timer` call, `None` while no timeout is set."""
        ...

    def take_events(self) -> Sequence[MetadataEvent]:
        """Return events since the last call, oldest first; called after every call of the owner."""
        ...

    def snapshot(self, index: MetadataIndex, state: bytes) -> None:
        """Store the state after committed entry `index`; drop the entries before it.

        A full disk leaves the log unchanged, and so does a state older than a leader's snapshot in
        the log; a broken disk is reported as `Failed`.
        """
        ...
