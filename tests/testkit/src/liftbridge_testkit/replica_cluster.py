"""One partition on three brokers: real replication cores and controller under random faults.

A run is a sequence of random steps: records, fetches, lost, duplicated and reordered answers, late
metadata, proposals, fencing, elections, and crashes that lose unsynced data. After each step the
run checks the invariants of docs/spec/replication.md that concern the cores. An observer knows
which record was committed at which offset.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from liftbridge_broker.controller.commands import (
    AlterPartition,
    ElectPreferred,
    IsrMember,
    UnfenceBroker,
)
from liftbridge_broker.controller.state import effective_min_isr
from liftbridge_broker.errors import LiftbridgeError, NotEnoughReplicasError
from liftbridge_broker.model.fetching import ACCEPTED, Diverging, FetchedHead, Refused, SessionClock
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex, PartitionId
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.replication.follower import (
    Append,
    Damaged,
    FollowerCore,
    FollowerLimits,
    Rejected,
    RestartAt,
    Truncate,
    Wait,
)
from liftbridge_broker.replication.isr import IsrProposal, LeaderLimits, ProposalOutcome, outcome_of
from liftbridge_broker.replication.leader import LeaderCore
from liftbridge_testkit.controller_world import ControllerWorld
from liftbridge_testkit.replica_brokers import (
    Answer,
    Broker,
    Command,
    Fetch,
    Message,
    Outcome,
    Reply,
    Request,
    View,
    require,
)
from liftbridge_testkit.replica_checks import MIN_ISR, Checks
from liftbridge_testkit.replica_logs import Record, ReplicaLog

NAMES = "abc"
MESSAGES_MAX = 60
LATE_MAX = 6
Weighted = tuple[Callable[[], None], int]
"""A step and its weight; weights are relative."""


class Steps:
    """A family of further steps, which only some runs have.

    A subclass overrides the methods it needs.

    Attributes:
        cluster: The run.
    """

    def __init__(self, cluster: "ReplicaCluster") -> None:
        self.cluster = cluster

    def faults(self) -> Sequence[Weighted]:
        """Return steps that run until the faults stop."""
        return ()

    def always(self) -> Sequence[Weighted]:
        """Return steps that also run afterwards, so that the partition recovers."""
        return ()

    def ended(self, one: Broker) -> None:
        """Handle the end of a broker's process."""

    def check(self) -> None:
        """Check the invariants of this family after every step.

        Raise `BrokenError` if one is broken.
        """

    @property
    def is_well(self) -> bool:
        """Return whether the state of this family is in order."""
        return True


