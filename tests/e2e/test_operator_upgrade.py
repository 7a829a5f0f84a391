"""Another release of the operator, and of the definitions, on a real API server.

Newer definitions here have a field more than ours, and older ones a field less. No broker runs:
what is asked for is that the template of pods stays, and that no field is lost.
"""

import json
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any

import pytest

from liftbridge_operator.cluster.reconciling.ports import Itself
from liftbridge_operator.cluster.reconciling.reconciler import ClusterReconciler
from liftbridge_operator.kube.client import KubeClient, connect
from liftbridge_operator.kube.kinds import CLUSTERS, SETS
from liftbridge_operator.model import names
from liftbridge_operator.model.crds.definitions import RESOURCES, definition
from liftbridge_operator.process.clock import SystemClock
from liftbridge_operator.process.reconciler import Key
from liftbridge_operator.streams.feed import wall_ms
from liftbridge_testkit.kube.cluster import CommandError, Kubernetes, run
from liftbridge_testkit.kube.control_plane import ControlPlane
from liftbridge_testkit.kube.definitions import (
    CHART,
    newer,
    next_chart,
    older,
    refusal,
    restore,
    until,
)
from liftbridge_testkit.operator_sim.reconciled import OpenFence, issue_at_once

pytestmark = pytest.mark.e2e

NAMESPACE = "operator-upgrade"
RELEASE = "upgrade"
PASSES = 8
CLUSTER, STREAM, PIPELINE, USER = RESOURCES
PLACES = {
    CLUSTER.plural: "podTemplate.priorityClassName",
    STREAM.plural: "config.autoPauseTime",
    PIPELINE.plural: "image",
    USER.plural: "listener",
}
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
    PIPELINE.plural: {
        "type": "Archive",
        "clusterRef": {"name": "absent"},
        "source": {"streams": ["s"]},
        "archive": {"root": "s3://bucket"},
        "mode": "Once",
        "image": "registry/liftbridge-spark:1",
    },
    USER.plural: {
        "clusterRef": {"name": "absent"},
        "authentication": {"token": {}},
        "listener": "tls",
    },
}


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane) -> Kubernetes:
    """The definitions are there and guarded, and a namespace to try them in."""
    kubernetes = control_plane.kubernetes
    restore(kubernetes)
    kubernetes.kubectl("create", "namespace", NAMESPACE)
    return kubernetes


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
    told = refusal(installed, older(resource, PLACES[resource.plural]))
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


@pytest.fixture
def later_chart(tmp_path):
    return next_chart(tmp_path)


def helm(kubernetes, *words):
    return run(("helm", *words, "--namespace", NAMESPACE), kubernetes.environ)


def image_of_operator(kubernetes):
    path = "jsonpath={.spec.template.spec.containers[0].image}"
    return kubernetes.kubectl("-n", NAMESPACE, "get", "deployment", "-o", path, RELEASE)


@pytest.mark.timeout(600)  # Helm is started six times
def test_rollback_of_the_release_loses_no_field(installed, later_chart):
    """The definitions stay as they are, and so does what they let in."""
    options = ("--take-ownership", "--force-conflicts", "--set", "replicas=1")
    helm(installed, "upgrade", "--install", RELEASE, str(CHART), *options)
    helm(installed, "upgrade", RELEASE, str(later_chart), *options, "--set", "image.tag=next")
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
        helm(installed, "uninstall", RELEASE, "--no-hooks")  # no controller runs Jobs here
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
