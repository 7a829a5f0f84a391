"""What the API server fills in is no difference: a cluster at rest costs no apply."""

from copy import deepcopy

import pytest

from liftbridge_operator.kube.intent import differences
from liftbridge_operator.kube.kinds import kind_of
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.resources.clusters import (
    NAMESPACE,
    PATHS,
    cluster_of,
    everything,
    inputs_for,
    load_spec,
)

FORMER = {"StatefulSet", "ConfigMap", "Secret"}
"""Kinds that are not compared by what an apply would change."""


def compared(path):
    spec = load_spec(path)
    found = everything(cluster_of(spec), inputs_for(spec))
    return [one for one in found if one["kind"] not in FORMER]


def of_service(spec):
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    spec.setdefault("clusterIP", "10.96.0.7")
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    is_outside = spec["type"] != "ClusterIP"
    if is_outside:
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec.get("externalTrafficPolicy") == "Local" and spec["type"] == "LoadBalancer":
        spec.setdefault("healthCheckNodePort", 32_100)
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    for number, port in enumerate(spec["ports"]):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])
        if is_outside:
            port.setdefault("nodePort", 31_000 + number)


def of_policy(spec):
    for rule in [*spec.get("ingress", ()), *spec.get("egress", ())]:
        for port in rule.get("ports", ()):
            port.setdefault("protocol", "TCP")


def of_budget(spec):
    spec.setdefault("unhealthyPodEvictionPolicy", "IfHealthyBudget")


DEFAULTS = {
    "Service": of_service,
    "NetworkPolicy": of_policy,
    "PodDisruptionBudget": of_budget,
}


def filled_in(live):
    """What the API server, and controllers after it, make of an object."""
    if live["kind"] in DEFAULTS:
        DEFAULTS[live["kind"]](live["spec"])
    live["metadata"]["creationTimestamp"] = "2026-11-21T00:00:00Z"
    live["metadata"]["generation"] = 1
    live["metadata"].setdefault("annotations", {})["deployed-by"] = "somebody"
    live["status"] = {"loadBalancer": {}}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
async def test_nothing_differs_from_what_the_api_server_makes_of_it(path):
    for body in compared(path):
        kube = MemoryKube()
        await kube.apply(deepcopy(body))
        live = kube.edit(kind_of(body), NAMESPACE, body["metadata"]["name"], filled_in)
        assert differences(live, body) == (), body["kind"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
async def test_everything_that_is_rendered_is_compared(path):
    for body in (one for one in compared(path) if "spec" in one):
        kube = MemoryKube()
        await kube.apply(deepcopy(body))
        first = next(iter(body["spec"]))

        def spoil(live, field=first):
            live["spec"].pop(field)

        live = kube.edit(kind_of(body), NAMESPACE, body["metadata"]["name"], spoil)
        assert f".spec.{first}" in {one.field[: len(first) + 6] for one in differences(live, body)}
