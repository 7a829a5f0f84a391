"""A partition with other replicas that this broker leads (L1 to L8 as far as they touch the log).

`LeaderCore` decides. This module feeds it and applies its decisions: it writes the leader epoch to
the journal before serving, stores the high watermark, releases acks, sends stored batches to
followers, and proposes changes of the in-sync set.
"""

from collections.abc import Sequence
from typing import Final

from liftbridge_broker.controller.commands import AlterPartition, DeclareUnclean, IsrMember
from liftbridge_broker.errors import (
    ChangeNotMadeError,
    CorruptionError,
    FilesError,
    InternalError,
    LiftbridgeError,
    NotEnoughReplicasAfterAppendError,
)
from liftbridge_broker.model.fetching import Accepted, FetchOutcome, FetchPosition, SessionClock
from liftbridge_broker.model.ids import (
    BrokerId,
    Instant,
    LeaderEpoch,
    Offset,
)
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.node.refusals import cut_off
from liftbridge_broker.node.replicas.role_context import RoleContext
from liftbridge_broker.replication.isr import (
    IsrProposal,
    ProposalOutcome,
    outcome_of,
)
from liftbridge_broker.replication.leader import LeaderCore
from liftbridge_broker.storage.log.batch_reader import BatchReader
from liftbridge_broker.storage.log.types import ReadNeed

TAIL_BYTES_MAX: Final = 4_096
"""Longest append kept in memory until it is committed, so that followers need not read it back."""

ANSWER_NS: Final = 1_000 * MILLISECOND_NS
"""Time without an answer after which the outcome of a proposal counts as unknown."""


