"""A leader's core with a log in memory and a manual clock."""

from collections.abc import Container

from liftbridge_broker.model.fetching import FetchOutcome, FetchPosition, SessionClock
from liftbridge_broker.model.ids import BrokerId, Instant, LeaderEpoch, MetadataIndex, Offset
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.replication.isr import IsrProposal, LeaderLimits, ProposalOutcome
from liftbridge_broker.replication.leader import LeaderCore
from liftbridge_testkit.batches import PARTITION
from liftbridge_testkit.replica_logs import ReplicaLog, partition_of

A, B, C, D = (BrokerId(name) for name in "abcd")
ALL = frozenset({A, B, C, D})
LIMITS = LeaderLimits()
LAG = LIMITS.lag_ns
KNOWN = LeaderEpoch(-1)


class LeaderWorld:
    """A leader with a log and a manual clock; the test chooses the content of fetches.

    Attributes:
        now: Current time.
        log: Its log.
        state: The partition as `lead` takes it.
        min_isr: In-sync replicas that a commit needs.
        commit: Whether only what is on disk counts.
        clocks: Fetches of each follower's session.
        core: The core.
    """

    def __init__(
        self,
        state: PartitionState | None = None,
        *,
        log: ReplicaLog | None = None,
        min_isr: int = 2,
        commit: bool = False,
        established: bool = True,
    ) -> None:
        self.now = Instant(1_000 * MILLISECOND_NS)
        self.log = log or ReplicaLog.of((1, 10))
        self.state = state or partition_of()
        self.min_isr = min_isr
        self.commit = commit
        self.log.begin(self.state.leader_epoch)
        self.clocks: dict[BrokerId, SessionClock] = {}
        self.core = self.lead()
        if established:
            self.core.on_established()

    def lead(self, kept: LeaderCore | None = None) -> LeaderCore:
        """Create a core for the current state."""
        return LeaderCore(
            A,
            self.log,
            self.state,
            min_isr=self.min_isr,
            is_commit_mode=self.commit,
            limits=LIMITS,
            now=self.now,
            kept=kept,
        )

    def fetch(
        self,
        replica: BrokerId,
        offset: int,
        *,
        epoch: int | None = None,
        last: int | None = KNOWN,
        session: int = 1,
        flushed: int = 0,
        compacted: int = 0,
        at: int = 0,
    ) -> FetchOutcome:
        """Send a fetch, `at` nanoseconds later; by default with the epoch before its offset."""
        self.now = Instant(self.now + at)
        clock = self.clocks.setdefault(replica, SessionClock(self.now))
        clock.last_fetch = self.now
        known = self.log.epochs.epoch_at(Offset(max(0, offset - 1)))
        position = FetchPosition(
            PARTITION,
            MetadataIndex(session),
            LeaderEpoch(self.core.leader_epoch if epoch is None else epoch),
            Offset(offset),
            Offset(flushed),
            known if last == KNOWN else None if last is None else LeaderEpoch(last),
            Offset(0),
            Offset(compacted),
        )
        return self.core.on_fetch(replica, position, clock, self.now)

    def advance(self) -> Offset:
        """Store the high watermark, as the owner does."""
        self.log.high_watermark = self.core.high_watermark()
        return self.log.high_watermark

    def append(self, count: int = 1) -> None:
        """Append records."""
        for _ in range(count):
            self.log.append(self.core.leader_epoch, b"new")
        self.core.on_append(self.now)

    def propose(self, eligible: Container[BrokerId] = ALL, *, after: int = 0) -> IsrProposal | None:
        """Return the proposal that is due `after` nanoseconds later."""
        self.now = Instant(self.now + after)
        return self.core.next_proposal(self.now, eligible)

    def learn(self, state: PartitionState) -> None:
        """Apply newer metadata."""
        self.core.on_state(
            state,
            min_isr=self.min_isr,
            is_commit_mode=self.commit,
            now=self.now,
        )

    def result(self, proposal: IsrProposal, outcome: ProposalOutcome) -> None:
        """Give the core the outcome of a proposal."""
        self.core.on_proposal_result(proposal, outcome, self.now)


def brokers(proposal: IsrProposal | None) -> str:
    """Return the proposed members as text; empty without a proposal."""
    if proposal is None:
        return ""
    return "".join(broker for broker, _ in proposal.isr)


def expanding() -> tuple[LeaderWorld, IsrProposal]:
    """Return a leader that has just proposed to add the third broker."""
    world = LeaderWorld(partition_of("ab"))
    for replica in (B, C):
        world.fetch(replica, 10)
    proposal = world.propose()
    assert proposal is not None
    return world, proposal
