"""Askers: clients that ask how far logs go, and read them from one end to the other.

Each question is one that the API answers: the committed end, from the leader or from any replica;
the place of a time; everything up to the end, from the first record, from an offset, backwards or
as batches. `AnswersAreTrue` judges.
"""

from dataclasses import dataclass
from enum import Enum

from liftbridge_broker.errors import EndOfStreamError, LiftbridgeError, NotFoundError
from liftbridge_broker.logformat.batch import HEADER_SIZE, walk
from liftbridge_broker.model.ids import Instant, Offset, PartitionId
from liftbridge_broker.node.answers import Question, ask
from liftbridge_broker.node.bulk import BulkRange, BulkRead
from liftbridge_broker.node.partition import Partition
from liftbridge_broker.node.subscription import (
    Position,
    StartPosition,
    StopPosition,
    Subscription,
    question_of,
)
from liftbridge_testkit.sim.checkers.answers import AnswersAreTrue, Asked, Held, check_history
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Serving
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.history import History
from liftbridge_testkit.sim.world import World

PULL_BYTES = 64 * 1024
WAYS = ("leader", "replica")
"""Who is asked."""

NEVER = Position(StopPosition.ON_CANCEL, 0, 0)


class Kind(Enum):
    """What is asked."""

    END = "end"
    TIME = "time"
    FORWARD = "forward"
    FROM_OFFSET = "forward from an offset"
    BACKWARD = "backward"
    BATCHES = "batches"


@dataclass(frozen=True, slots=True)
class AskerPlan:
    """How one asker lives.

    Attributes:
        stream: Stream it asks about.
        think_ns: Longest time between two questions.
        number: Partition of it.
    """

    stream: str
    think_ns: int
    number: int = 0


class Asker:
    """One asker from `start` until `stop`."""

    def __init__(
        self,
        world: World,
        calls: Calls,
        directory: Directory,
        history: History,
        checker: AnswersAreTrue,
        plan: AskerPlan,
        number: int,
    ) -> None:
        self.plan = plan
        self.name = f"asker-{number}"
        self.is_stopped = False
        self._world = world
        self._calls = calls
        self._directory = directory
        self._history = history
        self._checker = checker
        self._random = world.new_random()
        self._held: dict[PartitionId, Held] = {}

    def start(self) -> None:
        """Begin to ask."""
        self._later()

    def stop(self) -> None:
        """Ask nothing more."""
        self.is_stopped = True

    def _later(self) -> None:
        delay = self._random.randrange(1, self.plan.think_ns)
        self._world.scheduler.after(delay, self._go)

    def _go(self) -> None:
        if self.is_stopped:
            return
        place = self._directory.find(self.plan.stream, self.plan.number)
        kind = self._random.choice(tuple(Kind))
        as_replica = self._random.random() < 0.5
        machine = place.leader if place is not None else None
        if place is not None and as_replica and place.replicas:
            machine = self._random.choice(place.replicas)
        if place is None or machine is None:
            self._later()
            return
        asked = self._checker.ask(self.name, place.partition)
        wanted = self._random.randrange(asked.told + 2) if kind is Kind.FROM_OFFSET else 0
        inquiry = Inquiry(self, asked, kind, wanted, as_replica=as_replica)

        def done(outcome: object) -> None:
            if outcome is inquiry:
                self._judge(inquiry)
            else:
                self._checker.gave_up(asked)
            self._later()

        self._calls.call(self.name, machine, inquiry.serve, done)

    def _judge(self, inquiry: "Inquiry") -> None:
        """Hold an answer that arrived against what was known when it was asked for."""
        asked, checker = inquiry.asked, self._checker
        way = WAYS[inquiry.as_replica]
        self._world.coverage.count("client", f"{inquiry.kind.value} told by a {way}")
        if inquiry.kind is Kind.END or inquiry.kind is Kind.TIME:
            checker.told_end(asked, inquiry.end)
            return
        if not inquiry.is_compacted:
            checker.read_to_end(asked, inquiry.given, inquiry.start, inquiry.wanted)
        else:
            checker.gave_up(asked)
        held = self._held.setdefault(asked.partition, Held())
        cut = check_history(self.name, held, inquiry.given, inquiry.epochs)
        if cut is not None:
            held.values = {at: value for at, value in held.values.items() if at < cut}
            self._world.coverage.count("client", "truncation told by epochs")
        held.values.update(inquiry.given)
        held.epoch = inquiry.epochs[-1][0] if inquiry.epochs else 0
        held.position = max(held.values, default=-1) + 1

    def take(self, piece: bytes | memoryview) -> dict[int, bytes]:
        """Records of frames, by offset."""
        return {record.offset: record.value for record in self._history.frames.records(piece)}


