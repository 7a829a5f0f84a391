"""Receives NATS messages for partitions led here, and copies runs that came directly.

Internal streams receive nothing from NATS: only their leaders write to them.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.model.subject_table import SubjectTable
from liftbridge_broker.model.subjects import RESERVED_STREAMS
from liftbridge_broker.model.units import MIB
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.partition import OtherListeners, Partition
from liftbridge_broker.node.partition.runs import PublishRun
from liftbridge_broker.ports.messaging import SubscriptionId

COPY_WEIGHT: Final = 100
"""Weight of a copy of a run, besides its records; see `node.scheduling.chores`."""

WEIGHT_BYTES: Final = 128
"""Bytes of a copy that count as one record."""

RUN_BYTES: Final = 1_000
RECORD_BYTES: Final = 64
"""Memory overhead of a run, and of each record or header, besides its bytes."""

WAITING_BYTES_MAX: Final = 32 * MIB
"""Bytes of runs waiting to be copied to neighbours. A subject may use as much as is left free, so
one busy subject has half, two have a third each, and there is always room for another."""


@dataclass(slots=True)
class _Line:
    """Waiting runs of one subject, in the order of their append."""

    runs: deque[tuple[Partition, PublishRun, tuple[Partition, ...]]]
    size_bytes: int


class Listening:
    """Subjects whose messages this broker stores.

    Attributes:
        others: Reaches the listeners of a subject, for its partitions.
        lost_copy_count: Messages that other listeners of a subject missed while NATS was
            unavailable.
    """

    def __init__(self, context: NodeContext) -> None:
        """Start without subscriptions; see `begin`."""
        self._context = context
        self._messaging = context.messaging
        self.others = OtherListeners(self.can_take, self.fan_out)
        self._waiting: dict[str, _Line] = {}
        self._waiting_bytes = 0
        self._subjects: SubjectTable[Partition] = SubjectTable()
        self._taken: dict[PartitionId, Partition] = {}
        self._has_begun = False
        self.lost_copy_count = 0

    def begin(self) -> None:
        """Subscribe to the subjects of all started partitions."""
        self._has_begun = True
        for partition in self._taken.values():
            self._subscribe(partition)

    def start(self, partition: Partition) -> None:
        """Start to receive the messages of a partition led here."""
        if partition.partition_id in self._taken:
            return
        self._taken[partition.partition_id] = partition
        if not partition.group:
            self._subjects.add(partition.subject, partition)
        self._subscribe(partition)

    def _subscribe(self, partition: Partition) -> None:
        is_own = partition.stream in RESERVED_STREAMS  # guard Intake.own
        if self._has_begun and not partition.offline_reason and not is_own:
            self._messaging.subscribe(
                SubscriptionId(partition.partition_id), partition.subject, partition.group
            )

    def is_listening(self, partition_id: PartitionId) -> bool:
        """Return whether a partition stores messages: neither drops nor refuses them."""
        partition = self._taken.get(partition_id)
        if not self._has_begun or partition is None or partition.is_paused:
            return False
        return partition.replication is None or not partition.replication.is_recovering

    def stop(self, partition: Partition) -> None:
        """Stop receiving the messages of a partition."""
        if self._taken.pop(partition.partition_id, None) is not None:
            self._messaging.unsubscribe(SubscriptionId(partition.partition_id))
            self._subjects.remove(partition.subject, partition)

    @property
    def is_behind(self) -> bool:
        """Return whether to stop reading from publishers until copies are made."""
        return self._waiting_bytes > WAITING_BYTES_MAX // 8

    def can_take(self, subject: str) -> bool:
        """Return whether NATS and neighbours accept messages of a subject, before storing them."""
        messaging = self._messaging
        is_behind = messaging.backlog_bytes >= messaging.backlog_bytes_max // 2
        line = self._waiting.get(subject)
        used = 0 if line is None else line.size_bytes
        has_room = used < WAITING_BYTES_MAX - self._waiting_bytes
        return messaging.takes_frames and not is_behind and has_room

    def fan_out(self, partition: Partition, run: PublishRun) -> None:
        """Copy a directly appended run to neighbouring partitions and to NATS.

        The no-echo connection does not deliver it back here, so this method copies it to this
        broker's partitions on the same subject, except queue groups (ADR 0005). It copies as much
        as the loop turn allows, in the order of appends to the subject; subjects take turns.
        """
        try:
            self._messaging.publish_quiet(partition.envelopes_of(run))
        except UnavailableError:
            self.lost_copy_count += len(run.values)
        neighbours = self._subjects.lookup(run.subject)
        # Streams of any subject store none of the brokers' own records, wherever those are led.
        if len(neighbours) > 1 and partition.stream not in RESERVED_STREAMS:
            size = _size_of(run)
            self._waiting_bytes += size
            line = self._waiting.get(run.subject)
            if line is not None:
                line.runs.append((partition, run, neighbours))
                line.size_bytes += size
                return
            self._waiting[run.subject] = _Line(deque([(partition, run, neighbours)]), size)
            self._context.chores.begin(self._copy(run.subject))

    def _copy(self, subject: str) -> Iterator[int]:
        """Copy the waiting runs of a subject; skip partitions no longer led here."""
        context, line = self._context, self._waiting[subject]
        while line.runs:
            partition, run, neighbours = line.runs[0]
            size, count = _size_of(run), len(run.values)
            weight = (count + size // WEIGHT_BYTES) // 2
            for neighbour in neighbours:
                if neighbour is not partition:
                    for copy in neighbour.intake.copies_of(run):
                        neighbour.take_copy(copy, context.now, context.wall_ns)
                        yield COPY_WEIGHT + weight * len(copy.values) // count
            line.runs.popleft()
            line.size_bytes -= size
            self._waiting_bytes -= size
        del self._waiting[subject]


def _size_of(run: PublishRun) -> int:
    """Return the approximate memory size of a run in bytes."""
    size = RUN_BYTES + sum(map(len, run.values)) + RECORD_BYTES * len(run.values)
    for headers in run.headers or ():
        if headers:
            size += sum(len(name) + len(value) + RECORD_BYTES for name, value in headers.items())
    return size
