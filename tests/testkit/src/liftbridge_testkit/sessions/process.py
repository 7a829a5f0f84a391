"""A broker process of a `SessionWorld`: the part of `node.replicas.replicas`, on logs in memory.

It connects the real fetch sessions and cores with as little code as possible. Roles follow the
metadata that the process has learned, answers go to the log, positions to the session.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple, Protocol

from liftbridge_broker.controller.commands import AlterPartition, Command, IsrMember
from liftbridge_broker.controller.reports import LeaderReport
from liftbridge_broker.model.fetching import (
    ACCEPTED,
    FetchBody,
    FetchedHead,
    FetchOutcome,
    FetchPosition,
    FetchReplyBody,
    SessionClock,
)
from liftbridge_broker.model.ids import BrokerId, Instant, LeaderEpoch, Offset, PartitionId
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.replicas.leading import result_of
from liftbridge_broker.replication.fetch_sessions import (
    Answer,
    FollowerSession,
    LeaderSession,
    LeaderSessionLimits,
    SessionLimits,
)
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
from liftbridge_broker.replication.isr import IsrProposal, LeaderLimits, ProposalOutcome
from liftbridge_broker.replication.leader import LeaderCore
from liftbridge_broker.wire.peer.fetch import records_of
from liftbridge_testkit.replica_brokers import Broker, require
from liftbridge_testkit.replica_logs import Record

LIMITS: Final = LeaderLimits(
    lag_hard_ns=4_000 * MILLISECOND_NS,
    ineligible_ns=300 * MILLISECOND_NS,
    flap_delay_ns=100 * MILLISECOND_NS,
    flap_delay_ns_max=400 * MILLISECOND_NS,
)
"""Shorter limits than those of a broker, where a wait tests nothing."""

ANSWER_NS: Final = 500 * MILLISECOND_NS
"""Time without an answer after which the outcome of a request counts as unknown."""

ESTABLISHED_NS: Final = 10 * MILLISECOND_NS
"""Time until a new leader epoch is on disk."""

NUMBER_MAX: Final = 1 << 62
RECORDS_MAX: Final = 5
"""Maximum number of records of one partition in an answer."""


class Told(FetchPosition):
    """A position with the contents of the log behind it: its start and its records."""

    held: tuple[int, tuple[Record, ...]]


class Terms(NamedTuple):
    """A partition by the metadata.

    Attributes:
        state: The partition.
        min_isr: In-sync replicas that a commit needs.
        is_commit_mode: Whether only what is on disk counts.
    """

    state: PartitionState
    min_isr: int
    is_commit_mode: bool


class View(NamedTuple):
    """Metadata after one command.

    Attributes:
        applied_index: Index of the command.
        partitions: All partitions.
        eligible: Brokers that may be in sync.
        broker_epochs: Registrations.
    """

    applied_index: int
    partitions: Mapping[PartitionId, Terms]
    eligible: frozenset[BrokerId]
    broker_epochs: Mapping[BrokerId, int]


class Surroundings(Protocol):
    """Port to the world of a process."""

    rng: Random
    now: Instant

    def send(self, sender: BrokerId, to: BrokerId, act: "Callable[[Process], None]") -> None:
        """Send a message to the process that the broker has on arrival."""
        ...

    def ask(self, process: "Process", command: Command, then: Callable[[object], None]) -> None:
        """Send a command to the controller; the answer may be lost."""
        ...

    def report(self, process: "Process", report: LeaderReport) -> None:
        """Report a silent leader to the controller."""
        ...

    def after(self, delay_ns: int, act: Callable[[], None]) -> None:
        """Call a function later."""
        ...

    def on_accepted(self, leader: "Led", follower: BrokerId, fetch: FetchPosition) -> None:
        """Handle a position that a leader accepted."""
        ...

    def on_cut(
        self, replica: Broker, partition: PartitionId, end: Offset, *, is_below: bool
    ) -> None:
        """Handle a truncation that a follower is about to do."""
        ...

    def on_lost(self) -> None:
        """Handle a leader's answer that the session does not exist."""
        ...

    def on_proposal(self, led: "Led", proposal: IsrProposal) -> None:
        """Handle the first request of a leader for another in-sync set."""
        ...

    def commit(self, led: "Led") -> bool:
        """Store the committed end of a leader. Return whether it moved."""
        ...


