"""Records: the outcome of `decide`, with every value that `replay` sets; and answers.

A record states the outcome, never the request, so that replay decides nothing. Listeners such as
the node match on the same records.
"""

from enum import StrEnum
from typing import NamedTuple

from liftbridge_broker.access.quotas import Quota, QuotaKey
from liftbridge_broker.access.rules import AccessRule
from liftbridge_broker.controller.state import BrokerState, PublisherState, StreamPolicy, TokenState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.groups import Group, Member
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
from liftbridge_broker.model.keys import DataKey
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOverrides


class Cause(StrEnum):
    """Cause of a change of a broker or partition, for observers."""

    REGISTERED = "registered"
    UNFENCED = "unfenced"
    FENCED = "fenced"
    SHUTTING_DOWN = "shutting_down"
    ADVERTISED = "advertised"
    KEYS_REPORTED = "keys_reported"
    CORDONED = "cordoned"
    REMOVED = "removed"
    ISR_ALTERED = "isr_altered"
    REASSIGNING = "reassigning"
    REASSIGNED = "reassigned"
    REASSIGNMENT_CANCELLED = "reassignment_cancelled"
    PREFERRED = "preferred"
    RECOVERED_UNCLEANLY = "recovered_uncleanly"
    REPORTED = "reported"
    DECLARED_UNCLEAN = "declared_unclean"
    RESIGNED = "resigned"
    STREAM_ALTERED = "stream_altered"


class GroupCause(StrEnum):
    """Cause of a change of a consumer group, for observers."""

    JOINED = "joined"
    SUBSCRIBED = "subscribed"
    LEFT = "left"
    EXPIRED = "expired"
    EVICTED = "evicted"
    RELEASED = "released"
    REASSIGNED = "reassigned"
    COORDINATOR = "coordinator"


class Bootstrapped(NamedTuple):
    """The cluster has its id from now on."""

    cluster_id: str
    feature_level: int


class FeatureLevelSet(NamedTuple):
    """Another feature level is in force."""

    feature_level: int


class CatchUpRateSet(NamedTuple):
    """Leaders send at this rate to replicas that reassignments add."""

    bytes_per_second: int


class BrokerChanged(NamedTuple):
    """A broker has this state from now on."""

    broker: BrokerState
    cause: Cause


class PartitionChanged(NamedTuple):
    """A partition has this state from now on.

    Attributes:
        state: The state; its partition epoch is the index of the command.
        cause: Reason for the change.
    """

    state: PartitionState
    cause: Cause

    @property
    def is_election(self) -> bool:
        """Return whether it has a new leader epoch, perhaps under the same leader or under none."""
        return int(self.state.leader_epoch) == self.state.partition_epoch

    @property
    def is_unclean(self) -> bool:
        """Return whether acknowledged records may have been lost by this change."""
        return int(self.state.unclean_epoch) == self.state.partition_epoch


class StreamCreated(NamedTuple):
    """A stream exists from now on, with all its partitions."""

    stream_id: StreamId
    name: StreamName
    subject: str
    group: str
    creation_timestamp: int
    overrides: StreamOverrides
    policy: StreamPolicy
    partitions: tuple[PartitionState, ...]
    created_by: str = ""


class StreamDeleted(NamedTuple):
    """A stream was deleted and its partition ids retired; `deleted_index` is the command's."""

    stream_id: StreamId
    name: StreamName
    partition_ids: tuple[PartitionId, ...]
    deleted_index: MetadataIndex


class StreamAltered(NamedTuple):
    """A stream has these settings other than the defaults, and this policy."""

    stream_id: StreamId
    name: StreamName
    overrides: StreamOverrides
    policy: StreamPolicy


class StreamMarked(NamedTuple):
    """A stream has another owner from now on, or none."""

    stream_id: StreamId
    owner: str


class PartitionsPaused(NamedTuple):
    """Intake of partitions is stopped, including partitions paused already.

    Attributes:
        stream_id: The stream.
        name: Its name.
        explicit: Partitions paused until a client resumes them.
        automatic: Partitions that the first message resumes.
        resume_all: Whether resuming one partition resumes all from now on.
        partition_epoch: Index of the command.
    """

    stream_id: StreamId
    name: StreamName
    explicit: tuple[PartitionNumber, ...]
    automatic: tuple[PartitionNumber, ...]
    resume_all: bool
    partition_epoch: MetadataIndex


class PartitionsResumed(NamedTuple):
    """Intake of partitions continues, and the stream's `resume_all` is cleared."""

    stream_id: StreamId
    name: StreamName
    partitions: tuple[PartitionNumber, ...]
    partition_epoch: MetadataIndex


class ReadonlySet(NamedTuple):
    """Partitions refuse or accept publishes, including those that already did."""

    stream_id: StreamId
    name: StreamName
    partitions: tuple[PartitionNumber, ...]
    readonly: bool
    partition_epoch: MetadataIndex


