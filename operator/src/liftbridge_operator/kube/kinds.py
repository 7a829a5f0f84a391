"""Kinds of objects that the operator knows, and the parts of their API paths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from liftbridge_operator.model.base import GROUP, VERSION
from liftbridge_operator.model.cluster import CLUSTER_KIND
from liftbridge_operator.model.pipeline import PIPELINE_KIND
from liftbridge_operator.model.stream import STREAM_KIND
from liftbridge_operator.model.user import USER_KIND


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of objects.

    Attributes:
        group: API group; empty for the core group.
        version: Version of the group.
        kind: Name in objects.
        plural: Name in paths and RBAC rules.
        is_namespaced: Whether its objects are namespaced.
    """

    group: str
    version: str
    kind: str
    plural: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Value of `apiVersion` in its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """Name with its group, as in rules of RBAC and for kubectl: `streams.liftbridge.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


CLUSTERS: Final = Kind(GROUP, VERSION, CLUSTER_KIND, "liftbridgeclusters")
STREAMS: Final = Kind(GROUP, VERSION, STREAM_KIND, "streams")
PIPELINES: Final = Kind(GROUP, VERSION, PIPELINE_KIND, "streampipelines")
USERS: Final = Kind(GROUP, VERSION, USER_KIND, "liftbridgeusers")

PODS: Final = Kind("", "v1", "Pod", "pods")
CLAIMS: Final = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
VOLUMES: Final = Kind("", "v1", "PersistentVolume", "persistentvolumes", is_namespaced=False)
CONFIG_MAPS: Final = Kind("", "v1", "ConfigMap", "configmaps")
SECRETS: Final = Kind("", "v1", "Secret", "secrets")
SERVICES: Final = Kind("", "v1", "Service", "services")
SERVICE_ACCOUNTS: Final = Kind("", "v1", "ServiceAccount", "serviceaccounts")
NODES: Final = Kind("", "v1", "Node", "nodes", is_namespaced=False)
NAMESPACES: Final = Kind("", "v1", "Namespace", "namespaces", is_namespaced=False)
SETS: Final = Kind("apps", "v1", "StatefulSet", "statefulsets")
DEPLOYMENTS: Final = Kind("apps", "v1", "Deployment", "deployments")
JOBS: Final = Kind("batch", "v1", "Job", "jobs")
CRON_JOBS: Final = Kind("batch", "v1", "CronJob", "cronjobs")
ROLE_BINDINGS: Final = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
BUDGETS: Final = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICIES: Final = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
STORAGE_CLASSES: Final = Kind(
    "storage.k8s.io", "v1", "StorageClass", "storageclasses", is_namespaced=False
)
EVENTS: Final = Kind("events.k8s.io", "v1", "Event", "events")
LEASES: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases")
CERTIFICATES: Final = Kind("cert-manager.io", "v1", "Certificate", "certificates")
SERVICE_MONITORS: Final = Kind("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors")
POD_MONITORS: Final = Kind("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors")
PROMETHEUS_RULES: Final = Kind("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules")

ALL_KINDS: Final = (
    CLUSTERS,
    STREAMS,
    PIPELINES,
    USERS,
    PODS,
    CLAIMS,
    VOLUMES,
    CONFIG_MAPS,
    SECRETS,
    SERVICES,
    SERVICE_ACCOUNTS,
    NODES,
    NAMESPACES,
    SETS,
    DEPLOYMENTS,
    JOBS,
    CRON_JOBS,
    ROLE_BINDINGS,
    BUDGETS,
    NETWORK_POLICIES,
    STORAGE_CLASSES,
    EVENTS,
    LEASES,
    CERTIFICATES,
    SERVICE_MONITORS,
    POD_MONITORS,
    PROMETHEUS_RULES,
)

GUARDED: Final = frozenset({PODS, CLAIMS, SETS})
"""Kinds whose deletion names the uid and the resource version that were read."""

_BY_NAME: Final = {(kind.api_version, kind.kind): kind for kind in ALL_KINDS}


def kind_of(body: Mapping[str, Any]) -> Kind:
    """Return the kind of an object.

    Raises:
        KeyError: The operator does not know the kind.
    """
    return _BY_NAME[body["apiVersion"], body["kind"]]
