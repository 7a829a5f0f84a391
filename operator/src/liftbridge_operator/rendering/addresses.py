"""Where clients are told to find each broker, listener by listener.

One listener is inside the Kubernetes cluster and known by names alone: the first of type `Internal`
is the one that every broker has (`listen`). Of the others, Kubernetes gives the addresses: ports on
nodes, load balancers. They reach brokers by a ConfigMap with a file for each, which may change
without a restart; the template names the ConfigMap and nothing in it.
"""

from collections.abc import Iterator
from typing import Final

from liftbridge_operator.model.network import CLIENT_PORT, Listener, ListenerType, TlsMode
from liftbridge_operator.rendering import names
from liftbridge_operator.rendering.subject import Cluster, Inputs, Object, Reached, metadata

NODES_MAX: Final = 100
"""With more nodes, a certificate has the addresses of those that have a broker."""

_NOWHERE: Final = Reached()


def main_listener(cluster: Cluster) -> Listener | None:
    """The listener that brokers have as `listen`; None when all are outside the cluster."""
    inside = (one for one in cluster.spec.listeners if one.type is ListenerType.INTERNAL)
    return next(inside, None)


def main_port(cluster: Cluster) -> int:
    """Port of `listen`, which only the pod itself reaches when all listeners are outside."""
    main = main_listener(cluster)
    if main is not None:
        return main.port
    taken = {one.port for one in cluster.spec.listeners}
    return next(port for port in range(CLIENT_PORT, 0, -1) if port not in taken)


def further(cluster: Cluster) -> tuple[Listener, ...]:
    """The other listeners, in their order."""
    main = main_listener(cluster)
    return tuple(one for one in cluster.spec.listeners if one is not main)


def needs_node_address(cluster: Cluster) -> bool:
    """Whether brokers tell clients the address of their node."""
    return any(one.type is ListenerType.NODE_PORT for one in cluster.spec.listeners)


def address_of(
    cluster: Cluster, inputs: Inputs, listener: Listener, ordinal: int
) -> tuple[str, int] | None:
    """Host and port of a broker at a listener.

    Returns:
        The host is empty for the node that the broker runs on. None while Kubernetes has given
        nothing.
    """
    if listener.type is ListenerType.INTERNAL:
        broker = names.broker(cluster.name, ordinal)
        return names.host(broker, cluster.name, cluster.namespace), listener.port
    given = next((one for one in listener.brokers if one.broker == ordinal), None)
    service = names.listener_of(cluster.name, listener.name, ordinal)
    found = inputs.reached.get(service, _NOWHERE)
    host = given.advertised_host or "" if given is not None else ""
    if listener.type is ListenerType.NODE_PORT:
        port = found.node_port or (given.node_port if given is not None else None)
        return (host, port) if port else None
    host = host or found.host
    return (host, listener.port) if host else None


def told(cluster: Cluster, inputs: Inputs) -> Object | None:
    """The ConfigMap with what each broker tells clients; None when there is one listener."""
    listeners = further(cluster)
    if not listeners:
        return None
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(cluster, inputs, names.listeners(cluster.name)),
        "data": {
            names.broker(cluster.name, ordinal): "".join(
                f"{one.name}={written(*found)}\n"
                for one in listeners
                if (found := address_of(cluster, inputs, one, ordinal)) is not None
            )
            for ordinal in range(inputs.brokers)
        },
    }


def written(host: str, port: int) -> str:
    """An address as text; without a host it begins with the colon."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unreached(cluster: Cluster, inputs: Inputs, kind: ListenerType) -> tuple[str, ...]:
    """Services of single brokers that Kubernetes has given no address yet."""
    return tuple(
        names.listener_of(cluster.name, one.name, ordinal)
        for one in cluster.spec.listeners
        if one.type is kind
        for ordinal in range(inputs.brokers)
        if address_of(cluster, inputs, one, ordinal) is None
    )


def known(cluster: Cluster, inputs: Inputs, listener: Listener) -> Iterator[tuple[int, str, int]]:
    """Number, host and port of the brokers of which both are known at a listener outside."""
    for ordinal in range(inputs.brokers):
        found = address_of(cluster, inputs, listener, ordinal)
        host = found[0] or inputs.hosts.get(ordinal, "") if found is not None else ""
        if found is not None and host:
            yield ordinal, host, found[1]


def entrance_address(cluster: Cluster, inputs: Inputs, listener: Listener) -> str:
    """Host and port by which clients begin; the name inside the cluster while there is no other."""
    service = names.listener(cluster.name, listener.name)
    found = inputs.reached.get(service, _NOWHERE)
    if listener.type is ListenerType.LOAD_BALANCER and found.host:
        return written(found.host, listener.port)
    if listener.type is ListenerType.NODE_PORT and found.node_port:
        first = next(known(cluster, inputs, listener), None)
        if first is not None:
            return written(first[1], found.node_port)
    return f"{service}.{cluster.namespace}.svc:{listener.port}"


def certified_hosts(cluster: Cluster, inputs: Inputs) -> tuple[str, ...]:
    """Hosts for the certificate towards clients, beside those that the specification names.

    Of all nodes where that costs nothing: a broker that starts on another node is trusted at once.
    """
    found: set[str] = set()
    is_ours = cluster.spec.tls.mode is TlsMode.GENERATED
    for one in cluster.spec.listeners:
        if one.tls and one.type is not ListenerType.INTERNAL:
            found |= {host for _, host, _ in known(cluster, inputs, one)}
            if one.type is ListenerType.NODE_PORT and is_ours and len(inputs.nodes) <= NODES_MAX:
                found |= set(inputs.nodes)
            found.add(inputs.reached.get(names.listener(cluster.name, one.name), _NOWHERE).host)
    return tuple(sorted(found - {""}))
