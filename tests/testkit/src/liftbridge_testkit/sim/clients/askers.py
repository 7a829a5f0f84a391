"""Askers: clients that query the ends of logs and read logs in every way.

Each question is one that the API answers: the committed end, from the leader or any replica; the
offset for a time; all records up to the end, from the first record, an offset or a time, backwards
from the end or an offset, or as batches from any offset, strict or not. The services of the API
answer the questions about the end and the time. `AnswersAreTrue` checks the answers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from liftbridge_broker.errors import (
    EndOfStreamError,
    LiftbridgeError,
    NotFoundError,
    OutOfRangeError,
)
from liftbridge_broker.logformat.batch import HEADER_SIZE, walk
from liftbridge_broker.model.ids import Instant, Offset, PartitionId, stream_of
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.reading.answers import Question, ask
from liftbridge_broker.node.reading.bulk import BulkRange, BulkRead
from liftbridge_broker.node.reading.subscription import (
    Position,
    StartPosition,
    StopPosition,
    Subscription,
    question_of,
)
from liftbridge_testkit.sim.checkers.answers import AnswersAreTrue, Asked, Held, check_history
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Serving
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.clients.unary import Bounds, Unary
from liftbridge_testkit.sim.history import History, Record
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import World

PULL_BYTES = 64 * 1024
WAYS = ("leader", "replica")
"""Target of a question."""

NEVER = Position(StopPosition.ON_CANCEL, 0, 0)


class Kind(Enum):
    """Kind of a question."""

    END = "end"
    TIME = "place of a time"
    FORWARD = "forward"
    FROM_OFFSET = "forward from an offset"
    FROM_TIME = "forward from a time"
    BACKWARD = "backward"
    BACKWARD_FROM = "backward from an offset"
    BATCHES = "batches"
    BATCHES_FROM = "batches from an offset"
    BATCHES_STRICT = "batches from an offset, strict"


BACKWARDS = (Kind.BACKWARD, Kind.BACKWARD_FROM)
BATCHES = (Kind.BATCHES, Kind.BATCHES_FROM, Kind.BATCHES_STRICT)
FROM_OFFSET = (Kind.FROM_OFFSET, Kind.BACKWARD_FROM, Kind.BATCHES_FROM, Kind.BATCHES_STRICT)
OF_TIME = (Kind.TIME, Kind.FROM_TIME)

LATER_THAN_ALL = 1 << 62
"""A time after that of every record."""


@dataclass(frozen=True, slots=True)
class AskerPlan:
    """Behaviour of one asker.

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
        """Stop asking."""
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
        wanted = self._random.randrange(asked.told + 2) if kind in FROM_OFFSET else 0
        timestamp = self._choose_time(asked) if kind in OF_TIME else 0
        inquiry = Inquiry(self, asked, kind, wanted, timestamp, as_replica=as_replica)
        # Two calls of the leader return the end.
        inquiry.is_newest = kind is Kind.END and not as_replica and self._random.random() < 0.5
        self.put(inquiry, machine, lambda _outcome: self._later())

    def put(self, inquiry: "Inquiry", machine: Machine, ended: Callable[[object], None]) -> None:
        """Ask a broker one question; check its answer before calling `ended`."""
        asked, is_strict = inquiry.asked, inquiry.kind is Kind.BATCHES_STRICT

        def done(outcome: object) -> None:
            if outcome is inquiry:
                self._judge(inquiry)
            elif isinstance(outcome, OutOfRangeError) and is_strict:
                self._world.coverage.count("client", "strict read refused as out of range")
                self._checker.refused_as_out_of_range(asked, inquiry.start, inquiry.wanted)
            else:
                self._checker.gave_up(asked)
            ended(outcome)

        self._calls.call(self.name, machine, inquiry.serve, done)

    def _choose_time(self, asked: Asked) -> int:
        """Return a time near that of a record that was read, or later than all."""
        if not asked.times or self._random.random() < 0.1:
            return LATER_THAN_ALL
        return self._random.choice(tuple(asked.times.values())) + self._random.randrange(-1, 2)

    def _judge(self, inquiry: "Inquiry") -> None:
        """Check an answer against the facts known when its question began."""
        asked, checker = inquiry.asked, self._checker
        way = WAYS[inquiry.as_replica]
        self._world.coverage.count("client", f"{inquiry.kind.value} told by a {way}")
        if inquiry.is_newest:
            self._world.coverage.count("client", "end told with the metadata")
        if inquiry.kind is Kind.END:
            checker.told_end(asked, inquiry.end)
            return
        if inquiry.kind is Kind.TIME:
            start = inquiry.end if inquiry.is_compacted else inquiry.start
            checker.told_place(asked, inquiry.timestamp, inquiry.place, (start, inquiry.end))
            return
        if inquiry.question is not Question.END and checker.has_lost(asked.partition):
            checker.gave_up(asked)  # a replica may give what another one's election undid
            return
        if inquiry.is_compacted:
            checker.gave_up(asked)
        elif inquiry.kind is Kind.FROM_TIME:
            checker.read_from_time(asked, inquiry.timestamp, inquiry.given, inquiry.start)
        elif inquiry.kind is Kind.BACKWARD_FROM:
            checker.read_to_end(asked, inquiry.given, inquiry.start, last=inquiry.wanted)
        else:
            # A strict read is refused when the log lacks a part of it.
            start = 0 if inquiry.kind is Kind.BATCHES_STRICT else inquiry.start
            checker.read_to_end(asked, inquiry.given, start, inquiry.wanted)
        checker.learn_times(asked, inquiry.times, inquiry.timestamp)
        held = self._held.setdefault(asked.partition, Held())
        cut = check_history(self.name, held, inquiry.given, inquiry.epochs, inquiry.unclean_epoch)
        if cut is not None:
            held.values = {at: value for at, value in held.values.items() if at < cut}
            self._world.coverage.count("client", "truncation told by epochs")
        held.values.update(inquiry.given)
        held.epochs = inquiry.epochs
        held.position = max(held.values, default=-1) + 1

    def take(self, piece: bytes | memoryview) -> Iterator[Record]:
        """Return the records of frames."""
        return self._history.frames.records(piece)


