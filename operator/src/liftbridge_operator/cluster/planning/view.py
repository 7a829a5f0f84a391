"""Lookups by name in an observation, shared by all rules and computed once a pass."""

from collections.abc import Iterable
from typing import Final

from liftbridge_operator.cluster.planning.observation import (
    BrokerReport,
    Claim,
    MemberReport,
    Metadata,
    Node,
    Observation,
    Partition,
    Pod,
    SelfReport,
    StuckCause,
)

SETTLE_MS: Final = 10_000
"""Time that a restarted pod gets to settle."""
STUCK_MS: Final = 60_000
UNREADY_MS: Final = 120_000
LAG_ENTRIES_MAX: Final = 100
"""Maximum lag of a caught-up member, in metadata entries."""
FOUNDERS_MAX: Final = 3
NAMES_MAX: Final = 1_000
ACTION_MS: Final = 5_000
"""Age of an observation after which its action is dropped."""


def voters_for(brokers: int) -> int:
    """Return the number of voters of a cluster of a size."""
    if brokers >= 5:
        return 5
    return min(brokers, 3)


def ordinal_of(broker: str) -> int:
    """Return the number at the end of a broker's name; -1 when there is none."""
    digits = broker.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else -1


class View:
    """An observation with its lookups.

    Attributes:
        seen: The observation.
        revision: Desired template of pods, unless it is known to be bad.
        names: Brokers of the set, whether their pods exist or not.
        pods, claims, reports, brokers, members: By name of the broker.
        drained: Drained brokers, which lead nothing; empty when that would be all brokers.
        leaving: Drained brokers, and brokers on cordoned nodes.
    """

    __slots__ = (
        "_absent",
        "brokers",
        "claims",
        "desired",
        "drained",
        "leaving",
        "members",
        "metadata",
        "names",
        "nodes",
        "now",
        "pods",
        "reports",
        "revision",
        "seen",
    )

    def __init__(self, seen: Observation) -> None:
        """Index the observation by name."""
        self.seen = seen
        self.now = seen.now_ms
        self.desired = seen.desired
        self.metadata: Metadata | None = seen.metadata
        self.names = [self.name(ordinal) for ordinal in range(min(self.size, NAMES_MAX))]
        self.pods: dict[str, Pod] = {pod.name: pod for pod in seen.pods}
        self.claims: dict[str, Claim] = {self.name(claim.ordinal): claim for claim in seen.claims}
        self.reports: dict[str, SelfReport] = {report.broker: report for report in seen.reports}
        self.nodes: dict[str, Node] = {node.name: node for node in seen.nodes or ()}
        known = seen.metadata
        self.brokers: dict[str, BrokerReport] = (
            {broker.broker: broker for broker in known.brokers} if known else {}
        )
        self.members: dict[str, list[MemberReport]] = {}
        for member in known.members if known else ():
            self.members.setdefault(member.member.broker, []).append(member)
        self.revision = self._effective_revision()
        asked = frozenset(self.desired.drained).intersection(self.names)
        self.drained = asked if len(asked) < len(self.names) else frozenset[str]()  # gate DRAIN_ALL
        self.leaving = self.drained.union(self._on_leaving_nodes())
        self._absent: list[str] | None = None

    def _effective_revision(self) -> str:
        brokers = self.seen.brokers
        desired = self.desired.revision
        if brokers is None:
            return desired
        if desired == brokers.bad_revision or self.desired.config_errors:  # gate CONFIG
            return brokers.good_revision or brokers.revision
        return desired

    def _on_leaving_nodes(self) -> list[str]:
        if all(node.is_unschedulable for node in self.nodes.values()):
            return []  # all nodes are cordoned: no broker is a better leader
        return [name for name, pod in self.pods.items() if self.is_on_leaving_node(pod)]

    def name(self, ordinal: int) -> str:
        """Return the name of the broker and pod with this ordinal."""
        return f"{self.desired.name}-{ordinal}"

    @property
    def size(self) -> int:
        """Specified pods of the set; those recorded while the set is recreated."""
        if self.seen.brokers is not None:
            return self.seen.brokers.replicas
        shape = self.seen.recorded.shape
        return max(shape.replicas, 0) if shape is not None else 0

    def partitions(self, broker: str = "") -> Iterable[Partition]:
        """Return all partitions, or those with a replica on a broker."""
        if self.metadata is None:
            return ()
        if not broker:
            return self.metadata.partitions
        return [partition for partition in self.metadata.partitions if broker in partition.replicas]

    @property
    def known_level(self) -> int:
        """Highest feature level that every broker knows."""
        return self.metadata.known_level if self.metadata is not None else 0

    def leads(self, broker: str) -> list[Partition]:
        """Return the partitions that a broker leads."""
        return [partition for partition in self.partitions() if partition.leader == broker]

    def voters(self) -> list[MemberReport]:
        """Return the voters."""
        return (
            [member for member in self.metadata.members if member.is_voter] if self.metadata else []
        )

    def is_voter(self, broker: str) -> bool:
        """Return whether a member of this broker is a voter."""
        return any(member.is_voter for member in self.members.get(broker, ()))

    def is_caught_up(self, member: MemberReport) -> bool:
        """Return whether a member is alive and lags at most `LAG_ENTRIES_MAX` entries."""
        if not member.is_alive or member.match_index is None or self.metadata is None:
            return False
        ends = [one.match_index or 0 for one in self.metadata.members]
        return max(ends) - member.match_index <= LAG_ENTRIES_MAX

    def keeps_majority_without(self, broker: str) -> bool:
        """Return whether caught-up voters of other brokers are a majority of all voters."""
        voters = self.voters()
        near = [
            voter for voter in voters if voter.member.broker != broker and self.is_caught_up(voter)
        ]
        return 2 * len(near) > len(voters)

    def is_current(self, pod: Pod) -> bool:
        """Return whether the process that answers for a pod is registered in the metadata."""
        reported = self.reports.get(pod.name)
        known = self.brokers.get(pod.name)
        return (
            reported is not None
            and known is not None
            and reported.start_id == pod.uid == known.start_id
            and reported.data_dir_id == known.data_dir_id
        )

    def is_serving(self, broker: str) -> bool:
        """Return whether a broker is registered, not fenced and not stopping."""
        known = self.brokers.get(broker)
        return known is not None and not known.is_fenced and not known.is_stopping

    def lacks_routes(self, broker: str) -> bool:
        """Return whether a broker's NATS server lacks a route to that of some ready broker."""
        reported = self.reports.get(broker)
        if reported is None or not reported.nats_servers or not self.desired.has_own_nats:
            return False
        ready = [name for name in self.names if (pod := self.pods.get(name)) and pod.is_ready]
        return reported.nats_servers < len(ready)

    def is_node_lost(self, pod: Pod) -> bool:
        """Return whether a pod does not run because its node is lost."""
        if pod.stuck is StuckCause.NODE_LOST:
            return True
        node = self.nodes.get(pod.node)
        return (
            self.seen.nodes is not None and pod.node != "" and (node is None or not node.is_ready)
        )

    def is_on_leaving_node(self, pod: Pod) -> bool:
        """Return whether the node of a pod is cordoned, so that a new pod may be unschedulable."""
        node = self.nodes.get(pod.node)
        return node is not None and node.is_unschedulable

    def is_due(self, pod: Pod) -> bool:
        """Return whether a pod is to be replaced: by another template or a requested restart."""
        return pod.revision != self.revision or pod.uid in self.desired.restarts

    def is_stuck(self, pod: Pod) -> bool:
        """Return whether a pod's container has been kept from running for `STUCK_MS`."""
        return (
            pod.stuck is not None
            and not pod.is_running
            and self.now - pod.stuck_since_ms >= STUCK_MS
        )

    def is_full(self, partition: Partition) -> bool:
        """Return whether all replicas of a partition are in sync and none is moving."""
        return not partition.target and set(partition.replicas) <= set(partition.isr)

    def absent(self) -> list[str]:
        """Return brokers whose pods are missing, not ready, terminating or not settled."""
        if self._absent is None:
            self._absent = [name for name in self.names if self._is_absent(name)]
        return self._absent

    def _is_absent(self, name: str) -> bool:
        pod = self.pods.get(name)
        return (
            pod is None
            or not pod.is_ready
            or pod.is_terminating
            or self.now - pod.changed_ms < SETTLE_MS
        )
