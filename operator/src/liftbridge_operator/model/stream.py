"""`Stream`: one stream of a cluster, kept as the resource says. Known as `streams.liftbridge.io`.

The stream itself carries the mark of the resource that manages it, so that two resources never
fight over one stream, and deleting a resource deletes data only where it was told to twice.
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
from liftbridge_operator.model.conditions import Conditions
from liftbridge_operator.model.values import (
    INTEGER_MAX,
    Duration,
    Label,
    Size,
    Timestamp,
)

STREAM_KIND: Final = "Stream"
PARTITIONS_SHOWN_MAX: Final = 16

# Visible ASCII but * > , . and, as the first character, $: what the broker takes, less what other
# alphabets add.
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
        "Its namespace, which must let this one in by `spec.streams.allowedNamespaces`; the "
        "namespace of this resource without it."
    )


class StreamConfig(Model):
    """Settings of one stream; the brokers' own stand for what is not given."""

    retention_max_bytes: Size | None = option(
        "Size a partition may reach before its oldest segments go; 0 for no limit."
    )
    retention_max_messages: int | None = option(
        "Messages a partition may hold before its oldest segments go; 0 for no limit.",
        ge=0,
        le=INTEGER_MAX,
    )
    retention_max_age: Duration | None = option("Age after which segments go; 0 for no limit.")
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
        "Age after which compaction drops a message with a key and an empty value; 0 keeps it."
    )
    auto_pause_time: Duration | None = option(
        "Idle time after which a partition is paused; 0 for never."
    )
    auto_pause_disable_if_subscribers: bool | None = option(
        "Whether a partition with subscribers stays awake."
    )
    min_isr: int | None = option(
        "In-sync replicas a partition needs to commit; 0 for two where there are three replicas "
        "or more.",
        ge=0,
        le=100,
    )
    optimistic_concurrency_control: bool | None = option(
        "Whether publishes state the offset they expect, and are refused when it is another."
    )
    encryption: bool | None = option(
        "Whether stored messages are encrypted; brokers without encryption at rest refuse it."
    )
    fsync_policy: FsyncPolicy | None = option(
        "When appended messages reach the disk: left to the system, within an interval, before "
        "the acknowledgement, or before it only while no other replica could lose them."
    )
    unclean_mode: UncleanMode | None = option(
        "Who may elect a replica that might lack acknowledged records."
    )
    retention_cursor: str | None = option(
        "Cursor from which on retention removes nothing; empty for none. Needs brokers that keep "
        "cursors (`spec.config.cursors.partitions` of the cluster).",
        max_length=1_024,
    )
    retention_cursor_max_bytes: Size | None = option(
        "Size of a partition beyond which that cursor is passed over; 0 for none."
    )