class Inquiry:
    """One question at one broker.

    Attributes:
        wanted: First requested offset.
        timestamp: Requested time.
        question: Question to the broker.
        is_newest: Whether `FetchPartitionMetadata` is called for the end.
        end: Returned committed end.
        place: Returned offset for the time.
        start: First offset kept when it was answered.
        given: Records that were read, by offset.
        times: Their timestamps.
        epochs: Leader epochs of the log.
        unclean_epoch: That of the last unclean election of the partition, 0 for none.
        is_compacted: Whether records may be missing.
    """

    def __init__(
        self,
        asker: Asker,
        asked: Asked,
        kind: Kind,
        wanted: int,
        timestamp: int,
        *,
        as_replica: bool,
    ) -> None:
        self.asked = asked
        self.kind = kind
        self.wanted = wanted
        self.timestamp = timestamp
        self.as_replica = as_replica
        self.question = Question.END
        self.is_newest = False
        self.end = 0
        self.place = 0
        self.start = 0
        self.given: dict[int, bytes] = {}
        self.times: dict[int, int] = {}
        self.epochs: list[tuple[int, int]] = []
        self.unclean_epoch = 0
        self.is_compacted = False
        self._asker = asker
        self._reading: Subscription | BulkRead | None = None

    def serve(self, serving: Serving, now: Instant, wall_ns: int, answer: Answer) -> None:
        """Serve the question as the broker does."""
        partition = serving.node.partitions.get(self.asked.partition)
        if partition is None or not (self.as_replica or partition.is_led):
            raise NotFoundError(f"no such partition here: {self.asked.partition}")
        if self.kind in (Kind.END, Kind.TIME):
            self._tell(Unary(serving.node, now, wall_ns), partition, answer)
            return
        start, stop = self._positions()
        if self.kind in BATCHES:
            self.question = self._range().question(partition)
        else:
            self.question = question_of(
                partition,
                start,
                stop,
                is_reverse=self.kind in BACKWARDS,
                reads_replica=self.as_replica,
            )

        def answered(error: LiftbridgeError | None) -> None:
            try:
                if error is not None:
                    raise error
                self._answer(serving, partition, answer)
            except LiftbridgeError as refusal:
                self._close(serving, partition)
                answer(refusal)

        answers = serving.node.client_reads.answers
        ask(answers, partition, self.question, answered, now, as_replica=self.as_replica)

    def _tell(self, unary: Unary, partition: Partition, answer: Answer) -> None:
        """Have the services of the API say where the log ends, or the place of a time."""
        stream, number = partition.stream, partition.number
        stream_id = stream_of(self.asked.partition)
        self.is_compacted = partition.options.compact_enabled

        def told(found: Bounds | LiftbridgeError) -> None:
            if isinstance(found, Bounds) and found.stream_id == stream_id:
                self.start, self.end = found.start, found.end
                self.place = found.end if found.place is None else found.place
                answer(self)
            else:
                answer(found)

        def told_newest(found: Offset | LiftbridgeError) -> None:
            state = unary.node.state.stream(stream)
            is_same = state is not None and state.stream_id == stream_id
            if not isinstance(found, LiftbridgeError) and is_same:
                self.end = int(found)
                answer(self)
            else:
                answer(found)

        if self.is_newest:
            unary.newest(stream, number, told_newest)
        else:
            timestamp = self.timestamp if self.kind is Kind.TIME else None
            unary.bounds(stream, number, timestamp, told, reads_replica=self.as_replica)

    def _positions(self) -> tuple[Position, Position]:
        latest = Position(StopPosition.LATEST, 0, 0)
        match self.kind:
            case Kind.BACKWARD:
                return Position(StartPosition.LATEST, 0, 0), NEVER
            case Kind.BACKWARD_FROM:
                return Position(StartPosition.OFFSET, self.wanted, 0), NEVER
            case Kind.FROM_OFFSET:
                return Position(StartPosition.OFFSET, self.wanted, 0), latest
            case Kind.FROM_TIME:
                return Position(StartPosition.TIMESTAMP, 0, self.timestamp), latest
            case _:
                return Position(StartPosition.EARLIEST, 0, 0), latest

    def _range(self) -> BulkRange:
        return BulkRange(
            Offset(self.wanted),
            Offset(0),
            0,
            follows=False,
            reads_replica=self.as_replica,
            is_strict=self.kind is Kind.BATCHES_STRICT,
        )

    def _answer(self, serving: Serving, partition: Partition, answer: Answer) -> None:
        log = partition.log
        if self.kind in BATCHES:
            self._read_batches(serving, partition, answer)
        elif log.high_watermark == log.log_start_offset:
            self._close(serving, partition)
            answer(self)  # there is nothing to read
        else:
            self._subscribe(serving, partition, answer)

    def _keep(self, piece: bytes | memoryview) -> None:
        for record in self._asker.take(piece):
            self.given[record.offset] = record.name
            self.times[record.offset] = record.timestamp

    def _end(
        self,
        serving: Serving,
        partition: Partition,
        answer: Answer,
        error: LiftbridgeError | None = None,
    ) -> None:
        """A read is over."""
        assert self._reading is not None
        self._reading.close(serving.node.context.now)
        self._reading = None
        self._close(serving, partition)
        answer(error or self)

    def _read_batches(self, serving: Serving, partition: Partition, answer: Answer) -> None:
        def pump() -> None:
            while isinstance(self._reading, BulkRead):
                try:
                    chunk = self._reading.pull(PULL_BYTES)
                    self._reading.release()  # as for a client that accepts no more
                except LiftbridgeError as error:
                    self._end(serving, partition, answer, error)
                    return
                if chunk is None:
                    return
                if not chunk.data:
                    self._end(serving, partition, answer)
                for at, header in walk(chunk.data, 0, len(chunk.data)):
                    frames = chunk.data[at + HEADER_SIZE : at + header.size]
                    self._keep(frames)

        self._reading = BulkRead(partition, serving.node.client_reads, pump, self._range())
        pump()

    def _subscribe(self, serving: Serving, partition: Partition, answer: Answer) -> None:
        start, stop = self._positions()

        def pump() -> None:
            while isinstance(self._reading, Subscription):
                slices, _, end, waits = self._reading.pull(PULL_BYTES)
                self._reading.release()  # as for a client that accepts no more
                for piece in slices:
                    self._keep(piece)
                if end is not None:
                    error = None if isinstance(end, EndOfStreamError) else end
                    self._end(serving, partition, answer, error)
                    return
                if waits:
                    return

        self._reading = Subscription.open(
            partition,
            serving.node.client_reads,
            pump,
            start=start,
            stop=stop,
            is_reverse=self.kind in BACKWARDS,
            reads_replica=self.as_replica,
        )
        pump()

    def _close(self, serving: Serving, partition: Partition) -> None:
        log = partition.log
        self.unclean_epoch = int(serving.node.state.unclean_epoch(partition.partition_id))
        self.start = int(log.log_start_offset)
        self.epochs = [(int(epoch), int(start)) for epoch, start in log.epochs.entries]
        self.is_compacted = partition.options.compact_enabled
