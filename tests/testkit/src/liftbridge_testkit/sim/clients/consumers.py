"""Consumers that form groups: they join, send heartbeats, read, commit positions, stall and leave.

Members of a classic group follow the protocol of the original; those of an incremental group let go
of partitions before others get them. A consumer that stalls wakes up with what it believed before:
it reads and commits on, until it hears otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from liftbridge_broker.api.groups.positions import PositionService
from liftbridge_broker.controller.consumer_groups.commands import JoinGroup, LeaveGroup
from liftbridge_broker.controller.records import MemberAnswer
from liftbridge_broker.errors import (
    LiftbridgeError,
    NotFoundError,
    StaleGroupEpochError,
    UnknownMemberError,
)
from liftbridge_broker.groups.cursors import cursor_key, cursors_partition
from liftbridge_broker.model.groups import CURSOR_PREFIX
from liftbridge_broker.model.ids import Instant, PartitionId, number_of, stream_of
from liftbridge_broker.model.subjects import CURSORS_STREAM
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.groups.seats import Consumer as SeatConsumer
from liftbridge_proto.ext.v1 import groups_pb2
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Serving
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.clients.unary import Unary
from liftbridge_testkit.sim.invariants.groups import GroupRules
from liftbridge_testkit.sim.world import World

STALL_NS_MAX = 8 * SECOND_NS
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
            self._count("consumer stalled")
            self._later(STALL_NS_MAX)
        else:
            self._use()
            self._beat()

    # -- membership ---------------------------------------------------------------------------

    def _join(self) -> None:
        command = JoinGroup(
            group_id=self.plan.group,
            member_id=self.member_id,
            streams=self.plan.streams,
            is_incremental=self.plan.is_incremental,
            zone=self._random.choice(("", "x")) if self.plan.is_incremental else "",
        )

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
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

        self.calls.call(self.client, self.directory.any_machine(), serve, joined)

    def _leave(self) -> None:
        command = LeaveGroup(
            group_id=self.plan.group, member_id=self.member_id, member_epoch=self.member_epoch
        )

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            serving.node.propose(command, now, answer)

        def left(_outcome: object) -> None:
            self._count("consumer left")
            self._forget()
            self._later(STALL_NS_MAX // 4)

        self.calls.call(self.client, self.directory.any_machine(), serve, left)

    def _forget(self) -> None:
        """Stop to read: it is no member any more."""
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

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            groups = serving.node.groups

            def beat() -> MemberAnswer:
                if self.plan.is_incremental:
                    return groups.heartbeat_holding(
                        self.plan.group, member, member_epoch, epoch, held, now
                    )
                found = groups.heartbeat(self.plan.group, member, epoch, now)
                return MemberAnswer(groups.coordinated(self.plan.group, now), found)

            _confirmed(serving, beat, answer)

        def answered(outcome: object) -> None:
            if self.member_id == member and self.member_epoch == member_epoch:
                self._on_beat(outcome)
            self._later(self.plan.think_ns)

        self.calls.call(self.client, machine or self.directory.any_machine(), serve, answered)

    def _on_beat(self, outcome: object) -> None:
        match outcome:
            case MemberAnswer(group):
                self._count("heartbeat answered")
                if not self.plan.is_incremental:
                    self.rules.told(group.group_id, self.epoch, self.member_id, outcome.member)
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
                self._commit(partition)

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

        def serve(serving: Serving, _now: Instant, _wall_ns: int, answer: Answer) -> None:
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

    def _commit(self, partition: PartitionId) -> None:
        state = self.directory.state()
        stream = None if state is None else state.streams.get(stream_of(partition))
        cursors = None if state is None else state.stream(CURSORS_STREAM)
        if stream is None or cursors is None:
            return
        number = number_of(partition)
        key = cursor_key(stream.name, number, CURSOR_PREFIX + self.plan.group)
        place = cursors.partitions[cursors_partition(key, len(cursors.partitions))]
        machine = None if place.leader is None else self.world.machines.get(place.leader)
        if machine is None:
            return
        request = groups_pb2.CommitPositionsRequest(
            group_id=self.plan.group, member_id=self.member_id, member_epoch=self.member_epoch
        )
        mark = self.rules.next_mark(self.plan.group, partition, self.member_id, self.member_epoch)
        request.positions.add(stream=stream.name, partition=number, offset=mark)

        def serve(serving: Serving, now: Instant, wall_ns: int, answer: Answer) -> None:
            unary = Unary(serving.node, now, wall_ns)
            service = PositionService(unary.context())
            service.commit(unary.call(answer, deadline=1e9), request.SerializeToString())

        def committed(outcome: object) -> None:
            is_stored = isinstance(outcome, bytes)
            self._count("position committed" if is_stored else "position not committed")

        self.calls.call(self.client, machine, serve, committed)


def _confirmed(serving: Serving, act: Callable[[], object], answer: Answer) -> None:
    """Answer with the outcome of an action, once the broker has confirmed its metadata."""

    def confirmed(error: LiftbridgeError | None) -> None:
        try:
            answer(act() if error is None else error)
        except LiftbridgeError as refusal:
            answer(refusal)

    serving.node.groups.confirm(confirmed)
