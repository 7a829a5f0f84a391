"""`Stream`: one stream of a cluster, reconciled to the resource (`streams.liftbridge.io`).

The stream itself carries the mark of the resource that manages it, so that two resources never
compete for one stream. Deleting a resource deletes messages only if its policy says so and the
deletion was confirmed.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints

from liftbridge_operator.model.base import (
    ListOf,
    Model,
    Rule,
    RuleReason,
    immutable,
    option,
    section,
)
from liftbridge_operator.model.broker_config import FsyncPolicy, UncleanMode
from liftbridge_operator.model.cluster_status import Name, Note, Short, Wait
from liftbridge_operator.model.conditions import Conditions, Status
from liftbridge_operator.model.values import (
    INTEGER_MAX,
    Duration,
    Label,
    Size,
    Timestamp,
)

STREAM_KIND: Final = "Stream"
PARTITIONS_SHOWN_MAX: Final = 16

# Tokens of visible ASCII except * > , . and a leading $: the names that the broker accepts, without
# those in other alphabets.
_NAME_PATTERN: Final = r"^[!-#%-)+\-/-=?-~][!-)+\-/-=?-~]*(\.[!-)+\-/-=?-~]+)*$"
_SUBJECT_PATTERN: Final = (
    r"^(>|(\*|[!-#%-)+-\-/-=?-~][!-)+-\-/-=?-~]*)(\.(\*|[!-)+-\-/-=?-~]+))*(\.>)?)$"
)

StreamName = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=_NAME_PATTERN)]
"""Name of a stream."""


class ClusterRef(Model):
    """The cluster that a stream or a pipeline belongs to."""

    name: Label = Field(description="Name of the LiftbridgeCluster.")
    namespace: Label | None = option(
        "Its namespace, which must allow this one in `spec.streams.allowedNamespaces`; defaults to "
        "the namespace of this resource."
    )


class StreamConfig(Model):
    """Settings of one stream; the brokers' own apply by default."""

    retention_max_bytes: Size | None = option(
        "Size that a partition may reach before its oldest segments are removed; 0 for no limit."
    )
    retention_max_messages: int | None = option(
        "Messages that a partition may hold before its oldest segments are removed; 0 for no "
        "limit.",
        ge=0,
        le=INTEGER_MAX,
    )
    retention_max_age: Duration | None = option(
        "Age after which segments are removed; 0 for no limit."
    )
    cleaner_interval: Duration | None = option(
        "Time between two passes of retention and compaction over a partition."
    )
    segment_max_bytes: Size | None = option("Size at which a new segment begins.")
    segment_max_age: Duration | None = option("Age at which a new segment begins.")
    compact_enabled: bool | None = option("Whether only the last message of each key is kept.")
    compact_max_goroutines: int | None = option(
        "Accepted for clients of the original; compaction runs in one helper.", ge=0, le=10_000
    )
    tombstone_retention: Duration | None = option(
        "Age after which compaction removes a tombstone, a message with a key and an empty value; "
        "0 keeps tombstones."
    )
    auto_pause_time: Duration | None = option(
        "Idle time after which a partition is paused; 0 for never."
    )
    auto_pause_disable_if_subscribers: bool | None = option(
        "Whether a partition with subscribers is never paused for being idle."
    )
    min_isr: int | None = option(
        "In-sync replicas that a partition needs to commit. With 0, two if there are three "
        "replicas or more, otherwise one.",
        ge=0,
        le=100,
    )
    optimistic_concurrency_control: bool | None = option(
        "Whether publishes state the offset they expect and are refused when the offset is another "
        "one."
    )
    encryption: bool | None = option(
        "Whether messages are encrypted on disk; brokers need the master key. Cannot be changed."
    )
    fsync_policy: FsyncPolicy | None = option(
        "When appended messages are written to disk: whenever the system does it, within an "
        "interval, before the acknowledgement, or before it only while the in-sync set has no "
        "replica to spare."
    )
    unclean_mode: UncleanMode | None = option(
        "Who may elect a replica that might lack acknowledged messages when no other is left: an "
        "operator, the brokers once all replicas that were last known to be complete have "
        "answered, or the brokers once some have."
    )
    retention_cursor: str | None = option(
        "Cursor from which on retention deletes nothing; empty for none. Needs brokers that store "
        "cursors (`spec.config.cursors.partitions` of the cluster).",
        max_length=1_024,
    )
    retention_cursor_max_bytes: Size | None = option(
        "Size of a partition beyond which that cursor is ignored; 0 for none."
    )
    ack_reply: bool | None = option(
        "Whether plain NATS messages are acknowledged to their reply subjects, as by JetStream."
    )


