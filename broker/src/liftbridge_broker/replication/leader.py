"""The leader of one partition: in-sync set and high watermark (L1 to L7).

Knows offsets and epochs, never record bytes. The owner applies the metadata, appends to the log,
stores the high watermark and sends proposals; every call passes values only, and only a broker that
leads the partition by its own metadata may call. Marks such as `# guard L3.b` name the guards of
the rules in docs/spec/replication.md; `tests/guards/replication.yaml` names the test that fails
when a guard is removed.
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

from liftbridge_broker.errors import NotEnoughReplicasError
from liftbridge_broker.model.fetching import (
    ACCEPTED,
    Diverging,
    FetchError,
    FetchOutcome,
    FetchPosition,
    Refused,
    SessionClock,
)
from liftbridge_broker.model.ids import BrokerId, Instant, LeaderEpoch, Offset
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.ports.replica_log import LogView
from liftbridge_broker.replication.isr import (
    MEMBER_ALREADY,
    NEVER,
    Follower,
    IsrProposal,
    LeaderLimits,
    ProposalOutcome,
    laggards,
    may_join,
)


@dataclass(slots=True)
class _Pending:
    """The single pending proposal.

    Attributes:
        proposal: The requested in-sync set.
        added: Replicas it would bring into sync.
        removed: Replicas it would remove for lagging.
        has_unknown: Whether a request based on this state may still be applied.
        retry_at: Time at which to send it; `None` while waiting for an answer or for metadata.
    """

    proposal: IsrProposal
    added: tuple[BrokerId, ...]
    removed: tuple[BrokerId, ...]
    has_unknown: bool = False
    retry_at: Instant | None = None


class ReplicaLag(NamedTuple):
    """Lag of a follower, for metrics.

    Attributes:
        broker: The follower.
        log_end_offset: End of its log; `None` while unknown.
        records: Records it lacks; all of them while its end is unknown.
        lag_ns: Time since it last held all records of the leader; 0 if it holds them now.
        is_in_sync: Whether it is a member of the committed in-sync set.
    """

    broker: BrokerId
    log_end_offset: Offset | None
    records: int
    lag_ns: int
    is_in_sync: bool


class LeaderCore:
    """Leadership of one partition in one leader epoch.

    Attributes:
        me: This broker.
        leader_epoch: The epoch.
        leader_epoch_start: Log end offset when the epoch began; records below may be committed.
        is_established: Whether L1 is complete (`on_established`).
        maximal_isr: Members that count for a commit: the committed set and any proposed members, in
            the order of the replicas.
        compacted_everywhere: The least compacted offset of all replicas.
    """

    __slots__ = (
        "_asked_at",
        "_counted",
        "_eligible",
        "_followers",
        "_has_idle",
        "_in_sync",
        "_is_commit_mode",
        "_joining",
        "_limits",
        "_log",
        "_min_isr",
        "_not_before",
        "_pending",
        "_state",
        "compacted_everywhere",
        "is_established",
        "leader_epoch",
        "leader_epoch_start",
        "maximal_isr",
        "me",
    )

    def __init__(
        self,
        me: BrokerId,
        log: LogView,
        state: PartitionState,
        *,
        min_isr: int,
        is_commit_mode: bool,
        limits: LeaderLimits,
        now: Instant,
        kept: "LeaderCore | None" = None,
    ) -> None:
        """Start to lead in a new epoch (L1).

        Args:
            me: This broker, the leader by `state`.
            log: Its log; fetching has stopped, nothing is appended before `on_established`.
            state: The partition by the metadata.
            min_isr: In-sync replicas that a commit needs (`effective_min_isr`).
            is_commit_mode: Whether only what is on disk counts.
            limits: Times.
            now: Current time.
            kept: The former core if this broker led until now: positions of in-sync members stay
                valid, and those of other replicas are dropped (S27). Pass it only if this broker
                saw every change of the partition in between. A metadata snapshot may hide another
                leader, under which a member may have truncated its log.
        """
        assert state.leader == me
        assert kept is None or kept.leader_epoch < state.leader_epoch
        self.me = me
        self._log = log
        self._limits = limits
        self.leader_epoch: LeaderEpoch = state.leader_epoch
        self.leader_epoch_start = log.log_end_offset
        self.is_established = False
        self._pending: _Pending | None = None
        self._not_before = NEVER
        self._asked_at = now
        self._eligible: Container[BrokerId] = ()
        self._has_idle = False
        self._followers: dict[BrokerId, Follower] = {}
        self._adopt(state, min_isr, is_commit_mode)
        for broker, follower in self._followers.items():
            if broker in state.isr:
                follower.caught_up_at = now
                if kept is not None:
                    _take_over(follower, kept.known(broker))
                    follower.count(is_commit_mode=is_commit_mode)

    # State from the metadata.

    @property
    def state(self) -> PartitionState:
        """The partition as this leader knows it."""
        return self._state

    @property
    def is_serving(self) -> bool:
        """Return whether it may accept records and fetches: L1 is complete, no recovery runs."""
        return self.is_established and not self._state.is_recovering

    @property
    def is_below_min_isr(self) -> bool:
        """Return whether too few replicas are in sync for a commit."""
        return len(self._state.isr) < self._min_isr

    def on_established(self) -> None:
        """L1 is complete: the epoch and its start are in the epoch cache, durably.

        From now on, the leader serves fetches. If the epoch were stored later, a follower could
        receive an earlier epoch without its end offset (KIP-101).
        """
        assert self._log.epochs.latest == self.leader_epoch
        assert self._log.log_end_offset == self.leader_epoch_start
        self.is_established = True

    def on_state(
        self, state: PartitionState, *, min_isr: int, is_commit_mode: bool, now: Instant
    ) -> None:
        """Apply newer metadata; this broker still leads in the same epoch (L7).

        Afterwards the owner reads the high watermark, and fails pending acks when
        `is_below_min_isr`. Older metadata are ignored.
        """
        assert state.partition_id == self._state.partition_id
        if state.partition_epoch < self._state.partition_epoch:  # guard L7.epoch
            return
        assert state.leader == self.me
        assert state.leader_epoch == self.leader_epoch
        was_commit_mode = self._is_commit_mode
        before = self._state
        removed: tuple[BrokerId, ...] = ()
        if state.partition_epoch > before.partition_epoch and self._pending is not None:
            # Any request in flight is based on an older state and can no longer be applied.
            removed = self._pending.removed
            self._pending = None  # guard L7.pending
        self._adopt(state, min_isr, is_commit_mode)
        for broker, follower in self._followers.items():
            if broker in state.isr and broker not in before.isr:
                follower.caught_up_at = now
            elif broker in before.isr and broker not in state.isr:
                follower.leave(now, self._limits, is_lagging=broker in removed)
            if is_commit_mode != was_commit_mode:
                follower.count(is_commit_mode=is_commit_mode)
                if follower.is_at_end:
                    self._start_to_lag(follower, now)

    def _adopt(self, state: PartitionState, min_isr: int, is_commit_mode: bool) -> None:
        """Apply a state: update followers that are new, removed, or in another session."""
        self._state = state
        self._min_isr = min_isr
        self._is_commit_mode = is_commit_mode
        former = self._followers
        self._followers = {}
        for broker, expected in zip(state.replicas, state.replica_epochs, strict=True):
            if broker == self.me:
                continue
            follower = former.get(broker)
            if follower is None:
                follower = Follower(broker=broker, expected_epoch=expected)
            follower.expected_epoch = expected
            if follower.replica_epoch < expected:  # guard L7.session
                follower.forget()
            self._followers[broker] = follower
        self._in_sync = [self._followers[one] for one in state.isr if one != self.me]
        self._joining: list[Follower] = []
        self._count_members()
        self.note_compacted()

    def _count_members(self) -> None:
        """Update the maximal in-sync set, which counts for a commit during a change."""
        isr = self._state.isr
        added = () if self._pending is None else self._pending.added
        self.maximal_isr = tuple(
            replica
            for replica in self._state.replicas
            if replica in isr or replica in added  # guard L5.maximal
        )
        self._counted = [self._followers[one] for one in self.maximal_isr if one != self.me]
        for broker, follower in self._followers.items():
            follower.is_member = broker in self.maximal_isr
        self._joining = [one for one in self._joining if not one.is_member]

    # Fetches and appends.

    def on_fetch(
        self, replica: BrokerId, fetch: FetchPosition, clock: SessionClock, now: Instant
    ) -> FetchOutcome:
        """Check a fetch and record its position (L3); the order of the guards matters.

        Args:
            replica: The follower.
            fetch: Its position.
            clock: Clock of its fetch session, for later fetches that leave the position unchanged.
            now: Current time.

        Returns:
            `Accepted`: the high watermark may have advanced, and a proposal may be due. Any other
            result: the position was not recorded.
        """
        log = self._log
        follower = self._followers.get(replica)
        refusal = self._refusal(fetch, follower)
        if refusal is not None:
            if follower is not None:
                follower.clock = None  # the recorded position is no longer valid
            return refusal
        assert follower is not None
        log_end = log.log_end_offset
        offset = fetch.fetch_offset
        follower.replica_epoch = fetch.replica_epoch
        # The last value, not the maximum: a replica that lost its tail reports a lower end (S44).
        follower.log_end_offset = counted = offset  # guard L3.assign
        follower.flushed_offset = fetch.flushed_offset
        if fetch.compacted_offset != follower.compacted_offset:
            follower.compacted_offset = fetch.compacted_offset
            self.note_compacted()
        if self._is_commit_mode and fetch.flushed_offset < offset:  # guard L3.flushed
            counted = fetch.flushed_offset
        follower.counted = counted
        if counted >= log_end:
            follower.caught_up_at = now
            follower.is_at_end = self._has_idle = True
        else:
            follower.is_at_end = False
            if counted >= follower.leader_end:
                follower.caught_up_at = max(follower.caught_up_at, follower.fetched_at)
        if not follower.is_member:
            self._note_joining(follower, now)
        follower.has_fetched = True
        follower.leader_end = log_end
        follower.fetched_at = now
        follower.clock = clock
        return ACCEPTED

    def _refusal(
        self, fetch: FetchPosition, follower: Follower | None
    ) -> Refused | Diverging | None:
        """Return the reason to refuse a position, `None` if it is valid."""
        refused = self._refused_session(fetch, follower)
        if refused is not None:
            return refused
        log = self._log
        offset = fetch.fetch_offset
        if offset < log.log_start_offset:  # guard L3.d
            return Refused(FetchError.OFFSET_OUT_OF_RANGE)
        epoch = fetch.last_fetched_epoch
        if epoch is not None:
            found = log.epochs.end_offset_for(epoch, log.log_end_offset)
            if found is None:  # guard L3.e_unknown
                return Refused(FetchError.OFFSET_OUT_OF_RANGE)
            if (
                found[0] < epoch  # guard L3.e_epoch
                or found[1] < offset  # guard L3.e_end
            ):
                return Diverging(*found)
        if offset > log.log_end_offset:  # guard L3.f
            return Refused(FetchError.OFFSET_OUT_OF_RANGE)
        return None

    def _refused_session(self, fetch: FetchPosition, follower: Follower | None) -> Refused | None:
        """Return why a fetch does not match this partition, epoch and replica session."""
        error: FetchError | None = None
        if fetch.partition != self._state.partition_id:  # guard L3.a
            error = FetchError.UNKNOWN_PARTITION
        elif fetch.leader_epoch < self.leader_epoch:  # guard L3.b_older
            error = FetchError.FENCED_LEADER_EPOCH
        elif fetch.leader_epoch > self.leader_epoch:  # guard L3.b_newer
            error = FetchError.UNKNOWN_LEADER_EPOCH
        elif not self.is_serving:  # guard L1.serving
            error = FetchError.RECOVERING
        elif follower is None:  # guard L3.c_replica
            error = FetchError.NOT_REPLICA
        # With a higher epoch, this leader's metadata are stale: record the fetch, but do not let
        # the follower join.
        elif (
            fetch.replica_epoch < follower.replica_epoch  # guard L3.c_held
            or fetch.replica_epoch < follower.expected_epoch  # guard L3.c_expected
        ):
            error = FetchError.STALE_REPLICA_EPOCH
        return None if error is None else Refused(error)

    def note_compacted(self) -> None:
        """Update the least compacted offset of all replicas after a compaction.

        Below it no replica holds records that a tombstone deletes, so tombstones may be removed. A
        broker that was not a replica then, and becomes one with its old log, restarts the log (F3).
        """
        own = self._log.compacted_offset
        offsets = [follower.compacted_offset for follower in self._followers.values()]
        self.compacted_everywhere = min([own, *offsets])  # guard L3.compacted

    def on_answered(self, replica: BrokerId, asked_at: Instant) -> None:
        """Note that records were sent for an earlier position that held at `asked_at`.

        If the follower then holds all records up to the current end, it was caught up at
        `asked_at`, although its fetches did not name the partition (KIP-227).
        """
        follower = self._followers.get(replica)
        if follower is not None and asked_at > follower.fetched_at:
            follower.fetched_at = asked_at
            follower.leader_end = self._log.log_end_offset

    def on_forgotten(self, replica: BrokerId) -> None:
        """Note that later fetches of the replica's session no longer cover this partition."""
        follower = self._followers.get(replica)
        if follower is not None:
            follower.clock = None

    def on_append(self, now: Instant) -> None:
        """Handle an append: followers that were caught up start to lag now.

        The lag counts from the append, not from the last fetch. The leader holds a fetch while it
        has nothing to send, and a follower needs time for its next fetch.
        """
        if self._has_idle:
            self._has_idle = False
            for follower in self._followers.values():
                if follower.is_at_end:
                    self._start_to_lag(follower, now)

    def _start_to_lag(self, follower: Follower, now: Instant) -> None:
        follower.caught_up_at = now
        follower.is_at_end = False

    def check_min_isr(self) -> None:
        """Refuse an append with acks of all replicas that could not be committed (L2).

        Raises:
            NotEnoughReplicasError: Too few replicas are in sync; nothing is to be appended.
        """
        if len(self._state.isr) < self._min_isr:  # guard L2.min_isr
            raise NotEnoughReplicasError(
                f"not appended: {len(self._state.isr)} replicas in sync, {self._min_isr} needed"
            )

    # High watermark.

    def high_watermark(self) -> Offset:
        """Return the first uncommitted offset, for the owner to store (L4); it never falls.

        Every member of the maximal in-sync set must hold a record in this epoch, and the committed
        set must be large enough: only then is every possible next leader sure to have it.
        """
        log = self._log
        present = log.high_watermark
        if not self.is_serving or len(self._state.isr) < self._min_isr:  # guard L4.min_isr
            return present
        end = log.recovery_point if self._is_commit_mode else log.log_end_offset  # guard L4.flushed
        for follower in self._counted:
            counted = follower.counted
            if counted is None:
                return present  # guard L4.unknown
            end = min(end, counted)  # guard L4.follower
        for follower in self._joining:
            if follower.counted is not None:
                end = min(end, follower.counted)
        assert end <= log.log_end_offset
        return max(end, present)  # guard L4.monotone

    @property
    def is_high_watermark_known(self) -> bool:
        """Return whether the latest offset may be returned.

        Every record that may be committed is known (I9).

        Before that, a request for the latest offset, or for one at or above the high watermark,
        gets `OffsetNotAvailableError`.
        """
        return self._log.high_watermark >= self.leader_epoch_start

    def _note_joining(self, follower: Follower, now: Instant) -> None:
        """Hold the high watermark for a follower that is about to join, so that it can (KIP-497).

        Otherwise, under load, the follower would lag at each of its fetches if the leader alone
        commits.
        """
        wanted = (
            not follower.is_member
            and follower.broker in self._eligible
            and follower.replica_epoch == follower.expected_epoch
            and now - follower.caught_up_at <= self._limits.lag_ns
            and now >= follower.barred_until
        )
        if wanted != (follower in self._joining):
            if wanted:
                self._joining.append(follower)
            else:
                self._joining.remove(follower)

    def on_eligible(self, eligible: Container[BrokerId], now: Instant) -> None:
        """Update the eligible brokers; stop holding the high watermark for ineligible followers.

        Afterwards the owner reads the high watermark.
        """
        self._eligible = eligible
        for follower in tuple(self._joining):
            self._note_joining(follower, now)

    # Proposals.

    def next_proposal(self, now: Instant, eligible: Container[BrokerId]) -> IsrProposal | None:
        """Return the change of the in-sync set to send now, if any (L5).

        Args:
            now: Current time.
            eligible: Brokers that are neither fenced nor about to stop, by this broker's metadata.

        Returns:
            At most one proposal is pending: after a proposal, `on_proposal_result` or newer
            metadata must come first.
        """
        self.on_eligible(eligible, now)
        self._asked_at = now
        pending = self._pending
        if pending is not None:  # guard L5.pending
            if pending.retry_at is None or now < pending.retry_at:
                return None
            pending.retry_at = None
            return pending.proposal
        if not self.is_established or now < self._not_before or self.me not in eligible:
            return None
        if self._state.is_recovering:
            return self._propose((), ())
        added = [
            broker
            for broker, follower in self._followers.items()
            if broker not in self._state.isr
            and broker in eligible  # guard L5.eligible
            and may_join(
                follower,
                high_watermark=self._log.high_watermark,
                leader_epoch_start=self.leader_epoch_start,
                limits=self._limits,
                now=now,
            )
        ]
        if added:
            return self._propose(tuple(added), ())
        removed = self._laggards(now)
        return self._propose((), removed) if removed else None

    def restart_lag(self, now: Instant) -> None:
        """Restart the lag of all members, as this broker could hear nobody until now."""
        for follower in self._in_sync:
            follower.caught_up_at = now

    def _laggards(self, now: Instant) -> tuple[BrokerId, ...]:
        slow = laggards(
            self._in_sync,
            log_end_offset=self._log.log_end_offset,
            spare=len(self._state.isr) - self._min_isr,
            limits=self._limits,
            now=now,
        )
        return tuple(follower.broker for follower in slow)

    def _propose(self, added: tuple[BrokerId, ...], removed: tuple[BrokerId, ...]) -> IsrProposal:
        proposal = self._proposal(added, removed)
        self._pending = _Pending(proposal, added, removed)
        self._count_members()
        return proposal

    def _proposal(self, added: tuple[BrokerId, ...], removed: tuple[BrokerId, ...]) -> IsrProposal:
        state = self._state
        members: list[tuple[BrokerId, int]] = []
        for broker in state.replicas:
            if broker in added:
                members.append((broker, self._followers[broker].replica_epoch))
            elif broker in state.isr and broker not in removed:
                members.append((broker, MEMBER_ALREADY))
        return IsrProposal(
            state.partition_id,
            state.leader_epoch,
            state.partition_epoch,
            tuple(members),
            is_recovering=False,
        )

    def on_proposal_result(
        self, proposal: IsrProposal, outcome: ProposalOutcome, now: Instant
    ) -> None:
        """Handle the answer to a proposal (L6).

        The metadata of an applied proposal may arrive before or after.

        While a request that adds members may still be applied, they keep counting: they may be
        elected without this leader knowing (I3, S33).
        """
        pending = self._pending
        if pending is None or pending.proposal != proposal:  # guard L6.correlates
            return
        match outcome:
            case ProposalOutcome.SETTLED:  # guard L6.settled
                pending.retry_at = None
            case ProposalOutcome.UNKNOWN:  # guard L6.unknown
                pending.has_unknown = True
                pending.retry_at = Instant(now + self._limits.retry_ns)
            case ProposalOutcome.NOT_ATTEMPTED:
                self._not_before = Instant(now + self._limits.retry_ns)
                if pending.has_unknown:  # guard L6.not_attempted
                    pending.retry_at = self._not_before
                else:
                    self._drop_pending()
            case ProposalOutcome.INELIGIBLE:
                self._on_ineligible(pending, now)

    def _on_ineligible(self, pending: _Pending, now: Instant) -> None:
        """Handle a refused member; do not propose it again for a while (S40).

        A duplicated or delayed request might still be applied once the member is eligible again. So
        the leader proposes the current set again. That raises the partition epoch, after which no
        copy can be applied. Until then the member keeps counting, even if that proposal is never
        sent.
        """
        self._not_before = Instant(now + self._limits.ineligible_ns)
        if not pending.added:
            self._drop_pending()
            return
        for broker in pending.added:
            self._followers[broker].barred_until = self._not_before
        pending.has_unknown = True  # guard L6.copy
        withdrawal = self._proposal((), ())
        is_first = pending.proposal != withdrawal
        pending.proposal = withdrawal  # guard L6.withdraw
        pending.retry_at = now if is_first else self._not_before

    def _drop_pending(self) -> None:
        self._pending = None
        self._count_members()

    def next_deadline(self) -> Instant | None:
        """Return the time to call `next_proposal` if no event comes first, `None` for never."""
        pending = self._pending
        if pending is not None:
            return pending.retry_at
        if not self.is_established:
            return None
        limits = self._limits
        asked_at = self._asked_at
        log_end = self._log.log_end_offset
        limit = limits.lag_ns if len(self._state.isr) > self._min_isr else limits.lag_hard_ns
        due = [one.caught_up_at + limit + 1 for one in self._in_sync if one.counted != log_end]
        if self._state.is_recovering or len(self._in_sync) < len(self._followers):
            due.append(asked_at + limits.recheck_ns)
        if not due:
            return None
        return Instant(max(min(due), asked_at + limits.pace_ns, self._not_before))

    def known(self, replica: BrokerId) -> Follower | None:
        """Return the state of a follower, for the core of the next epoch."""
        return self._followers.get(replica)

    def lags(self, now: Instant) -> tuple[ReplicaLag, ...]:
        """Return the lag of all followers, for metrics."""
        log_end = self._log.log_end_offset
        found: list[ReplicaLag] = []
        for broker, one in self._followers.items():
            end = one.log_end_offset
            has_all = end is not None and end >= log_end
            known = self._log.log_start_offset if end is None else end
            lag_ns = 0 if has_all else now - max(one.caught_up_at, Instant(0))
            records = max(0, log_end - known)
            found.append(ReplicaLag(broker, end, records, lag_ns, broker in self._state.isr))
        return tuple(found)


def _take_over(follower: Follower, known: Follower | None) -> None:
    """Carry over the position of an in-sync member from the former epoch (L1)."""
    if known is None or known.replica_epoch != follower.expected_epoch:  # guard L1.session
        return
    follower.replica_epoch = known.replica_epoch
    follower.log_end_offset = known.log_end_offset
    follower.flushed_offset = known.flushed_offset
