"""The edges that the NetworkPolicy lets through, and no other, as a matrix."""

import pytest

from liftbridge_operator.cluster.rendering.guards import network_policy
from liftbridge_testkit.resources.clusters import PATHS, cluster_of, inputs_for, load_spec

PATH = {path.stem: path for path in PATHS}
BROKER = {
    "app.kubernetes.io/name": "liftbridge",
    "app.kubernetes.io/instance": "orders",
    "app.kubernetes.io/component": "broker",
    "liftbridge.io/cluster": "orders",
}
OTHER = BROKER | {"app.kubernetes.io/instance": "bills", "liftbridge.io/cluster": "bills"}
OPERATOR = {"app.kubernetes.io/name": "liftbridge-operator"}
PLACES = {
    "broker": ("shop", BROKER),
    "broker elsewhere": ("attic", BROKER),
    "other cluster": ("shop", OTHER),
    "application": ("shop", {"app": "web"}),
    "operator": ("operators", OPERATOR),
    "impostor": ("shop", OPERATOR),
    "prometheus": ("monitoring", {"app": "prometheus"}),
    "dns": ("kube-system", {"k8s-app": "kube-dns"}),
}


def selects(selector, labels):
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def is_meant(peer, namespace, labels):
    if "ipBlock" in peer:
        return False
    if "namespaceSelector" in peer:
        own = {"kubernetes.io/metadata.name": namespace}
        if not selects(peer["namespaceSelector"], own):
            return False
    elif namespace != "shop":
        return False
    return selects(peer.get("podSelector", {}), labels)


def allowed(policy, direction, place, port, protocol="TCP"):
    """Whether the policy lets a connection through, as Kubernetes defines it."""
    key = {"ingress": "from", "egress": "to"}[direction]
    namespace, labels = PLACES[place]
    return any(
        {"port": port, "protocol": protocol} in rule["ports"]
        and (key not in rule or any(is_meant(peer, namespace, labels) for peer in rule[key]))
        for rule in policy["spec"][direction]
    )


def policy_of(name):
    spec = load_spec(PATH[name])
    return network_policy(cluster_of(spec), inputs_for(spec))


PORTS = (9292, 9393, 9494, 4222, 6222, 8222)
IN = {
    ("least", "application"): {9292, 9393},
    ("least", "broker"): {9292, 9393},
    ("least", "operator"): {9292, 9393, 9494},
    ("least", "impostor"): {9292, 9393},
    ("embedded", "application"): {9292, 9393, 4222},
    ("embedded", "other cluster"): {9292, 9393, 4222},
    ("embedded", "broker"): {9292, 9393, 4222, 6222},
    ("embedded", "broker elsewhere"): {9292, 9393, 4222},
    ("embedded", "operator"): {9292, 9393, 4222, 9494},
    ("secured", "application"): set(),
    ("secured", "broker"): {9300},
    ("secured", "prometheus"): {9393},
    ("secured", "operator"): {9494},
}
OUT = {
    ("least", "dns"): {4222},
    ("least", "broker"): {4222},
    ("embedded", "broker"): {4222, 6222},
    ("embedded", "other cluster"): set(),
    ("embedded", "application"): set(),
    ("secured", "application"): {4222, 4443},
}


@pytest.mark.parametrize(("name", "place"), IN)
def test_edges_to_brokers(name, place):
    policy = policy_of(name)
    ports = (*PORTS, 9300)
    assert {p for p in ports if allowed(policy, "ingress", place, p)} == IN[name, place]


@pytest.mark.parametrize(("name", "place"), OUT)
def test_edges_from_brokers(name, place):
    policy = policy_of(name)
    ports = (*PORTS, 4443, 443, 6443)
    assert {p for p in ports if allowed(policy, "egress", place, p)} == OUT[name, place]


@pytest.mark.parametrize("name", ["least", "embedded", "secured"])
def test_names_are_resolved_by_both_protocols(name):
    policy = policy_of(name)
    assert allowed(policy, "egress", "dns", 53, "UDP")
    assert allowed(policy, "egress", "dns", 53, "TCP")


def test_ranges_of_addresses_are_kept_with_what_does_not_count():
    (rule,) = [one for one in policy_of("secured")["spec"]["ingress"] if len(one["from"]) > 1]
    assert {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}} in rule["from"]


def test_policy_is_left_to_the_user_who_wants_so():
    assert policy_of("ephemeral") is None
