"""Inputs and outputs of rendering."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from liftbridge_operator.model import names
from liftbridge_operator.model.cluster import API_VERSION, CLUSTER_KIND, ClusterSpec

Object: TypeAlias = dict[str, Any]
"""An object of Kubernetes in JSON form."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A `LiftbridgeCluster` to be rendered.

    Attributes:
        uid: `metadata.uid`, for owner references.
        restart: Value of the annotation `liftbridge.io/restart`; empty for none.
        key_request: Value of the annotation `liftbridge.io/rotate-keys`; empty for none.
    """

    name: str
    namespace: str
    uid: str
    spec: ClusterSpec
    restart: str = ""
    key_request: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Record of how a pod template was rendered, from annotations of the StatefulSet.

    Attributes:
        revision: Hash of the pod template.
        asked: Desired state, as `revision.asked_text`.
        renderer: Version of the renderer.
        image: Image of the broker.
        template: The pod template itself.
    """

    revision: str
    asked: str = field(repr=False)
    renderer: int
    image: str
    template: Object = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reached:
    """Address that Kubernetes assigned to a Service for external clients.

    Attributes:
        node_port: Port on every node; 0 for none yet.
        host: Name or address of its load balancer; empty for none yet.
    """

    node_port: int = 0
    host: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of rendering other than the specification.

    Attributes:
        cluster_id: Id of the cluster, from its identity.
        image: Image of the broker: `spec.image`, else the operator's image for `spec.version`.
        recorded: Record of the present StatefulSet; None when there is none.
        refused: Record of the reverted template; None for none.
        operator_namespace: Namespace of the operator's pods, for the NetworkPolicy.
        operator_labels: Labels of these pods.
        brokers: Number of brokers that need Services: those that exist or are desired.
        reached: Assigned addresses of Services, by their names.
        hosts: Address of the node of each broker, by ordinal, where known.
        nodes: Addresses of all nodes; empty when nodes may not be read.
    """

    cluster_id: str
    image: str
    recorded: Recorded | None = None
    refused: Recorded | None = None
    operator_namespace: str = ""
    operator_labels: dict[str, str] = field(default_factory=dict)
    brokers: int = 0
    reached: Mapping[str, Reached] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field of the specification that cannot be carried out.

    Attributes:
        field: Path below `spec`.
        message: Reason, with the remedy.
    """

    field: str
    message: str

    def __str__(self) -> str:
        """Format for `config_errors` of the planner."""
        return f"spec.{self.field}: {self.message}"


@dataclass(frozen=True, slots=True)
class Held:
    """A template that differs without a change of the specification.

    It takes effect together with the next change that restarts brokers anyway, not before: a new
    version of the operator restarts no broker.

    Attributes:
        revision: Revision that it would have.
        causes: Human-readable differences.
    """

    revision: str
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """Rendered objects of a cluster.

    Attributes:
        revision: Hash of the desired pod template.
        asked: Desired state from which the template was rendered.
        renderer: Version of the renderer that rendered the template.
        image: Image of the broker in the template.
        template: The pod template, with its revision in an annotation.
        configs: Immutable ConfigMaps that pods of this revision need: created, never changed, and
            deleted when no pod and no stored revision names them.
        objects: All other objects to apply, with owner references.
        refusals: Parts of the specification that cannot be carried out; with any, the operator
            restarts no broker.
        held: A difference that waits for the next change that restarts brokers.
        causes: Fields of the resource, such as `spec.config.logLevel`, that change the template in
            force.
    """

    revision: str
    asked: str
    renderer: int
    image: str
    template: Object
    configs: tuple[Object, ...]
    objects: tuple[Object, ...]
    refusals: tuple[Refusal, ...] = ()
    held: Held | None = None
    causes: tuple[str, ...] = ()


def pod_labels(cluster: Cluster) -> dict[str, str]:
    """Return the labels that select brokers of this cluster, which never change."""
    return {
        "app.kubernetes.io/name": "liftbridge",
        "app.kubernetes.io/instance": cluster.name,
        "app.kubernetes.io/component": "broker",
        names.CLUSTER: cluster.name,
    }


def labels(cluster: Cluster, inputs: Inputs) -> dict[str, str]:
    """Return the labels of everything that belongs to the cluster."""
    return {
        **pod_labels(cluster),
        "app.kubernetes.io/part-of": "liftbridge",
        "app.kubernetes.io/managed-by": names.MANAGED_BY,
        names.CLUSTER_ID: inputs.cluster_id,
    }


def owner(cluster: Cluster) -> Object:
    """Return the owner reference by which an object is deleted with the `LiftbridgeCluster`."""
    return {
        "apiVersion": API_VERSION,
        "kind": CLUSTER_KIND,
        "name": cluster.name,
        "uid": cluster.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def metadata(
    cluster: Cluster,
    inputs: Inputs,
    name: str,
    *,
    extra_labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Object:
    """Render metadata of an object that is deleted with the `LiftbridgeCluster`."""
    return kept_metadata(
        cluster, inputs, name, extra_labels=extra_labels, annotations=annotations
    ) | {"ownerReferences": [owner(cluster)]}


def kept_metadata(
    cluster: Cluster,
    inputs: Inputs,
    name: str,
    *,
    extra_labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Object:
    """Render metadata of an object that outlives the `LiftbridgeCluster`."""
    made: Object = {
        "name": name,
        "namespace": cluster.namespace,
        "labels": (extra_labels or {}) | labels(cluster, inputs),
    }
    if annotations:
        made["annotations"] = annotations
    return made
