"""What the reconciler of clusters is given by the process beside the API server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from liftbridge_operator.acting.context import Trouble
from liftbridge_operator.brokers.grpc_admin import TlsMaterial
from liftbridge_operator.brokers.port import BrokerAdmin
from liftbridge_operator.catalogue.names import EventReason
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.planning.refusals import Refusal
from liftbridge_operator.rendering.subject import Cluster, Inputs
from liftbridge_operator.reporting.account import Certificates
from liftbridge_operator.reporting.events import Happened
from liftbridge_operator.runtime.reconciler import Key


class Connection(BrokerAdmin, Protocol):
    """Admin of the brokers of one cluster, with connections that are closed at the end."""

    async def close(self) -> None:
        """Close all of them."""
        ...


class Connect(Protocol):
    """Makes connections to the brokers of a cluster; nothing is connected before the first call."""

    def __call__(self, cluster: Cluster, tls: TlsMaterial | None) -> Connection:
        """Admin of a cluster."""
        ...


@dataclass(frozen=True, slots=True)
class Issued:
    """Where the certificates and keys of a cluster stand.

    Attributes:
        certificates: For the status.
        operator: What the operator shows brokers; None before it has something to show.
        trouble: What a person has to mend before anything can start.
        is_waiting: Whether pods would not start, because a Secret is not there yet.
        happened: What people are told of.
        refusals: Objects that could not be written, and what was said against it.
    """

    certificates: Certificates = field(default_factory=Certificates)
    operator: TlsMaterial | None = None
    trouble: Trouble | None = None
    is_waiting: bool = False
    happened: tuple[Happened, ...] = ()
    refusals: Mapping[str, Refusal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Served:
    """What brokers have said of the files that they loaded.

    Attributes:
        brokers: Those that have to say it: whose pods are ready.
        loaded: By broker: SHA-256 of files of certificates, by the settings that name them.
        keys: By broker: ids of the keys by which it recognises others.
        are_all: Whether these are all brokers that there are to be.
    """

    brokers: tuple[str, ...] = ()
    loaded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    are_all: bool = False


class Issue(Protocol):
    """Looks after the Secrets of a cluster."""

    async def __call__(
        self,
        cluster: Cluster,
        inputs: Inputs,
        *,
        may_write: bool,
        served: Served | None,
        held: Mapping[str, Refusal],
    ) -> Issued:
        """Make what is missing or ends soon, and tell how it stands.

        Args:
            cluster: Whose; its identity is written.
            inputs: With its id.
            may_write: Whether anything may be made now.
            served: What brokers said in the pass before; None when nobody was asked yet.
            held: Objects whose writes were refused, and are not tried again yet.

        Raises:
            KubeError: A call failed.
        """
        ...


class ImageOf(Protocol):
    """Knows the image of each version of the brokers."""

    def __call__(self, spec: ClusterSpec) -> str:
        """The image that a specification asks for."""
        ...


@dataclass(frozen=True, slots=True)
class Itself:
    """The operator as it stands in objects: its version, and where its pods run."""

    version: str = ""
    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)


class Board(Protocol):
    """Is told the conditions of each resource, for metrics."""

    def tell(self, key: Key, conditions: list[Mapping[str, Any]]) -> None:
        """Keep the conditions of a resource."""
        ...

    def forget(self, key: Key) -> None:
        """Drop a resource that is gone."""
        ...


class Events(Protocol):
    """Tells people what happened."""

    async def tell(
        self, resource: Object, reason: EventReason, values: Mapping[str, object]
    ) -> None:
        """Write an event of the catalogue."""
        ...
