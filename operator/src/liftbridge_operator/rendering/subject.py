"""What is rendered, what it is rendered from, and what comes out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from liftbridge_operator.model.cluster import API_VERSION, CLUSTER_KIND, ClusterSpec
from liftbridge_operator.rendering import names

Object: TypeAlias = dict[str, Any]
"""An object of Kubernetes as it stands in JSON."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A `LiftbridgeCluster` as it is rendered.

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
    """What the annotations and the template of the StatefulSet say of how it was made.

    Attributes:
        revision: Hash of its pod template.
        asked: What the specification asked for, by `revision.asked_text`.
        renderer: Version of the renderer that made it.
        image: Image of the broker that it has.
        template: The pod template itself.
    """

    revision: str
    asked: str = field(repr=False)
    renderer: int
    image: str
    template: Object = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reached:
    """What Kubernetes gave a Service for clients outside the cluster.

    Attributes:
        node_port: Port on every node; 0 for none yet.
        host: Name or address of its load balancer; empty for none yet.
    """

    node_port: int = 0
    host: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What rendering takes beside the specification.

    Attributes:
        cluster_id: Id of the cluster, from its identity.
        image: Image of the broker: `spec.image`, else what the operator has for `spec.version`.
        recorded: How the present StatefulSet was made; None when there is none.
        refused: How the template was made that was taken back from it; None for none.
        operator_namespace: Where pods of the operator run, for the NetworkPolicy.
        operator_labels: Labels of these pods.
        brokers: Brokers that need Services of their own: those that exist or are wanted.
        reached: What Services were given, by their names.
        hosts: Address of the node of each broker, by its number, as far as it is known.
        nodes: Addresses of all nodes; none when nodes may not be read.
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
    """Something in the specification that cannot be carried out.

    Attributes:
        field: Path below `spec`.
        message: Why not, with the way out.
    """

    field: str
    message: str

    def __str__(self) -> str:
        """For `config_errors` of the planner."""
        return f"spec.{self.field}: {self.message}"


@dataclass(frozen=True, slots=True)
class Held:
    """A template that differs for another reason than a change of the specification.

    It is put into force together with the next change that restarts brokers anyway, not before: a
    new version of the operator restarts none.

    Attributes:
        revision: It would have.
        causes: What differs, for people.
    """

    revision: str
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a cluster consists of.

    Attributes:
        revision: Hash of the pod template that is wanted.
        asked: What the specification asked for when the template was made.
        renderer: Version of the renderer that made the template.
        image: Image of the broker in the template.
        template: The pod template, with its revision in an annotation.
        configs: Immutable ConfigMaps that pods of this revision need: created, never changed, and
            deleted when no pod and no kept revision names them.
        objects: Everything else that is applied as it stands, with owner references.
        refusals: Why parts of the specification cannot be carried out; with any, nothing that
            restarts a broker is done.
        held: A difference that waits for the next change that restarts brokers.
        causes: Fields of the resource, such as `spec.config.logLevel`, by which the template
            became another one than that in force.
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
    """Labels that tell brokers of this cluster; selectors have them, so they never change."""
    return {
        "app.kubernetes.io/name": "liftbridge",
        "app.kubernetes.io/instance": cluster.name,
        "app.kubernetes.io/component": "broker",
        names.CLUSTER: cluster.name,
    }


def labels(cluster: Cluster, inputs: Inputs) -> dict[str, str]:
    """Labels of everything that belongs to the cluster."""
    return {
        **pod_labels(cluster),
        "app.kubernetes.io/part-of": "liftbridge",
        "app.kubernetes.io/managed-by": names.MANAGED_BY,
        names.CLUSTER_ID: inputs.cluster_id,
    }


def owner(cluster: Cluster) -> Object:
    """Reference by which an object goes with the `LiftbridgeCluster`."""
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
    """Metadata of an object that goes with the `LiftbridgeCluster`."""
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
    """Metadata of an object that stays when the `LiftbridgeCluster` goes."""
    made: Object = {
        "name": name,
        "namespace": cluster.namespace,
        "labels": (extra_labels or {}) | labels(cluster, inputs),
    }
    if annotations:
        made["annotations"] = annotations
    return made
