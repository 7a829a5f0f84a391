"""An archiver: it archives committed records, and stores its position in a cursor.

Only records below the cursor of a stream may be removed. So the archiver records every offset
before it sends it.
"""

from dataclasses import dataclass, field
from random import Random

from liftbridge_broker.errors import LiftbridgeError, NotFoundError
from liftbridge_broker.groups.cursors import Cursor, stamp
from liftbridge_broker.model.ids import Instant, PartitionId
from liftbridge_broker.model.subjects import CURSORS_STREAM
from liftbridge_broker.node.partition.runs import POLICY_ALL, PendingAck, PublishRun, Stored
from liftbridge_broker.node.reading.answers import Question, ask
from liftbridge_broker.wire.cursors import encode_cursor
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Serving
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.world import World

CURSOR = "archive"
"""Name of the cursor of all archivers."""


@dataclass(frozen=True, slots=True)
class CursorSink:
    """Handles the answer to a call that stores the cursor."""

    answer: Answer

    def acked(self, stored: Stored) -> None:
        """Implement `AckSink.acked`."""
        self.answer(stored)

    def refused(self, error: LiftbridgeError) -> None:
        """Implement `AckSink.refused`."""
        self.answer(error)


@dataclass(slots=True)
class Archiver:
    """One archiver of one partition from `start` until `stop`.

    Attributes:
        stream: Stream that it archives.
        think_ns: Maximum time between two reads.
        is_lazy: Whether it archives only a part of the available records each time.
        told: Its position by partition: the highest offset that it ever sent.
    """

    world: World
    calls: Calls
    directory: Directory
    stream: str
    think_ns: int
    is_lazy: bool
    number: int = 0
    told: dict[PartitionId, int] = field(default_factory=dict)
    is_stopped: bool = False
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = self.world.new_random()

    def start(self) -> None:
        """Begin to archive."""
        self._later()

    def stop(self) -> None:
        """Stop archiving."""
        self.is_stopped = True

    def _later(self) -> None:
        self.world.scheduler.after(self._random.randrange(1, self.think_ns), self._go)

    def _go(self) -> None:
        if self.is_stopped:
            return
        place = self.directory.find(self.stream, self.number)
        if place is None or place.leader is None:
            self._later()
            return
        partition_id = place.partition

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            partition = serving.node.partitions.get(partition_id)
            if partition is None:
                raise NotFoundError(f"no such partition here: {partition_id}")
            log = partition.log

            def may_read(error: LiftbridgeError | None) -> None:
                read_in = int(serving.node.state.unclean_epoch(partition_id))
                answer((int(log.high_watermark), read_in) if error is None else error)

            ask(serving.node.client_reads.answers, partition, Question.END, may_read, now)

        def read(outcome: object) -> None:
            match outcome:
                case (int(end), int(read_in)):
                    self._tell(partition_id, end, read_in)
                case _:
                    pass
            self._later()

        self.calls.call("archiver", place.leader, serve, read)

    def _tell(self, partition_id: PartitionId, end: int, read_in: int) -> None:
        """Store the cursor: the archive has all records below it."""
        told = self.told.get(partition_id, 0)
        if self.is_lazy and end > told:
            end = self._random.randrange(told, end) + 1
        place = self.directory.find(CURSORS_STREAM, 0)
        if end <= told or place is None or place.leader is None:
            return
        self.told[partition_id] = end
        cursors = place.partition

        def serve(serving: Serving, now: Instant, wall_ns: int, answer: Answer) -> None:
            partition = serving.node.partitions.get(cursors)
            if partition is None or not partition.is_led:
                raise NotFoundError(f"no such partition here: {cursors}")
            named = serving.node.state.stream(self.stream)
            cursor = Cursor(self.stream, self.number, CURSOR, end)
            if named is not None:
                unclean_epoch = named.partitions[self.number].unclean_epoch
                cursor = stamp(cursor, named.stream_id, unclean_epoch, read_in=read_in)
            run = PublishRun(
                [encode_cursor(cursor)],
                partition.subject,
                "grpc",
                (PendingAck(POLICY_ALL, CursorSink(answer)),),
                [cursor.key],
                policy=POLICY_ALL,
            )
            serving.node.publish(partition, run, now, wall_ns)

        def stored(outcome: object) -> None:
            what = "cursor stored" if isinstance(outcome, Stored) else "cursor not known"
            self.world.coverage.count("client", what)
            self.world.trace.note(self.world.now, "archiver", self.stream, end, what)

        self.calls.call("archiver", place.leader, serve, stored)