class DeletionPolicy(StrEnum):
    """What happens to the stream when its resource is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class ManagementPolicy(StrEnum):
    """Whether the stream is changed or only observed."""

    MANAGE = "Manage"
    OBSERVE = "Observe"


class AdoptionPolicy(StrEnum):
    """Whether an existing stream is taken over."""

    IF_EQUAL = "IfEqual"
    NEVER = "Never"


class StreamSpec(Model):
    """Desired state of the stream."""

    rules: ClassVar[tuple[Rule, ...]] = (
        immutable("stream-name-immutable", "streamName", "the name of a stream"),
        Rule(
            "stream-cluster-immutable",
            "self.clusterRef == oldSelf.clusterRef",
            "the cluster of a stream cannot be changed",
            field=".clusterRef",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "stream-subject-immutable",
            "self.subject == oldSelf.subject",
            "the subject of a stream cannot be changed",
            field=".subject",
            reason=RuleReason.FORBIDDEN,
        ),
        immutable("stream-group-immutable", "group", "the queue group of a stream"),
        Rule(
            "stream-partitions-immutable",
            "self.partitions == oldSelf.partitions",
            "the number of partitions cannot be changed: it determines the partition of a key",
            field=".partitions",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "stream-factor",
            "self.replicationFactor != 0",
            "replicationFactor must be -1 for every broker, or at least 1",
            field=".replicationFactor",
        ),
        Rule(
            "stream-min-isr",
            "!has(self.config.minISR) || self.replicationFactor == -1 || "
            "self.config.minISR <= self.replicationFactor",
            "config.minISR is greater than replicationFactor",
            field=".config.minISR",
        ),
        Rule(
            "stream-name-reserved",
            "!has(self.streamName) || !self.streamName.startsWith('__')",
            "names that begin with __ are reserved for internal streams",
            field=".streamName",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "stream-observe-keeps",
            "self.managementPolicy == 'Manage' || self.deletionPolicy == 'Retain'",
            "a stream that is only observed is not deleted: deletionPolicy must be Retain",
            field=".deletionPolicy",
        ),
    )
    cluster_ref: ClusterRef = Field(
        description="The cluster that the stream belongs to. Cannot be changed."
    )
    stream_name: StreamName | None = option(
        "Name of the stream; defaults to `metadata.name`. Cannot be changed, added or removed."
    )
    subject: Annotated[
        str, StringConstraints(min_length=1, max_length=1_024, pattern=_SUBJECT_PATTERN)
    ] = Field(description="NATS subject the stream attaches to. Cannot be changed.")
    group: Annotated[
        str | None, StringConstraints(min_length=1, max_length=255, pattern=r"^[!-~]+$")
    ] = option(
        "NATS queue group of the subscriptions of its leaders; defaults to none. Cannot be changed."
    )
    partitions: int = Field(
        default=1, ge=1, le=10_000, description="Number of partitions. Cannot be changed."
    )
    replication_factor: int = Field(
        ge=-1,
        le=100,
        description="Replicas of each partition; -1 for every broker at creation. After a change, "
        "replicas are added or removed one at a time.",
    )
    config: StreamConfig = section(
        StreamConfig, "Settings of the stream; the brokers' own apply by default."
    )
    readonly: bool = Field(default=False, description="Whether publishes are rejected.")
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="What happens to the stream when this resource is deleted. `Delete` deletes an "
        "empty stream, and any other one only after the annotation "
        "`liftbridge.io/confirm-delete` is set to `status.creationId`.",
    )
    management_policy: ManagementPolicy = Field(
        default=ManagementPolicy.MANAGE,
        description="Whether the stream is created and kept as specified, or only observed.",
    )
    adoption_policy: AdoptionPolicy = Field(
        default=AdoptionPolicy.IF_EQUAL,
        description="Whether an existing stream that no resource manages is taken over if its "
        "subject, group and number of partitions are the same.",
    )


class StreamPartition(Model):
    """One partition."""

    partition: int = Field(ge=0, le=2**31 - 1, description="Number of the partition.")
    leader: Name | None = option("Broker that leads it; absent while it is offline.")
    replicas: Annotated[tuple[Name, ...], ListOf(100)] = Field(
        default=(), description="Brokers with a replica."
    )
    in_sync: int = Field(default=0, ge=0, le=100, description="Number of in-sync replicas.")


class StreamPartitions(Model):
    """All partitions, counted."""

    total: int = Field(default=0, ge=0, le=10_000, description="Partitions.")
    offline: int = Field(default=0, ge=0, le=10_000, description="Partitions without a leader.")
    under_replicated: int = Field(
        default=0, ge=0, le=10_000, description="Partitions with an out-of-sync replica."
    )


class ObservedConfig(Model):
    """Most important settings in effect."""

    retention_max_bytes: int = Field(ge=0, le=INTEGER_MAX, description="Bytes; 0 for no limit.")
    retention_max_messages: int = Field(
        ge=0, le=INTEGER_MAX, description="Messages; 0 for no limit."
    )
    retention_max_age: Short = Field(description="Age; 0 for no limit.")
    min_isr: int = Field(ge=0, le=100, description="In-sync replicas a commit needs.")
    compact_enabled: bool = Field(description="Whether only the last message of a key is kept.")


class StreamStatus(Status):
    """Observed state of the stream."""

    stream_name: Note | None = option("Name of the stream.")
    creation_id: Short | None = option(
        "Id of the stream, never reused, not even for a new stream of its name."
    )
    adopted: bool = Field(
        default=False, description="Whether the stream existed before this resource."
    )
    partitions: int = Field(default=0, ge=0, le=10_000, description="Number of partitions.")
    replicas: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Replicas of each partition; what -1 was resolved to at creation.",
    )
    summary: StreamPartitions | None = option("All partitions, counted.")
    partition_details: Annotated[
        tuple[StreamPartition, ...], ListOf(PARTITIONS_SHOWN_MAX, keys=("partition",))
    ] = Field(
        default=(),
        description=f"Every partition, for streams with at most {PARTITIONS_SHOWN_MAX}.",
    )
    config_hash: Short | None = option("Hash of the applied settings.")
    asked_settings: Annotated[tuple[Short, ...], ListOf(64, is_set=True)] = Field(
        default=(),
        description="Settings specified since the stream was created; the stream keeps those "
        "that are no longer specified.",
    )
    observed_config: ObservedConfig | None = option("Most important settings in effect.")
    readonly: bool = Field(default=False, description="Whether publishes are rejected.")
    last_sync_time: Timestamp | None = option("When the operator last changed the stream.")
    waits: Annotated[tuple[Wait, ...], ListOf(4)] = Field(
        default=(), description="What the operator waits for."
    )
    conditions: Conditions = Field(default=(), description="Conditions of the stream.")
