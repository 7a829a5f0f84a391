"""Why the cluster that a stream or user belongs to cannot be used now."""

from typing import Final

from liftbridge_operator.model.catalogue.claim import Claim
from liftbridge_operator.model.catalogue.names import Reason
from liftbridge_operator.streams.observation import ClusterState, SeenCluster

_NOT_READY: Final = {
    ClusterState.DELETING: "it is being deleted",
    ClusterState.PAUSED: "it is paused",
}


def obstacle_of(cluster: SeenCluster, namespace: str) -> Claim | None:
    """Return why resources of a namespace cannot use a cluster; None if they can."""
    if cluster.state in (ClusterState.MISSING, ClusterState.HIDDEN):
        return Claim(Reason.CLUSTER_NOT_FOUND, {"cluster": cluster.name})
    if not cluster.is_allowed:
        return Claim(Reason.NOT_ALLOWED, {"cluster": cluster.name, "namespace": namespace})
    detail = _NOT_READY.get(cluster.state, "")
    if not detail and not cluster.is_heard and not cluster.answered:
        detail = "none of its brokers has answered yet"
    if detail:
        return Claim(Reason.CLUSTER_NOT_READY, {"cluster": cluster.name, "detail": detail})
    if cluster.is_heard:
        return None
    return Claim(Reason.CLUSTER_UNREACHABLE, {"cluster": cluster.name, "time": cluster.answered})