class Inquiry:
    """One question at one broker.

    Attributes:
        wanted: First offset asked for.
        end: Committed end that was told.
        start: First offset kept when it was answered.
        given: Records that were read, by offset.
        epochs: Leader epochs of the log.
        is_compacted: Whether records may be missing.
    """

    def __init__(
        self, asker: Asker, asked: Asked, kind: Kind, wanted: int, *, as_replica: bool
    ) -> None:
        self.asked = asked
        self.kind = kind
        self.wanted = wanted
        self.as_replica = as_replica
        self.end = 0
        self.start = 0
        self.given: dict[int, bytes] = {}
        self.epochs: list[tuple[int, int]] = []
        self.is_compacted = False
        self._asker = asker
        self._reading: Subscription | BulkRead | None = None

    def serve(self, serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
        """What the broker does."""
        partition = serving.node.partitions.get(self.asked.partition)
        if partition is None or not (self.as_replica or partition.is_led):
            raise NotFoundError(f"no such partition here: {self.asked.partition}")
        question = Question.END
        start, stop = self._positions()
        if self.kind is Kind.BATCHES:
            question = self._range().question(partition)
        elif self.kind not in (Kind.END, Kind.TIME):
            question = question_of(
                partition,
                start,
                stop,
                is_reverse=self.kind is Kind.BACKWARD,
                reads_replica=self.as_replica,
            )

        def answered(error: LiftbridgeError | None) -> None:
            try:
                if error is not None:
                    raise error
                self._answer(serving, partition, answer)
            except LiftbridgeError as refusal:
                answer(refusal)

        ask(serving.node, partition, question, answered, now, as_replica=self.as_replica)

    def _positions(self) -> tuple[Position, Position]:
        if self.kind is Kind.BACKWARD:
            return Position(StartPosition.LATEST, 0, 0), NEVER
        kind = StartPosition.OFFSET if self.kind is Kind.FROM_OFFSET else StartPosition.EARLIEST
        return Position(kind, self.wanted, 0), Position(StopPosition.LATEST, 0, 0)

    def _range(self) -> BulkRange:
        return BulkRange(Offset(0), Offset(0), 0, follows=False, reads_replica=self.as_replica)

    def _answer(self, serving: Serving, partition: Partition, answer: Answer) -> None:
        log = partition.log
        if self.kind is Kind.END or self.kind is Kind.TIME:
            self.end = int(log.high_watermark)
            answer(self)
            return
        if log.high_watermark == log.log_start_offset:
            self._close(partition)
            answer(self)  # there is nothing to read
            return
        if self.kind is Kind.BATCHES:
            self._read_batches(serving, partition, answer)
        else:
            self._subscribe(serving, partition, answer)

    def _end(
        self,
        serving: Serving,
        partition: Partition,
        answer: Answer,
        error: LiftbridgeError | None = None,
    ) -> None:
        """A read is over."""
        assert self._reading is not None
        self._reading.close(serving.node.now)
        self._reading = None
        self._close(partition)
        answer(error or self)

    def _read_batches(self, serving: Serving, partition: Partition, answer: Answer) -> None:
        def pump() -> None:
            while isinstance(self._reading, BulkRead):
                try:
                    chunk = self._reading.pull(PULL_BYTES)
                except LiftbridgeError as error:
                    self._end(serving, partition, answer, error)
                    return
                if chunk is None:
                    return
                if not chunk.data:
                    self._end(serving, partition, answer)
                for at, header in walk(chunk.data, 0, len(chunk.data)):
                    frames = chunk.data[at + HEADER_SIZE : at + header.size]
                    self.given.update(self._asker.take(frames))

        self._reading = BulkRead(partition, serving.node, pump, self._range())
        pump()

    def _subscribe(self, serving: Serving, partition: Partition, answer: Answer) -> None:
        start, stop = self._positions()

        def pump() -> None:
            while isinstance(self._reading, Subscription):
                slices, end, waits = self._reading.pull(PULL_BYTES)
                for piece in slices:
                    self.given.update(self._asker.take(piece))
                if end is not None:
                    error = None if isinstance(end, EndOfStreamError) else end
                    self._end(serving, partition, answer, error)
                    return
                if waits:
                    return

        self._reading = Subscription.open(
            partition,
            serving.node,
            pump,
            start=start,
            stop=stop,
            is_reverse=self.kind is Kind.BACKWARD,
            reads_replica=self.as_replica,
        )
        pump()

    def _close(self, partition: Partition) -> None:
        log = partition.log
        self.start = int(log.log_start_offset)
        self.epochs = [(int(epoch), int(start)) for epoch, start in log.epochs.entries]
        self.is_compacted = partition.options.compact_enabled
