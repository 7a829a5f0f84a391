"""Model of the API server: objects with uids and versions, preconditions, reads that lag.

Objects are the planner's own values, replaced on every write, so that a snapshot is a copy of a few
dictionaries. A read may be answered from a snapshot of a former tick.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from liftbridge_operator.cluster.planning.observation import (
    BrokerSet,
    Claim,
    DesiredState,
    Disruption,
    Identity,
    Node,
    Pod,
    SetShape,
)
from liftbridge_testkit.operator_sim.errors import ApiError

SNAPSHOTS = 4


@dataclass(frozen=True, slots=True)
class Resource:
    """The LiftbridgeCluster: its spec and its status."""

    uid: str
    resource_version: int
    desired: DesiredState
    disruption: Disruption | None = None
    shape: SetShape | None = None
    risks: tuple[str, ...] = ()
    plan_hash: str = ""
    size: int | None = None


_Kept = TypeVar("_Kept", Resource, Identity, BrokerSet, Pod, Claim)


@dataclass(slots=True)
class Snapshot:
    """The whole state at one moment."""

    resource: Resource | None
    identity: Identity | None
    brokers: BrokerSet | None
    pods: dict[str, Pod]
    claims: dict[str, Claim]
    nodes: dict[str, Node]
    budget: int | None


class Api:
    """The current objects and some former states.

    Attributes:
        writes: Number of accepted writes.
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
        """Return a resource version that was not used before."""
        self._version += 1
        self.writes += 1
        return self._version

    def next_uid(self, kind: str) -> str:
        """Return a uid that was not used before."""
        self._uid += 1
        return f"{kind}-{self._uid}"

    def snapshot(self) -> Snapshot:
        """Return the whole current state."""
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
        """Keep the current state for lagging reads."""
        self._former.append(self.snapshot())

    def former(self, back: int) -> Snapshot:
        """Return the state `back` ticks ago, or the oldest kept state."""
        if not self._former:
            return self.snapshot()
        return self._former[max(len(self._former) - 1 - back, 0)]

    # -- other clients -------------------------------------------------------------------------

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

    def put_resource(self, **changes: Any) -> None:
        """Change the resource unconditionally."""
        if self.resource is None:
            raise ApiError(404, "no resource")
        self.resource = replace(self.resource, resource_version=self.next_version(), **changes)

    def remove_pod(self, name: str) -> None:
        """Remove a pod."""
        self.pods.pop(name, None)
        self.next_version()

    # -- requests of operators -----------------------------------------------------------------  A
    # write without a change succeeds, and creates no version.

    def create_identity(self, cluster_id: str, *, is_started: bool) -> None:
        """Create the identity, if there is none."""
        if self.identity is not None:
            raise ApiError(409, "the identity is there")
        self.identity = Identity(self.next_version(), cluster_id, (), is_started)

    def patch_identity(self, version: int, **changes: Any) -> None:
        """Change the identity, if its version has not changed."""
        self.identity = self._changed(_meant("identity", self.identity, version), changes)

    def create_set(self, **values: Any) -> None:
        """Create the set, if there is none."""
        if self.brokers is not None:
            raise ApiError(409, "the set is there")
        self.brokers = BrokerSet(self.next_uid("set"), self.next_version(), **values)

    def patch_set(self, uid: str, version: int, **changes: Any) -> None:
        """Change the set, if its version has not changed."""
        self.brokers = self._changed(_meant("set", self.brokers, version, uid), changes)

    def delete_set(self, uid: str, version: int) -> None:
        """Delete the set without its pods; it stays until the collector releases them."""
        self.patch_set(uid, version, is_terminating=True)

    def patch_pod(self, name: str, uid: str, version: int, **changes: Any) -> None:
        """Change a pod, if its version has not changed."""
        self.pods[name] = self._changed(self.pod(name, uid, version), changes)

    def delete_pod(self, name: str, uid: str, version: int, *, is_forced: bool) -> None:
        """Delete a pod: immediately if forced, or if no kubelet must stop it."""
        pod = self.pod(name, uid, version)
        if is_forced or not pod.node:
            self.remove_pod(name)
        else:
            self.pods[name] = self._changed(pod, {"is_terminating": True})

    def patch_claim(self, name: str, uid: str, version: int, **changes: Any) -> None:
        """Change a claim, if its version has not changed; it cannot shrink below its volume."""
        claim = self.claim(name, uid, version)
        size = changes.get("requested_bytes", claim.requested_bytes)
        if size < claim.requested_bytes and size <= claim.capacity_bytes:
            raise ApiError(422, "a volume cannot shrink")
        self.claims[name] = self._changed(claim, changes)

    def put_budget(self, max_unavailable: int | None) -> None:
        """Write the budget, or remove it."""
        if self.budget != max_unavailable:
            self.next_version()
            self.budget = max_unavailable

    def patch_resource(self, version: int, **changes: Any) -> None:
        """Write the status of the resource, if its version has not changed."""
        self.resource = self._changed(_meant("resource", self.resource, version), changes)

    def pod(self, name: str, uid: str, version: int) -> Pod:
        """Return the requested pod.

        Raises:
            ApiError: There is no such pod, or its version has changed.
        """
        return _meant(f"pod {name}", self.pods.get(name), version, uid)

    def claim(self, name: str, uid: str, version: int) -> Claim:
        """Return the requested claim.

        Raises:
            ApiError: There is no such claim, or its version has changed.
        """
        return _meant(f"claim {name}", self.claims.get(name), version, uid)

    def _changed(self, found: _Kept, changes: Mapping[str, Any]) -> _Kept:
        made = replace(found, **changes)
        return found if made == found else replace(made, resource_version=self.next_version())


def _meant(what: str, found: _Kept | None, version: int, uid: str | None = None) -> _Kept:
    if found is None:
        raise ApiError(404, f"no {what}")
    is_other = uid is not None and getattr(found, "uid", uid) != uid
    if is_other or found.resource_version != version:
        raise ApiError(409, f"the {what} has changed")
    return found