@dataclass(eq=False)
class Led:
    """A partition that a process leads, as its sessions see it.

    Attributes:
        process: The process.
        replica: Its replica.
        core: Its rules.
        is_commit_mode: Whether only what is on disk counts.
        joined: Time since which it knows each member to be in sync; never before it began to lead.
        has_gap: Whether metadata were skipped since then.
        began: Time at which it began to serve and recorded earlier positions.
        proposal: Its last request for an in-sync set.
    """

    process: "Process"
    replica: Broker
    core: LeaderCore
    is_commit_mode: bool
    joined: dict[BrokerId, Instant]
    has_gap: bool = False
    began: Instant = Instant(0)  # noqa: RUF009 - a NewType call is the identity
    proposal: IsrProposal | None = None

    @property
    def partition(self) -> PartitionId:
        """Return the id of the partition."""
        return self.core.state.partition_id

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self.core.leader_epoch

    @property
    def log_start_offset(self) -> Offset:
        return self.replica.log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        return self.replica.log.log_end_offset

    @property
    def high_watermark(self) -> Offset:
        return self.replica.log.high_watermark

    @property
    def compacted_everywhere(self) -> Offset:
        return self.core.compacted_everywhere

    @property
    def dropped_offset(self) -> Offset:
        return self.replica.log.dropped_offset

    def on_fetch(
        self, replica: BrokerId, fetch: FetchPosition, clock: SessionClock, now: Instant
    ) -> FetchOutcome:
        outcome = self.core.on_fetch(replica, fetch, clock, now)
        if outcome == ACCEPTED:
            self.process.world.on_accepted(self, replica, fetch)
            self.process.commit(self)
        return outcome

    def on_answered(self, replica: BrokerId, asked_at: Instant) -> None:
        self.core.on_answered(replica, asked_at)

    def on_forgotten(self, replica: BrokerId) -> None:
        self.core.on_forgotten(replica)

    def read(self, replica: BrokerId, offset: Offset, bytes_max: int) -> list[bytes]:
        del replica, bytes_max
        return [self.replica.log.read(offset, 1 + self.process.world.rng.randrange(RECORDS_MAX))]


