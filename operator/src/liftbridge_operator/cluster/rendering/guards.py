"""NetworkPolicy, PodDisruptionBudget and ServiceAccount of the brokers."""

from urllib.parse import urlsplit

from liftbridge_operator.cluster.rendering.placement import without_empty
from liftbridge_operator.cluster.rendering.subject import (
    Cluster,
    Inputs,
    Object,
    metadata,
    pod_labels,
)
from liftbridge_operator.model import names
from liftbridge_operator.model.network import Peer

NATS_PORT = 4222
DNS_PORT = 53


def service_account(cluster: Cluster, inputs: Inputs) -> Object:
    """Render the ServiceAccount of broker pods, without rights and without a mounted token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(cluster, inputs, names.brokers(cluster.name)),
        "automountServiceAccountToken": False,
    }


def disruption_budget(cluster: Cluster, inputs: Inputs, max_unavailable: int) -> Object:
    """Render the PodDisruptionBudget: 1, or 0 while a replica is out of sync.

    Unready pods are evicted under the same bound as ready ones: they may hold records that other
    brokers lack.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(cluster, inputs, names.brokers(cluster.name)),
        "spec": {
            "maxUnavailable": max_unavailable,
            "selector": {"matchLabels": pod_labels(cluster)},
            "unhealthyPodEvictionPolicy": "IfHealthyBudget",
        },
    }


def network_policy(cluster: Cluster, inputs: Inputs) -> Object | None:
    """Render the NetworkPolicy with the connections that brokers need; None when it is disabled.

    The kubelet needs no rule: every network plugin admits traffic from the node of a pod.
    """
    if not cluster.spec.network_policy.enabled:
        return None
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(cluster, inputs, names.brokers(cluster.name)),
        "spec": {
            "podSelector": {"matchLabels": pod_labels(cluster)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": _ingress(cluster, inputs),
            "egress": _egress(cluster),
        },
    }


def _ingress(cluster: Cluster, inputs: Inputs) -> list[Object]:
    given = cluster.spec.network_policy
    own = {"podSelector": {"matchLabels": pod_labels(cluster)}}
    ports = [listener.port for listener in cluster.spec.listeners]
    if cluster.spec.nats.embedded is not None:
        ports.append(names.CLIENTS_PORT)
    clients = _allow(ports)
    if given.clients:
        clients["from"] = [*map(_peer, given.clients), own]
    watchers = [_peer(one) for one in given.monitoring] or [{"namespaceSelector": {}}]
    rules = [
        clients,
        {"from": watchers, **_allow([names.PORTS["metrics"]])},
        {"from": [_operator(inputs)], **_allow([names.PORTS["admin"]])},
    ]
    if cluster.spec.nats.embedded is not None:
        rules.append({"from": [own], **_allow([names.ROUTES_PORT])})
    return rules


def _operator(inputs: Inputs) -> Object:
    """Return the peer of the operator's pods; outside the cluster it has none to match."""
    if not inputs.operator_namespace:
        return {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "liftbridge-operator"}}}
    return {
        "namespaceSelector": {
            "matchLabels": {"kubernetes.io/metadata.name": inputs.operator_namespace}
        },
        "podSelector": {"matchLabels": inputs.operator_labels},
    }


def _egress(cluster: Cluster) -> list[Object]:
    dns = [{"port": DNS_PORT, "protocol": protocol} for protocol in ("UDP", "TCP")]
    rules: list[Object] = [{"ports": dns}]
    nats = cluster.spec.nats
    if nats.embedded is not None:
        own = {"podSelector": {"matchLabels": pod_labels(cluster)}}
        rules.append({"to": [own], **_allow([names.CLIENTS_PORT, names.ROUTES_PORT])})
    else:
        ports = {urlsplit(server).port or NATS_PORT for server in nats.servers or ()}
        rules.append(_allow(sorted(ports)))
    return rules


def _allow(ports: list[int]) -> Object:
    return {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}


def _peer(peer: Peer) -> Object:
    if peer.ip_block is not None:
        made: Object = {"cidr": peer.ip_block.cidr}
        if peer.ip_block.excluded:
            made["except"] = list(peer.ip_block.excluded)
        return {"ipBlock": made}
    found: Object = {}
    if peer.pod_selector is not None:
        found["podSelector"] = without_empty(peer.pod_selector.manifest())
    if peer.namespace_selector is not None:
        found["namespaceSelector"] = without_empty(peer.namespace_selector.manifest())
    return found