class Leading:
    """Role of this broker for one partition that it leads, in one leader epoch.

    Attributes:
        partition: The partition.
        partition_id: Its id.
        core: Decides on commits and the in-sync set.
        is_current: Whether this is still the broker's role for the partition.
        is_commit_mode: Whether only what is on disk counts.
        has_gap: Whether metadata changes were skipped since, so that follower positions must not
            carry over into another epoch.
    """

    def __init__(self, roles: RoleContext, partition: Partition, core: LeaderCore) -> None:
        """Start; serve nothing before `on_established`."""
        self._roles = roles
        self._context = roles.context
        self.partition = partition
        self.partition_id = partition.partition_id
        self.core = core
        self.is_current = True
        self.is_commit_mode = False
        self.has_gap = False
        self._readers: dict[BrokerId, BatchReader] = {}
        self._reading: set[BrokerId] = set()
        self._tail_offset: Offset | None = None
        self._tail = b""
        self._asked: IsrProposal | None = None
        self._asked_at = Instant(0)
        self._declared_at = Instant(0)

    # -- for the sessions of followers --------------------------------------------------------

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Epoch this broker leads in."""
        return self.core.leader_epoch

    @property
    def log_start_offset(self) -> Offset:
        """First offset of the log."""
        return self.partition.log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Offset the next record will get."""
        return self.partition.log.log_end_offset

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not committed."""
        return self.partition.log.high_watermark

    @property
    def compacted_everywhere(self) -> Offset:
        """The least compacted offset of all replicas."""
        return self.core.compacted_everywhere

    @property
    def dropped_offset(self) -> Offset:
        """Offset below which tombstones may have been removed from the log."""
        return self.partition.log.dropped_offset

    def on_compacted(self) -> None:
        """Handle a compaction of this log."""
        self.core.note_compacted()
        self._pass_on_compacted()

    def _pass_on_compacted(self) -> None:
        """Pass the least compacted offset of all replicas to the log and the followers."""
        log, offset = self.partition.log, self.core.compacted_everywhere
        if log.compacted_everywhere != offset:
            log.compacted_everywhere = offset
            self._roles.notify(self.partition_id)

    def on_fetch(
        self, replica: BrokerId, fetch: FetchPosition, clock: SessionClock, now: Instant
    ) -> FetchOutcome:
        """Check and record a follower's position; may commit records."""
        outcome = self.core.on_fetch(replica, fetch, clock, now)
        if isinstance(outcome, Accepted):
            self._pass_on_compacted()
            self.commit()
            if len(self.core.state.isr) < len(self.core.state.replicas):
                self._watch()
        return outcome

    def on_answered(self, replica: BrokerId, asked_at: Instant) -> None:
        """Note that records were sent for a position valid at `asked_at`."""
        self.core.on_answered(replica, asked_at)

    def on_forgotten(self, replica: BrokerId) -> None:
        """Note that a follower's fetches no longer cover this partition."""
        self.core.on_forgotten(replica)
        reader = self._readers.pop(replica, None)
        if reader is not None and replica not in self._reading:
            reader.close()

    def read(
        self, replica: BrokerId, offset: Offset, bytes_max: int
    ) -> Sequence[bytes | memoryview] | None:
        """Return whole batches of [offset, ...); see `LedPartition`."""
        if replica in self._reading or self.partition.offline_reason:
            return ()
        state = self.core.state
        is_added = replica in state.adding and replica not in state.isr
        if is_added and not self._roles.catch_up.may_send(self.partition_id, self._context.now):
            return ()
        if offset == self._tail_offset and not is_added:
            return (self._tail,)
        log = self.partition.log
        reader = self._readers.get(replica)
        if reader is None or reader.next_offset != offset:
            if reader is not None:
                reader.close()
            reader = self._readers[replica] = log.batch_reader(offset)
        try:
            result = reader.read(bytes_max, log.log_end_offset)
            if result.need is not None:
                self._read_later(replica, reader, result.need)
                return ()
        except (CorruptionError, FilesError) as error:
            self.partition.on_unreadable(error)
            return None
        reader.release()  # there may be thousands, and the next fetch may come late
        if is_added:
            self._roles.catch_up.spend(sum(map(len, result.slices)))
        return result.slices

    def _read_later(self, replica: BrokerId, reader: BatchReader, need: ReadNeed) -> None:
        self._reading.add(replica)

        def done(outcome: bytes | LiftbridgeError) -> None:
            self._reading.discard(replica)
            if self._readers.get(replica) is not reader:
                reader.close()
            elif isinstance(outcome, LiftbridgeError):
                self.partition.on_unreadable(outcome)
            else:
                reader.feed(outcome)
            self._roles.notify(self.partition_id)

        self._context.submit_read(need, done)

    def close(self) -> None:
        """End this leadership."""
        self.is_current = False
        self._roles.window.end(self.partition_id)
        self.partition.intake.is_below_min_isr = False
        for replica, reader in self._readers.items():
            if replica not in self._reading:
                reader.close()
        self._readers.clear()

    @property
    def is_latest_known(self) -> bool:
        """Return whether every possibly committed record is known to be committed."""
        return self.core.is_high_watermark_known

    @property
    def is_recovering(self) -> bool:
        """Return whether an unclean election is not complete: runs are refused, not queued."""
        return self.core.state.is_recovering  # guard L1.recovering

    @property
    def is_cut_off(self) -> bool:
        """Return whether this broker fenced itself."""
        return self._roles.is_self_fenced(self._context.now)

    # -- for the partition --------------------------------------------------------------------

    def check_append(self, *, is_all: bool, now: Instant) -> None:
        """Refuse a run before it is appended (L2, self-fencing).

        Raises:
            LiftbridgeError: The run must not be appended.
        """
        if is_all:
            self.core.check_min_isr()
        elif self._roles.is_self_fenced(now):  # guard L2.self_fence
            raise cut_off()

    def on_appended(self, base: Offset, data: bytes, now: Instant) -> None:
        """Handle an append: serve it to followers, and start their lag."""
        is_short = len(data) <= TAIL_BYTES_MAX
        self._tail_offset, self._tail = (base, data) if is_short else (None, b"")
        self.core.on_append(now)
        self._roles.notify(self.partition_id)
        self._watch()
        if len(self.core.maximal_isr) == 1:
            self.commit()

    def on_flushed(self, wall_ns: int) -> None:
        """Handle progress of the sync."""
        del wall_ns
        if self.is_commit_mode:
            self.commit()

    def on_offline(self, reason: str) -> None:
        """Declare this replica unclean after its log failed, so that another leads (L8, C12).

        Without another in-sync replica an operator has to act.
        """
        state = self.core.state
        self._declared_at = self._context.now
        self._watch()
        if state.isr == (self._context.broker,):
            return
        epoch = state.replica_epoch(self._context.broker)
        assert epoch is not None
        command = DeclareUnclean(
            broker=self._context.broker,
            broker_epoch=self._roles.broker_epoch,
            partition_id=state.partition_id,
            replica_epoch=epoch,
            reason=reason,
        )
        self._context.propose(command, self._context.now, _ignore)  # guard L8.declare

    # -- commits and in-sync set --------------------------------------------------------------

    def commit(self) -> None:
        """Store the high watermark (L4)."""
        partition = self.partition
        end = self.core.high_watermark()
        if end > partition.log.high_watermark:
            partition.commit_to(end, self._context.wall_ns)
            if end == partition.log.log_end_offset:
                self._tail_offset, self._tail = None, b""
            self._roles.notify(self.partition_id)

    def report_loss(self) -> None:
        """Report an unclean election, as its winner, with the log end (C10)."""
        partition = self.partition
        fields: dict[str, object] = {
            "stream": partition.stream,
            "partition": partition.number,
            "leader_epoch": self.core.leader_epoch,
            "high_watermark": partition.log.high_watermark,
            "log_end_offset": partition.log.log_end_offset,
        }
        self._context.transition("possible_data_loss", fields)

    def on_eligible(self) -> None:
        """Handle a change of the eligible brokers; stop waiting for ineligible followers."""
        self.core.on_eligible(self._roles.eligible, self._context.now)
        self.commit()

    def on_state(self) -> None:
        """Handle newer metadata in the core (L7)."""
        self._pass_on_compacted()
        self.on_eligible()
        self.partition.intake.is_below_min_isr = self.core.is_below_min_isr
        if self.core.is_below_min_isr:  # guard L7.acks
            self.partition.pending.fail_all(
                NotEnoughReplicasAfterAppendError("outcome unknown: too few replicas in sync")
            )
        self._watch()

    def on_trimmed(self) -> None:
        """Announce a log start moved by retention, also to followers of an idle partition."""
        self._roles.notify(self.partition_id)

    def next_deadline(self) -> Instant | None:
        """Time of the next `propose_if_due` call without other events."""
        if self.partition.offline_reason:
            return Instant(self._declared_at + ANSWER_NS)
        due = self.core.next_deadline()
        if self._asked is None:
            return due
        answer = Instant(self._asked_at + ANSWER_NS)
        return answer if due is None else min(due, answer)

    def propose_if_due(self, now: Instant) -> None:
        """Propose another in-sync set, if the core requests one (L5)."""
        if self.partition.offline_reason:
            if now - self._declared_at >= ANSWER_NS:
                self.on_offline(self.partition.offline_reason)
            return
        if self._asked is not None and now - self._asked_at >= ANSWER_NS:
            asked, self._asked = self._asked, None
            self._roles.window.end(self.partition_id)
            self.core.on_proposal_result(asked, ProposalOutcome.UNKNOWN, now)
        proposal = self.core.next_proposal(now, self._roles.eligible)
        # The core may no longer wait for a joining follower, which can allow a commit. Without an
        # append or a fetch, no other event would check that.
        self.commit()
        if proposal is None:
            return
        self._asked, self._asked_at = proposal, now
        self._roles.window.begin(self.partition_id)
        command = AlterPartition(
            broker=self._context.broker,
            broker_epoch=self._roles.broker_epoch,
            partition_id=proposal.partition_id,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            isr=tuple(IsrMember(broker, epoch) for broker, epoch in proposal.isr),
            is_recovering=proposal.is_recovering,
        )
        self._context.propose(command, now, lambda outcome: self._answered(proposal, outcome, now))

    def _answered(self, proposal: IsrProposal, outcome: object, now: Instant) -> None:
        """Handle the answer of the controller, or the failure of the command in the log (L6).

        A late answer is ignored once this role has ended: the log may be another one by then.
        """
        if not self.is_current:  # guard L6.current
            return
        if self._asked == proposal:
            self._asked = None
            self._roles.window.end(self.partition_id)
        result = result_of(outcome)
        self.core.on_proposal_result(proposal, result, now)
        self.commit()
        self._watch()

    @property
    def is_ready(self) -> bool:
        """Return whether the partition accepts records."""
        return self.partition.role is Role.LEADER

    def _watch(self) -> None:
        """Schedule a check of the in-sync set."""
        if self.is_current:
            self._roles.watch(self.partition_id)


def result_of(outcome: object) -> ProposalOutcome:
    """Return the outcome of a proposal by its answer, or the failure to get one (L6)."""
    if not isinstance(outcome, LiftbridgeError):
        return outcome_of(None)
    if isinstance(outcome, InternalError):
        # The log failed the command, which may still be applied unless the error excludes that.
        is_denied = isinstance(outcome, ChangeNotMadeError)  # guard L6.cause
        return ProposalOutcome.NOT_ATTEMPTED if is_denied else ProposalOutcome.UNKNOWN
    return outcome_of(outcome)


def _ignore(_outcome: object) -> None:
    """Ignore the outcome: the metadata show it."""
