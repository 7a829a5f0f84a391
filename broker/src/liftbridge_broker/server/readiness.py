"""Whether a broker takes requests, for `/readyz` from the process start on and for gRPC health."""

from liftbridge_broker.api.grpc.health import Health
from liftbridge_broker.node.assembly.core import Core
from liftbridge_broker.server.nats_links import NatsLinks


class Readiness:
    """Readiness of a broker: not before its start is over, and not once it drains.

    Args:
        core: The broker, whose store is open.
        links: Its links to NATS.

    Attributes:
        health: The status that gRPC clients ask for.
    """

    def __init__(self, core: Core, links: NatsLinks) -> None:
        self._core = core
        self._links = links
        self._is_started = False
        self._is_draining = False
        self.health = Health()

    def begin(self) -> None:
        """Report that the start is over."""
        self._is_started = True
        self.look()

    def end(self) -> None:
        """Report that the broker drains."""
        self._is_draining = True
        self.look()

    def look(self) -> None:
        """Update the status for gRPC clients; called when the links for messages changed."""
        is_serving = self._is_started and not self._is_draining
        self.health.set_serving(is_serving=is_serving and self._links.messaging.is_connected)

    def reasons(self) -> list[str]:
        """Return why the broker takes no requests; empty while it is ready."""
        if self._is_draining:
            return ["broker: stopping"]
        return self._hindrances() if self._is_started else [self._awaited()]

    def _awaited(self) -> str:
        """Return the step that the start waits for."""
        if not (self._links.messaging.is_connected and self._links.transport.is_connected):
            return "nats: disconnected"
        if not self._core.is_open:
            return "cluster: waiting for a cluster"
        if self._core.registration is None:
            return "cluster: waiting for the metadata leader"
        return "cluster: catching up"

    def _hindrances(self) -> list[str]:
        """Return the reasons why a started broker cannot serve; empty if it can.

        A missing metadata leader is no reason: without a quorum no broker has one, and in-sync
        replicas continue to acknowledge.
        """
        reasons: list[str] = []
        if not self._links.messaging.is_connected:
            reasons.append("nats: disconnected")
        if not self._links.transport.is_connected:
            reasons.append("nats: disconnected from other brokers")
        cluster = self._core.node.cluster
        if cluster is not None and cluster.session.is_fenced:
            reasons.append("cluster: fenced")
        if self._core.store.disk.failure:
            reasons.append(f"storage: {self._core.store.disk.failure}")
        return reasons
