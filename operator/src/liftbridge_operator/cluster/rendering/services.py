"""Services: headless, one for each listener, and one for each broker at external listeners."""

from liftbridge_operator.cluster.rendering.subject import (
    Cluster,
    Inputs,
    Object,
    metadata,
    pod_labels,
)
from liftbridge_operator.model import names
from liftbridge_operator.model.network import BrokerAddress, Listener, ListenerType


def services(cluster: Cluster, inputs: Inputs) -> list[Object]:
    """Render all Services, first those with specified node ports.

    Otherwise Kubernetes might assign such a port to a Service that is created earlier.
    """
    found = [headless(cluster, inputs)]
    for listener in cluster.spec.listeners:
        found.append(entrance(cluster, inputs, listener))
        if listener.type is not ListenerType.INTERNAL:
            found += [
                of_broker(cluster, inputs, listener, ordinal) for ordinal in range(inputs.brokers)
            ]
    return sorted(found, key=_is_port_chosen)


def _is_port_chosen(service: Object) -> bool:
    """Return whether Kubernetes chooses the node ports of a Service, if it has any."""
    return not any("nodePort" in port for port in service["spec"]["ports"])


def headless(cluster: Cluster, inputs: Inputs) -> Object:
    """Render the headless Service, for unready pods too: brokers connect before they are ready."""
    ports = {
        names.listener_port(listener.name): listener.port for listener in cluster.spec.listeners
    }
    ports |= names.PORTS
    if cluster.spec.nats.embedded is not None:
        ports |= names.NATS_PORT_NAMES
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(
            cluster,
            inputs,
            names.headless(cluster.name),
            extra_labels={names.SERVICE_ROLE: "brokers"},
        ),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": pod_labels(cluster),
            "ports": [_port(name, port) for name, port in ports.items()],
        },
    }


def entrance(cluster: Cluster, inputs: Inputs, listener: Listener) -> Object:
    """Render the bootstrap Service of a listener, which selects ready brokers.

    The internal one exposes embedded NATS too: applications that only publish need nothing else.
    """
    ports = [_port(names.listener_port(listener.name), listener.port)]
    if cluster.spec.nats.embedded is not None and listener.type is ListenerType.INTERNAL:
        ports.append(_port("nats", names.CLIENTS_PORT))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(
            cluster, inputs, listener, names.listener(cluster.name, listener.name), "entrance"
        ),
        "spec": _exposed(listener) | {"selector": pod_labels(cluster), "ports": ports},
    }


def of_broker(cluster: Cluster, inputs: Inputs, listener: Listener, ordinal: int) -> Object:
    """Render the external Service of one broker, ready or not, whose address is advertised."""
    given = next((broker for broker in listener.brokers if broker.broker == ordinal), None)
    port = _port(names.listener_port(listener.name), listener.port)
    if given is not None and given.node_port is not None:
        port["nodePort"] = given.node_port
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(
            cluster,
            inputs,
            listener,
            names.listener_of(cluster.name, listener.name, ordinal),
            "broker",
            given,
        ),
        "spec": _exposed(listener)
        | {
            "publishNotReadyAddresses": True,
            "selector": pod_labels(cluster) | {names.POD_NAME: names.broker(cluster.name, ordinal)},
            "ports": [port],
        },
    }


def _metadata(
    cluster: Cluster,
    inputs: Inputs,
    listener: Listener,
    name: str,
    role: str,
    given: BrokerAddress | None = None,
) -> Object:
    annotations = dict(listener.annotations) | (dict(given.annotations) if given else {})
    marks = {names.SERVICE_ROLE: role, names.LISTENER: listener.name}
    return metadata(
        cluster,
        inputs,
        name,
        extra_labels=dict(listener.labels) | marks,
        annotations=annotations,
    )


def _exposed(listener: Listener) -> Object:
    """Return the type of a Service with its dependent fields."""
    if listener.type is ListenerType.INTERNAL:
        return {"type": "ClusterIP"}
    policy = listener.external_traffic_policy
    made: Object = {
        "type": listener.type.value,
        "externalTrafficPolicy": policy.value if policy is not None else "Cluster",
    }
    if listener.load_balancer_class is not None:
        made["loadBalancerClass"] = listener.load_balancer_class
    if listener.load_balancer_source_ranges:
        made["loadBalancerSourceRanges"] = list(listener.load_balancer_source_ranges)
    return made


def _port(name: str, port: int) -> Object:
    return {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}
