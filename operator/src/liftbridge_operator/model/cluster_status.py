"""`LiftbridgeCluster`: what the operator tells. Everything in it can be found out again.

With 100 brokers it stays below 32 KiB: lists are bounded, and what does not fit is counted.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from liftbridge_operator.model.base import ListOf, Model, option
from liftbridge_operator.model.conditions import Conditions
from liftbridge_operator.model.operations import Gate
from liftbridge_operator.model.values import (
    INTEGER_MAX,
    LongText,
    Size,
    Text,
    Timestamp,
)

STEPS_MAX: Final = 20
RISKS_MAX: Final = 20
BLOCKERS_MAX: Final = 10
WAITS_MAX: Final = 16
WORST_MAX: Final = 10
DRIFT_MAX: Final = 10
VOLUMES_MAX: Final = 20
CAUSES_MAX: Final = 4

Short = Annotated[str, StringConstraints(max_length=64)]
Name = Annotated[str, StringConstraints(max_length=253)]
Note = Annotated[str, StringConstraints(max_length=256)]


class VolumeStatus(Model):
    """The claim of one volume of a broker."""

    name: Name = Field(description="Name of the claim.")
    uid: Short = Field(description="`metadata.uid` of the claim.")
    capacity: Size | None = option("Size it has now.")
    phase: Short = Field(description="`Bound`, `Pending`, `Lost`, or how far growing it is.")


class RestartStatus(Model):
    """The last time the operator restarted a broker."""

    time: Timestamp = Field(description="When it was ended.")
    reason: Short = Field(description="Why.")


class BrokerStatus(Model):
    """One broker."""

    id: Name = Field(description="Id of the broker, which is the name of its pod.")
    pod_uid: Short | None = option("`metadata.uid` of its pod; none while there is no pod.")
    node: Name | None = option("Node it runs on.")
    zone: Name | None = option("Zone it stands in.")
    ready: bool = Field(default=False, description="Whether its pod is ready.")
    voter: bool = Field(default=False, description="Whether it votes on metadata.")
    cordoned: bool = Field(
        default=False, description="Whether it gets no new replicas, because it is to leave."
    )
    revision: Short | None = option("Revision its pod was made of.")
    partitions: int = Field(default=0, ge=0, le=2**31 - 1, description="Replicas it holds.")
    leaders: int = Field(default=0, ge=0, le=2**31 - 1, description="Partitions it leads.")
    under_replicated: int = Field(
        default=0, ge=0, le=2**31 - 1, description="Replicas it holds that are not in sync."
    )
    volumes: Annotated[tuple[VolumeStatus, ...], ListOf(2, keys=("name",))] = Field(
        default=(), description="Its volumes."
    )
    last_restart: RestartStatus | None = option("The last time the operator restarted it.")


class ProblemKind(StrEnum):
    """What a partition lacks."""

    OFFLINE = "Offline"
    BELOW_MIN_ISR = "BelowMinISR"
    UNDER_REPLICATED = "UnderReplicated"


class PartitionProblem(Model):
    """A partition that lacks something."""

    stream: Note = Field(description="Stream of the partition.")
    partition: int = Field(ge=0, le=2**31 - 1, description="Number of the partition.")
    problem: ProblemKind = Field(description="What it lacks.")
    missing: Annotated[tuple[Name, ...], ListOf(8)] = Field(
        default=(), description="Brokers whose replica is not in sync."
    )


class PartitionSummary(Model):
    """All partitions, counted."""

    total: int = Field(default=0, ge=0, le=2**31 - 1, description="Partitions.")
    offline: int = Field(default=0, ge=0, le=2**31 - 1, description="Those without a leader.")
    under_replicated: int = Field(
        default=0, ge=0, le=2**31 - 1, description="Those with a replica that is not in sync."
    )
    below_min_isr: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Those with fewer replicas in sync than a commit needs.",
    )
    moving: int = Field(
        default=0, ge=0, le=2**31 - 1, description="Those that are being moved to other brokers."
    )
    worst: Annotated[tuple[PartitionProblem, ...], ListOf(WORST_MAX)] = Field(
        default=(), description="The worst of them."
    )


class PlanStep(Model):
    """One thing that will be done."""

    action: Short = Field(description="What will be done, such as `Restart`.")
    object: Note = Field(description="What it will be done to.")
    cause: Note = Field(description="Field of the spec, or event, that it follows from.")


class PlanRisk(Model):
    """Something a plan takes into account."""

    kind: Short = Field(description="What it is, such as `UnreplicatedUnavailable`.")
    text: Note = Field(description="What will happen, for people.")
    accepted: bool = Field(description="Whether it was accepted.")


class Plan(Model):
    """What a change would disrupt, before it happens."""

    hash: Short = Field(
        description="Name of the plan for `liftbridge.io/approve`; covers the target, not progress."
    )
    generation: int = Field(
        ge=0, le=INTEGER_MAX, description="`metadata.generation` it was made for."
    )
    revision: Short = Field(description="Revision that all pods will have.")
    replicas: int = Field(ge=0, le=100, description="Brokers that there will be.")
    steps: Annotated[tuple[PlanStep, ...], ListOf(STEPS_MAX)] = Field(
        default=(), description="What will be done, in order; the first ones of them."
    )
    step_count: int = Field(default=0, ge=0, le=10_000, description="How many steps there are.")
    risks: Annotated[tuple[PlanRisk, ...], ListOf(RISKS_MAX)] = Field(
        default=(), description="What it takes into account."
    )
    needs_approval: bool = Field(
        default=False, description="Whether it waits for the annotation `liftbridge.io/approve`."
    )
    approved_hash: Short | None = option("Hash that was approved.")


class DisruptionState(Model):
    """The one broker that is down on purpose, or is about to be."""

    pod: Name = Field(description="Pod that is restarted or removed.")
    uid: Short = Field(description="`metadata.uid` of the pod that was ended.")
    restart_id: Note = Field(
        description="Name under which the brokers keep what must be there afterwards."
    )
    since: Timestamp = Field(description="When it began.")
    expires: Timestamp = Field(
        description="When the pod must have been ended, or it is asked anew."
    )
    partition_count: int = Field(
        ge=0, le=2**31 - 1, description="Partitions that are compared afterwards."
    )
    gate: Gate = Field(description="Gate it went through.")
    blockers: Annotated[tuple[Note, ...], ListOf(BLOCKERS_MAX)] = Field(
        default=(), description="What is missing until it counts as back."
    )


class HeldChange(Model):
    """What the present operator would render otherwise; it restarts nobody for that alone."""

    revision: Short = Field(description="Revision that pods would have.")
    causes: Annotated[tuple[Note, ...], ListOf(CAUSES_MAX)] = Field(
        default=(), description="What differs."
    )


class FailedRevision(Model):
    """A revision with which a pod did not run; told until another one is wanted."""

    revision: Short = Field(description="Revision of the pod template.")
    pod: Name = Field(description="Pod that had it.")
    cause: Note = Field(description="Why it did not run, as Kubernetes told it first.")


class SetRemaking(Model):
    """The StatefulSet that is being made again around its pods, for larger claims."""

    replicas: int = Field(ge=0, le=100, description="Pods it had.")
    revision: Short = Field(description="Revision its new pods were made of.")
    good_revision: Short = Field(default="", description="Last revision that was seen to work.")
    bad_revision: Short = Field(default="", description="Revision that was taken back.")


class Wait(Model):
    """Something the operator waits for, told after 30 seconds."""

    what: Short = Field(description="What it waits for, in one word.")
    object: Note = Field(description="What the wait is about, such as a pod or a partition.")
    since: Timestamp = Field(description="Since when.")
    ends_when: Note = Field(description="What would end it.")
    runbook: Note = Field(description="Where to read on.")


class DriftEntry(Model):
    """A field that somebody else changed and the operator changed back."""

    object: Note = Field(description="Kind and name of the object.")
    field: Note = Field(description="Path of the field.")
    manager: Note = Field(description="Field manager that changed it.")
    time: Timestamp = Field(description="When it was changed back.")


class Drift(Model):
    """What somebody else changed."""

    count: int = Field(default=0, ge=0, le=INTEGER_MAX, description="Changes since the beginning.")
    last: Annotated[tuple[DriftEntry, ...], ListOf(DRIFT_MAX)] = Field(
        default=(), description="The last ones."
    )


class ListenerStatus(Model):
    """Where clients reach a listener."""

    name: Short = Field(description="Name of the listener.")
    address: Note = Field(description="Host and port to begin with.")
    brokers: Annotated[tuple[Note, ...], ListOf(100)] = Field(
        default=(),
        description="Host and port of each broker by its number, for listeners outside the "
        "cluster; empty while they are not known.",
    )
    certificate: Short | None = option(
        "SHA-256 of the file with the certificate it shows; none while brokers differ."
    )


class CertificateStatus(Model):
    """Certificates and keys, and their rotation."""

    phase: Short = Field(description="Step of a rotation, or `Steady`.")
    authority: Short | None = option("SHA-256 of the authority that signs.")
    not_after: Timestamp | None = option("End of the certificate that ends first.")
    since: Timestamp | None = option("When the phase began.")
    peer_keys: Short | None = option(
        "Step of an exchange of the keys by which brokers recognise one another, or `Steady`."
    )


class RetainedVolume(Model):
    """A claim that no broker uses any more."""

    name: Name = Field(description="Name of the claim.")
    uid: Short = Field(description="`metadata.uid` of the claim.")
    since: Timestamp = Field(description="When its broker left.")


class ClusterStatus(Model):
    """What the operator tells of a cluster."""

    observed_generation: int = Field(
        default=-1,
        ge=-1,
        le=INTEGER_MAX,
        description="`metadata.generation` that all this is about; -1 before the first look.",
    )
    cluster_id: Short | None = option("Id of the cluster, kept with its volumes.")
    version: Short | None = option("Version that all brokers have.")
    target_version: Short | None = option("Version that brokers are brought to.")
    image: LongText | None = option("Image of new pods.")
    feature_level: int | None = option("Rules of decision in force.", ge=0, le=2**31 - 1)
    replicas: int = Field(default=0, ge=0, le=100, description="Pods of brokers that exist.")
    ready_replicas: int = Field(default=0, ge=0, le=100, description="Those that are ready.")
    size: int | None = option(
        "Pods that the operator gave the StatefulSet; when it is given fewer, they come back.",
        ge=0,
        le=100,
    )
    updated_replicas: int = Field(
        default=0, ge=0, le=100, description="Those of the wanted revision."
    )
    selector: Text = Field(
        default="", description="Labels of the pods of brokers, for the scale sub-resource."
    )
    revision: Short | None = option("Revision that new pods are made of.")
    current_revision: Short | None = option(
        "Revision that all brokers had last; another than `revision` while they are restarted."
    )
    metadata_leader: Name | None = option("Broker that leads the metadata group.")
    brokers: Annotated[tuple[BrokerStatus, ...], ListOf(100, keys=("id",))] = Field(
        default=(), description="Brokers."
    )
    partitions: PartitionSummary | None = option("All partitions, counted.")
    plan: Plan | None = option("What the present change disrupts; none when nothing is to be done.")
    held: HeldChange | None = option(
        "What waits for the next change that restarts brokers, since an operator was exchanged."
    )
    disruption: DisruptionState | None = option("The one broker that is down on purpose.")
    remaking: SetRemaking | None = option("The StatefulSet that is being made again.")
    failed_revision: FailedRevision | None = option("Why a revision was taken back.")
    waits: Annotated[tuple[Wait, ...], ListOf(WAITS_MAX)] = Field(
        default=(), description="What the operator waits for."
    )
    drift: Drift | None = option("What somebody else changed.")
    listeners: Annotated[tuple[ListenerStatus, ...], ListOf(8, keys=("name",))] = Field(
        default=(), description="Where clients reach the brokers."
    )
    certificates: CertificateStatus | None = option("Certificates and their rotation.")
    retained_volumes: Annotated[tuple[RetainedVolume, ...], ListOf(VOLUMES_MAX)] = Field(
        default=(), description="Claims that no broker uses any more."
    )
    last_restart_request: Note | None = option(
        "Value of the annotation `liftbridge.io/restart` that was carried out last."
    )
    operator_version: Short | None = option("Version of the operator that wrote this.")
    conditions: Conditions = Field(default=(), description="Claims about the cluster.")
