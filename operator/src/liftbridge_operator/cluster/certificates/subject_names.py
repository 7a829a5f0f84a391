"""Names in certificates: every host name and address of the brokers.

One certificate serves all brokers of a cluster, by a wildcard over the headless Service, so that a
scale-out issues none. It does not distinguish brokers.
"""

from typing import Final

from liftbridge_operator.cluster.rendering.subject import Cluster
from liftbridge_operator.model import names
from liftbridge_operator.model.network import ListenerType

NAMES_MAX: Final = 512
"""Maximum number of names in one certificate; some libraries refuse more."""

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def internal_names(cluster: Cluster) -> tuple[str, ...]:
    """Return names for operators and for NATS.

    A broker first tries the NATS server on its own host; applications use the Services of
    listeners, which lead to embedded servers, too.
    """
    found = [*_of_service(cluster, names.headless(cluster.name)), *LOOPBACK]
    if cluster.spec.nats.embedded is not None:
        for listener in cluster.spec.listeners:
            if listener.type is ListenerType.INTERNAL:
                found += _forms(names.listener(cluster.name, listener.name), cluster.namespace)
    return tuple(dict.fromkeys(found))


def subject_names(cluster: Cluster, addresses: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names for clients, in a fixed order, each once.

    Args:
        cluster: The cluster.
        addresses: External hosts of listeners, of load balancers and of nodes. A new one is added
            before brokers advertise it.

    Raises:
        ValueError: There are more than `NAMES_MAX`.
    """
    found = [*_of_service(cluster, names.headless(cluster.name)), *LOOPBACK]
    for listener in cluster.spec.listeners:
        found += _forms(names.listener(cluster.name, listener.name), cluster.namespace)
        found += [given.advertised_host for given in listener.brokers if given.advertised_host]
    found += [*cluster.spec.tls.extra_names, *addresses]
    unique = tuple(dict.fromkeys(found))
    if len(unique) > NAMES_MAX:
        raise ValueError(f"a certificate would need {len(unique)} names, more than {NAMES_MAX}")
    return unique


def _of_service(cluster: Cluster, service: str) -> list[str]:
    own = _forms(service, cluster.namespace)
    return [*own, *(f"*.{name}" for name in own)]


def _forms(service: str, namespace: str) -> list[str]:
    """List the DNS names of a Service; the bare name only resolves in its own namespace."""
    qualified = f"{service}.{namespace}"
    return [f"{qualified}.svc", f"{qualified}.svc.cluster.local", qualified, service]
