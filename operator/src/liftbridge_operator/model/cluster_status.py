"""`LiftbridgeCluster`: its status, all of which the operator can determine again.

With 100 brokers it stays below 32 KiB: lists are bounded, and further items are counted.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from liftbridge_operator.model.base import ListOf, Model, option
from liftbridge_operator.model.conditions import Conditions, Status
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
    capacity: Size | None = option("Its current size.")
    phase: Short = Field(description="`Bound`, `Pending`, `Lost`, or how far its expansion is.")


class RestartStatus(Model):
    """The last time the operator restarted a broker."""

    time: Timestamp = Field(description="When it was stopped.")
    reason: Short = Field(description="Why.")


class BrokerStatus(Model):
    """One broker."""

    id: Name = Field(description="Id of the broker, which is the name of its pod.")
    pod_uid: Short | None = option("`metadata.uid` of its pod; absent while there is no pod.")
    node: Name | None = option("Node it runs on.")
    zone: Name | None = option("Zone it is in.")
    ready: bool = Field(default=False, description="Whether its pod is ready.")
    voter: bool = Field(default=False, description="Whether it is a voter of the metadata group.")
    cordoned: bool = Field(
        default=False, description="Whether it gets no new replicas because it will be removed."
    )
    revision: Short | None = option("Revision of its pod.")
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
        default=(), description="Brokers whose replica is out of sync."
    )


class PartitionSummary(Model):
    """All partitions, counted."""

    total: int = Field(default=0, ge=0, le=2**31 - 1, description="All partitions.")
    offline: int = Field(default=0, ge=0, le=2**31 - 1, description="Partitions without a leader.")
    under_replicated: int = Field(
        default=0, ge=0, le=2**31 - 1, description="Partitions with an out-of-sync replica."
    )
    below_min_isr: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Partitions with fewer in-sync replicas than a commit needs.",
    )
    moving: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Partitions that are being moved to other brokers.",
    )
    worst: Annotated[tuple[PartitionProblem, ...], ListOf(WORST_MAX)] = Field(
        default=(), description="Worst partitions."
    )


class PlanStep(Model):
    """One thing that will be done."""

    action: Short = Field(description="What will be done, such as `Restart`.")
    object: Note = Field(description="What it will be done to.")
    cause: Note = Field(description="Field of the spec, or event, that causes it.")


class PlanRisk(Model):
    """A risk of a plan."""

    kind: Short = Field(description="Kind of the risk, such as `UnreplicatedUnavailable`.")
    text: Note = Field(description="Human-readable description.")
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
    replicas: int = Field(ge=0, le=100, description="Number of brokers after the plan.")
    steps: Annotated[tuple[PlanStep, ...], ListOf(STEPS_MAX)] = Field(
        default=(), description="First steps, in order."
    )
    step_count: int = Field(default=0, ge=0, le=10_000, description="Total number of steps.")
    risks: Annotated[tuple[PlanRisk, ...], ListOf(RISKS_MAX)] = Field(
        default=(), description="Risks of the plan."
    )
    needs_approval: bool = Field(
        default=False, description="Whether it waits for the annotation `liftbridge.io/approve`."
    )
    approved_hash: Short | None = option("Hash that was approved.")


class DisruptionState(Model):
    """The one broker that is down on purpose, or is about to be."""

    pod: Name = Field(description="Pod that is restarted or removed.")
    uid: Short = Field(description="`metadata.uid` of the pod that was stopped.")
    restart_id: Note = Field(
        description="Name under which brokers record what must be there afterwards."
    )
    since: Timestamp = Field(description="When it began.")
    expires: Timestamp = Field(
        description="Time by which the pod must be stopped; otherwise the broker is asked again."
    )
    partition_count: int = Field(
        ge=0, le=2**31 - 1, description="Partitions to compare afterwards."
    )
    gate: Gate = Field(description="Gate that it passed.")
    blockers: Annotated[tuple[Note, ...], ListOf(BLOCKERS_MAX)] = Field(
        default=(), description="What is missing until the broker counts as back."
    )


class HeldChange(Model):
    """What the present operator would render differently; not a reason to restart a broker."""

    revision: Short = Field(description="Revision that pods would get.")
    causes: Annotated[tuple[Note, ...], ListOf(CAUSES_MAX)] = Field(
        default=(), description="What differs."
    )


class FailedRevision(Model):
    """A revision with which a pod did not run; kept until another one is wanted."""

    revision: Short = Field(description="Revision of the pod template.")
    pod: Name = Field(description="Pod that had it.")
    cause: Note = Field(description="Why it did not run, as first reported by Kubernetes.")


class SetRemaking(Model):
    """The StatefulSet that is being recreated around its pods, for larger claims."""

    replicas: int = Field(ge=0, le=100, description="Pods it had.")
    revision: Short = Field(description="Revision of its new pods.")
    good_revision: Short = Field(default="", description="Last revision that was seen to work.")
    bad_revision: Short = Field(default="", description="Revision that was rolled back.")


class Wait(Model):
    """Something the operator waits for, shown after 30 seconds."""

    what: Short = Field(description="Reason of the wait, in one word.")
    object: Note = Field(description="Object of the wait, such as a pod or a partition.")
    since: Timestamp = Field(description="When it began.")
    ends_when: Note = Field(description="What ends the wait.")
    runbook: Note = Field(description="What to do.")


class DriftEntry(Model):
    """A field that another manager changed and the operator changed back."""

    object: Note = Field(description="Kind and name of the object.")
    field: Note = Field(description="Path of the field.")
    manager: Note = Field(description="Field manager that changed it.")
    time: Timestamp = Field(description="When it was changed back.")


class Drift(Model):
    """Changes by other field managers."""

    count: int = Field(default=0, ge=0, le=INTEGER_MAX, description="Total number of changes.")
    last: Annotated[tuple[DriftEntry, ...], ListOf(DRIFT_MAX)] = Field(
        default=(), description="The last ones."
    )


class ListenerStatus(Model):
    """Where clients reach a listener."""

    name: Short = Field(description="Name of the listener.")
    address: Note = Field(description="Host and port for a first connection.")
    brokers: Annotated[tuple[Note, ...], ListOf(100)] = Field(
        default=(),
        description="Host and port of each broker by number, for listeners outside the "
        "cluster; empty while unknown.",
    )
    certificate: Short | None = option(
        "SHA-256 of the file with its certificate; absent while brokers differ."
    )


class CertificateStatus(Model):
    """Certificates and keys, and their rotation."""

    phase: Short = Field(description="Step of a rotation, or `Steady`.")
    authority: Short | None = option("SHA-256 of the signing CA.")
    not_after: Timestamp | None = option("Earliest expiry of a certificate.")
    since: Timestamp | None = option("When the phase began.")
    peer_keys: Short | None = option(
        "Step of a rotation of the keys by which brokers recognise one another, or `Steady`."
    )


class RetainedVolume(Model):
    """A claim that no broker uses any more."""

    name: Name = Field(description="Name of the claim.")
    uid: Short = Field(description="`metadata.uid` of the claim.")
    since: Timestamp = Field(description="When its broker left.")


class SoftwareStatus(Status):
    """Which cluster it is, and what its brokers run."""

    cluster_id: Short | None = option("Id of the cluster, kept with its volumes.")
    version: Short | None = option("Version of all brokers.")
    target_version: Short | None = option("Version that brokers are updated to.")
    image: LongText | None = option("Image of new pods.")
    feature_level: int | None = option("Decision rules in effect.", ge=0, le=2**31 - 1)


class ClusterStatus(SoftwareStatus):
    """Observed state of the cluster."""

    replicas: int = Field(default=0, ge=0, le=100, description="Number of broker pods.")
    ready_replicas: int = Field(default=0, ge=0, le=100, description="Number of ready broker pods.")
    size: int | None = option(
        "Replicas that the operator set on the StatefulSet; restored if they are lowered.",
        ge=0,
        le=100,
    )
    updated_replicas: int = Field(
        default=0, ge=0, le=100, description="Broker pods with the target revision."
    )
    selector: Text = Field(
        default="", description="Label selector of the broker pods, for the scale subresource."
    )
    revision: Short | None = option("Revision of new pods.")
    current_revision: Short | None = option(
        "Last revision that all brokers had; differs from `revision` during a rollout."
    )
    metadata_leader: Name | None = option("Broker that leads the metadata group.")
    brokers: Annotated[tuple[BrokerStatus, ...], ListOf(100, keys=("id",))] = Field(
        default=(), description="Brokers."
    )
    partitions: PartitionSummary | None = option("All partitions, counted.")
    plan: Plan | None = option(
        "What the present change disrupts; absent when there is nothing to do."
    )
    held: HeldChange | None = option(
        "What a new operator would change; waits for the next change that restarts brokers."
    )
    disruption: DisruptionState | None = option("The one broker that is down on purpose.")
    remaking: SetRemaking | None = option("The StatefulSet that is being recreated.")
    failed_revision: FailedRevision | None = option("Why a revision was rolled back.")
    waits: Annotated[tuple[Wait, ...], ListOf(WAITS_MAX)] = Field(
        default=(), description="What the operator waits for."
    )
    drift: Drift | None = option("Changes by other field managers.")
    listeners: Annotated[tuple[ListenerStatus, ...], ListOf(8, keys=("name",))] = Field(
        default=(), description="Where clients reach the brokers."
    )
    certificates: CertificateStatus | None = option("Certificates and their rotation.")
    retained_volumes: Annotated[tuple[RetainedVolume, ...], ListOf(VOLUMES_MAX)] = Field(
        default=(), description="Claims that no broker uses any more."
    )
    last_restart_request: Note | None = option(
        "Last value of the annotation `liftbridge.io/restart` that was carried out."
    )
    operator_version: Short | None = option("Version of the operator that wrote this.")
    conditions: Conditions = Field(default=(), description="Conditions of the cluster.")
