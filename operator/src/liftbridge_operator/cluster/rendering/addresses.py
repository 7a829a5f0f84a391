"""Advertised addresses of each broker, for each listener.

The first listener of type `Internal` is the main listener of every broker (`listen`); its addresses
are DNS names inside the Kubernetes cluster. Kubernetes assigns the addresses of other listeners:
node ports, load balancers. Brokers read them from a ConfigMap with a file for each broker, which
may change without a restart; the pod template names only the ConfigMap, not its contents.
"""

from collections.abc import Iterator
from typing import Final

from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, Object, Reached, metadata
from liftbridge_operator.model import names
from liftbridge_operator.model.network import CLIENT_PORT, Listener, ListenerType, TlsMode

NODES_MAX: Final = 100
"""Number of nodes above which a certificate has only the addresses of nodes with a broker."""

_NOWHERE: Final = Reached()


def main_listener(cluster: Cluster) -> Listener | None:
    """Return the main listener (`listen`); None when all listeners are external."""
    inside = (
        listener for listener in cluster.spec.listeners if listener.type is ListenerType.INTERNAL
    )
    return next(inside, None)


def main_port(cluster: Cluster) -> int:
    """Return the port of `listen`, which is bound to loopback when all listeners are external."""
    main = main_listener(cluster)
    if main is not None:
        return main.port
    taken = {listener.port for listener in cluster.spec.listeners}
    return next(port for port in range(CLIENT_PORT, 0, -1) if port not in taken)


def further(cluster: Cluster) -> tuple[Listener, ...]:
    """Return the other listeners, in their order."""
    main = main_listener(cluster)
    return tuple(listener for listener in cluster.spec.listeners if listener is not main)


def needs_node_address(cluster: Cluster) -> bool:
    """Return whether brokers advertise the address of their node."""
    return any(listener.type is ListenerType.NODE_PORT for listener in cluster.spec.listeners)


def address_of(
    cluster: Cluster, inputs: Inputs, listener: Listener, ordinal: int
) -> tuple[str, int] | None:
    """Return host and port of a broker at a listener.

    Returns:
        Host and port; an empty host stands for the node of the broker. None while Kubernetes has
        assigned no address.
    """
    if listener.type is ListenerType.INTERNAL:
        broker = names.broker(cluster.name, ordinal)
        return names.host(broker, cluster.name, cluster.namespace), listener.port
    given = next((one for one in listener.brokers if one.broker == ordinal), None)
    service = names.listener_of(cluster.name, listener.name, ordinal)
    assigned = inputs.reached.get(service, _NOWHERE)
    host = given.advertised_host or "" if given is not None else ""
    if listener.type is ListenerType.NODE_PORT:
        port = assigned.node_port or (given.node_port if given is not None else None)
        return (host, port) if port else None
    host = host or assigned.host
    return (host, listener.port) if host else None


def advertised(cluster: Cluster, inputs: Inputs) -> Object | None:
    """Render the ConfigMap of advertised addresses; None without further listeners."""
    listeners = further(cluster)
    if not listeners:
        return None
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(cluster, inputs, names.listeners(cluster.name)),
        "data": {
            names.broker(cluster.name, ordinal): "".join(
                f"{listener.name}={written(*found)}\n"
                for listener in listeners
                if (found := address_of(cluster, inputs, listener, ordinal)) is not None
            )
            for ordinal in range(inputs.brokers)
        },
    }


def written(host: str, port: int) -> str:
    """Format an address; without a host it begins with the colon."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unreached(cluster: Cluster, inputs: Inputs, kind: ListenerType) -> tuple[str, ...]:
    """List Services of single brokers to which Kubernetes has assigned no address yet."""
    return tuple(
        names.listener_of(cluster.name, listener.name, ordinal)
        for listener in cluster.spec.listeners
        if listener.type is kind
        for ordinal in range(inputs.brokers)
        if address_of(cluster, inputs, listener, ordinal) is None
    )


def known(cluster: Cluster, inputs: Inputs, listener: Listener) -> Iterator[tuple[int, str, int]]:
    """Yield ordinal, host and port of the brokers whose address at a listener is known."""
    for ordinal in range(inputs.brokers):
        address = address_of(cluster, inputs, listener, ordinal)
        host = address[0] or inputs.hosts.get(ordinal, "") if address is not None else ""
        if address is not None and host:
            yield ordinal, host, address[1]


def entrance_address(cluster: Cluster, inputs: Inputs, listener: Listener) -> str:
    """Return the bootstrap address for clients; the internal name while there is no other."""
    service = names.listener(cluster.name, listener.name)
    assigned = inputs.reached.get(service, _NOWHERE)
    if listener.type is ListenerType.LOAD_BALANCER and assigned.host:
        return written(assigned.host, listener.port)
    if listener.type is ListenerType.NODE_PORT and assigned.node_port:
        first = next(known(cluster, inputs, listener), None)
        if first is not None:
            return written(first[1], assigned.node_port)
    return f"{service}.{cluster.namespace}.svc:{listener.port}"


def certified_hosts(cluster: Cluster, inputs: Inputs) -> tuple[str, ...]:
    """Return hosts for the client-facing certificate, besides those that the specification names.

    A generated certificate has the addresses of all nodes: a broker that starts on another node is
    trusted at once.
    """
    hosts: set[str] = set()
    is_ours = cluster.spec.tls.mode is TlsMode.GENERATED
    for listener in cluster.spec.listeners:
        if listener.tls and listener.type is not ListenerType.INTERNAL:
            hosts |= {host for _, host, _ in known(cluster, inputs, listener)}
            if (
                listener.type is ListenerType.NODE_PORT
                and is_ours
                and len(inputs.nodes) <= NODES_MAX
            ):
                hosts |= set(inputs.nodes)
            hosts.add(
                inputs.reached.get(names.listener(cluster.name, listener.name), _NOWHERE).host
            )
    return tuple(sorted(hosts - {""}))
