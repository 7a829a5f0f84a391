"""The leader's state of its followers, and the in-sync set derived from it (L5, KIP-497).

Values and decisions; `leader.py` keeps the state.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from liftbridge_broker.errors import (
    FailedPreconditionError,
    IneligibleReplicaError,
    InvalidRequestError,
    LiftbridgeError,
    NotControllerError,
    NotFoundError,
)
from liftbridge_broker.model.fetching import SessionClock
from liftbridge_broker.model.ids import (
    OFFSET_MAX,
    BrokerId,
    Instant,
    LeaderEpoch,
    MetadataIndex,
    Offset,
    PartitionId,
)
from liftbridge_broker.model.units import MILLISECOND_NS

NEVER: Final = Instant(-(1 << 62))
NO_SESSION: Final = MetadataIndex(0)
MEMBER_ALREADY: Final = -1
"""Replica epoch sent for a member that is already in sync (KIP-903)."""


class LeaderLimits(NamedTuple):
    """Times of a leader, in nanoseconds.

    Attributes:
        lag_ns: Lag after which a follower leaves the in-sync set, if enough replicas for a commit
            stay in sync.
        lag_hard_ns: Lag after which a follower leaves the in-sync set even if too few replicas for
            a commit stay.
        retry_ns: Pause before a proposal with an unknown outcome is repeated.
        ineligible_ns: Pause before a replica that the controller refused is proposed again.
        recheck_ns: Time between two checks whether a replica may join; at most `lag_ns`.
        pace_ns: Shortest time between two deadlines.
        flap_window_ns: A replica that leaves the in-sync set again within this time is excluded for
            a while.
        flap_delay_ns: Duration of the first exclusion; it doubles each time.
        flap_delay_ns_max: Longest exclusion.
    """

    lag_ns: int = 700 * MILLISECOND_NS
    lag_hard_ns: int = 10_000 * MILLISECOND_NS
    retry_ns: int = 300 * MILLISECOND_NS
    ineligible_ns: int = 1_000 * MILLISECOND_NS
    recheck_ns: int = 300 * MILLISECOND_NS
    pace_ns: int = 20 * MILLISECOND_NS
    flap_window_ns: int = 60_000 * MILLISECOND_NS
    flap_delay_ns: int = 1_000 * MILLISECOND_NS
    flap_delay_ns_max: int = 30_000 * MILLISECOND_NS


class IsrProposal(NamedTuple):
    """In-sync set that a leader requests (`AlterPartition`).

    Attributes:
        partition_id: The partition.
        leader_epoch: Leader epoch of the leader.
        partition_epoch: Partition epoch of the state that the decision is based on.
        isr: Members with the sessions they joined in, `MEMBER_ALREADY` for those in sync before.
        is_recovering: Whether the leader does not serve yet after an unclean election.
    """

    partition_id: PartitionId
    leader_epoch: LeaderEpoch
    partition_epoch: MetadataIndex
    isr: tuple[tuple[BrokerId, int], ...]
    is_recovering: bool


class ProposalOutcome(Enum):
    """Outcome of a proposal (L6)."""

    SETTLED = "settled"
    """Applied, or refused because the metadata here are behind.

    The leader waits for newer metadata.
    """
    INELIGIBLE = "ineligible"
    """The controller refused a member: it is fenced, about to stop, or in another session."""
    NOT_ATTEMPTED = "not attempted"
    """The request never left this broker."""
    UNKNOWN = "unknown"
    """The request may have been applied, or may still be applied."""


def outcome_of(error: LiftbridgeError | None) -> ProposalOutcome:
    """Return the outcome for an answer of the controller; `None` is success."""
    match error:
        case IneligibleReplicaError():
            return ProposalOutcome.INELIGIBLE
        case NotControllerError():
            return ProposalOutcome.UNKNOWN
        case None | FailedPreconditionError() | InvalidRequestError() | NotFoundError():
            return ProposalOutcome.SETTLED
        case _:
            return ProposalOutcome.UNKNOWN


@dataclass(slots=True, kw_only=True, eq=False)
class Follower:
    """A leader's state of one follower in one leader epoch.

    Attributes:
        broker: The follower.
        expected_epoch: Its session by the metadata.
        replica_epoch: Session of its last accepted fetch; `NO_SESSION` for none.
        log_end_offset: End of its log; `None` while unknown.
        flushed_offset: End of the part of it on disk.
        compacted_offset: Offset up to which it was cleanly compacted; 0 while unknown.
        counted: Offset that counts for a commit: `log_end_offset`, or in commit mode what is
            flushed.
        is_member: Whether it is in the maximal in-sync set.
        has_fetched: Whether a fetch was accepted in this epoch; false if the state is only that of
            the last epoch.
        fetched_at: Time at which its position was last received.
        leader_end: Log end offset of the leader at `fetched_at`.
        caught_up_at: Time at which it last held all records of the leader.
        is_at_end: Whether it holds all records of the leader.
        left_at: Time at which it left the in-sync set.
        clock: Clock of its fetch session, for fetches that leave the position unchanged.
        shrunk_at: Time at which it was last removed for lagging.
        flap_delay_ns: Duration of the exclusion that followed.
        barred_until: Earliest time of the next proposal with it.
    """

    broker: BrokerId
    expected_epoch: MetadataIndex
    replica_epoch: MetadataIndex = NO_SESSION
    log_end_offset: Offset | None = None
    flushed_offset: Offset = Offset(0)  # noqa: RUF009 - a NewType call is the identity
    compacted_offset: Offset = Offset(0)  # noqa: RUF009 - likewise
    counted: Offset | None = None
    is_member: bool = False
    has_fetched: bool = False
    fetched_at: Instant = NEVER
    leader_end: Offset = Offset(OFFSET_MAX)  # noqa: RUF009 - likewise
    caught_up_at: Instant = NEVER
    is_at_end: bool = False
    left_at: Instant = NEVER
    clock: SessionClock | None = None
    shrunk_at: Instant = NEVER
    flap_delay_ns: int = 0
    barred_until: Instant = NEVER

    @property
    def last_fetch(self) -> Instant:
        """Return the time at which a fetch last confirmed the known position."""
        clock = self.clock
        return self.fetched_at if clock is None else max(self.fetched_at, clock.last_fetch)

    def count(self, *, is_commit_mode: bool) -> None:
        """Update the offset that counts for a commit."""
        end = self.log_end_offset
        if end is None or not is_commit_mode:
            self.counted = end
        else:
            self.counted = min(end, self.flushed_offset)

    def forget(self) -> None:
        """Forget the position of its log."""
        self.replica_epoch = NO_SESSION
        self.log_end_offset = self.counted = None
        self.compacted_offset = Offset(0)
        self.has_fetched = self.is_at_end = False
        self.fetched_at = NEVER
        self.leader_end = Offset(OFFSET_MAX)
        self.clock = None

    def leave(self, now: Instant, limits: LeaderLimits, *, is_lagging: bool) -> None:
        """Note that the follower left the in-sync set.

        Repeated lagging excludes it for longer (S43).
        """
        self.left_at = now
        if not is_lagging:
            return
        delay = 0
        if now - self.shrunk_at < limits.flap_window_ns:
            delay = min(max(2 * self.flap_delay_ns, limits.flap_delay_ns), limits.flap_delay_ns_max)
        self.flap_delay_ns = delay
        self.shrunk_at = now
        self.barred_until = Instant(now + delay)


def may_join(
    follower: Follower,
    *,
    high_watermark: Offset,
    leader_epoch_start: Offset,
    limits: LeaderLimits,
    now: Instant,
) -> bool:
    """Return whether to propose adding a follower; the caller checks its eligibility (L5).

    The follower must hold all committed records. Records from before this epoch may be committed
    above the leader's current high watermark, so the follower must reach the start of the epoch
    (S41). A position from before the epoch, or from before the follower left, proves nothing (S42).
    Nor does a position from another session than that in the metadata (S39).
    """
    counted = follower.counted
    if counted is None or not follower.has_fetched:  # guard L5.fetched
        return False
    if counted < high_watermark:  # guard L5.high_watermark
        return False
    if counted < leader_epoch_start:  # guard L5.epoch_start
        return False
    if follower.replica_epoch != follower.expected_epoch:  # guard L5.session
        return False
    last_fetch = follower.last_fetch
    if last_fetch <= follower.left_at:  # guard L5.left
        return False
    # A silent follower would soon be removed again.
    return now - last_fetch <= limits.lag_ns and now >= follower.barred_until  # guard L5.recent


def laggards(
    members: Iterable[Follower],
    *,
    log_end_offset: Offset,
    spare: int,
    limits: LeaderLimits,
    now: Instant,
) -> Sequence[Follower]:
    """Return the in-sync followers to remove, longest lag first (L5).

    Args:
        members: In-sync followers.
        log_end_offset: End of the leader's log.
        spare: Number of replicas that may be removed while enough for a commit remain.
        limits: Limits of the lag.
        now: Current time.
    """
    behind = [
        member
        for member in members
        if member.counted != log_end_offset and now - member.caught_up_at > limits.lag_ns
    ]
    behind.sort(key=lambda one: one.caught_up_at)
    return [
        one
        for place, one in enumerate(behind)
        # Below min ISR nothing is committed, so removing another replica helps only readers.
        if place < spare or now - one.caught_up_at > limits.lag_hard_ns  # guard L5.spare
    ]
