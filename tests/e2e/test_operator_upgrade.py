"""Another release of the operator, and of the definitions, on a real API server.

Newer definitions here have a field more than ours, and older ones a field less. No broker runs:
what is asked for is that the template of pods stays, and that no field is lost.
"""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any

import pytest
import yaml

from liftbridge_operator.crds import guard
from liftbridge_operator.crds.definitions import RESOURCES, definition
from liftbridge_operator.kube.client import KubeClient, connect
from liftbridge_operator.kube.kinds import CLUSTERS, SETS
from liftbridge_operator.reconciling.ports import Itself
from liftbridge_operator.reconciling.reconciler import ClusterReconciler
from liftbridge_operator.rendering import names
from liftbridge_operator.runtime.clock import SystemClock
from liftbridge_operator.runtime.reconciler import Key
from liftbridge_operator.streams.feed import wall_ms
from liftbridge_testkit.kube.cluster import CommandError, Kubernetes, run
from liftbridge_testkit.operator_sim.reconciled import OpenFence, issue_at_once
from liftbridge_testkit.repository import ROOT

pytestmark = pytest.mark.e2e

NAMESPACE = "operator-upgrade"
RELEASE = "upgrade"
DEPLOYED = ROOT / "deploy" / "crds"
CHART = ROOT / "helm" / "liftbridge-operator"
SECONDS_MAX = 60.0
REST = threading.Event().wait
PASSES = 8
CLUSTER, STREAM = RESOURCES
PLACES = {CLUSTER.plural: "podTemplate.priorityClassName", STREAM.plural: "config.autoPauseTime"}
"""Fields that older definitions do not have; no rule is about them."""

OBJECTS: dict[str, dict[str, Any]] = {
    CLUSTER.plural: {
        "version": "0.1.0",
        "nats": {"embedded": {}},
        "storage": {"data": {"size": "1Gi"}},
        "podTemplate": {"priorityClassName": "high"},
    },
    STREAM.plural: {
        "clusterRef": {"name": "absent"},
        "subject": "s",
        "replicationFactor": 1,
        "config": {"autoPauseTime": "5m"},
    },
}


@pytest.fixture(scope="module")
def installed(kubernetes: Kubernetes) -> Iterator[Kubernetes]:
    """The definitions are there and guarded, and a namespace to try them in."""
    restore(kubernetes)
    kubernetes.kubectl("create", "namespace", NAMESPACE)
    yield kubernetes
    kubernetes.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def restore(kubernetes):
    """Our definitions, over whatever there is."""
    kubernetes.kubectl(
        "delete", "validatingadmissionpolicybinding", guard.NAME, "--ignore-not-found"
    )
    # The API server takes some time to put a policy into force, and to take it out of it.
    for resource in RESOURCES:
        until(partial(is_taken, kubernetes, definition(resource)), "ours is taken again")
    kubernetes.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(DEPLOYED))
    crds = [f"crd/{resource.name}" for resource in RESOURCES]
    kubernetes.kubectl("wait", "--for=condition=Established", "--timeout=60s", *crds)
    until(lambda: refusal(kubernetes, older(CLUSTER), "--dry-run=server"), "the policy is in force")


def until(condition, what):
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            found = condition()
        except CommandError:
            found = None
        if found:
            return found
        assert time.monotonic() < deadline, what
        REST(0.2)


def older(resource):
    """The definition of a release that did not have one of the fields yet."""
    body = definition(resource)
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    *parents, last = PLACES[resource.plural].split(".")
    node = schema
    for name in parents:
        node = node["properties"][name]
    del node["properties"][last]
    body["metadata"]["annotations"] = {guard.FIELDS: " ".join(guard.fields(schema))}
    return body


def refusal(kubernetes, body, *options):
    """Why a definition is not taken; empty when it is."""
    apply = ("apply", "--server-side", "--force-conflicts", *options, "-f", "-")
    try:
        kubernetes.kubectl(*apply, text=json.dumps(body))
    except CommandError as error:
        return str(error)
    return ""


def is_taken(kubernetes, body):
    return not refusal(kubernetes, body)


def create(kubernetes, resource, name, **spec):
    body = {
        "apiVersion": CLUSTERS.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": deepcopy(OBJECTS[resource.plural]) | spec,
    }
    kubernetes.kubectl("create", "--validate=strict", "-f", "-", text=json.dumps(body))


def spec_of(kubernetes, resource, name):
    found = kubernetes.kubectl("-n", NAMESPACE, "get", resource.name, name, "-o", "json")
    return json.loads(found)["spec"]