class Process:
    """A broker process; see the module.

    Attributes:
        world: Its world.
        broker: Its broker.
        broker_epoch: Its registration.
        seen: Place in the history of the metadata that it has learned.
        replicas: Replicas by partition.
        leading: Partitions it leads.
        heard: Time of the last fetch of each follower.
        paused_until: Time until which it is stopped.
    """

    def __init__(
        self,
        world: Surroundings,
        broker: BrokerId,
        broker_epoch: int,
        replicas: Mapping[PartitionId, Broker],
    ) -> None:
        """Begin without roles."""
        self.world = world
        self.broker = broker
        self.broker_epoch = broker_epoch
        self.seen = 0
        self.replicas = replicas
        self.leading: dict[PartitionId, Led] = {}
        self.heard: dict[BrokerId, Instant] = {}
        self.paused_until = Instant(0)
        self._eligible: frozenset[BrokerId] = frozenset()
        self._known: Mapping[PartitionId, Terms] = {}
        self._epochs: Mapping[BrokerId, int] = {}
        self._fetching: dict[BrokerId, FollowerSession] = {}
        self._serving: dict[BrokerId, LeaderSession] = {}
        for replica in replicas.values():
            replica.leader = replica.follower = replica.asked = None
            replica.broker_epoch = broker_epoch
            replica.run += 1

    # Roles.

    def learn(self, view: View, *, has_gap: bool) -> None:
        """Apply later metadata; with a gap when changes before them were not seen."""
        if view.applied_index < self.broker_epoch:
            return  # nothing acts before it knows of its own registration
        self._eligible = view.eligible
        self._epochs = view.broker_epochs
        for leader, session in self._fetching.items():
            session.set_leader_broker_epoch(view.broker_epochs[leader])
        for led in self.leading.values():
            led.has_gap |= has_gap
        known, self._known = self._known, view.partitions
        for partition, terms in view.partitions.items():
            if terms != known.get(partition):
                self._on_terms(partition, terms)

    def _on_terms(self, partition: PartitionId, terms: Terms) -> None:
        if terms.state.leader == self.broker:
            self._lead(partition, terms)
        elif terms.state.leader is None:
            self._drop(partition)
        else:
            self._follow(partition, terms, terms.state.leader)

    def _drop(self, partition: PartitionId) -> None:
        one = self.replicas[partition]
        one.leader = one.asked = None
        if self.leading.pop(partition, None) is not None:
            self._announce_leadership(partition)
        if one.follower is not None:
            self._leave(one.follower)
            one.follower = None

    def _leave(self, core: FollowerCore) -> None:
        leader = core.state.leader
        assert leader is not None
        self._fetching[leader].drop(core.state.partition_id)

    def _announce_leadership(self, partition: PartitionId) -> None:
        for session in self._serving.values():
            session.on_leadership(partition, self.world.now)

    def _lead(self, partition: PartitionId, terms: Terms) -> None:
        state, min_isr, is_commit_mode = terms
        one, now = self.replicas[partition], self.world.now
        led = self.leading.get(partition)
        if led is not None and led.core.leader_epoch == state.leader_epoch:
            led.core.on_state(state, min_isr=min_isr, is_commit_mode=is_commit_mode, now=now)
            led.is_commit_mode = is_commit_mode
            led.joined = {one: led.joined.get(one, now) for one in state.isr}
            self.commit(led)
            return
        if led is None:
            self._drop(partition)
        core = LeaderCore(
            self.broker,
            one.log,
            state,
            min_isr=min_isr,
            is_commit_mode=is_commit_mode,
            limits=LIMITS,
            now=now,
            kept=None if led is None or led.has_gap else led.core,
        )
        joined = dict.fromkeys(state.isr, now)
        led = self.leading[partition] = Led(self, one, core, is_commit_mode, joined)
        one.leader, one.asked = core, None
        one.log.begin(state.leader_epoch)
        delay = self.world.rng.randrange(ESTABLISHED_NS)
        self.world.after(delay, lambda: self._established(led))

    def _established(self, led: Led) -> None:
        if self.leading.get(led.partition) is led and led.replica.leader is led.core:
            led.core.on_established()
            led.began = self.world.now
            self.commit(led)
            self._announce_leadership(led.partition)

    def _follow(self, partition: PartitionId, terms: Terms, leader: BrokerId) -> None:
        state, _, is_commit_mode = terms
        one, now = self.replicas[partition], self.world.now
        if one.follower is None:
            self._drop(partition)
            one.follower = FollowerCore(
                self.broker,
                one.log,
                state,
                is_commit_mode=is_commit_mode,
                limits=FollowerLimits(),
                rng=self.world.rng,
                now=now,
            )
        else:
            if one.follower.state.leader != leader:
                self._leave(one.follower)
            one.follower.on_state(state, is_commit_mode=is_commit_mode, now=now)
        session = self._session_with(leader)
        session.put(one.follower.position())

    def _session_with(self, leader: BrokerId) -> FollowerSession:
        now = self.world.now
        session = self._fetching.get(leader)
        if session is None:
            session = self._fetching[leader] = FollowerSession(
                leader,
                leader_broker_epoch=self._epochs[leader],
                first_correlation_id=self.world.rng.randrange(NUMBER_MAX),
                limits=SessionLimits(),
                now=now,
            )
        elif not session.partition_count:
            session.heard_at = max(session.heard_at, now)
        return session

    # Fetches.

    def pump(self) -> None:
        """Send all messages that are due."""
        now = self.world.now
        for leader, fetching in self._fetching.items():
            request = fetching.next_request(now)
            if request is not None:
                told = tuple([self._told(partition) for partition in request.body.partitions])
                body = request.body._replace(partitions=told)
                self._send_fetch(leader, request.correlation_id, body)
        for follower, serving in self._serving.items():
            answer = serving.take_answer(now)
            if answer is not None:
                self._send_answer(follower, answer)

    def _told(self, position: FetchPosition) -> Told:
        log = self.replicas[position.partition].log
        told = Told(*position)
        told.held = (log.base, tuple(log.records))
        return told

    def _send_fetch(self, leader: BrokerId, correlation: int, body: FetchBody) -> None:
        sender, epoch = self.broker, self.broker_epoch
        self.world.send(
            sender, leader, lambda other: other.on_fetch(sender, epoch, correlation, body)
        )

    def _send_answer(self, follower: BrokerId, answer: Answer) -> None:
        sender, body, tail = self.broker, answer.body, b"".join(answer.pieces)
        correlation = answer.correlation_id
        if body.is_session_lost:
            self.world.on_lost()
        self.world.send(
            sender, follower, lambda other: other.on_fetch_reply(sender, correlation, body, tail)
        )

    def on_fetch(
        self, follower: BrokerId, broker_epoch: int, correlation: int, body: FetchBody
    ) -> None:
        """Handle a fetch."""
        self.heard[follower] = self.world.now
        session = self._serving.get(follower)
        if session is None:
            session = self._serving[follower] = LeaderSession(
                follower,
                self.leading.get,
                first_session_id=1 + self.world.rng.randrange(NUMBER_MAX),
                limits=LeaderSessionLimits(),
            )
        answers = session.on_request(
            correlation,
            body,
            own_broker_epoch=self.broker_epoch,
            follower_broker_epoch=broker_epoch,
            now=self.world.now,
        )
        for answer in answers:
            self._send_answer(follower, answer)

    def on_fetch_reply(
        self, leader: BrokerId, correlation: int, body: FetchReplyBody, tail: bytes
    ) -> None:
        """Handle an answer."""
        session = self._fetching.get(leader)
        if session is None or not session.on_reply(correlation, body, self.world.now):
            return
        for head, data in zip(body.partitions, records_of(body, tail), strict=True):
            one = self.replicas[head.partition]
            if one.follower is not None and one.follower.state.leader == leader:
                self._follow_answer(one, one.follower, session, head, data)

    def _follow_answer(
        self,
        one: Broker,
        core: FollowerCore,
        session: FollowerSession,
        head: FetchedHead,
        data: bytes,
    ) -> None:
        is_retry = False
        match core.on_reply(head, data, self.world.now):
            case Append(data, headers, high_watermark, log_start):
                one.log.append_batches(data, headers)
                one.log.high_watermark = high_watermark
                one.log.set_log_start(log_start)
            case Truncate(end, is_below):
                self.world.on_cut(one, head.partition, end, is_below=is_below)
                one.log.truncate(end)
            case RestartAt(offset):
                one.log.restart_at(offset)
            case Rejected(reason):
                # A second answer to the position before a truncation diverges where the log ends
                # by now.
                require(f"an honest leader: {reason}", holds=reason.startswith("divergence"))
                is_retry = True
            case Damaged(reason):
                require(f"an honest leader: {reason}", holds=False)
            case Wait(_, is_retry):
                pass
        session.put(core.position())
        if is_retry:
            session.retry(head.partition, self.world.now)

    # The partitions.

    def commit(self, led: Led) -> None:
        """Store the committed end of a leader, and notify its followers."""
        if self.world.commit(led):
            self.notify(led.partition)

    def notify(self, partition: PartitionId) -> None:
        """Mark a partition as changed for its followers."""
        for session in self._serving.values():
            session.notify(partition)

    def on_flushed(self, partition: PartitionId) -> None:
        """Handle the sync of more records of a log."""
        one = self.replicas[partition]
        if one.follower is not None:
            leader = one.follower.state.leader
            assert leader is not None
            self._fetching[leader].put(one.follower.position())
        elif partition in self.leading:
            self.commit(self.leading[partition])

    def propose(self, led: Led) -> None:
        """Request another in-sync set, if one is needed."""
        one, now = led.replica, self.world.now
        if one.asked is not None and now - one.asked[1] >= ANSWER_NS:
            asked, one.asked = one.asked[0], None
            led.core.on_proposal_result(asked, ProposalOutcome.UNKNOWN, now)
        proposal = led.core.next_proposal(now, self._eligible)
        if proposal is None:
            return
        if proposal != led.proposal:
            self.world.on_proposal(led, proposal)
        led.proposal = proposal
        one.asked = (proposal, now)
        command = AlterPartition(
            broker=self.broker,
            broker_epoch=self.broker_epoch,
            partition_id=proposal.partition_id,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            isr=tuple(IsrMember(*member) for member in proposal.isr),
            is_recovering=proposal.is_recovering,
        )
        self.world.ask(self, command, lambda answer: self._answered(led, proposal, answer))

    def _answered(self, led: Led, proposal: IsrProposal, answer: object) -> None:
        if self.leading.get(led.partition) is not led:
            return
        one = led.replica
        if one.asked is not None and one.asked[0] == proposal:
            one.asked = None
        led.core.on_proposal_result(proposal, result_of(answer), self.world.now)
        self.commit(led)

    def suspect(self) -> None:
        """Report silent leaders (F4)."""
        for partition, one in self.replicas.items():
            core = one.follower
            if core is None or core.state.leader is None:
                continue
            state, leader = core.state, core.state.leader
            session = self._fetching[leader]
            if core.suspicion(session.heard_at, self.world.now) is not None:
                report = LeaderReport(
                    reporter=self.broker,
                    broker_epoch=self.broker_epoch,
                    partition_id=partition,
                    leader=leader,
                    leader_epoch=state.leader_epoch,
                    partition_epoch=state.partition_epoch,
                )
                self.world.report(self, report)