class DeletionPolicy(StrEnum):
    """What becomes of the stream when its resource is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class ManagementPolicy(StrEnum):
    """Whether the stream is changed or only watched."""

    MANAGE = "Manage"
    OBSERVE = "Observe"


class AdoptionPolicy(StrEnum):
    """Whether a stream that exists already is taken over."""

    IF_EQUAL = "IfEqual"
    NEVER = "Never"


class StreamSpec(Model):
    """What the stream is to be."""

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
            "the number of partitions cannot be changed: keys belong to partitions by it",
            field=".partitions",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "stream-factor",
            "self.replicationFactor != 0",
            "replicationFactor is -1 for every broker, or 1 and more",
            field=".replicationFactor",
        ),
        Rule(
            "stream-min-isr",
            "!has(self.config.minISR) || self.replicationFactor == -1 || "
            "self.config.minISR <= self.replicationFactor",
            "config.minISR is more than replicationFactor",
            field=".config.minISR",
        ),
        Rule(
            "stream-name-reserved",
            "!has(self.streamName) || !self.streamName.startsWith('__')",
            "names that begin with __ are streams of the brokers themselves",
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
        "Name of the stream; `metadata.name` without it. Cannot be changed, added or removed."
    )
    subject: Annotated[
        str, StringConstraints(min_length=1, max_length=1_024, pattern=_SUBJECT_PATTERN)
    ] = Field(description="NATS subject the stream attaches to. Cannot be changed.")
    group: Annotated[
        str | None, StringConstraints(min_length=1, max_length=255, pattern=r"^[!-~]+$")
    ] = option(
        "NATS queue group of the subscriptions of its leaders; none without it. Cannot be changed."
    )
    partitions: int = Field(
        default=1, ge=1, le=10_000, description="Number of partitions. Cannot be changed."
    )
    replication_factor: int = Field(
        ge=-1,
        le=100,
        description="Replicas of each partition; -1 for every broker there is at creation. When "
        "it changes, replicas are added or removed one at a time.",
    )
    config: StreamConfig = section(
        StreamConfig, "Settings of the stream; the brokers' own stand for what is not given."
    )
    readonly: bool = Field(default=False, description="Whether publishes are refused.")
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="What becomes of the stream when this resource is deleted. `Delete` deletes a "
        "stream that is empty, and any other one only after the annotation "
        "`liftbridge.io/confirm-delete` with `status.creationId`.",
    )
    management_policy: ManagementPolicy = Field(
        default=ManagementPolicy.MANAGE,
        description="Whether the stream is created and kept as this says, or only watched.",
    )
    adoption_policy: AdoptionPolicy = Field(
        default=AdoptionPolicy.IF_EQUAL,
        description="Whether a stream that exists already, and that no resource manages, is taken "
        "over when its subject, group and number of partitions are the same.",
    )


class StreamPartition(Model):
    """One partition."""

    partition: int = Field(ge=0, le=2**31 - 1, description="Number of the partition.")
    leader: Name | None = option("Broker that leads it; none while it is offline.")
    replicas: Annotated[tuple[Name, ...], ListOf(100)] = Field(
        default=(), description="Brokers with a replica."
    )
    in_sync: int = Field(default=0, ge=0, le=100, description="Replicas in sync.")


class StreamPartitions(Model):
    """All partitions, counted."""

    total: int = Field(default=0, ge=0, le=10_000, description="Partitions.")
    offline: int = Field(default=0, ge=0, le=10_000, description="Those without a leader.")
    under_replicated: int = Field(
        default=0, ge=0, le=10_000, description="Those with a replica that is not in sync."
    )


class ObservedConfig(Model):
    """Settings in force that matter most."""

    retention_max_bytes: int = Field(ge=0, le=INTEGER_MAX, description="Bytes; 0 for no limit.")
    retention_max_messages: int = Field(
        ge=0, le=INTEGER_MAX, description="Messages; 0 for no limit."
    )
    retention_max_age: Short = Field(description="Age; 0 for no limit.")
    min_isr: int = Field(ge=0, le=100, description="In-sync replicas a commit needs.")
    compact_enabled: bool = Field(description="Whether only the last message of a key is kept.")


class StreamStatus(Model):
    """What the operator tells of a stream."""

    observed_generation: int = Field(
        default=-1,
        ge=-1,
        le=INTEGER_MAX,
        description="`metadata.generation` that all this is about; -1 before the first look.",
    )
    stream_name: Note | None = option("Name of the stream.")
    creation_id: Short | None = option(
        "Id of the stream, never used again, also not for a new stream of its name."
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
        description=f"Each partition, of streams with at most {PARTITIONS_SHOWN_MAX}.",
    )
    config_hash: Short | None = option("Hash of the settings that were put into force.")
    asked_settings: Annotated[tuple[Short, ...], ListOf(64, is_set=True)] = Field(
        default=(),
        description="Settings that were asked for since the stream was created; it keeps those "
        "that are not any more.",
    )
    observed_config: ObservedConfig | None = option("Settings in force that matter most.")
    readonly: bool = Field(default=False, description="Whether publishes are refused.")
    last_sync_time: Timestamp | None = option("When the stream was last changed by the operator.")
    waits: Annotated[tuple[Wait, ...], ListOf(4)] = Field(
        default=(), description="What the operator waits for."
    )
    conditions: Conditions = Field(default=(), description="Claims about the stream.")
