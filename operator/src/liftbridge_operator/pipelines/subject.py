"""Inputs of the rendering of a pipeline, as values."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from liftbridge_operator.model import names as cluster_names
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.network import ClientAuth, ListenerType, TlsMode
from liftbridge_operator.model.pipeline import PipelineSpec

Object: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A `StreamPipeline` resource as read.

    Attributes:
        generation: Its `metadata.generation`.
        asked: Digest of its specification in manifest form, without `suspend`.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    spec: PipelineSpec
    asked: str


@dataclass(frozen=True, slots=True)
class Authority:
    """Object with the CA certificate of the brokers, in the namespace of the pods.

    Attributes:
        is_secret: Whether it is a Secret, else a ConfigMap.
        name: Its name.
        has_certificate: Whether it also contains a client certificate.
    """

    is_secret: bool
    name: str
    has_certificate: bool


@dataclass(frozen=True, slots=True)
class Reach:
    """Connection of pods to the brokers.

    Attributes:
        servers: Host and port of the Service of a listener.
        authority: None for plaintext.
    """

    servers: str
    authority: Authority | None


@dataclass(frozen=True, slots=True)
class Means:
    """Image and role that the operator provides to pipelines.

    Attributes:
        image: Default image of pods.
        executor_role: ClusterRole of drivers that create executors; empty for none.
    """

    image: str
    executor_role: str


class UnreachableError(ValueError):
    """Pods of the pipeline could not reach the brokers; the text names the missing part."""


def reach_of(pipeline: Pipeline, cluster: ClusterSpec) -> Reach:
    """Return the connection of a pipeline's pods to the brokers of its cluster.

    Raises:
        UnreachableError: Only a user can provide the missing listener or certificate.
    """
    ref = pipeline.spec.cluster_ref
    namespace = ref.namespace or pipeline.namespace
    inside = (one for one in cluster.listeners if one.type is ListenerType.INTERNAL)
    listener = next(inside, None)
    if listener is None:
        raise UnreachableError(f"cluster {ref.name} has no listener of type Internal")
    service = cluster_names.listener(ref.name, listener.name)
    servers = f"{service}.{namespace}.svc:{listener.port}"
    given = pipeline.spec.credentials.tls_secret_name
    if not listener.tls:
        return Reach(servers, None)
    shows = _needs_certificate(cluster)
    if given is not None:
        return Reach(servers, Authority(is_secret=True, name=given, has_certificate=shows))
    if shows or namespace != pipeline.namespace:
        why = "requires a certificate" if shows else "is in another namespace"
        raise UnreachableError(
            f"spec.credentials.tlsSecretName is needed: cluster {ref.name} uses TLS and {why}"
        )
    return Reach(servers, _authority(ref.name, cluster))


def _needs_certificate(cluster: ClusterSpec) -> bool:
    """Return whether pods must present a certificate, which also gives them rights."""
    match cluster.tls.client_auth:
        case ClientAuth.REQUIRED:
            return True
        case ClientAuth.OPTIONAL:
            return cluster.access is not None and cluster.access.enabled
        case ClientAuth.NONE:
            return False


def _authority(name: str, cluster: ClusterSpec) -> Authority:
    match cluster.tls.mode:
        case TlsMode.CERT_MANAGER:
            found, is_secret = cluster_names.leaf(name), True
        case TlsMode.SECRET:
            found, is_secret = cluster.tls.secret_name or "", True
        case _:
            found, is_secret = cluster_names.authority(name), False
    return Authority(is_secret=is_secret, name=found, has_certificate=False)
