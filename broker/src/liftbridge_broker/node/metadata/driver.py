"""The node's metadata driver: accepts proposals, applies the log, and answers.

A command is answered with the result of `decide` at its commit, never before it is durable (ADR
0006). An early refusal, by `decide` on the present state, only saves the log an entry without
effect. Listeners get the records in log order, before the proposer gets its answer.

The driver writes snapshots, and reads those of a leader, in steps over as many turns as needed. It
applies nothing meanwhile, so a snapshot is of a single index, and a restored state replaces the old
one at once. The metadata group continues: its events queue here.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple

from liftbridge_broker.controller.callers.commands import (
    ChangeRules,
    CreateToken,
    ExpireToken,
    RevokeToken,
    SetAccess,
    SetQuota,
)
from liftbridge_broker.controller.checks import check_groups_level
from liftbridge_broker.controller.commands import (
    AdvertiseListeners,
    AlterPartition,
    AlterStream,
    Bootstrap,
    CancelReassignment,
    ChangeLeader,
    Command,
    ConfirmActivity,
    CordonBroker,
    CreateEncryptedStream,
    CreateStream,
    DeclareUnclean,
    DeleteStream,
    ElectPreferred,
    FenceBroker,
    InitPublisher,
    MarkStream,
    PauseStream,
    RecoverUnclean,
    RegisterBroker,
    RemoveBroker,
    ReportMasterKeys,
    Resign,
    ResumeStream,
    RewrapDataKeys,
    SetActivity,
    SetCatchUpRate,
    SetFeatureLevel,
    SetMasterKey,
    SetReadonly,
    ShutDownBroker,
    StartReassignment,
    UnfenceBroker,
)
from liftbridge_broker.controller.consumer_groups.commands import (
    ChangeCoordinator,
    DeleteGroup,
    GroupCommand,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
)
from liftbridge_broker.controller.decide import decide
from liftbridge_broker.controller.records import Answer, Record, StreamDeleted
from liftbridge_broker.controller.replay import apply, skip
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import (
    CorruptionError,
    LiftbridgeError,
    NoMetadataLeaderError,
    OutcomeUnknownError,
)
from liftbridge_broker.model.ids import Instant, MetadataIndex, PartitionId
from liftbridge_broker.model.steps import finish
from liftbridge_broker.node.refusals import failed_change
from liftbridge_broker.ports.files import FileEvent
from liftbridge_broker.ports.metadata import (
    Committed,
    Failed,
    LeaderChanged,
    MetadataConsensus,
    MetadataEvent,
    ProposalToken,
    ReadFailed,
    ReadReady,
    ReadToken,
    RecoveredMetadata,
    Refused,
    Restored,
    Urgency,
)
from liftbridge_broker.wire.metadata import decode_command, encode_command
from liftbridge_broker.wire.snapshots import decode_state_in_steps, encode_state_in_steps

COMMANDS_PER_TURN: Final = 32
"""Commands applied, or steps of a snapshot done, in a turn. A command may create or move
directories, and thousands may be committed at once: other work runs in between."""

SNAPSHOT_ENTRIES_DEFAULT: Final = 8_192
PROPOSAL_TIMEOUT_NS_DEFAULT: Final = 5_000_000_000

Reply = Callable[[Answer | LiftbridgeError], None]
"""Gets the outcome of one proposal, once."""

FAILURES: Final[dict[type[Command], str]] = {
    RegisterBroker: "Failed to register broker",
    Bootstrap: "Failed to bootstrap cluster",
    UnfenceBroker: "Failed to unfence broker",
    FenceBroker: "Failed to fence broker",
    ShutDownBroker: "Failed to shut down broker",
    AdvertiseListeners: "Failed to advertise listeners",
    CordonBroker: "Failed to cordon broker",
    RemoveBroker: "Failed to remove broker",
    SetFeatureLevel: "Failed to set feature level",
    SetCatchUpRate: "Failed to set catch-up rate",
    SetQuota: "Failed to set quota",
    AlterPartition: "Failed to alter in-sync set",
    StartReassignment: "Failed to start reassignment",
    CancelReassignment: "Failed to cancel reassignment",
    ElectPreferred: "Failed to elect preferred leaders",
    RecoverUnclean: "Failed to recover partition",
    ChangeLeader: "Failed to change leaders",
    DeclareUnclean: "Failed to declare replica unclean",
    Resign: "Failed to resign",
    CreateStream: "Failed to replicate partition",
    DeleteStream: "Failed to delete stream",
    AlterStream: "Failed to alter stream",
    PauseStream: "Failed to pause stream",
    ResumeStream: "Failed to resume stream",
    SetReadonly: "Failed to set stream readonly flag",
    InitPublisher: "Failed to initialise publisher",
    MarkStream: "Failed to mark stream",
    CreateToken: "Failed to create token",
    ExpireToken: "Failed to expire token",
    RevokeToken: "Failed to revoke token",
    JoinGroup: "Failed to join consumer group",
    LeaveGroup: "Failed to leave consumer group",
    ChangeCoordinator: "Failed to change consumer group coordinator",
    ReleasePartitions: "Failed to release partitions",
    DeleteGroup: "Failed to delete consumer group",
    SetActivity: "Failed to set activity",
    ConfirmActivity: "Failed to confirm activity",
    CreateEncryptedStream: "Failed to replicate partition",
    RewrapDataKeys: "Failed to rewrap data keys",
    SetMasterKey: "Failed to set master key",
    ReportMasterKeys: "Failed to report master keys",
    SetAccess: "Failed to switch access control",
    ChangeRules: "Failed to change access rules",
}
"""Error text of the original for a client when the log fails a command; the cause follows it."""

_ESSENTIAL: Final = (
    RegisterBroker,
    UnfenceBroker,
    FenceBroker,
    ShutDownBroker,
    AlterPartition,
    RecoverUnclean,
    ChangeLeader,
    DeclareUnclean,
    Resign,
    DeleteStream,
)


ReadReply = Callable[[LiftbridgeError | None], None]
"""Gets the outcome of one read, once; `None` = the state may be read now."""


def ignore(*outcome: object) -> None:
    """Ignore a notification."""
    del outcome


class _Pending(NamedTuple):
    """A proposal whose outcome is awaited."""

    command: Command
    reply: Reply
    deadline: Instant


class MetadataDriver:
    """Owns the cluster state of this node and the log it comes from.

    Attributes:
        state: The state after `state.applied_index`; read-only for all other code.
        deleted: Partitions whose deletion lies in the log after its snapshot, as opened.
        is_behind: Whether committed entries, or the rest of a snapshot, wait for a later turn,
            started by `on_timer`.
    """

    def __init__(
        self,
        consensus: MetadataConsensus,
        recovered: RecoveredMetadata,
        *,
        on_change: Callable[[MetadataIndex, tuple[Record, ...]], None],
        on_failed: Callable[[LiftbridgeError], None],
        on_snapshot: Callable[[MetadataIndex, int], None] = ignore,
        on_restored: Callable[[], None] = ignore,
        on_leader: Callable[[LeaderChanged], None] = ignore,
        snapshot_entries: int = SNAPSHOT_ENTRIES_DEFAULT,
        proposal_timeout_ns: int = PROPOSAL_TIMEOUT_NS_DEFAULT,
    ) -> None:
        """Restore the state of an opened log, without change notifications.

        Args:
            consensus: The log.
            recovered: Its recovered state.
            on_change: Called with the records and index of every later command that changed the
                state.
            on_failed: Called once when the log cannot be written any more: the process must end.
            on_snapshot: Called with the index and size of each snapshot given to the log.
            on_restored: Called when a leader's snapshot replaced `state`; the changes in between
                are unknown.
            on_leader: Called when the leader of the group changes or is lost.
            snapshot_entries: Commands between two snapshots.
            proposal_timeout_ns: Time after which a proposal is answered without its outcome.

        Raises:
            CorruptionError: The log contains entries that this version does not know.
        """
        assert snapshot_entries > 0
        self._consensus = consensus
        self._on_change = on_change
        self._on_failed = on_failed
        self._on_snapshot = on_snapshot
        self._on_restored = on_restored
        self._on_leader = on_leader
        self._snapshot_entries = snapshot_entries
        self._proposal_timeout_ns = proposal_timeout_ns
        self._token_last = ProposalToken(0)
        self._pending: dict[ProposalToken, _Pending] = {}
        self._read_last = ReadToken(0)
        self._reads: dict[ReadToken, ReadReply] = {}
        self._events: deque[MetadataEvent] = deque()
        self._is_draining = False
        self._work: Iterator[None] | None = None
        self._done_count = 0
        self.is_behind = False
        self._snapshot_index = recovered.snapshot_index
        self.state, self.deleted = restore(recovered)

    @property
    def pending_count(self) -> int:
        """Proposals that wait for their outcome."""
        return len(self._pending)

    def propose(self, command: Command, now: Instant, reply: Reply) -> None:
        """Propose a change.

        Args:
            command: The change.
            now: Time of the request.
            reply: Called once: with an early refusal, else with the answer or refusal at the time
                the command was applied, or with an `InternalError` when the log failed it or did
                not answer in time. The outcome is then unknown, except for a `ChangeNotMadeError`.
        """
        if isinstance(command, GroupCommand):
            try:
                check_groups_level(self.state)  # guard Group.readable
            except LiftbridgeError as error:
                reply(error.with_traceback(None))
                return
        # A state older than answers already given might refuse a command that is valid now.
        # To fence a broker with thousands of partitions takes long: once is enough.
        is_early = not (self.is_behind or isinstance(command, FenceBroker))
        if self._consensus.is_leader and is_early:
            early = decide(self.state, MetadataIndex(self.state.applied_index + 1), command)
            if isinstance(early.answer, LiftbridgeError):
                reply(early.answer)
                return
        self._token_last = ProposalToken(self._token_last + 1)
        deadline = Instant(now + self._proposal_timeout_ns)
        self._pending[self._token_last] = _Pending(command, reply, deadline)
        urgency = Urgency.ESSENTIAL if isinstance(command, _ESSENTIAL) else Urgency.ORDINARY
        self._consensus.propose(self._token_last, encode_command(command), urgency)
        self._drain()

    def on_file_event(self, event: FileEvent) -> None:
        """Handle the outcome of a file call of the log."""
        self._consensus.on_file_event(event)
        self._drain()

    def read(self, reply: ReadReply) -> None:
        """Call `reply` once the state holds every outcome announced before this call."""
        self._read_last = ReadToken(self._read_last + 1)
        self._reads[self._read_last] = reply
        self._consensus.read(self._read_last)
        self._drain()

    def catch_up(self) -> None:
        """Handle events of the log after a call that bypassed this driver."""
        self._drain()

    def next_deadline(self) -> Instant | None:
        """Time when the oldest proposal times out, or the log has work."""
        oldest = next((pending.deadline for pending in self._pending.values()), None)
        log = self._consensus.next_deadline()
        if oldest is None or log is None:
            return oldest if log is None else log
        return min(oldest, log)

    def on_timer(self, now: Instant) -> None:
        """Answer proposals that timed out; they may still be applied."""
        # Handle the log's answers first: a proposal that it never accepted was certainly not made.
        self._consensus.on_timer(now)
        self.is_behind = False
        self._drain()
        # All proposals have the same timeout, so they expire in order of arrival.
        while self._pending:
            token = next(iter(self._pending))
            if self._pending[token].deadline > now:
                break
            self._settle(token, OutcomeUnknownError("raft operation timed out"))

    def _drain(self) -> None:
        """Handle events in order, including those caused by proposals of callbacks."""
        if self._is_draining or self.is_behind:
            return
        self._is_draining = True
        self._done_count = 0
        try:
            while self._done_count < COMMANDS_PER_TURN and self._advance():
                pass
            self._events.extend(self._consensus.take_events())
            self.is_behind = bool(self._events) or self._work is not None
        finally:
            self._is_draining = False

    def _advance(self) -> bool:
        """Continue a snapshot, else handle one event, else begin a snapshot; false when idle."""
        if self._work is not None:
            self._go_on(self._work)
            return True
        self._events.extend(self._consensus.take_events())
        if self._events:
            self._handle(self._events.popleft())
            return True
        if self.state.applied_index - self._snapshot_index < self._snapshot_entries:
            return False
        self._work = self._make_snapshot()
        return True

    def _go_on(self, work: Iterator[None]) -> None:
        """Run as many steps as the turn allows."""
        for _ in work:
            self._done_count += 1
            if self._done_count >= COMMANDS_PER_TURN:
                return
        self._work = None

    def _make_snapshot(self) -> Iterator[None]:
        index = self.state.applied_index
        # Counted even if the disk is too full for it: the next attempt waits for new entries.
        self._snapshot_index = index
        state = yield from encode_state_in_steps(self.state)
        self._consensus.snapshot(index, state)
        self._on_snapshot(index, len(state))

    def _handle(self, event: MetadataEvent) -> None:
        match event:
            case Committed():
                self._done_count += 1
                self._apply(event)
            case Refused(token, error):
                self._settle(token, error)
            case Failed(error):
                self._on_failed(error)
            case Restored():
                self._work = self._restore(event)
            case LeaderChanged():
                self._on_leader(event)
            case ReadReady(token):
                self._reads.pop(token)(None)
            case ReadFailed(token, error):
                self._reads.pop(token)(error)

    def _restore(self, event: Restored) -> Iterator[None]:
        """Restore the state from a leader's snapshot, which this broker has stored by now."""
        self.state = yield from _state_of(event.entry_index, event.state)
        self._snapshot_index = event.entry_index
        self._on_restored()

    def _apply(self, event: Committed) -> None:
        if not event.command:
            skip(self.state, event.entry_index)
            return
        pending = self._pending.pop(event.token, None)
        command = decode_command(event.command) if pending is None else pending.command
        decision = apply(self.state, event.entry_index, command)
        if decision.records:
            self._on_change(event.entry_index, decision.records)
        if pending is not None:
            pending.reply(decision.answer)

    def _settle(self, token: ProposalToken, error: LiftbridgeError) -> None:
        """Answer a proposal that the log failed, with the original's error text."""
        pending = self._pending.pop(token, None)
        if pending is None:
            return
        if isinstance(error, NoMetadataLeaderError):
            pending.reply(error)
            return
        text = f"{FAILURES[type(pending.command)]}: {error.text}"
        pending.reply(failed_change(error, text))


def restore(recovered: RecoveredMetadata) -> tuple[ClusterState, frozenset[PartitionId]]:
    """Return the state after all entries of a log, and the partitions that they deleted.

    Raises:
        CorruptionError: The log contains entries that this version does not know.
    """
    state = ClusterState()
    if recovered.snapshot_index:
        state = finish(_state_of(recovered.snapshot_index, recovered.snapshot))
    deleted: set[PartitionId] = set()
    for entry in recovered.entries:
        if not entry.command:
            skip(state, entry.entry_index)
            continue
        for record in apply(state, entry.entry_index, decode_command(entry.command)).records:
            if isinstance(record, StreamDeleted):
                deleted.update(record.partition_ids)
    return state, frozenset(deleted)


def _state_of(index: MetadataIndex, snapshot: bytes) -> Generator[None, None, ClusterState]:
    """Decode the state from the snapshot at an index, in steps.

    Raises:
        CorruptionError: The snapshot is of another version, or of another index.
    """
    state = yield from decode_state_in_steps(snapshot)
    if state.applied_index != index:
        raise CorruptionError(
            f"metadata snapshot: index {state.applied_index} in the file of index {index}"
        )
    return state