# -- definitions --------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one.plural)
def test_older_definition_is_refused_with_what_would_be_lost(installed, resource):
    create(installed, resource, "kept")
    before = spec_of(installed, resource, "kept")
    told = refusal(installed, older(resource))
    assert "objects may have fields that this older definition does not have" in told
    assert PLACES[resource.plural] in told
    # Any write would drop what the definition does not know.
    touched = ("-n", NAMESPACE, "annotate", resource.name, "kept", "a=b")
    installed.kubectl(*touched)
    assert spec_of(installed, resource, "kept") == before


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one.plural)
def test_same_and_newer_definitions_are_taken(installed, resource):
    assert refusal(installed, definition(resource)) == ""
    assert refusal(installed, newer(resource), "--dry-run=server") == ""


def newer(resource):
    """The definition of a release with one more field."""
    body = definition(resource)
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    schema["properties"]["later"] = {"type": "object", "properties": {"a": {"type": "string"}}}
    body["metadata"]["annotations"] = {guard.FIELDS: " ".join(guard.fields(schema))}
    return body


@pytest.fixture
def next_chart(tmp_path):
    """The chart of the next release: its definition of a cluster has a field more."""
    folder = tmp_path / CHART.name
    shutil.copytree(CHART, folder)
    path = folder / "files" / "crds" / f"{CLUSTER.name}.yaml"
    path.write_text(yaml.safe_dump(newer(CLUSTER)), encoding="utf-8")
    return folder


def helm(kubernetes, *words):
    return run(("helm", *words, "--namespace", NAMESPACE), kubernetes.environ)


def image_of_operator(kubernetes):
    path = "jsonpath={.spec.template.spec.containers[0].image}"
    return kubernetes.kubectl("-n", NAMESPACE, "get", "deployment", "-o", path, RELEASE)


def test_rollback_of_the_release_loses_no_field(installed, next_chart):
    options = ("--take-ownership", "--force-conflicts", "--set", "replicas=1")
    helm(installed, "upgrade", "--install", RELEASE, str(CHART), *options)
    helm(installed, "upgrade", RELEASE, str(next_chart), *options, "--set", "image.tag=next")
    try:
        later = {"a": "b"}
        until(lambda: create(installed, CLUSTER, "later", later=later) is None, "served")
        with pytest.raises(CommandError, match=r"does not have: later, later\.a"):
            helm(installed, "rollback", RELEASE, "1")
        # Helm goes on with everything else: the former operator is back.
        assert not image_of_operator(installed).endswith(":next")
        installed.kubectl("-n", NAMESPACE, "annotate", CLUSTER.name, "later", "a=b")
        assert spec_of(installed, CLUSTER, "later")["later"] == later
        # The way back that is open: the former operator, under the definitions as they are.
        former = (*options, "--set", "crds.install=false")
        helm(installed, "upgrade", RELEASE, str(CHART), *former)
        assert spec_of(installed, CLUSTER, "later")["later"] == later
    finally:
        helm(installed, "uninstall", RELEASE)
        restore(installed)


# -- operators ------------------------------------------------------------------------------------


class NobodyAnswers:
    """Brokers of which none runs."""

    async def close(self):
        pass


async def passes(kube, image, key):
    """An operator that remembers nothing, and renders this image, looks at a cluster."""
    operator = ClusterReconciler(
        kube,
        fence=OpenFence(),
        connect=lambda _cluster, _tls: NobodyAnswers(),
        issue=issue_at_once,
        image_of=lambda spec: f"{image}:{spec.version}",
        clock_ms=partial(wall_ms, SystemClock()),
        fresh_id=lambda: "0a1b2c3d",
        itself=Itself("0.1.0", NAMESPACE, {"app": "operator"}),
    )
    for _ in range(PASSES):
        await operator.reconcile(key)
    await operator.close()
    resource = await kube.get(CLUSTERS, NAMESPACE, key.name)
    return resource["status"], await kube.get(SETS, NAMESPACE, names.brokers(key.name))


async def test_operator_with_another_default_leaves_the_template_and_says_so(
    installed, monkeypatch
):
    monkeypatch.setenv("KUBECONFIG", installed.environ["KUBECONFIG"])
    key = Key(CLUSTERS, NAMESPACE, "templates")
    create(installed, CLUSTER, key.name)
    async with connect(in_flight_max=8) as api:
        kube = KubeClient(api, fence=None, rng=Random(1))
        _, before = await passes(kube, "liftbridge.test/former", key)
        status, after = await passes(kube, "liftbridge.test/present", key)
        assert after["spec"]["template"] == before["spec"]["template"]
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
        assert status["held"]["causes"] == [
            "image liftbridge.test/former:0.1.0 becomes liftbridge.test/present:0.1.0"
        ]
        assert "plan" not in status
        # And back again: nothing is held any more.
        status, last = await passes(kube, "liftbridge.test/former", key)
        assert "held" not in status
        assert last["metadata"]["generation"] == before["metadata"]["generation"]
