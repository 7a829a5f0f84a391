"""What one pass has seen: objects of Kubernetes and reports of brokers, as values.

All reads of a pass are uncached. They are not of one instant, so whatever is decided from them
carries the uid and the resource version of what was seen. Broker and pod have one name; the ordinal
is the number at its end. Times are milliseconds of one clock.
"""

from dataclasses import dataclass
from enum import StrEnum


class StuckCause(StrEnum):
    """Why the main container of a pod does not run."""

    IMAGE_PULL = "ImagePull"
    CRASH_LOOP = "CrashLoop"
    CONFIG = "CreateContainerConfigError"
    UNSCHEDULABLE = "Unschedulable"
    NODE_LOST = "NodeLost"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the set.

    Attributes:
        revision: Hash of the template it was made from, from its annotation.
        changed_ms: When it last became ready or stopped being so; its creation before that.
        is_running: Whether its main container runs.
        stuck: Why it does not run, when something keeps it from running.
        stuck_since_ms: Since when.
        kept: Token of the restart that was given up before it began, from its annotation.
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
        revision: Hash of the template that a pod made now gets.
        good_revision: Latest one with which a pod became ready; empty for none yet.
        bad_revision: One that was taken back because a pod got stuck with it; empty for none.
        claim_bytes: Size in its claim template.
        raft_bytes: Likewise for metadata, when they have a volume of their own; else 0.
        odd: Fields that nobody can change, sizes aside, and that are not as they are rendered.
        created_ms: When it was made; what it is made of never changes.
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
        cluster_id: From its label.
        requested_bytes: Size that is asked for.
        capacity_bytes: Size of the file system; 0 before it is bound.
        is_retired: Whether its broker was removed and the volume only kept.
        class_name: Storage class that it asks for; empty for the default one, before that is known.
        is_bound: Whether it has a volume; one without holds nothing.
        attributes_class: VolumeAttributesClass that it asks for; empty for none.
        attributes_in_force: The one that its volume has.
        attributes_state: How far the change between the two is, as the driver says it.
        infeasible: Why its volume cannot become as large as it asks for; empty when it may.
        created_ms: When it was made.
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
    """The ConfigMap that says which cluster this is; it is kept when everything else goes.

    Attributes:
        founders: Who founds the cluster; empty until that is written, together with `is_started`.
        is_started: Whether founding has begun: no other list is ever used then.
    """

    resource_version: int
    cluster_id: str
    founders: tuple[Member, ...] = ()
    is_started: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A machine; one that was deleted is not listed.

    Attributes:
        is_gone: Whether it is marked as out of service: nothing runs on it.
    """

    name: str
    is_ready: bool = True
    is_unschedulable: bool = False
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class SelfReport:
    """What the process in a pod says of itself.

    Attributes:
        start_id: Uid of the pod it was started in.
        cluster_id: Empty before it has a cluster.
        has_metadata: Whether its directory holds metadata.
        is_retired: Whether its directory never votes again.
        nats_servers: Servers of NATS that its own has routes to, itself included; 0 for unknown.
        damage: A partition that it does not serve because of its files, and why; empty for none.
        clock_ms: The time of day by its clock when it answered; 0 for unknown.
        certificates: Files of certificates that it loaded: setting, and SHA-256 of the file.
        peer_keys: Ids of the keys by which it recognises other brokers, the one that signs first.
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
    """A member as the leader of the metadata group sees it; `match_index` None for unknown."""

    member: Member
    is_voter: bool
    is_alive: bool
    match_index: int | None


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """A broker as the metadata says it is."""

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
    """A partition as the metadata says it is; `target` is what a reassignment wants."""

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
        """For people: stream and number."""
        return f"{self.stream}/{self.number}"


