"""Consumers that form groups: they join, send heartbeats, read, commit positions, stall and leave.

Members of a classic group follow the protocol of the original; those of an incremental group let go
of partitions before others get them. A consumer that stalls wakes up with what it believed before:
it reads and commits on, until it hears otherwise.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from google.protobuf.message import Message

from liftbridge_broker.access.rules import Operation, ResourceKind
from liftbridge_broker.api.groups.positions import PositionService
from liftbridge_broker.controller.consumer_groups.commands import JoinGroup, LeaveGroup
from liftbridge_broker.controller.records import MemberAnswer
from liftbridge_broker.errors import (
    LiftbridgeError,
    NotFoundError,
    StaleGroupEpochError,
    UnknownMemberError,
)
from liftbridge_broker.model.ids import Instant, PartitionId, number_of, stream_of
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.groups.seats import Consumer as SeatConsumer
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import groups_pb2
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Serving
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.clients.named import API, DEADLINE, GROUPS, Named
from liftbridge_testkit.sim.clients.positions import place_of
from liftbridge_testkit.sim.clients.unary import Unary
from liftbridge_testkit.sim.invariants.access import Act
from liftbridge_testkit.sim.invariants.groups import GroupRules
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import World

STALL = "member stall"
"""Fault: a member is silent beyond its session, and goes on with what it believed before."""

LATE_COMMIT = "late commit"
"""Fault: a position arrives after its member lost the partition or its membership."""

MEMBER_FAULTS = (STALL, LATE_COMMIT)

STALL_NS = (3 * SECOND_NS, 8 * SECOND_NS)
LATE_NS_MAX = 4 * SECOND_NS
LATE_PPM = 300_000
PAUSE_NS = 2 * SECOND_NS
SLOW_PPM = 500_000
"""Chance that a consumer reads on for a while, what it is told to give up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPlan:
    """Behaviour of a consumer.

    Attributes:
        group: Name of its group.
        is_incremental: Kind of the group.
        streams: What it subscribes to.
        think_ns: Maximum time between two heartbeats.
        stalls_ppm: Chance of a stall before a heartbeat.
        leaves_ppm: Chance of leaving before a heartbeat.
    """

    group: str
    is_incremental: bool
    streams: tuple[str, ...]
    think_ns: int = 800 * MILLISECOND_NS
    stalls_ppm: int = 40_000
    leaves_ppm: int = 20_000


