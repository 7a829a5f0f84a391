"""The API server in memory for a user with few rights, behind the port of the plugin.

kube = PersonKube()
kube.put(cluster())
assert main(["status", "orders"], reach_of(kube)) == 0
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from liftbridge_operator.kube.errors import ForbiddenError, NotFoundError
from liftbridge_operator.kube.kinds import Kind
from liftbridge_operator.kube.port import Object
from liftbridge_operator.plugin.port import Reach, Reached, Where
from liftbridge_testkit.kube.memory import MemoryKube

NAMESPACE = "shop"
NAME = "orders"


class PersonKube(MemoryKube):
    """Objects, logs and the server version.

    Attributes:
        logs: Text by pod, container, and whether it is the previous container.
        forbidden: Kinds that may not be read; also `log` and `version`.
        places: Targets of commands.
    """

    def __init__(self) -> None:
        """Create an empty server on which everything may be read."""
        super().__init__()
        self.logs: dict[tuple[str, str, bool], bytes] = {}
        self.forbidden: set[Kind | str] = set()
        self.places: list[Where] = []

    def _meet(self, verb: str, kind: Kind) -> None:
        self._check(kind, kind.qualified)
        super()._meet(verb, kind)

    def _check(self, what: Kind | str, text: str) -> None:
        if what in self.forbidden:
            raise ForbiddenError(f"GET {text}: no", status=403, reason="Forbidden")

    async def log(
        self, namespace: str, pod: str, container: str, *, is_former: bool, lines_max: int
    ) -> bytes:
        """See the port."""
        self._check("log", f"pods/{pod}/log")
        found = self.logs.get((pod, container, is_former))
        if found is None:
            raise NotFoundError(f"no log of {namespace}/{pod}/{container}", status=404)
        return b"".join(found.splitlines(keepends=True)[-lines_max:])

    async def server_version(self) -> Object:
        """See the port."""
        self._check("version", "version")
        return {"gitVersion": "v1.36.0"}


def reach_of(kube: PersonKube) -> Reach:
    """Return the connection; the namespace of the context is `shop`."""

    @asynccontextmanager
    async def way(where: Where) -> AsyncIterator[Reached]:
        kube.places.append(where)
        yield Reached(kube, where.namespace or NAMESPACE)

    def reach(where: Where) -> AbstractAsyncContextManager[Reached]:
        return way(where)

    return reach


def condition(kind: str, status: str, reason: str, message: str = "") -> Object:
    """Return a condition."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": 1,
        "lastTransitionTime": "2026-11-21T10:00:00Z",
    }


def broker(number: int, **changes: Any) -> Object:
    """Return the status of a healthy broker."""
    return {
        "id": f"{NAME}-{number}",
        "podUID": f"pod-{number}",
        "node": f"node-{number}",
        "zone": "a",
        "ready": True,
        "voter": True,
        "cordoned": False,
        "revision": "r1",
        "partitions": 4,
        "leaders": 2,
        "underReplicated": 0,
        "volumes": [{"name": f"v-{number}", "uid": "u", "capacity": "1Gi", "phase": "Bound"}],
        **changes,
    }


def cluster(
    name: str = NAME, namespace: str = NAMESPACE, spec: Any = None, **status: Any
) -> Object:
    """Return a resource as kept by the operator, with three healthy brokers."""
    brokers = [{**broker(one), "id": f"{name}-{one}"} for one in range(3)]
    return {
        "apiVersion": "liftbridge.io/v1alpha1",
        "kind": "LiftbridgeCluster",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "version": "0.1.0",
            "replicas": 3,
            "nats": {"embedded": {}},
            "storage": {"data": {"size": "1Gi"}},
            **(spec or {}),
        },
        "status": {
            "observedGeneration": 1,
            "clusterId": "id-1",
            "version": "0.1.0",
            "targetVersion": "0.1.0",
            "operatorVersion": "0.1.0",
            "replicas": 3,
            "readyReplicas": 3,
            "updatedReplicas": 3,
            "metadataLeader": f"{name}-0",
            "brokers": brokers,
            "partitions": {"total": 4, "offline": 0, "underReplicated": 0, "belowMinISR": 0},
            "conditions": [condition("Ready", "True", "Reconciled", "All 3 brokers are ready.")],
            **status,
        },
    }


def plan(**changes: Any) -> Object:
    """Return a plan that waits for approval."""
    return {
        "hash": "abc123",
        "generation": 1,
        "revision": "r2",
        "replicas": 3,
        "steps": [{"action": "Restart", "object": f"{NAME}-2", "cause": "spec"}],
        "stepCount": 1,
        "risks": [],
        "needsApproval": True,
        **changes,
    }


def stream(
    name: str, cluster_name: str = NAME, namespace: str = NAMESPACE, **status: Any
) -> Object:
    """Return a healthy stream."""
    return {
        "apiVersion": "liftbridge.io/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterRef": {"name": cluster_name}, "subject": name, "replicationFactor": 3},
        "status": {
            "observedGeneration": 1,
            "streamName": name,
            "partitions": 2,
            "replicas": 3,
            "conditions": [condition("Ready", "True", "Reconciled")],
            **status,
        },
    }
