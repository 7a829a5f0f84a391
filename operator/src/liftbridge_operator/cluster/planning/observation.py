"""Observation of one pass: objects of Kubernetes and reports of brokers, as values.

The reads of a pass are not of one instant, so each decision carries the uid and the resource
version of the object that was read. Broker and pod have the same name; the ordinal is the number
at its end. Times are milliseconds of one clock.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class StuckCause(StrEnum):
    """Cause that keeps the main container of a pod from running."""

    IMAGE_PULL = "ImagePull"
    CRASH_LOOP = "CrashLoop"
    CONFIG = "CreateContainerConfigError"
    UNSCHEDULABLE = "Unschedulable"
    NODE_LOST = "NodeLost"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the set.

    Attributes:
        revision: Hash of the template it was created from, from its annotation.
        changed_ms: When its readiness last changed; its creation before that.
        is_running: Whether its main container runs.
        stuck: Cause that keeps the container from running; None without one.
        stuck_since_ms: Time since which it is stuck.
        kept: Token of the cancelled restart, from its annotation.
    """

    name: str
    ordinal: int
    uid: str
    resource_version: int
    revision: str
    node: str
    zone: str
    created_ms: int
    changed_ms: int
    is_ready: bool
    is_running: bool
    is_terminating: bool
    stuck: StuckCause | None = None
    stuck_since_ms: int = 0
    kept: str = ""