class PublisherInitialised(NamedTuple):
    """An idempotent publisher has a new epoch, and is the most recently used of its stream."""

    stream_id: StreamId
    publisher: str
    state: PublisherState


class PublisherForgotten(NamedTuple):
    """An idempotent publisher was evicted for another; its id is fenced for ever."""

    stream_id: StreamId
    publisher: str
    publisher_id: PublisherId


class QuotaChanged(NamedTuple):
    """A quota has these limits from now on, or exists no longer."""

    key: QuotaKey
    quota: Quota | None


class TokenChanged(NamedTuple):
    """An API token exists from now on, or has another end."""

    token: TokenState


class TokensForgotten(NamedTuple):
    """API tokens were revoked, or ended long ago."""

    token_ids: tuple[str, ...]


class AccessSwitched(NamedTuple):
    """Access control is on or off from now on."""

    is_on: bool


class RulesChanged(NamedTuple):
    """Access rules have these operations from now on; those without operations are removed.

    Also the answer to `ChangeRules`.
    """

    rules: tuple[AccessRule, ...]


class GroupChanged(NamedTuple):
    """A consumer group has this state from now on.

    Attributes:
        group: The state; its group epoch is the index of the command, except when a member released
            partitions.
        cause: Reason for the change.
        member_id: Member that the change is about; empty when it is about the group.
    """

    group: Group
    cause: GroupCause
    member_id: str


class GroupEnded(NamedTuple):
    """A consumer group has lost its last member, or was deleted.

    Attributes:
        group_id: Name of the group.
        cause: Reason for the end.
        member_id: Its last member; empty when the group was deleted.
    """

    group_id: str
    cause: GroupCause
    member_id: str


class ActivitySet(NamedTuple):
    """The settings of a broker turn the activity stream on from now on, or do not any more."""

    broker: BrokerId
    is_wanted: bool


class ActivityConfirmed(NamedTuple):
    """The first pending events of the activity stream are stored.

    Attributes:
        stored_count: Number of events.
        end_offset: Offset of the next one.
        lost: Number of events stored before that are no more.
    """

    stored_count: int
    end_offset: int
    lost: int


class DataKeySet(NamedTuple):
    """A stream is encrypted, and its data key is stored wrapped like this from now on."""

    stream_id: StreamId
    key: DataKey


class MasterKeySet(NamedTuple):
    """Another master key wraps data keys from now on."""

    master_key: str


Record = (
    Bootstrapped
    | FeatureLevelSet
    | CatchUpRateSet
    | BrokerChanged
    | PartitionChanged
    | StreamCreated
    | StreamDeleted
    | StreamAltered
    | StreamMarked
    | PartitionsPaused
    | PartitionsResumed
    | ReadonlySet
    | PublisherInitialised
    | PublisherForgotten
    | QuotaChanged
    | TokenChanged
    | TokensForgotten
    | AccessSwitched
    | RulesChanged
    | GroupChanged
    | GroupEnded
    | ActivitySet
    | ActivityConfirmed
    | DataKeySet
    | MasterKeySet
)


class Done(NamedTuple):
    """Answer without content."""


class BrokerEpochAnswer(NamedTuple):
    """Answer to `RegisterBroker`: the epoch of the session."""

    broker_epoch: MetadataIndex


class StreamIdAnswer(NamedTuple):
    """Answer to `CreateStream`."""

    stream_id: StreamId


class PartitionAnswer(NamedTuple):
    """Answer to a command about one partition: the outcome.

    Attributes:
        leader: Present leader.
        leader_epoch: Its epoch.
        partition_epoch: Epoch of the partition.
        is_new_leader: Whether the leader changed: NEW_LEADER_ELECTED of the protocol.
    """

    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    partition_epoch: MetadataIndex
    is_new_leader: bool


class PartitionOutcome(NamedTuple):
    """Outcome for one partition of a list; code and text are empty on success."""

    partition_id: PartitionId
    code: str
    text: str


class Outcomes(NamedTuple):
    """Answer to a command about a list of partitions, in its order."""

    outcomes: tuple[PartitionOutcome, ...]


class MemberAnswer(NamedTuple):
    """Answer to a command of a member of a group: the group and the member afterwards."""

    group: Group
    member: Member


Answer = (
    Done
    | BrokerEpochAnswer
    | StreamIdAnswer
    | PublisherState
    | PartitionAnswer
    | Outcomes
    | RulesChanged
    | MemberAnswer
)
"""Answers of commands; `InitPublisher` gets the publisher's new state."""


class Decision(NamedTuple):
    """Outcome of a command: records and an answer, or a refusal and no records."""

    records: tuple[Record, ...]
    answer: Answer | LiftbridgeError
