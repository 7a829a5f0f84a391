"""Records: what `decide` made of a command, with every value `replay` puts in place; and answers.

A record tells the outcome, never the wish, so that replay has nothing to decide. Those who react
to changes, such as the node, match on the same records.
"""

from typing import NamedTuple

from liftbridge_broker.controller.state import BrokerState, PublisherState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataIndex,
    PartitionId,
    PartitionNumber,
    PublisherId,
    StreamId,
    StreamName,
)
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOverrides


class BrokerRegistered(NamedTuple):
    """A broker has a new session."""

    broker: BrokerState


class LeaderElected(NamedTuple):
    """A partition has a new leader epoch, perhaps under the same leader.

    Attributes:
        partition_id: The partition.
        leader: Its leader.
        isr: Its in-sync set.
        leader_epoch: Index of this record's command, also the new partition epoch.
        is_unclean: Whether acknowledged records may have been lost.
    """

    partition_id: PartitionId
    leader: BrokerId
    isr: tuple[BrokerId, ...]
    leader_epoch: LeaderEpoch
    is_unclean: bool


class StreamCreated(NamedTuple):
    """A stream exists from now on, with all its partitions."""

    stream_id: StreamId
    name: StreamName
    subject: str
    group: str
    creation_timestamp: int
    overrides: StreamOverrides
    partitions: tuple[PartitionState, ...]


class StreamDeleted(NamedTuple):
    """A stream is gone; its partition ids never come back."""

    stream_id: StreamId
    name: StreamName
    partition_ids: tuple[PartitionId, ...]


class StreamAltered(NamedTuple):
    """A stream has these settings other than the defaults."""

    stream_id: StreamId
    name: StreamName
    overrides: StreamOverrides


class PartitionsPaused(NamedTuple):
    """Intake of partitions is stopped, also of those that were paused already.

    Attributes:
        stream_id: The stream.
        name: Its name.
        explicit: Partitions paused until someone resumes them.
        automatic: Partitions that the first message resumes.
        resume_all: What resuming one partition does from now on.
        partition_epoch: Index of the command.
    """

    stream_id: StreamId
    name: StreamName
    explicit: tuple[PartitionNumber, ...]
    automatic: tuple[PartitionNumber, ...]
    resume_all: bool
    partition_epoch: MetadataIndex


class PartitionsResumed(NamedTuple):
    """Intake of partitions goes on, and the stream's `resume_all` is used up."""

    stream_id: StreamId
    name: StreamName
    partitions: tuple[PartitionNumber, ...]
    partition_epoch: MetadataIndex


class ReadonlySet(NamedTuple):
    """Partitions refuse or accept publishes, also those that did already."""

    stream_id: StreamId
    name: StreamName
    partitions: tuple[PartitionNumber, ...]
    readonly: bool
    partition_epoch: MetadataIndex


class PublisherInitialised(NamedTuple):
    """An idempotent publisher has a new epoch, and is the one used last of its stream."""

    stream_id: StreamId
    publisher: str
    state: PublisherState


class PublisherForgotten(NamedTuple):
    """An idempotent publisher made place for another; its id is fenced for ever."""

    stream_id: StreamId
    publisher: str
    publisher_id: PublisherId


Record = (
    BrokerRegistered
    | LeaderElected
    | StreamCreated
    | StreamDeleted
    | StreamAltered
    | PartitionsPaused
    | PartitionsResumed
    | ReadonlySet
    | PublisherInitialised
    | PublisherForgotten
)


class Done(NamedTuple):
    """Answer without content."""


class BrokerEpochAnswer(NamedTuple):
    """Answer to `RegisterBroker`: the epoch of the session."""

    broker_epoch: MetadataIndex


class StreamIdAnswer(NamedTuple):
    """Answer to `CreateStream`."""

    stream_id: StreamId


Answer = Done | BrokerEpochAnswer | StreamIdAnswer | PublisherState
"""What a command is answered with; `InitPublisher` with the publisher's new state."""


class Decision(NamedTuple):
    """What becomes of a command: records and an answer, or a refusal and no records."""

    records: tuple[Record, ...]
    answer: Answer | LiftbridgeError
