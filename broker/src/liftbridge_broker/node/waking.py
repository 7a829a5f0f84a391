"""Publishing to partitions that other brokers lead: paused ones are resumed first, as at a leader.

A leader drops what comes over NATS while its partition is paused by hand; what a client publishes
waits here, in order, until the leader has resumed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from liftbridge_broker.controller.commands import Command, ResumeStream
from liftbridge_broker.errors import LiftbridgeError, NotAppendedError
from liftbridge_broker.model.ids import Instant, PartitionId, StreamName
from liftbridge_broker.node.hearing import Hearing
from liftbridge_broker.node.partition import PARKED_BYTES_MAX
from liftbridge_broker.node.remote import RemotePartition
from liftbridge_broker.node.runs import PublishRun
from liftbridge_broker.node.subjects import SubjectPublisher


class WakingHost(Protocol):
    """What is asked of the node."""

    @property
    def now(self) -> Instant:
        """Time of this turn."""
        ...

    def propose(self, command: Command, now: Instant, reply: Callable[[object], None]) -> None:
        """Give a command to the metadata."""
        ...


@dataclass(slots=True)
class _Parked:
    """Runs that wait for one partition, in order, and their bytes."""

    runs: list[tuple[RemotePartition, PublishRun]] = field(default_factory=list)
    size_bytes: int = 0


class RemotePublisher:
    """Sends runs to other brokers, after a resume where one is needed."""

    def __init__(
        self, host: WakingHost, subjects: SubjectPublisher, hearing: Hearing | None
    ) -> None:
        """Begin with nothing that waits; a broker alone has no `hearing`."""
        self._host = host
        self._subjects = subjects
        self._hearing = hearing
        self._parked: dict[PartitionId, _Parked] = {}

    def publish(self, partition: RemotePartition, run: PublishRun, now: Instant) -> None:
        """Send a run of one message to whoever leads the partition."""
        partition_id = partition.partition_id
        parked = self._parked.get(partition_id)
        if parked is None and not partition.is_paused:
            self._send(partition, run, now)
            return
        is_first = parked is None
        if parked is None:
            parked = self._parked[partition_id] = _Parked()
        if parked.size_bytes + run.size_bytes > PARKED_BYTES_MAX:
            text = f"not appended: more than {PARKED_BYTES_MAX} bytes wait for the resume"
            run.refuse(NotAppendedError(text))
        else:
            parked.size_bytes += run.size_bytes
            parked.runs.append((partition, run))
        if is_first:
            self._resume(partition, now)

    def _resume(self, partition: RemotePartition, now: Instant) -> None:
        partition_id = partition.partition_id

        def answered(outcome: object) -> None:
            if isinstance(outcome, LiftbridgeError):
                for _, run in self._parked.pop(partition_id).runs:
                    run.refuse(outcome)
            elif self._hearing is None:
                resumed()
            else:
                self._hearing.wait((partition_id,), resumed, self._host.now)

        def resumed() -> None:
            for target, run in self._parked.pop(partition_id).runs:
                self._send(target, run, self._host.now)

        command = ResumeStream(name=StreamName(partition.stream), partitions=(partition.number,))
        self._host.propose(command, now, answered)

    def _send(self, partition: RemotePartition, run: PublishRun, now: Instant) -> None:
        name = partition.stream
        self._subjects.publish_for_group(partition, run, now, lambda ack: ack.stream == name)