@dataclass(frozen=True, slots=True)
class Metadata:
    """Answer of the leader of the metadata group, which confirmed that it leads by a majority.

    An answer that was not confirmed is no observation: the pass then has none.

    Attributes:
        feature_level: Rules of decision in force.
        known_level: Latest rules that every broker knows.
        catch_up_rate: Bytes a second that each leader spends on replicas that are moved; 0 for
            no limit.
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
    """What a restarted broker says of the token of its restart.

    Attributes:
        is_other_directory: Whether its volume is another one, so that nothing can be compared.
    """

    token: str
    is_complete: bool
    is_other_directory: bool = False
    blockers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Disruption:
    """A restart by the operator, written to the status before it happens.

    Attributes:
        pod_uid: The pod that is to go.
        token: What the broker gave for it; it records the offsets held then.
        expires_ms: When the deletion must have happened.
    """

    broker: str
    pod_uid: str
    token: str
    expires_ms: int
    since_ms: int
    partitions: int


@dataclass(frozen=True, slots=True)
class SetShape:
    """A set that is about to be made again: what its successor needs."""

    replicas: int
    revision: str
    good_revision: str
    bad_revision: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the status of the resource keeps between passes.

    Attributes:
        disruption: The restart under way.
        shape: The set that is being made again.
        risks: Kinds of risk of the plan last published.
        size: Pods that the operator gave the set; None before it did.
    """

    disruption: Disruption | None = None
    shape: SetShape | None = None
    risks: tuple[str, ...] = ()
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Replacement:
    """Request to give a broker another volume; done when its claim has another uid.

    Attributes:
        is_forced: Whether a person vouches that the old process is gone.
    """

    broker: str
    volume_uid: str
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """The specification, rendered.

    Attributes:
        revision: Hash of the pod template it asks for; the number of replicas is not in it, a
            restart that was asked for is.
        config_errors: What the broker's own checker says against the configuration.
        approved_hash: Hash of the plan that a person approved; empty for none.
        is_window_open: Whether disruptions are allowed at this time.
        allows_unavailable: Whether partitions with one replica, and a metadata group without a
            majority, may be away during a restart.
        needs_full_isr: Whether all other replicas must be in sync; else their minimum.
        restarts: Uids of pods that somebody wants restarted; done when the pod is another one.
        drained: Brokers that are to lead nothing and to get no new replicas.
        automatic_factor: Streams whose replication factor follows the number of brokers.
        raft_bytes: Size of volumes for metadata alone; 0 when there are none.
        claim_class, raft_class: Storage classes of both; empty for the default one.
        claim_attributes, raft_attributes: VolumeAttributesClasses of both; empty for none.
        feature_level: Rules of decision that are to be in force at least; 0 to leave them.
        catch_up_rate: Bytes a second that each leader spends on replicas that are moved; 0 for
            no limit.
        deletes_volumes: Whether volumes of brokers that leave are deleted.
        has_own_nats: Whether each broker has a NATS server beside it.
        causes: Fields by which the template became another one, for people.
    """

    name: str
    generation: int
    replicas: int
    revision: str
    claim_bytes: int
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
    raft_bytes: int = 0
    feature_level: int = 0
    catch_up_rate: int = 0
    deletes_volumes: bool = False
    has_own_nats: bool = False
    causes: tuple[str, ...] = ()
    claim_class: str = ""
    raft_class: str = ""
    claim_attributes: str = ""
    raft_attributes: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """All that a pass has seen.

    Attributes:
        resource_version: Of the LiftbridgeCluster, for writes of what is recorded.
        fresh_cluster_id: Random text; the id of the cluster if it is created now.
        raft_claims: Claims of volumes for metadata alone.
        budget: `maxUnavailable` of the PodDisruptionBudget; None for no budget.
        nodes: None when the operator may not read them.
        metadata: None when no leader answered that could confirm it leads.
        verification: Of the token of the recorded disruption, when its broker answered.
        failed_creates: Pods that the StatefulSet fails to create, each with the cause.
    """

    now_ms: int
    resource_version: int
    fresh_cluster_id: str
    wanted: Wanted
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
