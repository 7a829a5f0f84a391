"""Model of the API server: objects with uids and versions, preconditions, reads that lag.

Objects are the planner's own values, replaced on every write, so that a snapshot is a copy of a few
dictionaries. A read may be answered from a snapshot of a former tick.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from liftbridge_operator.planning.observation import (
    BrokerSet,
    Claim,
    Disruption,
    Identity,
    Node,
    Pod,
    SetShape,
    Wanted,
)
from liftbridge_testkit.operator_sim.errors import ApiError

SNAPSHOTS = 4


@dataclass(frozen=True, slots=True)
class Resource:
    """The LiftbridgeCluster: what is wanted, and what its status keeps."""

    uid: str
    resource_version: int
    wanted: Wanted
    disruption: Disruption | None = None
    shape: SetShape | None = None
    risks: tuple[str, ...] = ()
    plan_hash: str = ""


@dataclass(slots=True)
class Snapshot:
    """Everything as it was at one moment."""

    resource: Resource | None
    identity: Identity | None
    brokers: BrokerSet | None
    pods: dict[str, Pod]
    claims: dict[str, Claim]
    nodes: dict[str, Node]
    budget: int | None


class Api:
    """The present objects and some former states of them.

    Attributes:
        writes: How many writes were accepted.
    """

    def __init__(self) -> None:
        self.resource: Resource | None = None
        self.identity: Identity | None = None
        self.brokers: BrokerSet | None = None
        self.pods: dict[str, Pod] = {}
        self.claims: dict[str, Claim] = {}
        self.nodes: dict[str, Node] = {}
        self.budget: int | None = None
        self.lease: tuple[str, int] = ("", -1_000_000)
        self.writes = 0
        self._version = 0
        self._uid = 0
        self._former: deque[Snapshot] = deque(maxlen=SNAPSHOTS)

    def next_version(self) -> int:
        """A resource version that was not used before."""
        self._version += 1
        self.writes += 1
        return self._version

    def next_uid(self, kind: str) -> str:
        """A uid that was not used before."""
        self._uid += 1
        return f"{kind}-{self._uid}"

    def snapshot(self) -> Snapshot:
        """Everything as it is now."""
        return Snapshot(
            self.resource,
            self.identity,
            self.brokers,
            dict(self.pods),
            dict(self.claims),
            dict(self.nodes),
            self.budget,
        )

    def keep(self) -> None:
        """Keep what is now as a state that a lagging read may show."""
        self._former.append(self.snapshot())

    def former(self, back: int) -> Snapshot:
        """A former state, `back` ticks ago or the oldest that is kept."""
        if not self._former:
            return self.snapshot()
        return self._former[max(len(self._former) - 1 - back, 0)]

    # -- writes -------------------------------------------------------------------------------

    def put_pod(self, pod: Pod, **changes: Any) -> Pod:
        """Write a pod under a new version."""
        made = replace(pod, resource_version=self.next_version(), **changes)
        self.pods[made.name] = made
        return made

    def put_claim(self, claim: Claim, **changes: Any) -> Claim:
        """Write a claim under a new version."""
        made = replace(claim, resource_version=self.next_version(), **changes)
        self.claims[made.name] = made
        return made

    def put_set(self, uid: str, version: int, **changes: Any) -> None:
        """Change the set if it is the one that was seen."""
        now = self.brokers
        if now is None:
            raise ApiError(404, "no set")
        if (now.uid, now.resource_version) != (uid, version):
            raise ApiError(409, "the set has changed")
        self.brokers = replace(now, resource_version=self.next_version(), **changes)

    def put_resource(self, **changes: Any) -> None:
        """Change the resource, whatever it is."""
        if self.resource is None:
            raise ApiError(404, "no resource")
        self.resource = replace(self.resource, resource_version=self.next_version(), **changes)

    def pod(self, name: str, uid: str, version: int) -> Pod:
        """The pod that is meant.

        Raises:
            ApiError: There is none, or it has changed since it was seen.
        """
        found = self.pods.get(name)
        if found is None:
            raise ApiError(404, f"no pod {name}")
        if (found.uid, found.resource_version) != (uid, version):
            raise ApiError(409, f"pod {name} has changed")
        return found

    def claim(self, name: str, uid: str, version: int) -> Claim:
        """The claim that is meant.

        Raises:
            ApiError: There is none, or it has changed since it was seen.
        """
        found = self.claims.get(name)
        if found is None:
            raise ApiError(404, f"no claim {name}")
        if (found.uid, found.resource_version) != (uid, version):
            raise ApiError(409, f"claim {name} has changed")
        return found
