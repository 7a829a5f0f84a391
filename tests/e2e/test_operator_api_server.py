"""The operator's port, its Lease and its watches on a real API server.

What is claimed of the port is claimed of the API server in memory as well, by which reconcilers are
tried: each of these tests runs on both.
"""

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from random import Random

import pytest

from liftbridge_operator.kube.client import KubeClient, connect
from liftbridge_operator.kube.errors import (
    AlreadyExistsError,
    ApplyConflictError,
    ConflictError,
    InvalidError,
    NotFoundError,
)
from liftbridge_operator.kube.events import Events
from liftbridge_operator.kube.intent import Difference, differences
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CLUSTERS,
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    SERVICES,
    SETS,
    STREAMS,
)
from liftbridge_operator.kube.port import Preconditions, Propagation
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.process.clock import SystemClock
from liftbridge_operator.process.lease import Lease
from liftbridge_operator.process.process import ExitCode, run
from liftbridge_operator.process.reconciler import Key
from liftbridge_operator.process.settings import Settings
from liftbridge_operator.process.watches import RESOURCES
from liftbridge_testkit.kube.control_plane import ADMIN, ControlPlane
from liftbridge_testkit.kube.memory import MemoryKube

pytestmark = pytest.mark.e2e

NAMESPACE = "operator-api-server"
SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """An API server without controllers, which would change what the tests made."""
    control_plane.kubernetes.kubectl("create", "namespace", NAMESPACE)
    return control_plane


@pytest.fixture
async def real(plane, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig(ADMIN)))
    async with connect(in_flight_max=8) as api:
        yield KubeClient(api, fence=None, rng=Random(1))


@pytest.fixture(params=["real", "memory"])
async def kube(request, real):
    return real if request.param == "real" else MemoryKube()


@pytest.fixture
def name(request):
    """A name that no other test has."""
    return f"t{abs(hash(request.node.name)) % 10**12}"


def config(name, **data):
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"test": name}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def cluster(name, **extra):
    named = {"apiVersion": "liftbridge.io/v1alpha1", "kind": "LiftbridgeCluster"}
    metadata = {"name": name, "namespace": NAMESPACE}
    spec = {
        "version": "0.1.0",
        "replicas": 3,
        "nats": {"embedded": {}},
        "storage": {"data": {"size": "1Gi"}},
    }
    return named | {"metadata": metadata, "spec": spec} | extra


def broker_set(name, image="b:1"):
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": 3,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [
                        {
                            "name": "broker",
                            "image": image,
                            "env": [{"name": "A", "value": "1"}],
                            "ports": [{"name": "grpc", "containerPort": 9292}],
                            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        }
                    ],
                },
            },
            "volumeClaimTemplates": [
                {
                    "metadata": {"name": "data"},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "1Gi"}},
                    },
                }
            ],
        },
    }


def service(name):
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"app": name},
            "ports": [{"name": "grpc", "port": 9292}, {"name": "admin", "port": 9494}],
        },
    }


def budget(name):
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": name}}},
    }


# -- on both ----------------------------------------------------------------------------------


async def test_create_get_list_delete(kube, name):
    made = await kube.create(config(name, a="1"))
    assert (await kube.get(CONFIG_MAPS, NAMESPACE, name))["data"] == {"a": "1"}
    with pytest.raises(AlreadyExistsError):
        await kube.create(config(name))
    listed = await kube.list_all(CONFIG_MAPS, NAMESPACE, selector=f"test={name}")
    assert [(one["kind"], one["metadata"]["uid"]) for one in listed.items] == [
        ("ConfigMap", made["metadata"]["uid"])
    ]
    await kube.delete(CONFIG_MAPS, NAMESPACE, name, preconditions=Preconditions.of(made))
    with pytest.raises(NotFoundError):
        await kube.get(CONFIG_MAPS, NAMESPACE, name)
    with pytest.raises(NotFoundError):
        await kube.delete(CONFIG_MAPS, NAMESPACE, name, preconditions=Preconditions.of(made))


async def write(kube, act, place, meant):
    match act:
        case "merge":
            await kube.patch(*place, {"data": {"a": "2"}}, preconditions=meant)
        case "json":
            operations = [{"op": "replace", "path": "/data/a", "value": "2"}]
            await kube.patch(*place, operations, preconditions=meant)
        case "delete":
            await kube.delete(*place, preconditions=meant)
        case _:
            body = config(place[-1], a="2")
            body["metadata"] |= {"uid": meant.uid, "resourceVersion": meant.resource_version}
            await kube.apply(body, force=True)


