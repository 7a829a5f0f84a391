"""A partition that another broker leads, as a target of publishes.

Its messages are sent over NATS with this broker's ack inbox; the leader's ack is the answer.
Messages of a queue group take the same path (`node.publishing.forwarding`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.ids import PartitionId, PartitionNumber
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.subjects import partition_subject
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.intake import InboxAcks
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.wire.acks import AckEncoder


@dataclass(slots=True, eq=False)
class RemotePartition:
    """Partition that another broker leads; created per request, from the metadata at that time.

    Attributes:
        stream: Name of the stream.
        partition_id: Its id.
        number: Number within it.
        subject: Subject of the partition.
        group: NATS queue group, empty for none.
        options: Settings in force.
        is_readonly: Whether it refuses messages.
        is_paused: Whether it has to be resumed first.
        acks: Builds its acks.
        takes_runs: Always false: each message is sent separately.
    """

    stream: str
    partition_id: PartitionId
    number: PartitionNumber
    subject: str
    group: str
    options: StreamOptions
    is_readonly: bool
    is_paused: bool
    acks: AckEncoder
    send_acks: Callable[[list[bytes]], None]
    ack_times: Mapping[int, Histogram]
    takes_runs: bool = False

    def acks_for(self, subject: str) -> InboxAcks:
        """Return a new sink for acks of messages on `subject`."""
        return InboxAcks(self.acks, subject, self.send_acks, self.ack_times)


Target = Partition | RemotePartition
"""A partition that a message is published to, led here or by another broker."""


def remote_partition(
    context: NodeContext, stream: StreamState, state: PartitionState
) -> RemotePartition:
    """Build a partition from the metadata."""
    return RemotePartition(
        stream.name,
        state.partition_id,
        state.number,
        partition_subject(stream.subject, state.number),
        stream.group,
        context.options_of(stream),
        state.readonly,
        state.paused,
        AckEncoder(stream.name, stream.subject),
        context.send_acks,
        context.ack_times,
    )
