"""Everything the operator can do, as values: a closed set, one a pass.

What deletes, and what changes the number of replicas, carries the uid and the resource version it
was decided on. Calls to brokers name what they mean exactly (data directory, epoch), so that one
that comes late changes nothing.
"""

from dataclasses import dataclass

from liftbridge_operator.planning.observation import Member, Recorded


@dataclass(frozen=True, slots=True)
class CreateIdentity:
    """Write which cluster this is, before anything of it starts."""

    cluster_id: str
    is_started: bool


@dataclass(frozen=True, slots=True)
class WriteFounders:
    """Write who founds the cluster; from then on no other list is used."""

    resource_version: int
    founders: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Tell `brokers`, by name and directory, to found the cluster together with all founders."""

    cluster_id: str
    founders: tuple[Member, ...]
    brokers: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class CreateSet:
    """Create the StatefulSet over the claims that there are."""

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
    """Change how many pods the set has."""

    uid: str
    resource_version: int
    replicas: int


@dataclass(frozen=True, slots=True)
class OrphanSet:
    """Delete the set and leave its pods, to make it `again` with another claim template."""

    uid: str
    resource_version: int
    again: CreateSet


@dataclass(frozen=True, slots=True)
class GrowClaim:
    """Ask for a larger volume."""

    name: str
    uid: str
    resource_version: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MarkClaim:
    """Note on a claim whether its broker was removed."""

    name: str
    uid: str
    resource_version: int
    is_retired: bool


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """Delete the claim of a broker that is replaced.

    Attributes:
        is_alone: Whether another volume of the broker stays.
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
    """Ask a broker for the token of its restart; the answer goes into the memory."""

    broker: str
    pod_uid: str
    accepts_unavailable: bool
    needs_full_isr: bool


@dataclass(frozen=True, slots=True)
class Record:
    """Write what the status keeps, at the resource version that was seen."""

    resource_version: int
    recorded: Recorded


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod; forced only when its node is gone, so that nobody is left to stop it.

    Attributes:
        template: Written right before, when the new pod is to get another one.
    """

    name: str
    uid: str
    resource_version: int
    is_forced: bool = False
    template: SetTemplate | None = None


@dataclass(frozen=True, slots=True)
class KeepPod:
    """Write to a pod that it is not deleted for the restart of `token`.

    The write changes the pod's version, so a deletion that was decided before it fails.
    """

    name: str
    uid: str
    resource_version: int
    token: str


@dataclass(frozen=True, slots=True)
class TransferLeaders:
    """Have a broker hand over all partitions it leads that somebody else can lead.

    Attributes:
        to: Who is to lead them, where it can; empty for anybody.
    """

    broker: str
    to: str = ""


@dataclass(frozen=True, slots=True)
class TransferMetadataLeadership:
    """Have another voter lead the metadata group."""

    to: str


@dataclass(frozen=True, slots=True)
class ElectPreferred:
    """Give these partitions, by stream and number, back to their first replica."""

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
    """Add a member without a vote."""

    member: Member


@dataclass(frozen=True, slots=True)
class PromoteLearner:
    """Give a member that has caught up a vote."""

    member: Member


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Take a member out of the metadata group."""

    member: Member


@dataclass(frozen=True, slots=True)
class Retire:
    """Have a broker mark its directory as one that never votes again."""

    member: Member


@dataclass(frozen=True, slots=True)
class RemoveBroker:
    """Forget a stopped broker."""

    broker: str
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class Move:
    """Replicas wanted for a partition, at the epoch that was seen."""

    stream: str
    number: int
    target: tuple[str, ...]
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class Reassign:
    """Start moves of partitions."""

    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class SetCatchUpRate:
    """Bound what each leader spends on replicas that are moved; 0 for no bound."""

    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class SetFeatureLevel:
    """Put newer rules of decision into force; there is no way back."""

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
