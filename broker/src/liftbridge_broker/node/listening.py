"""Messages of NATS for the partitions led here, and copies of what came in another way.

The brokers' own streams take nothing from NATS: their leaders alone write to them.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.model.ids import Instant, PartitionId
from liftbridge_broker.model.subjects import RESERVED_STREAMS
from liftbridge_broker.node.chores import Chores
from liftbridge_broker.node.partition import Partition
from liftbridge_broker.node.runs import PublishRun
from liftbridge_broker.ports.messaging import Messaging, SubscriptionId
from liftbridge_broker.wire.subjects import SubjectTable

COPY_WEIGHT: Final = 100
"""Weight of a copy of a run, besides its records; see `node.chores`."""

WEIGHT_BYTES: Final = 128
"""Bytes of a copy that weigh as much as a record."""

RUN_BYTES: Final = 1_000
RECORD_BYTES: Final = 64
"""What a run, and a record or header of it, takes besides its bytes."""

WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
"""Runs that wait to be copied to neighbours. A subject may have as much of it as is left free, so a
busy one has half, two of them a third each, and there is always room for another."""


class ListeningHost(Protocol):
    """What this asks of its node."""

    chores: Chores
    now: Instant
    wall_ns: int


@dataclass(slots=True)
class _Line:
    """Runs of one subject that wait, in the order in which they were appended."""

    runs: deque[tuple[Partition, PublishRun, tuple[Partition, ...]]]
    size_bytes: int


class Listening:
    """Subjects this broker stores the messages of.

    Attributes:
        lost_copy_count: Messages that other listeners of a subject missed, NATS being away.
    """

    def __init__(self, messaging: Messaging, host: ListeningHost) -> None:
        """Begin deaf; see `begin`."""
        self._messaging = messaging
        self._host = host
        self._waiting: dict[str, _Line] = {}
        self._waiting_bytes = 0
        self._subjects: SubjectTable[Partition] = SubjectTable()
        self._taken: dict[PartitionId, Partition] = {}
        self._has_begun = False
        self.lost_copy_count = 0

    def begin(self) -> None:
        """Hear what is taken, from now on."""
        self._has_begun = True
        for partition in self._taken.values():
            self._subscribe(partition)

    def start(self, partition: Partition) -> None:
        """Take the messages of a partition that is led here."""
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
        """Whether the messages of a partition are taken: not dropped in a pause, nor refused."""
        partition = self._taken.get(partition_id)
        if not self._has_begun or partition is None or partition.is_paused:
            return False
        return partition.replication is None or not partition.replication.is_recovering

    def stop(self, partition: Partition) -> None:
        """Take its messages no longer."""
        if self._taken.pop(partition.partition_id, None) is not None:
            self._messaging.unsubscribe(SubscriptionId(partition.partition_id))
            self._subjects.remove(partition.subject, partition)

    @property
    def is_behind(self) -> bool:
        """Whether publishers should be read no further until copies are made."""
        return self._waiting_bytes > WAITING_BYTES_MAX // 8

    def has_room(self, subject: str) -> bool:
        """Whether more may be published to a subject that is copied."""
        line = self._waiting.get(subject)
        used = 0 if line is None else line.size_bytes
        return used < WAITING_BYTES_MAX - self._waiting_bytes

    def fan_out(self, partition: Partition, run: PublishRun) -> None:
        """Copy a directly appended run to the partitions beside it and to NATS.

        The quiet connection does not bring it back here, so the partitions of this broker on the
        same subject, queue groups apart, get it from here (ADR 0005): at once, as far as the turn
        allows, and in the order in which runs of the subject were appended. Subjects take turns.
        """
        try:
            self._messaging.publish_quiet(partition.envelopes_of(run))
        except UnavailableError:
            self.lost_copy_count += len(run.values)
        neighbours = self._subjects.lookup(run.subject)
        if len(neighbours) > 1:
            size = _size_of(run)
            self._waiting_bytes += size
            line = self._waiting.get(run.subject)
            if line is not None:
                line.runs.append((partition, run, neighbours))
                line.size_bytes += size
                return
            self._waiting[run.subject] = _Line(deque([(partition, run, neighbours)]), size)
            self._host.chores.begin(self._copy(run.subject))

    def _copy(self, subject: str) -> Iterator[int]:
        """Copy what waits of a subject; whoever ceased to lead meanwhile takes nothing."""
        host, line = self._host, self._waiting[subject]
        while line.runs:
            partition, run, neighbours = line.runs[0]
            size, count = _size_of(run), len(run.values)
            weight = (count + size // WEIGHT_BYTES) // 2
            for neighbour in neighbours:
                if neighbour is not partition:
                    for copy in neighbour.intake.copies_of(run):
                        neighbour.take_copy(copy, host.now, host.wall_ns)
                        yield COPY_WEIGHT + weight * len(copy.values) // count
            line.runs.popleft()
            line.size_bytes -= size
            self._waiting_bytes -= size
        del self._waiting[subject]


def _size_of(run: PublishRun) -> int:
    """Bytes that a run takes, about."""
    size = RUN_BYTES + sum(map(len, run.values)) + RECORD_BYTES * len(run.values)
    for headers in run.headers or ():
        if headers:
            size += sum(len(name) + len(value) + RECORD_BYTES for name, value in headers.items())
    return size
