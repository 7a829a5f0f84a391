"""Actions of the operator, as values: a closed set, one action a pass.

Deletions and changes of the number of replicas carry the uid and the resource version they were
decided on. Calls to brokers name their target exactly (data directory, epoch), so that a late call
has no effect.
"""

from dataclasses import dataclass

from liftbridge_operator.cluster.planning.observation import Member, Recorded


@dataclass(frozen=True, slots=True)
class CreateIdentity:
    """Write the identity of the cluster, before any broker starts."""

    cluster_id: str
    is_started: bool


@dataclass(frozen=True, slots=True)
class WriteFounders:
    """Write the final list of founders of the cluster."""

    resource_version: int
    founders: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Have `brokers`, by name and directory, found the cluster together with all founders."""

    cluster_id: str
    founders: tuple[Member, ...]
    brokers: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class CreateSet:
    """Create the StatefulSet over the existing claims."""

    cluster_id: str
    replicas: int
    revision: str
    good_revision: str
    bad_revision: str
    claim_bytes: int


@dataclass(frozen=True, slots=True)
class SetTemplate:
    """Write the template of the set; pods that exist are not touched."""

    uid: str
    resource_version: int
    revision: str
    good_revision: str
    bad_revision: str


@dataclass(frozen=True, slots=True)
class SetReplicas:
    """Change the number of pods of the set."""

    uid: str
    resource_version: int
    replicas: int


@dataclass(frozen=True, slots=True)
class OrphanSet:
    """Delete the set and keep its pods, to recreate it as `again` with other immutable fields."""

    uid: str
    resource_version: int
    again: CreateSet


@dataclass(frozen=True, slots=True)
class GrowClaim:
    """Request another size of a volume."""

    name: str
    uid: str
    resource_version: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MarkClaim:
    """Mark on a claim whether its broker was removed."""

    name: str
    uid: str
    resource_version: int
    is_retired: bool


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """Delete the claim of a broker that is replaced.

    Attributes:
        is_alone: Whether other volumes of the broker stay.
    """

    name: str
    uid: str
    resource_version: int
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class SetBudget:
    """Write the PodDisruptionBudget; None removes it."""

    max_unavailable: int | None


@dataclass(frozen=True, slots=True)
class CheckRestart:
    """Request the restart token from a broker; the memory keeps the answer."""

    broker: str
    pod_uid: str
    accepts_unavailable: bool
    needs_full_isr: bool


@dataclass(frozen=True, slots=True)
class Record:
    """Write the recorded state to the status, at the resource version that was read."""

    resource_version: int
    recorded: Recorded


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod; by force only when its node is out of service, so no kubelet can stop it.

    Attributes:
        template: Template to write right before, if the new pod gets another one.
    """

    name: str
    uid: str
    resource_version: int
    is_forced: bool = False
    template: SetTemplate | None = None


@dataclass(frozen=True, slots=True)
class KeepPod:
    """Annotate a pod as kept, which cancels the restart of `token`.

    The write changes the pod's version, so a deletion that was decided earlier fails.
    """

    name: str
    uid: str
    resource_version: int
    token: str


@dataclass(frozen=True, slots=True)
class TransferLeaders:
    """Have a broker hand over all partitions it leads that another replica can lead.

    Attributes:
        to: Preferred new leader; empty for any broker.
    """

    broker: str
    to: str = ""


@dataclass(frozen=True, slots=True)
class TransferMetadataLeadership:
    """Transfer the leadership of the metadata group to another voter."""

    to: str


@dataclass(frozen=True, slots=True)
class ElectPreferred:
    """Transfer the leadership of these partitions back to their first replicas."""

    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Cordon:
    """Place nothing new on a broker; with `is_draining` move its replicas away."""

    broker: str
    is_draining: bool


@dataclass(frozen=True, slots=True)
class Uncordon:
    """End the cordon and the drain of a broker."""

    broker: str


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Add a learner to the metadata group."""

    member: Member


@dataclass(frozen=True, slots=True)
class PromoteLearner:
    """Promote a learner that has caught up to a voter."""

    member: Member


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Remove a member from the metadata group."""

    member: Member


@dataclass(frozen=True, slots=True)
class Retire:
    """Have a broker mark its directory as one that never votes again."""

    member: Member


@dataclass(frozen=True, slots=True)
class RemoveBroker:
    """Remove a stopped broker from the metadata."""

    broker: str
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class Move:
    """Desired replicas of a partition, at the observed partition epoch."""

    stream: str
    number: int
    target: tuple[str, ...]
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class Reassign:
    """Start reassignments of partitions."""

    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class SetCatchUpRate:
    """Bound the catch-up rate that each leader grants moved replicas; 0 for no bound."""

    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class SetFeatureLevel:
    """Raise the feature level; this cannot be reverted."""

    level: int


Action = (
    CreateIdentity
    | WriteFounders
    | Bootstrap
    | CreateSet
    | SetTemplate
    | SetReplicas
    | OrphanSet
    | GrowClaim
    | MarkClaim
    | DeleteClaim
    | SetBudget
    | CheckRestart
    | Record
    | DeletePod
    | KeepPod
    | TransferLeaders
    | TransferMetadataLeadership
    | ElectPreferred
    | Cordon
    | Uncordon
    | AddLearner
    | PromoteLearner
    | RemoveMember
    | Retire
    | RemoveBroker
    | Reassign
    | SetCatchUpRate
    | SetFeatureLevel
)