@pytest.mark.parametrize("wrong", ["uid", "version"])
@pytest.mark.parametrize("act", ["merge", "json", "delete", "apply"])
async def test_write_to_another_state_than_the_one_meant_is_refused(kube, name, act, wrong):
    seen = await kube.create(config(name, a="1"))
    changed = await kube.apply(config(name, a="1", b="2"))
    uid, version = changed["metadata"]["uid"], seen["metadata"]["resourceVersion"]
    meant = Preconditions(uid, version)
    if wrong == "uid":
        other = "00000000-0000-4000-8000-000000000000"
        meant = Preconditions(other, changed["metadata"]["resourceVersion"])
    place = (CONFIG_MAPS, NAMESPACE, name)
    with pytest.raises(ConflictError):
        await write(kube, act, place, meant)
    assert (await kube.get(*place))["data"] == {"a": "1", "b": "2"}


async def test_patches_of_the_state_that_was_seen(kube, name):
    place = (CONFIG_MAPS, NAMESPACE, name)
    seen = await kube.create(config(name, a="1", b="2"))
    merged = await kube.patch(
        *place, {"data": {"a": None, "c": "3"}}, preconditions=Preconditions.of(seen)
    )
    assert merged["data"] == {"b": "2", "c": "3"}
    operations = [{"op": "remove", "path": "/data/c"}]
    meant = Preconditions(merged["metadata"]["uid"])
    assert (await kube.patch(*place, operations, preconditions=meant))["data"] == {"b": "2"}


async def test_apply_owns_its_fields_and_removes_what_it_names_no_more(kube, name):
    await kube.apply(config(name, a="1", b="2"))
    await kube.apply(config(name, c="3"), manager="another")
    assert (await kube.apply(config(name, a="1")))["data"] == {"a": "1", "c": "3"}
    with pytest.raises(ApplyConflictError) as met:
        await kube.apply(config(name, a="1", c="4"))
    assert met.value.fields == (("another", ".data.c"),)
    forced = await kube.apply(config(name, a="1", c="4"), force=True)
    assert forced["data"] == {"a": "1", "c": "4"}


async def test_apply_that_changes_nothing_makes_no_version(kube, name):
    first = await kube.apply(config(name, a="1"))
    again = await kube.apply(config(name, a="1"))
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_status_is_apart_from_the_rest(kube, name):
    made = await kube.create(cluster(name))
    metadata = {"name": name, "namespace": NAMESPACE, "uid": made["metadata"]["uid"]}
    body = cluster(name, metadata=metadata, status={"observedGeneration": 1, "replicas": 3})
    body.pop("spec")
    told = await kube.apply_status(body)
    assert (told["status"]["observedGeneration"], told["metadata"]["generation"]) == (1, 1)
    assert told["spec"]["replicas"] == 3
    gone = Preconditions(made["metadata"]["uid"])
    await kube.delete(CLUSTERS, NAMESPACE, name, preconditions=gone)
    with pytest.raises((NotFoundError, ConflictError)):
        await kube.apply_status(body)


@pytest.mark.parametrize("intent", [broker_set, service, budget, config])
async def test_nothing_differs_after_an_apply(kube, name, intent):
    live = await kube.apply(intent(name))
    assert differences(live, intent(name)) == ()
    again = await kube.get(*place_of(live))
    assert differences(again, intent(name)) == ()


async def test_drift_is_told_with_who_made_it(kube, name):
    await kube.apply(broker_set(name))
    other = broker_set(name, image="b:2")
    await kube.apply(other, force=False, manager="liftbridge-operator")
    part = {key: other[key] for key in ("apiVersion", "kind")}
    spec = {"template": {"spec": {"containers": [{"name": "broker", "image": "b:3"}]}}}
    metadata = {"name": name, "namespace": NAMESPACE}
    live = await kube.apply(
        part | {"metadata": metadata, "spec": spec}, force=True, manager="somebody"
    )
    assert differences(live, other) == (
        Difference(".spec.template.spec.containers[name=broker].image", "somebody"),
    )
    without_ports = broker_set(name, image="b:3")
    del without_ports["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert [one.field for one in differences(live, without_ports)] == [
        ".spec.template.spec.containers[name=broker].ports"
    ]


