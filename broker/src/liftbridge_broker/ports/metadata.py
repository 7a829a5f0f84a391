"""The replicated log of metadata commands as the node sees it.

One broker keeps it in a local log; several agree on it by Raft. Both take proposals by token and
tell what became of them as events, in the order of the log. A command is told as committed only
when it is durable: nothing is answered before.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, NewType, Protocol

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.ports.files import FileEvent

ProposalToken = NewType("ProposalToken", int)
"""Names a proposal of this node, from 1; chosen by the proposer, rising."""


class Urgency(IntEnum):
    """Whether a proposal may use the space kept back for a full disk."""

    ORDINARY = 0
    ESSENTIAL = 1
    """Frees space or keeps the broker alive: deletion, registration."""


class Committed(NamedTuple):
    """A command is durable and has its final place; it must now be applied.

    Attributes:
        entry_index: Its index, one above that of the event before.
        command: Its bytes.
        token: The proposal of this node that it came from; 0 for none.
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


MetadataEvent = Committed | Refused | Failed


class RecoveredMetadata(NamedTuple):
    """What a log held when it was opened.

    Attributes:
        snapshot_index: Last index the snapshot covers, 0 without one.
        snapshot: State bytes, empty without a snapshot.
        entries: Committed commands behind the snapshot, contiguous, with token 0.
        findings: What was repaired, for the log of the process; empty when all was well.
    """

    snapshot_index: MetadataIndex
    snapshot: bytes
    entries: Sequence[Committed]
    findings: Sequence[str]


class MetadataConsensus(Protocol):
    """A log of commands that this node, alone or with others, appends to."""

    def propose(self, token: ProposalToken, command: bytes, urgency: Urgency) -> None:
        """Ask for a place in the log; the outcome is an event, possibly at once."""
        ...

    def on_file_event(self, event: FileEvent) -> None:
        """Take the outcome of a file call that this log submitted."""
        ...

    def take_events(self) -> Sequence[MetadataEvent]:
        """Events since the last call, oldest first; asked for after every call of the owner."""
        ...

    def snapshot(self, index: MetadataIndex, state: bytes) -> None:
        """Keep the state after entry `index`, which was told as committed; drop entries before it.

        A full disk leaves the log as it is, whole and longer; a broken one is told as `Failed`.
        """
        ...