class ReplicaCluster:
    """A run.

    Attributes:
        counts: Counts of events.
        is_commit_mode: Whether only synced records count.
        late: Copies of messages that arrive much later.
        late_commands: Copies of commands that arrive much later.
        committed: Records that a leader committed, from offset 0 on.
        families: Families of further steps in this run.
    """

    def __init__(
        self, seed: int, *, faults: bool = True, families: Sequence[type[Steps]] = ()
    ) -> None:
        """Start the brokers and create the partition.

        Args:
            seed: Seed of all random choices.
            faults: Whether messages are lost and brokers crash.
            families: Further steps.
        """
        self.rng = Random(seed)
        self.faults = faults
        self.now = Instant(10_000 * MILLISECOND_NS)
        self.counts: Counter[str] = Counter()
        self.committed: list[Record] = []
        self.messages: list[Message] = []
        self.late: list[Message] = []
        self.late_commands: list[Command] = []
        self.is_commit_mode = seed % 4 == 0
        self._correlation = 0
        self._value = 0

        self.world = ControllerWorld()
        self.world.start(NAMES)
        self.partition: PartitionId = self.world.create(3, min_isr=MIN_ISR)
        self.brokers = {
            BrokerId(name): Broker(BrokerId(name), ReplicaLog(self.partition)) for name in NAMES
        }
        for one in self.brokers.values():
            one.broker_epoch = self.world.epoch(one.broker)
        self.checks = Checks(self.world, self.partition, self.brokers, self.committed, self.counts)
        self.history: list[View] = []
        self.note_view()
        for one in self.brokers.values():
            self.activate(one, kept=None)
        self.families = [family(self) for family in families]

    # The metadata.

    def note_view(self) -> None:
        partition = self.world.get(self.partition)
        eligible = frozenset(
            broker.broker for broker in self.world.state.brokers.values() if broker.can_lead
        )
        if not self.history or (partition, eligible) != self.history[-1][1:]:
            self.history.append(View(self.world.index, partition, eligible))

    def apply(self, command: object) -> object:
        decision = self.world.apply(command)  # type: ignore[arg-type]  # a command of the union
        self.note_view()
        return decision.answer

    def learn(self, one: Broker, *, to: int | None = None) -> None:
        """Give a broker later metadata, step by step, or at once by a snapshot."""
        last = len(self.history) - 1 if to is None else to
        if self.rng.random() < 0.15:
            if one.seen < last:
                self.counts["jump"] += 1
                one.seen = last
                self.activate(one, kept=None)
            return
        while one.seen < last:
            one.seen += 1
            self.activate(one, kept=one.leader)

    def activate(self, one: Broker, *, kept: LeaderCore | None) -> None:
        view = self.history[one.seen]
        state = view.partition
        if view.applied_index < one.broker_epoch:
            return  # the barrier: nothing acts before it knows of its own registration
        stream = next(iter(self.world.state.streams.values()))
        min_isr = effective_min_isr(stream, state)
        if state.leader == one.broker:
            one.follower = None
            if one.leader is not None and one.leader.leader_epoch == state.leader_epoch:
                one.leader.on_state(
                    state, min_isr=min_isr, is_commit_mode=self.is_commit_mode, now=self.now
                )
            else:
                self._lead(one, state, min_isr, kept)
            self.advance(one)
            return
        one.leader = None
        one.asked = None
        if one.broker not in state.replicas:
            self._leave(one)
        elif state.leader is None:
            one.follower = None
        elif one.follower is None:
            one.follower = FollowerCore(
                one.broker,
                one.log,
                state,
                is_commit_mode=self.is_commit_mode,
                limits=FollowerLimits(),
                rng=self.rng,
                now=self.now,
            )
        else:
            one.follower.on_state(state, is_commit_mode=self.is_commit_mode, now=self.now)

    def _leave(self, one: Broker) -> None:
        """Delete the data of a replica that left the partition."""
        one.follower = None
        if one.log.log_end_offset:
            self.counts["leave"] += 1
            one.log = ReplicaLog(self.partition)
        one.is_clean = True

    def _lead(
        self, one: Broker, state: PartitionState, min_isr: int, kept: LeaderCore | None
    ) -> None:
        self.counts["lead"] += 1
        one.asked = None
        one.log.begin(state.leader_epoch)
        one.leader = LeaderCore(
            one.broker,
            one.log,
            state,
            min_isr=min_isr,
            is_commit_mode=self.is_commit_mode,
            limits=LeaderLimits(),
            now=self.now,
            kept=kept,
        )
        one.leader.on_established()

    # Steps.

    def step(self) -> None:
        """Take one random step, and check all invariants."""
        self.now = Instant(self.now + self.rng.randrange(20 * MILLISECOND_NS))
        steps = [
            (self._step_deliver, 40),
            (self._step_fetch, 20),
            (self._step_learn, 8),
            (self._step_propose, 8),
            (self._step_sync, 12 if self.is_commit_mode else 3),
            (self._step_timeout, 4),
            (self._step_unfence, 4),
        ]
        if self.faults:
            steps += [
                (self._step_append, 10),
                (self._step_fence, 1),
                (self._step_elect, 1),
                (self._step_crash, 1),
                (self._step_wait, 1),
                (self._step_retention, 1),
                (self._step_late, 2),
            ]
        for family in self.families:
            steps += [*family.always(), *(family.faults() if self.faults else ())]
        (act,) = self.rng.choices([act for act, _ in steps], [weight for _, weight in steps])
        act()
        for broker in self.brokers.values():
            if broker.is_running and broker.leader is not None:
                self.advance(broker)
        self.checks.run()
        for family in self.families:
            family.check()

    def any_broker(self) -> Broker:
        """Return a random broker."""
        return self.brokers[self.rng.choice(list(self.brokers))]

    def send(self, message: Message) -> None:
        if self.faults and self.rng.random() < 0.1:
            self.counts["lost"] += 1
            return
        if self.faults and (isinstance(message, Request) or self.rng.random() < 0.05):
            self.late.append(message)
            del self.late[:-LATE_MAX]
        if self.faults and isinstance(message, Command):
            self.late_commands.append(message)
            del self.late_commands[:-LATE_MAX]
        copies = 2 if self.faults and self.rng.random() < 0.1 else 1
        self.messages += [message] * copies
        if len(self.messages) > MESSAGES_MAX:
            del self.messages[0]

    def _step_deliver(self) -> None:
        if not self.messages:
            return
        place = self.rng.randrange(len(self.messages)) if self.faults else 0
        match self.messages.pop(place):
            case Fetch() as fetch:
                self._on_fetch(fetch)
            case Reply() as reply:
                self._on_reply(reply)
            case Request() as request:
                self._on_request(request)
            case Outcome(leader, run, proposal, outcome):
                self._on_outcome(leader, run, proposal, outcome)
            case Command(command, then):
                answer = self.apply(command)
                if then is not None:
                    self.send(Answer(answer, then))
            case Answer(answer, then):
                then(answer)

    def _step_late(self) -> None:
        """Deliver a copy of an old message, and of an old command."""
        for late in (self.late, self.late_commands):
            if late:
                self.messages.append(late.pop(self.rng.randrange(len(late))))

    def _step_fetch(self) -> None:
        one = self.any_broker()
        if not one.is_running or one.follower is None:
            return
        leader = one.follower.state.leader
        assert leader is not None
        self._correlation += 1
        one.correlation = self._correlation
        held = (one.log.base, tuple(one.log.records))
        position = one.follower.position()
        self.send(Fetch(one.broker, leader, one.correlation, position, held))

    def _on_fetch(self, fetch: Fetch) -> None:
        one = self.brokers[fetch.leader]
        if not one.is_running or one.leader is None:
            return
        follower = self.brokers[fetch.follower]
        follower.clock.last_fetch = self.now
        position = fetch.position
        verdict = one.leader.on_fetch(fetch.follower, position, follower.clock, self.now)
        data = b""
        if verdict == ACCEPTED:
            self.counts["accepted"] += 1
            self.checks.prefix(one, fetch)
            data = one.log.read(position.fetch_offset, self.rng.randrange(1, 6))
        elif isinstance(verdict, Diverging):
            self.counts["diverging"] += 1
        head = FetchedHead(
            self.partition,
            position.fetch_offset,
            one.leader.leader_epoch,
            one.log.high_watermark,
            one.log.log_start_offset,
            verdict.error if isinstance(verdict, Refused) else None,
            (verdict.leader_epoch, verdict.end_offset) if isinstance(verdict, Diverging) else None,
            len(data),
        )
        self.advance(one)
        self.send(Reply(fetch.follower, fetch.correlation, head, data))

    def _on_reply(self, reply: Reply) -> None:
        one = self.brokers[reply.follower]
        if not one.is_running or one.follower is None or one.correlation != reply.correlation:
            return
        one.correlation = 0
        outcome = one.follower.on_reply(reply.head, reply.data, self.now)
        match outcome:
            case Truncate(end, is_below):
                self.checks.floor(one, end, is_below=is_below)
                one.log.truncate(end)
            case RestartAt(offset):
                self.counts["restart"] += 1
                one.log.restart_at(offset)
            case Append(data, headers, high_watermark, log_start):
                one.log.append_batches(data, headers)
                one.log.high_watermark = high_watermark
                one.log.set_log_start(log_start)
            case Damaged(reason) | Rejected(reason):
                require(f"an honest leader: {reason}", holds=False)
            case Wait():
                self.counts["wait"] += 1

    def _step_append(self) -> None:
        one = self.any_broker()
        if not one.is_running or one.leader is None or not one.leader.is_serving:
            return
        try:
            one.leader.check_min_isr()
        except NotEnoughReplicasError:
            if self.rng.random() < 0.7:
                return  # else a record with acks of the leader alone
        for _ in range(self.rng.randrange(1, 4)):
            self._value += 1
            one.log.append(one.leader.leader_epoch, b"%d" % self._value)
        one.leader.on_append(self.now)
        self.counts["append"] += 1

    def advance(self, one: Broker) -> None:
        """Store the high watermark of a leader: commit records and send acks."""
        assert one.leader is not None
        before = one.log.high_watermark
        after = one.leader.high_watermark()
        one.log.high_watermark = after
        for member in one.leader.maximal_isr if self.is_commit_mode and after > before else ():
            other = self.brokers[member]  # unless it lost its disk since
            is_durable = other.log.recovery_point >= after or not other.is_clean
            require("commit mode: on disk everywhere", holds=is_durable)
        known = self.committed[before:after]
        records = one.log.slice(before, after)
        require("I10: another record was committed", holds=records[: len(known)] == known)
        self.committed += records[len(known) :]

    def _step_learn(self) -> None:
        one = self.any_broker()
        if one.is_running and one.seen < len(self.history) - 1:
            self.learn(one, to=self.rng.randrange(one.seen + 1, len(self.history)))

    def _step_propose(self) -> None:
        one = self.any_broker()
        if not one.is_running or one.leader is None:
            return
        proposal = one.leader.next_proposal(self.now, self.history[one.seen].eligible)
        if proposal is not None:
            is_over = one.asked is None or one.asked[0].partition_epoch < proposal.partition_epoch
            require("I20: one proposal at a time", holds=is_over)
            one.asked = (proposal, self.now)
            self.counts["proposal"] += 1
            if self.faults and self.rng.random() < 0.3:
                one.asked = None
                one.leader.on_proposal_result(proposal, ProposalOutcome.NOT_ATTEMPTED, self.now)
                return
            self.send(Request(one.broker, one.run, one.broker_epoch, proposal))

    def _on_request(self, request: Request) -> None:
        proposal = request.proposal
        answer = self.apply(
            AlterPartition(
                broker=request.leader,
                broker_epoch=request.broker_epoch,
                partition_id=proposal.partition_id,
                leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch,
                isr=tuple(IsrMember(*member) for member in proposal.isr),
                is_recovering=proposal.is_recovering,
            )
        )
        error = answer if isinstance(answer, LiftbridgeError) else None
        outcome = outcome_of(error)
        self.counts[outcome.value if error is not None else "applied"] += 1
        self.send(Outcome(request.leader, request.run, proposal, outcome))

    def _on_outcome(
        self, leader: BrokerId, run: int, proposal: IsrProposal, outcome: ProposalOutcome
    ) -> None:
        one = self.brokers[leader]
        if one.is_running and one.run == run and one.leader is not None:
            if one.asked is None or one.asked[0] != proposal:
                return
            # Mostly the broker's own apply is the answer: it knows the metadata up to there.
            if outcome is ProposalOutcome.SETTLED and self.rng.random() < 0.7:
                self.learn(one)
                if one.leader is None:
                    return
            one.asked = None
            one.leader.on_proposal_result(proposal, outcome, self.now)

    def _step_timeout(self) -> None:
        one = self.any_broker()
        if one.leader is not None and one.asked is not None:
            proposal, since = one.asked
            if self.now - since > 200 * MILLISECOND_NS:
                one.asked = None
                one.leader.on_proposal_result(proposal, ProposalOutcome.UNKNOWN, self.now)
                self.counts["unknown outcome"] += 1

    def _step_sync(self) -> None:
        self.any_broker().log.sync()

    def _step_wait(self) -> None:
        """Wait while nothing moves."""
        self.now = Instant(self.now + self.rng.randrange(1_000 * MILLISECOND_NS))

    def _step_retention(self) -> None:
        one = self.any_broker()
        if one.is_running and one.leader is not None and one.leader.is_serving:
            start = self.rng.randrange(one.log.log_start_offset, one.log.high_watermark + 1)
            one.log.set_log_start(start)

    # Brokers.

    def _step_unfence(self) -> None:
        one = self.any_broker()
        known = self.world.state.brokers[one.broker]
        if one.is_running and known.fenced and known.broker_epoch == one.broker_epoch:
            self.learn(one)
            command = UnfenceBroker(
                broker=one.broker,
                broker_epoch=MetadataIndex(one.broker_epoch),
                applied_index=self.world.index,
            )
            answer = self.apply(command)
            require(f"unfenced: {answer}", holds=not isinstance(answer, LiftbridgeError))

    def _step_fence(self) -> None:
        """Fence a broker. Mostly it is alive, and continues as a zombie."""
        one = self.any_broker()
        if not self.world.state.brokers[one.broker].fenced:
            self.world.fence(one.broker)
            self.note_view()
            self.counts["fence"] += 1

    def _step_elect(self) -> None:
        self.apply(ElectPreferred(partitions=(self.partition,)))

    def _step_crash(self) -> None:
        """End a process and start it again: cleanly, or without its unsynced data."""
        one = self.any_broker()
        if not one.is_running:
            return
        is_clean = self.rng.random() < 0.4 or not self.may_lose(one)
        if is_clean:
            one.log.sync()
        else:
            self.lose(one, self.rng.randrange(one.log.recovery_point, one.log.log_end_offset + 1))
        self.end(one)
        marker = one.broker_epoch if is_clean else 0
        self.register(one, marker)

    def register(self, one: Broker, marker: int) -> None:
        """Begin the session of a process, which knows the metadata up to its registration."""
        # The controller refuses older software, so the operator installs newer software.
        one.feature_level = max(one.feature_level, self.world.state.feature_level)
        one.broker_epoch = self.world.register(
            one.broker,
            previous_broker_epoch=marker,
            data_dir_id=one.data_dir,
            feature_level=one.feature_level,
        )
        self.note_view()
        one.is_running = True
        one.seen = len(self.history) - 1
        self.activate(one, kept=None)

    def add_broker(self, name: str) -> None:
        """Add a broker without replicas, unless it exists."""
        if name in self.brokers:
            return
        one = self.brokers[BrokerId(name)] = Broker(BrokerId(name), ReplicaLog(self.partition))
        self.register(one, 0)

    def may_lose(self, one: Broker) -> bool:
        """Return whether a broker may lose something.

        Only one replica at a time may lose data. Until it is in sync again, all others stop only
        cleanly (the fault model of 1.2 with a minimum of two).
        """
        return all(other.is_clean for other in self.brokers.values() if other is not one)

    def lose(self, one: Broker, end: int) -> None:
        """Remove all records of a broker from `end` on."""
        self.counts["lossy"] += end < one.log.log_end_offset
        one.log.lose(end)
        one.is_clean = one.broker not in self.world.get(self.partition).replicas

    def end(self, one: Broker) -> None:
        """End the process of a broker and begin the next one, without a session."""
        self.counts["crash"] += 1
        one.run += 1
        one.leader = one.follower = one.asked = None
        one.clock = SessionClock(Instant(0))
        for family in self.families:
            family.ended(one)

    # Liveness.

    def heal(self, steps: int) -> None:
        """Stop the faults, and continue until everything is in order or the steps are used up."""
        self.faults = False
        for _ in range(steps):
            self.step()
            if self.is_well:
                return

    @property
    def is_well(self) -> bool:
        """Return whether all replicas are in sync and hold the same committed records."""
        truth = self.world.get(self.partition)
        logs = [self.brokers[replica].log for replica in truth.replicas]
        return (
            len(truth.isr) == len(truth.replicas)
            and not truth.is_reassigning
            and len({log.log_end_offset for log in logs}) == 1
            and all(log.high_watermark == log.log_end_offset for log in logs)
            and all(broker.seen == len(self.history) - 1 for broker in self.brokers.values())
            and all(family.is_well for family in self.families)
        )