@dataclass(slots=True)
class GroupConsumer:
    """One consumer from `start` until `stop`.

    Attributes:
        member_id: Its present name: a classic member that lost its answer takes another one.
        member_epoch: Its membership; 0 for none.
        epoch: Group epoch that it has acted on.
        reading: Partitions that it reads, for a while also those that it was told to give up.
        named: Whom it acts for, in a world with access rules.
    """

    world: World
    calls: Calls
    directory: Directory
    plan: ConsumerPlan
    rules: GroupRules
    number: int
    member_id: str = ""
    member_epoch: int = 0
    epoch: int = 0
    reading: frozenset[PartitionId] = frozenset()
    named: Named | None = None
    is_calm: bool = False
    is_stopped: bool = False
    _random: Random = field(init=False)
    _lives: int = 0

    def __post_init__(self) -> None:
        self._random = Random(f"consumer {self.world.seed} {self.number}")
        self._rename()

    def _rename(self) -> None:
        self._lives += 1
        self.member_id = f"m{self.number}.{self._lives}"

    @property
    def client(self) -> str:
        """Name of the client in cuts of links."""
        return f"consumer-{self.number}"

    def start(self) -> None:
        """Begin to join."""
        self._later(self.plan.think_ns)

    def calm(self) -> None:
        """Stall and leave no more."""
        self.is_calm = True

    def stop(self) -> None:
        """Do nothing more."""
        self.is_stopped = True

    @property
    def is_settled(self) -> bool:
        """Return whether it is a member, and reads what it is to read."""
        state = self.directory.state()
        group = None if state is None else state.groups.get(self.plan.group)
        member = None if group is None else group.member(self.member_id)
        return (
            member is not None
            and self.member_epoch == member.member_epoch
            and self.reading == frozenset(member.target) == frozenset(member.held)
        )

    def _later(self, at_most_ns: int) -> None:
        if not self.is_stopped:
            self.world.scheduler.after(self._random.randrange(1, at_most_ns), self._go)

    def _chance(self, ppm: int) -> bool:
        return not self.is_calm and self._random.randrange(1_000_000) < ppm

    def _count(self, what: str) -> None:
        self.world.coverage.count("client", what)

    def _go(self) -> None:
        if self.is_stopped:
            return
        if not self.member_epoch:
            self._join()
        elif self._chance(self.plan.leaves_ppm):
            self._leave()
        elif self._chance(self.plan.stalls_ppm):
            self._stall()
        else:
            self._use()
            self._beat()

    def _stall(self) -> None:
        """Do nothing for longer than a session lasts; it then goes on as if it were a member."""
        self._fault(STALL)
        self.world.scheduler.after(self._random.randrange(*STALL_NS), self._go)

    def _fault(self, kind: str) -> None:
        self.world.coverage.count("fault", kind)
        self.world.trace.note(self.world.now, self.client, kind)

    def _authorize(
        self, serving: Serving, machine: Machine, method: str, request: Message, *more: Act
    ) -> None:
        """Let the broker check a call of a member that has a name."""
        if self.named is not None:
            join = Act(Operation.JOIN, ResourceKind.GROUP, self.plan.group)
            self.named.authorize(serving, machine, method, request, (join, *more))

    # -- membership ---------------------------------------------------------------------------

    def _join(self) -> None:
        command = JoinGroup(
            group_id=self.plan.group,
            member_id=self.member_id,
            streams=self.plan.streams,
            is_incremental=self.plan.is_incremental,
            zone=self._random.choice(("", "x")) if self.plan.is_incremental else "",
        )
        machine, streams = self.directory.any_machine(), self.plan.streams
        reads = [Act(Operation.READ, ResourceKind.STREAM, one) for one in streams]

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            if self.plan.is_incremental:
                beat = groups_pb2.HeartbeatRequest(group_id=self.plan.group, streams=streams)
                self._authorize(serving, machine, GROUPS + "Heartbeat", beat, *reads)
            else:
                join = api_pb2.JoinConsumerGroupRequest(groupId=self.plan.group, streams=streams)
                self._authorize(serving, machine, API + "JoinConsumerGroup", join, *reads)
            serving.node.propose(command, now, answer)

        def joined(outcome: object) -> None:
            if isinstance(outcome, MemberAnswer):
                self._count("consumer joined")
                self.member_epoch = outcome.member.member_epoch
                self.epoch = outcome.group.group_epoch
                if self.plan.is_incremental:
                    self._assign(outcome)
            elif not self.plan.is_incremental:
                self._rename()  # the answer may be lost, and the name taken
            self._later(self.plan.think_ns)

        self.calls.call(self.client, machine, serve, joined)

    def _leave(self) -> None:
        command = LeaveGroup(
            group_id=self.plan.group, member_id=self.member_id, member_epoch=self.member_epoch
        )

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            serving.node.propose(command, now, answer)

        def left(_outcome: object) -> None:
            self._count("consumer left")
            self._forget()
            self._later(PAUSE_NS)

        self.calls.call(self.client, self.directory.any_machine(), serve, left)

    def _forget(self) -> None:
        """Stop to read: it is no member any more."""
        self._commit_late(self.reading)
        if self.plan.is_incremental:
            member = self.member_id, self.member_epoch
            self.rules.reads(self.plan.group, member, frozenset())
        self.member_epoch, self.reading = 0, frozenset()
        self._rename()

    # -- heartbeats ---------------------------------------------------------------------------

    def _beat(self) -> None:
        state = self.directory.state()
        group = None if state is None else state.groups.get(self.plan.group)
        machine = None if group is None else self.world.machines.get(group.coordinator)
        member, epoch = self.member_id, self.epoch
        member_epoch, held = self.member_epoch, self.reading

        target = machine or self.directory.any_machine()

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            groups = serving.node.groups
            if self.plan.is_incremental:
                beating = groups_pb2.HeartbeatRequest(group_id=self.plan.group)
                self._authorize(serving, target, GROUPS + "Heartbeat", beating)
            else:
                asking = api_pb2.FetchConsumerGroupAssignmentsRequest(groupId=self.plan.group)
                method = API + "FetchConsumerGroupAssignments"
                self._authorize(serving, target, method, asking)

            def beat() -> MemberAnswer:
                if self.plan.is_incremental:
                    return groups.heartbeat_holding(
                        self.plan.group, member, member_epoch, epoch, held, now
                    )
                return groups.heartbeat(self.plan.group, member, epoch, now)

            _confirmed(serving, beat, answer)

        def answered(outcome: object) -> None:
            if self.member_id == member and self.member_epoch == member_epoch:
                self._on_beat(outcome)
            self._later(self.plan.think_ns)

        self.calls.call(self.client, target, serve, answered)

    def _on_beat(self, outcome: object) -> None:
        match outcome:
            case MemberAnswer(group):
                self._count("heartbeat answered")
                if not self.plan.is_incremental:
                    epoch = group.group_epoch
                    self.rules.told(group.group_id, epoch, self.member_id, outcome.member)
                self._assign(outcome)
            case StaleGroupEpochError():
                state = self.directory.state()
                known = None if state is None else state.groups.get(self.plan.group)
                if known is not None and known.group_epoch > self.epoch:
                    self.epoch = known.group_epoch
            case UnknownMemberError() | NotFoundError():
                self._count("membership lost")
                self._forget()
            case _:
                pass

    def _assign(self, answer: MemberAnswer) -> None:
        self.epoch = max(self.epoch, answer.group.group_epoch)
        assigned = frozenset(answer.member.assigned)
        lost = self.reading - assigned
        if lost and self.plan.is_incremental and self._chance(SLOW_PPM):
            self._count("partition given up slowly")
            assigned |= lost
        self._commit_late(self.reading - assigned)
        self.reading = assigned
        if self.plan.is_incremental:
            self.rules.reads(self.plan.group, (self.member_id, self.member_epoch), assigned)

    # -- reading and positions ----------------------------------------------------------------

    def _use(self) -> None:
        """Subscribe to a partition, and commit positions in all."""
        if not self.reading:
            return
        self._subscribe(self._random.choice(sorted(self.reading)))
        if self.plan.is_incremental:
            for partition in sorted(self.reading):
                self._send_position(partition, self._position_request(partition))

    def _subscribe(self, partition: PartitionId) -> None:
        """Take the seat at the leader of a partition."""
        state = self.directory.state()
        place = None if state is None else state.partition(partition)
        machine = None
        if place is not None and place.leader is not None:
            machine = self.world.machines.get(place.leader)
        if machine is None:
            return
        fence = self.member_epoch if self.plan.is_incremental else self.epoch
        consumer = SeatConsumer(self.plan.group, self.member_id, fence)
        named = None if state is None else state.streams.get(stream_of(partition))
        stream, leader = "" if named is None else named.name, machine
        request = api_pb2.SubscribeRequest(stream=stream)
        request.consumer.groupId = self.plan.group

        def serve(serving: Serving, _now: Instant, _wall_ns: int, answer: Answer) -> None:
            read = Act(Operation.READ, ResourceKind.STREAM, stream)
            self._authorize(serving, leader, API + "Subscribe", request, read)

            def take() -> bool:
                led = serving.node.partitions.get(partition)
                if led is None or not led.is_led:
                    raise NotFoundError("No such partition")
                seats = serving.node.groups.seats
                seats.check(partition, consumer)
                self.rules.seated(serving.node.state, partition, consumer)
                self._count("seat taken")
                seats.take(partition, consumer, lambda: self._count("seat lost"))
                return True

            _confirmed(serving, take, answer)

        self.calls.call(self.client, machine, serve, lambda _outcome: None)

    def _commit_late(self, partitions: Iterable[PartitionId]) -> None:
        """Send positions of partitions that it no longer reads, some time after it lost them."""
        if not self.plan.is_incremental or self.is_stopped:
            return
        for partition in sorted(partitions):
            if self._chance(LATE_PPM):
                delay = self._random.randrange(LATE_NS_MAX)
                request = self._position_request(partition)
                self._fault(LATE_COMMIT)
                self.world.scheduler.after(delay, self._send_position, partition, request)

    def _position_request(self, partition: PartitionId) -> groups_pb2.CommitPositionsRequest:
        """Return a request with a new position of a partition that it reads, still without name."""
        member = self.member_id, self.member_epoch
        mark = self.rules.next_mark(self.plan.group, partition, member)
        request = groups_pb2.CommitPositionsRequest(
            group_id=self.plan.group,
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            group_epoch=self.epoch,
        )
        request.positions.add(partition=number_of(partition), offset=mark)
        return request

    def _send_position(
        self, partition: PartitionId, request: groups_pb2.CommitPositionsRequest
    ) -> None:
        """Commit a position, perhaps long after it was taken."""
        place = place_of(self.world, self.directory, self.plan.group, partition)
        if place is None:
            return
        (position,) = request.positions
        position.stream, machine = place

        def serve(serving: Serving, now: Instant, wall_ns: int, answer: Answer) -> None:
            known = self.rules.top

            def stored(outcome: object) -> None:
                if isinstance(outcome, bytes):
                    self.rules.committed(position.offset, since=known)
                answer(outcome)

            self._serve_position(serving, machine, request, now, wall_ns, stored)

        def committed(outcome: object) -> None:
            is_stored = isinstance(outcome, bytes)
            if is_stored:
                self.rules.answered(position.offset)
            self._count("position committed" if is_stored else "position not committed")

        self.calls.call(self.client, machine, serve, committed)

    def _serve_position(
        self,
        serving: Serving,
        machine: Machine,
        request: groups_pb2.CommitPositionsRequest,
        now: Instant,
        wall_ns: int,
        stored: Answer,
    ) -> None:
        if self.named is None:
            unary = Unary(serving.node, now, wall_ns)
            service = PositionService(unary.context())
            service.commit(unary.call(stored, deadline=DEADLINE), request.SerializeToString())
            return
        join = Act(Operation.JOIN, ResourceKind.GROUP, self.plan.group)
        streams = dict.fromkeys(one.stream for one in request.positions)
        reads = [Act(Operation.READ, ResourceKind.STREAM, one) for one in streams]
        self.named.ask(
            serving,
            machine,
            GROUPS + "CommitPositions",
            PositionService(self.named.context(serving)).commit,
            request,
            (join, *reads),
            lambda message, code: stored(code or message),
        )


def _confirmed(serving: Serving, act: Callable[[], object], answer: Answer) -> None:
    """Answer with the outcome of an action, once the broker has confirmed its metadata."""

    def confirmed(error: LiftbridgeError | None) -> None:
        try:
            answer(act() if error is None else error)
        except LiftbridgeError as refusal:
            answer(refusal)

    serving.node.groups.confirm(confirmed)