async def test_event_is_written_and_counted_up(kube, name):
    told = await kube.create(cluster(name))
    clock = SystemClock()
    moments = iter([0.0, 100.0, 100.0])
    events = Events(
        kube,
        instance="test",
        now=lambda: next(moments),
        wall=clock.wall,
        rng=Random(name),
    )
    for _ in range(2):
        await events.record(told, EventReason.BROKER_ADDED, {"broker": name})
    found = [
        one
        for one in (await kube.list_all(EVENTS, NAMESPACE)).items
        if one["regarding"]["name"] == name
    ]
    assert [(one["note"], one["series"]["count"]) for one in found] == [
        (f"{name} is now a member of the cluster.", 2)
    ]


# -- on the real one --------------------------------------------------------------------------


async def test_unknown_field_is_refused(real, name):
    with pytest.raises(InvalidError):
        await real.apply(service(name) | {"spec": {"portz": []}})


async def test_deletion_leaves_what_it_owns_when_told_to(real, name):
    owner = await real.create(config(name))
    made = await real.apply(broker_set(name))
    await real.delete(
        SETS,
        NAMESPACE,
        name,
        preconditions=Preconditions.of(made),
        propagation=Propagation.ORPHAN,
    )
    left = await real.get(SETS, NAMESPACE, name)
    # Nobody but a controller takes this finalizer away again.
    assert left["metadata"]["finalizers"] == ["orphan"]
    assert left["metadata"]["deletionTimestamp"]
    assert owner["metadata"]["uid"] != left["metadata"]["uid"]


async def test_lease_is_taken_held_and_given_up(real, name):
    leases = [
        Lease(
            real,
            namespace=NAMESPACE,
            name=name,
            identity=each,
            clock=SystemClock(),
            rng=Random(1),
        )
        for each in "ab"
    ]
    await leases[0].acquire()
    leases[0].check()
    holding = asyncio.get_running_loop().create_task(leases[0].hold())
    waiting = asyncio.get_running_loop().create_task(leases[1].acquire())
    async with asyncio.timeout(SECONDS_MAX):
        seen = (await real.get(LEASES, NAMESPACE, name))["spec"]["renewTime"]
        while (await real.get(LEASES, NAMESPACE, name))["spec"]["renewTime"] == seen:
            await leases[0].pause()
        assert not waiting.done()
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        await leases[0].release()
        await waiting
    assert (await real.get(LEASES, NAMESPACE, name))["spec"]["holderIdentity"] == "b"
    await leases[1].release()


class Work:
    """Reconcilers that only keep what they were asked to look at."""

    def __init__(self):
        self.passes = []
        self.changed = asyncio.Event()

    @asynccontextmanager
    async def make(self, _context):
        yield dict.fromkeys(RESOURCES, self)

    async def reconcile(self, key):
        self.passes.append(key)
        self.changed.set()

    async def until(self, key):
        async with asyncio.timeout(SECONDS_MAX):
            while key not in self.passes:
                self.changed.clear()
                await self.changed.wait()
        self.passes.clear()


async def test_process_sees_changes_and_writes_nothing(real, name):
    work = Work()
    await real.create(cluster(name))
    settings = Settings.of(
        {"listen": "127.0.0.1:0", "lease_name": name, "lease_namespace": NAMESPACE}
    )
    task = asyncio.get_running_loop().create_task(run(settings, work.make))
    try:
        await work.until(Key(CLUSTERS, NAMESPACE, name))
        part = config(name, a="1")
        part["metadata"]["labels"] = {"liftbridge.io/cluster": name}
        stream = {
            "apiVersion": STREAMS.api_version,
            "kind": STREAMS.kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"clusterRef": {"name": name}, "subject": "s", "replicationFactor": 3},
        }
        await real.create(stream)
        await work.until(Key(STREAMS, NAMESPACE, name))
        await real.create(part)
        await work.until(Key(CLUSTERS, NAMESPACE, name))
        seen = await real.get(CLUSTERS, NAMESPACE, name)
        assert {one["manager"] for one in seen["metadata"]["managedFields"]} == {
            "liftbridge-operator"
        }
        assert "finalizers" not in seen["metadata"]
        assert "annotations" not in seen["metadata"]
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(SECONDS_MAX):
            assert await task is ExitCode.OK
    assert not (await real.get(LEASES, NAMESPACE, name))["spec"].get("holderIdentity")


def place_of(live):
    kinds = {kind.kind: kind for kind in (SETS, SERVICES, BUDGETS, CONFIG_MAPS)}
    return kinds[live["kind"]], NAMESPACE, live["metadata"]["name"]
