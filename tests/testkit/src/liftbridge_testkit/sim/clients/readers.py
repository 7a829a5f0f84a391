"""Readers: subscriptions from any position, at leaders and, where allowed, at other replicas.

A reader takes messages at once. When its subscription ends, it continues from the next offset at
any broker that serves the partition. So one reader sees one history across restarts.
"""

from dataclasses import dataclass

from liftbridge_broker.errors import LiftbridgeError, NotFoundError
from liftbridge_broker.model.ids import Instant, PartitionId
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.reading.answers import Done, ask
from liftbridge_broker.node.reading.subscription import (
    Position,
    StartPosition,
    StopPosition,
    Subscription,
    question_of,
)
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Serving
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.history import History
from liftbridge_testkit.sim.invariants.copies import check_latest_told
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import World

PULL_BYTES = 64 * 1024
OPENED = "opened"
"""Answer to a call that opened a subscription."""

_LATEST = (StartPosition.LATEST, StartPosition.NEW_ONLY)
RETRY_NS = 80 * MILLISECOND_NS
NEVER = Position(StopPosition.ON_CANCEL, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPlan:
    """Behaviour of one reader.

    Attributes:
        stream: Stream it reads.
        number: Partition of it.
        start: Start position.
        leaves_ppm: Probability that it unsubscribes after a pull and returns, in millionths.
        reads_replica: Whether it reads from any replica, not only from the leader.
    """

    stream: str
    number: int = 0
    start: StartPosition = StartPosition.EARLIEST
    leaves_ppm: int = 0
    reads_replica: bool = False


class Reader:
    """One reader from `start` until `stop`.

    Attributes:
        next_offset: Next offset to receive; -1 before the first.
        partition: Partition to read; a recreated stream is read from its beginning.
    """

    def __init__(
        self,
        world: World,
        calls: Calls,
        directory: Directory,
        history: History,
        plan: ReaderPlan,
        number: int,
    ) -> None:
        self.plan = plan
        self.name = f"reader-{number}"
        self.next_offset = -1
        self.partition: PartitionId | None = None
        self.is_stopped = False
        self._world = world
        self._calls = calls
        self._directory = directory
        self._history = history
        self._random = world.new_random()
        self._subscription: Subscription | None = None
        self._machine: Machine | None = None
        self._incarnation = 0
        self._attempt = 0

    def start(self) -> None:
        """Begin to read."""
        self._again()

    def stop(self) -> None:
        """Unsubscribe permanently."""
        self.is_stopped = True
        self._leave()

    def _again(self) -> None:
        """Subscribe again a little later, unless subscribed by then."""
        self._attempt += 1
        if not self.is_stopped:
            delay = self._random.randrange(1, RETRY_NS)
            self._world.scheduler.after(delay, self._go, self._attempt)

    def _go(self, attempt: int) -> None:
        if attempt != self._attempt or self.is_stopped:
            return
        place = self._directory.find(self.plan.stream, self.plan.number)
        if place is None or place.leader is None:
            self._again()
            return
        if place.partition != self.partition:
            self.partition, self.next_offset = place.partition, -1
        machine = place.leader
        if self.plan.reads_replica and place.replicas:
            machine = self._random.choice(place.replicas)

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            def may_open(error: LiftbridgeError | None) -> None:
                answer(error or self._opened(attempt, serving, machine))

            self._ask(serving, now, may_open)

        def opened(outcome: object) -> None:
            if outcome is not OPENED and attempt == self._attempt and self._subscription is None:
                self._again()

        self._calls.call(self.name, machine, serve, opened)

    def _opened(self, attempt: int, serving: Serving, machine: Machine) -> object:
        """Subscribe, unless the call timed out and is served late: the reader is elsewhere."""
        try:
            if attempt == self._attempt and self._subscription is None:
                self._open(serving, machine)
        except LiftbridgeError as refusal:
            return refusal
        return OPENED

    def _ask(self, serving: Serving, now: Instant, done: Done) -> None:
        """Ask whether the broker may answer for this start position, as the API does."""
        assert self.partition is not None
        partition = serving.node.partitions.get(self.partition)
        if partition is None:
            raise NotFoundError(f"no such partition: {self.partition}")
        is_replica = self.plan.reads_replica
        question = question_of(
            partition, self._position(), NEVER, is_reverse=False, reads_replica=is_replica
        )
        answers = serving.node.client_reads.answers
        ask(answers, partition, question, done, now, as_replica=is_replica)

    def _position(self) -> Position:
        if self.next_offset >= 0:
            return Position(StartPosition.OFFSET, self.next_offset, 0)
        return Position(self.plan.start, 0, 0)

    def _open(self, serving: Serving, machine: Machine) -> None:
        """Subscribe at a broker, in one of its turns."""
        assert self.partition is not None
        node = serving.node
        partition = node.partitions.get(self.partition)
        if partition is None:
            raise NotFoundError(f"no such partition: {self.partition}")
        self._subscription = Subscription.open(
            partition,
            node.client_reads,
            self._wake,
            start=self._position(),
            stop=NEVER,
            is_reverse=False,
            reads_replica=self.plan.reads_replica,
        )
        if self.next_offset < 0 and self.plan.start in _LATEST:
            check_latest_told(node, partition)
        self._machine, self._incarnation = machine, machine.incarnation
        machine.ended[self] = self._on_process_end
        self._world.coverage.count("client", "subscription")
        try:
            self._wake()
        except LiftbridgeError:
            self._leave()
            raise

    def _on_process_end(self) -> None:
        self._subscription = None
        self._again()

    def _wake(self) -> None:
        """Take all available messages, in a turn of the broker."""
        subscription = self._subscription
        while subscription is not None and subscription is self._subscription:
            slices, _, end, waits = subscription.pull(PULL_BYTES)
            for piece in slices:
                self._take(piece, subscription.partition.log.log_start_offset)
            if end is not None:
                self._leave()
                self._again()
            elif waits:
                return
            elif self.plan.leaves_ppm and self._random.randrange(1_000_000) < self.plan.leaves_ppm:
                self._leave()
                self._again()

    def _leave(self) -> None:
        """Close the subscription, if there is one."""
        subscription, self._subscription = self._subscription, None
        machine = self._machine
        if subscription is None or machine is None:
            return
        machine.ended.pop(self, None)
        if machine.incarnation == self._incarnation:
            subscription.close(machine.now())

    def _take(self, piece: bytes | memoryview, log_start: int) -> None:
        assert self.partition is not None
        for record in self._history.frames.records(piece):
            if record.offset < self.next_offset:
                # A subscription from an offset that is not committed yet begins at the committed
                # end.
                self._world.coverage.rare("delivered again after a new subscription")
                self._history.seen(self.partition, "", record, log_start)
                continue
            self.next_offset = record.offset + 1
            self._history.seen(self.partition, self.name, record, log_start)
