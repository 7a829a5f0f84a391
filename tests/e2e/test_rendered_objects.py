"""What the operator and the charts make of values, taken by a real API server.

Nothing is kept: the API server validates strictly, and would have written. Pods are tried in a
namespace that enforces the restricted profile.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from liftbridge_operator.model.crds.definitions import RESOURCES
from liftbridge_testkit.kube.cluster import CommandError, Kubernetes, run
from liftbridge_testkit.kube.definitions import in_place
from liftbridge_testkit.resources.clusters import (
    PATHS,
    cluster_of,
    everything,
    inputs_for,
    load_spec,
)

pytestmark = pytest.mark.e2e

NAMESPACE = "shop"
ELSEWHERE = {"ServiceMonitor", "PrometheusRule", "Certificate"}
"""Kinds of other projects, whose definitions are not there."""

PREPARED = """
apiVersion: v1
kind: Namespace
metadata:
  name: shop
  labels: {pod-security.kubernetes.io/enforce: restricted}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: orders, namespace: shop}
---
# A controller makes it, perhaps later than the first pod is tried.
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: shop}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: plain}
handler: runc
"""


@pytest.fixture(scope="module")
def shop(kubernetes: Kubernetes) -> Iterator[Kubernetes]:
    with in_place(kubernetes):
        kubernetes.kubectl("apply", "-f", "-", text=PREPARED)
        yield kubernetes
        kubernetes.kubectl("delete", "priorityclass/high", "runtimeclass/plain")
        kubernetes.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def tried(cluster: Kubernetes, objects: list[dict[str, Any]]) -> list[str]:
    """What the API server says of objects that it would write: a line for each, and warnings."""
    said = cluster.kubectl(
        *("apply", "--server-side", "--dry-run=server", "--validate=strict"),
        *("--field-manager=liftbridge-operator", "--force-conflicts", "-f", "-"),
        text=yaml.safe_dump_all(objects),
    )
    return said.splitlines()


def objects_of(path: Any) -> list[dict[str, Any]]:
    spec = load_spec(path)
    found = everything(cluster_of(spec), inputs_for(spec))
    return [one for one in found if one["kind"] not in ELSEWHERE]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_object_of_a_cluster_is_taken(path, shop):
    objects = objects_of(path)
    said = tried(shop, objects)
    assert len([line for line in said if line.endswith("(server dry run)")]) == len(objects)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_pods_are_let_in_where_the_restricted_profile_is_enforced(path, shop):
    (live,) = [one for one in objects_of(path) if one["kind"] == "StatefulSet"]
    template = live["spec"]["template"]
    claims = [one["metadata"]["name"] for one in live["spec"]["volumeClaimTemplates"]]
    template["spec"]["volumes"] += [
        {"name": name, "persistentVolumeClaim": {"claimName": f"{name}-orders-0"}}
        for name in claims
    ]
    pod = {"apiVersion": "v1", "kind": "Pod"} | template
    pod["metadata"] |= {"name": "orders-0", "namespace": NAMESPACE}
    assert tried(shop, [pod]) == ["pod/orders-0 serverside-applied (server dry run)"]
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(CommandError, match="violates PodSecurity"):
        tried(shop, [pod])


CHARTS = {
    "operator": ("liftbridge-operator", {}),
    "operator of two namespaces": (
        "liftbridge-operator",
        {"watchNamespaces": ["default", NAMESPACE], "rbac": {"nodes": False}},
    ),
    "operator with everything": (
        "liftbridge-operator",
        {
            "nameOverride": "streams",
            "commonLabels": {"team": "shop"},
            "image": {"registry": "registry.example", "digest": "sha256:" + "0" * 64},
            "imagePullSecrets": ["registry"],
            "replicas": 3,
            "rbac": {"certManager": True, "monitoring": True},
            "serviceAccount": {"name": "other", "annotations": {"example/a": "b"}},
            "podLabels": {"a": "b"},
            "podAnnotations": {"a": "b"},
            "nodeSelector": {"a": "b"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "priorityClassName": "high",
            "monitoring": {
                "serviceMonitor": {"enabled": True, "labels": {"release": "a"}},
                "prometheusRule": {"enabled": True},
                "dashboards": {"enabled": True},
            },
            "networkPolicy": {"monitoring": [{"podSelector": {}}]},
        },
    ),
    "operator alone": (
        "liftbridge-operator",
        {
            "replicas": 1,
            "crds": {"install": False},
            "rbac": {"create": False},
            "serviceAccount": {"create": False, "name": "default"},
            "networkPolicy": {"enabled": False},
        },
    ),
    "cluster": ("liftbridge", {}),
    "cluster with streams": (
        "liftbridge",
        {
            "cluster": {"name": "orders", "spec": {"nats": {"servers": ["nats://a:4222"]}}},
            "streams": {
                "a": {"subject": "a", "replicationFactor": 3, "partitions": 8},
                "b": {"subject": "b", "replicationFactor": -1, "deletionPolicy": "Retain"},
            },
        },
    ),
    "streams": (
        "liftbridge",
        {"cluster": {"enabled": False}, "streams": {"a": {"subject": "a", "replicationFactor": 1}}},
    ),
}


def rendered(cluster: Kubernetes, name: str) -> list[dict[str, Any]]:
    chart, values = CHARTS[name]
    text = run(
        ("helm", "template", "release", f"helm/{chart}", "-n", NAMESPACE, "-f", "-"),
        cluster.environ,
        text=json.dumps(values),
    )
    return [one for one in yaml.safe_load_all(text) if one]


@pytest.mark.parametrize("name", CHARTS)
def test_charts_are_rendered_to_what_the_api_server_takes(name, shop):
    objects = [one for one in rendered(shop, name) if one["kind"] not in ELSEWHERE]
    said = tried(shop, objects)
    assert len([line for line in said if line.endswith("(server dry run)")]) == len(objects)


@pytest.mark.parametrize("chart", ["liftbridge-operator", "liftbridge"])
def test_charts_pass_the_strict_linter(chart, shop):
    said = run(("helm", "lint", "--strict", f"helm/{chart}"), shop.environ)
    assert "1 chart(s) linted, 0 chart(s) failed" in said


@pytest.mark.parametrize("name", [name for name in CHARTS if name.startswith("operator")])
def test_pods_of_the_operator_are_let_in(name, shop):
    (live,) = [one for one in rendered(shop, name) if one["kind"] == "Deployment"]
    pod = {"apiVersion": "v1", "kind": "Pod"} | live["spec"]["template"]
    pod["metadata"] |= {"name": "operator", "namespace": NAMESPACE}
    pod["spec"]["serviceAccountName"] = "orders"
    assert tried(shop, [pod]) == ["pod/operator serverside-applied (server dry run)"]


def test_definitions_stay_with_their_guard_when_they_are_to_be_kept(shop):
    kept = [
        one["kind"]
        for one in rendered(shop, "operator")
        if one["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    ]
    policy = "ValidatingAdmissionPolicy"
    definition = "CustomResourceDefinition"
    assert sorted(kept) == [*[definition] * len(RESOURCES), policy, f"{policy}Binding"]


def test_namespaced_mode_gives_no_right_beyond_its_namespaces(shop):
    found = rendered(shop, "operator of two namespaces")
    wide = [one for one in found if one["kind"] == "ClusterRole"]
    # Drivers with executors get theirs by a RoleBinding in the namespace of their pipeline.
    assert all(re.search("-(view|edit|admin|executors)$", one["metadata"]["name"]) for one in wide)
    assert not [one for one in found if one["kind"] == "ClusterRoleBinding"]
    roles = [one for one in found if one["kind"] == "Role"]
    assert sorted(one["metadata"]["namespace"] for one in roles) == ["default", "shop", "shop"]
