"""Ports of the cluster reconciler other than the API server, supplied by the process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from liftbridge_operator.cluster.acting.context import Trouble
from liftbridge_operator.cluster.brokers.grpc_admin import TlsMaterial
from liftbridge_operator.cluster.brokers.port import BrokerAdmin
from liftbridge_operator.cluster.planning.refusals import Refusal
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs
from liftbridge_operator.cluster.reporting.account import Certificates
from liftbridge_operator.cluster.reporting.events import Happened
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.process.reconciler import Key


class Connection(BrokerAdmin, Protocol):
    """Admin of the brokers of one cluster, with connections that are closed at the end."""

    async def close(self) -> None:
        """Close all of them."""
        ...


class Connect(Protocol):
    """Makes connections to the brokers of a cluster, each opened at the first call."""

    def __call__(self, cluster: Cluster, tls: TlsMaterial | None) -> Connection:
        """Return the admin port of a cluster."""
        ...


@dataclass(frozen=True, slots=True)
class Issued:
    """State of the certificates and keys of a cluster.

    Attributes:
        certificates: For the status.
        operator: Certificate and key that the operator presents to brokers; None before it has any.
        trouble: Problem that a user has to fix before pods can start.
        is_waiting: Whether pods cannot start, because a Secret does not exist yet.
        happened: Occurrences to report as Events.
        refusals: Refusals of the API server, by the object that could not be written.
    """

    certificates: Certificates = field(default_factory=Certificates)
    operator: TlsMaterial | None = None
    trouble: Trouble | None = None
    is_waiting: bool = False
    happened: tuple[Happened, ...] = ()
    refusals: Mapping[str, Refusal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Served:
    """Files that brokers report as loaded.

    Attributes:
        brokers: Brokers that have to report: those whose pods are ready.
        loaded: By broker: SHA-256 of files of certificates, by the settings that name them.
        keys: By broker: ids of the keys by which it recognises other brokers.
        are_all: Whether these are all the brokers that the StatefulSet requests.
    """

    brokers: tuple[str, ...] = ()
    loaded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    are_all: bool = False


class Issue(Protocol):
    """Issues and renews the Secrets of a cluster."""

    async def __call__(
        self,
        cluster: Cluster,
        inputs: Inputs,
        *,
        may_write: bool,
        served: Served | None,
        held: Mapping[str, Refusal],
    ) -> Issued:
        """Create Secrets that are missing, renew those that expire soon, and return the state.

        Args:
            cluster: The cluster; its identity exists.
            inputs: Inputs of rendering, with the cluster id.
            may_write: Whether this pass may write objects.
            served: Reports of brokers in the pass before; None before any was asked.
            held: Objects whose writes were refused and are not retried yet.

        Raises:
            KubeError: A call failed.
        """
        ...


class ImageOf(Protocol):
    """Maps a specification to the broker image."""

    def __call__(self, spec: ClusterSpec) -> str:
        """Return the broker image of a specification."""
        ...


@dataclass(frozen=True, slots=True)
class Itself:
    """Identity of the operator: its version, and the namespace and labels of its pods."""

    version: str = ""
    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)


class Board(Protocol):
    """Keeps the conditions of each resource, for metrics."""

    def set_conditions(self, key: Key, conditions: list[Mapping[str, Any]]) -> None:
        """Keep the conditions of a resource."""
        ...

    def forget(self, key: Key) -> None:
        """Drop a resource that was deleted."""
        ...


class Events(Protocol):
    """Writes Kubernetes Events."""

    async def record(
        self, resource: Object, reason: EventReason, values: Mapping[str, object]
    ) -> None:
        """Write an Event of the catalogue."""
        ...