@dataclass(frozen=True, slots=True)
class BrokerSet:
    """The StatefulSet.

    Attributes:
        revision: Hash of the template for new pods.
        good_revision: Latest revision with which a pod became ready; empty for none yet.
        bad_revision: Revision that was reverted because a pod got stuck; empty for none.
        claim_bytes: Size in its claim template.
        raft_bytes: Likewise for metadata, when that has a separate volume; else 0.
        odd: Immutable fields, except sizes, that differ from the rendered ones.
        created_ms: Creation time; its claim templates never change.
    """

    uid: str
    resource_version: int
    replicas: int
    revision: str
    good_revision: str
    bad_revision: str
    claim_bytes: int
    is_terminating: bool = False
    raft_bytes: int = 0
    odd: tuple[str, ...] = ()
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """The volume claim of a broker, which outlives sets and resources.

    Attributes:
        cluster_id: Cluster id from its label.
        requested_bytes: Requested size.
        capacity_bytes: Size of the file system; 0 before it is bound.
        is_retired: Whether its broker was removed and the volume only kept.
        class_name: Requested storage class; empty for the default one, before that is known.
        is_bound: Whether it has a volume; without one it holds no data.
        attributes_class: Requested VolumeAttributesClass; empty for none.
        attributes_in_force: VolumeAttributesClass of its volume.
        attributes_state: State of the change between the two, as the driver reports it.
        infeasible: Why its volume cannot get the requested size; empty when it may.
        created_ms: Creation time.
    """

    name: str
    ordinal: int
    uid: str
    resource_version: int
    cluster_id: str
    requested_bytes: int
    capacity_bytes: int
    is_retired: bool = False
    is_terminating: bool = False
    class_name: str = ""
    is_bound: bool = True
    attributes_class: str = ""
    attributes_in_force: str = ""
    attributes_state: str = ""
    infeasible: str = ""
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the metadata group: a broker with its data directory."""

    broker: str
    data_dir_id: str


@dataclass(frozen=True, slots=True)
class Identity:
    """The ConfigMap that identifies the cluster; it outlives all other objects.

    Attributes:
        founders: Founders of the cluster; empty until written, together with `is_started`.
        is_started: Whether founding has started, after which the list is final.
    """

    resource_version: int
    cluster_id: str
    founders: tuple[Member, ...] = ()
    is_started: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A machine; one that was deleted is not listed.

    Attributes:
        is_gone: Whether it has the out-of-service taint: nothing runs on it.
    """

    name: str
    is_ready: bool = True
    is_unschedulable: bool = False
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class SelfReport:
    """Report of the process in a pod about itself.

    Attributes:
        start_id: Uid of the pod in which it was started.
        cluster_id: Empty before it has a cluster.
        has_metadata: Whether its directory holds metadata.
        is_retired: Whether its directory never votes again.
        nats_servers: Number of NATS servers to which its own has routes, itself included; 0 for
            unknown.
        damage: A partition that it does not serve due to damaged files, and why; empty for none.
        clock_ms: Time of day by its clock when it answered; 0 for unknown.
        certificates: Certificate files that it loaded: setting, and SHA-256 of the file.
        peer_keys: Ids of the keys by which it recognises other brokers, the signing key first.
    """

    broker: str
    start_id: str
    data_dir_id: str
    cluster_id: str
    has_metadata: bool
    is_retired: bool = False
    is_nats_connected: bool = True
    is_disk_full: bool = False
    nats_servers: int = 0
    damage: str = ""
    clock_ms: int = 0
    certificates: tuple[tuple[str, str], ...] = ()
    peer_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A member as the metadata leader reports it; `match_index` None for unknown."""

    member: Member
    is_voter: bool
    is_alive: bool
    match_index: int | None


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """A broker as registered in the metadata."""

    broker: str
    data_dir_id: str
    start_id: str
    broker_epoch: int
    is_fenced: bool = False
    is_cordoned: bool = False
    is_draining: bool = False
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as stored in the metadata; `target` lists the replicas of a reassignment."""

    stream: str
    number: int
    leader: str
    partition_epoch: int
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    min_isr: int
    target: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Display name: stream and number."""
        return f"{self.stream}/{self.number}"


@dataclass(frozen=True, slots=True)
class Metadata:
    """Answer of the metadata leader, which confirmed its leadership by a majority.

    An unconfirmed answer does not count: the pass then has no metadata.

    Attributes:
        feature_level: Feature level in force.
        known_level: Highest feature level that every broker knows.
        catch_up_rate: Bytes a second that each leader grants moved replicas; 0 for no limit.
    """

    cluster_id: str
    leader: str
    term: int
    members: tuple[MemberReport, ...]
    brokers: tuple[BrokerReport, ...]
    partitions: tuple[Partition, ...]
    feature_level: int = 0
    known_level: int = 0
    catch_up_rate: int = 0


@dataclass(frozen=True, slots=True)
class Verification:
    """A restarted broker's verification of its restart token.

    Attributes:
        is_other_directory: Whether it has another volume, so that offsets cannot be compared.
    """

    token: str
    is_complete: bool
    is_other_directory: bool = False
    blockers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Disruption:
    """A restart by the operator, written to the status before it happens.

    Attributes:
        pod_uid: The pod to delete.
        token: The broker's restart token, which records the offsets held then.
        expires_ms: Time by which the deletion must have happened.
    """

    broker: str
    pod_uid: str
    token: str
    expires_ms: int
    since_ms: int
    partitions: int


@dataclass(frozen=True, slots=True)
class SetShape:
    """Fields that the successor of a set to be recreated takes over."""

    replicas: int
    revision: str
    good_revision: str
    bad_revision: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """State that the status of the resource keeps between passes.

    Attributes:
        disruption: The restart under way.
        shape: The set that is being recreated.
        risks: Kinds of risk of the plan last published.
        size: Replicas that the operator last set; None before that.
    """

    disruption: Disruption | None = None
    shape: SetShape | None = None
    risks: tuple[str, ...] = ()
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Replacement:
    """Request to replace the volume of a broker; done when its claim has another uid.

    Attributes:
        is_forced: Whether a user confirms that the old process has ended.
    """

    broker: str
    volume_uid: str
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class DesiredVolume:
    """Desired properties of the volumes of one purpose.

    Attributes:
        size_bytes: Size; 0 for no such volume.
        storage_class: Storage class; empty for the default one.
        attributes_class: VolumeAttributesClass; empty for none.
    """

    size_bytes: int
    storage_class: str = ""
    attributes_class: str = ""


NO_VOLUME: Final = DesiredVolume(0)


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Desired state of the cluster, rendered.

    Attributes:
        revision: Hash of the desired pod template; it covers requested restarts, but not the
            number of replicas.
        config_errors: Errors that the broker's own checker found in the configuration.
        approved_hash: Hash of the plan that a user approved; empty for none.
        is_window_open: Whether disruptions are allowed at this time.
        allows_unavailable: Whether partitions with one replica, and a metadata group without a
            majority, may be unavailable during a restart.
        needs_full_isr: Whether all other replicas must be in sync; else their minimum.
        restarts: Uids of pods with a requested restart; done when the pod has another uid.
        drained: Drained brokers: they lead nothing and get no new replicas.
        automatic_factor: Streams whose replication factor follows the number of brokers.
        data_volume: Volume of each broker.
        raft_volume: Separate volume of each broker for metadata, if there is one.
        feature_level: Lowest feature level to have in force; 0 to leave it.
        catch_up_rate: Bytes a second that each leader grants moved replicas; 0 for no limit.
        deletes_volumes: Whether volumes of scaled-in brokers are deleted.
        has_own_nats: Whether each broker has a NATS server in its pod.
        causes: Fields whose change altered the template, for messages.
    """

    name: str
    generation: int
    replicas: int
    revision: str
    data_volume: DesiredVolume
    config_errors: tuple[str, ...] = ()
    is_paused: bool = False
    is_suspended: bool = False
    is_deleting: bool = False
    needs_approval: bool = False
    approved_hash: str = ""
    is_window_open: bool = True
    allows_unavailable: bool = False
    needs_full_isr: bool = True
    is_rebalanced: bool = False
    replace: tuple[Replacement, ...] = ()
    restarts: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    automatic_factor: tuple[str, ...] = ()
    raft_volume: DesiredVolume = NO_VOLUME
    feature_level: int = 0
    catch_up_rate: int = 0
    deletes_volumes: bool = False
    has_own_nats: bool = False
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that a pass has observed.

    Attributes:
        resource_version: Version of the LiftbridgeCluster, for writes of the recorded state.
        fresh_cluster_id: Random text; the id of the cluster if it is created now.
        raft_claims: Claims of separate volumes for metadata.
        budget: `maxUnavailable` of the PodDisruptionBudget; None for no budget.
        nodes: None when the operator may not read them.
        metadata: None when no leader answered that could confirm its leadership.
        verification: Verification of the recorded disruption's token, if its broker answered.
        failed_creates: Pods that the StatefulSet fails to create, each with the cause.
    """

    now_ms: int
    resource_version: int
    fresh_cluster_id: str
    desired: DesiredState
    recorded: Recorded = Recorded()
    identity: Identity | None = None
    brokers: BrokerSet | None = None
    pods: tuple[Pod, ...] = ()
    claims: tuple[Claim, ...] = ()
    budget: int | None = None
    nodes: tuple[Node, ...] | None = None
    reports: tuple[SelfReport, ...] = ()
    metadata: Metadata | None = None
    verification: Verification | None = None
    raft_claims: tuple[Claim, ...] = ()
    failed_creates: tuple[tuple[str, str], ...] = ()
