"""Stories without controllers that run on an API server to record its responses.

Each story takes the ports of the actors and runs on a real server, on the model, and on either with
a `trace.Recorder`. Stories include refusals. No story leaves a cluster or stream.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple

from liftbridge_operator.cluster.acting import on_objects
from liftbridge_operator.cluster.acting.context import ActionContext
from liftbridge_operator.cluster.observing.objects import identity_of, set_of
from liftbridge_operator.cluster.observing.reads import read
from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.observation import Member
from liftbridge_operator.cluster.reconciling.ports import Itself
from liftbridge_operator.cluster.reconciling.reconciler import ClusterReconciler
from liftbridge_operator.cluster.rendering.render import render
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, labels
from liftbridge_operator.kube.errors import KubeError
from liftbridge_operator.kube.events import Events
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    EVENTS,
    PODS,
    SECRETS,
    SERVICES,
    SETS,
    STREAMS,
    kind_of,
)
from liftbridge_operator.kube.port import FIELD_MANAGER, Kube, Object, Preconditions, Propagation
from liftbridge_operator.model import names
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.model.cluster import API_VERSION, CLUSTER_KIND, ClusterSpec
from liftbridge_operator.process.clock import SystemClock
from liftbridge_operator.process.lease import Lease
from liftbridge_operator.process.reconciler import Key
from liftbridge_testkit.operator_sim.admin import ModelAdmin
from liftbridge_testkit.operator_sim.reconciled import (
    EPOCH_MS,
    SPEC,
    OpenFence,
    image_of,
    issue_at_once,
)
from liftbridge_testkit.operator_sim.stage import Stage

NAMESPACE: Final = "traced"
MANAGERS: Final = (FIELD_MANAGER, "kubectl-edit", "kube-controller-manager")
"""Field managers of the objects that each actor creates and patches."""

PASSES: Final = 6
PAGES_ITEMS: Final = 501
"""Number of objects that is one more than a page of a list."""

_OTHER: Final = "00000000-0000-0000-0000-999999999999"


Look = Callable[[], Awaitable[ActionContext]]
"""Reads all objects again, as each pass does."""


class Cast(NamedTuple):
    """Ports of the actors, each with its own fields.

    Attributes:
        operator: The operator.
        person: A user with kubectl.
        controllers: Controllers of Kubernetes for sets, pods and volumes.
    """

    operator: Kube
    person: Kube
    controllers: Kube


async def tried(call: Awaitable[Any]) -> Any:
    """Return the result of a request that may be refused; None if it is."""
    with suppress(KubeError):
        return await call
    return None


def config(name: str, **data: str) -> Object:
    """Return a ConfigMap."""
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"traced": name}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def cluster(name: str, **spec: Any) -> Object:
    """Return a LiftbridgeCluster."""
    metadata = {"name": name, "namespace": NAMESPACE}
    named = {"apiVersion": API_VERSION, "kind": CLUSTER_KIND, "metadata": metadata}
    return {**named, "spec": {**SPEC, **spec}}


def told(live: Object, **status: Any) -> Object:
    """Return a status for an observed resource."""
    meant = {key: live["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    return {key: live[key] for key in ("apiVersion", "kind")} | {
        "metadata": meant,
        "status": status,
    }


# -- every verb of the port ---------------------------------------------------------------------


async def writes(cast: Cast) -> None:
    """Play creation, patches and deletions of objects that exist, are gone, replaced or changed."""
    kube, name = cast.operator, "writes"
    place = (CONFIG_MAPS, NAMESPACE, name)
    await tried(kube.get(*place))
    first = await kube.create(config(name, a="1"))
    await tried(kube.create(config(name, a="2")))
    meant = Preconditions.of(first)
    await tried(kube.patch(*place, {"data": {"a": "1"}}, preconditions=meant))
    changed = await kube.patch(*place, {"data": {"a": None, "b": "2"}}, preconditions=meant)
    await tried(kube.patch(*place, {"data": {"b": "3"}}, preconditions=meant))
    now = Preconditions.of(changed)
    other = Preconditions(_OTHER, now.resource_version)
    operations = [{"op": "add", "path": "/metadata/labels/c~1d", "value": "4"}]
    await tried(kube.patch(*place, operations, preconditions=other))
    await tried(kube.patch(*place, operations, preconditions=meant))
    await tried(kube.patch(*place, operations, preconditions=now))
    for wrong in (
        {"op": "remove", "path": "/data/never"},
        {"op": "replace", "path": "/data/never", "value": "1"},
        {"op": "add", "path": "/data/never/below", "value": "1"},
        {"op": "test", "path": "/data/b", "value": "3"},
    ):
        await tried(kube.patch(*place, [wrong], preconditions=Preconditions(now.uid)))
    await tried(kube.delete(*place, preconditions=now))
    await tried(kube.delete(*place, preconditions=other))
    await kube.delete(*place, preconditions=Preconditions(now.uid))
    await tried(kube.delete(*place, preconditions=now))
    await tried(kube.patch(*place, operations, preconditions=now))
    again = await kube.create(config(name, a="1"))
    await tried(kube.delete(*place, preconditions=meant))
    await kube.delete(*place, preconditions=Preconditions.of(again))


async def applies(cast: Cast) -> None:
    """Play applies: owners of fields, conflicts, omitted fields, and preconditions."""
    kube, person, name = cast.operator, cast.person, "applies"
    first = await kube.apply(config(name, a="1", b="2"))
    await kube.apply(config(name, a="1", b="2"))
    await person.apply(config(name, c="3"), manager="kubectl")
    await kube.apply(config(name, a="1"))
    await tried(kube.apply(config(name, a="1", c="4")))
    await kube.apply(config(name, a="1", c="4"), force=True)
    await tried(person.apply(config(name, c="5"), manager="kubectl"))
    live = await person.patch(
        CONFIG_MAPS,
        NAMESPACE,
        name,
        {"data": {"a": "9"}, "metadata": {"labels": {"by": "hand"}}},
        preconditions=Preconditions(first["metadata"]["uid"]),
    )
    await tried(kube.apply(config(name, a="1")))
    await kube.apply(config(name, a="1"), force=True)
    for meant in (
        {"uid": _OTHER},
        {"resourceVersion": first["metadata"]["resourceVersion"]},
        {"resourceVersion": live["metadata"]["resourceVersion"]},
    ):
        body = config(name, a="7")
        body["metadata"] |= meant
        await tried(kube.apply(body, force=True))
    for meant in ({"uid": _OTHER}, {"resourceVersion": "1"}):
        body = config("never", a="1")
        body["metadata"] |= meant
        await tried(kube.apply(body))
    secret = {"name": "applies", "namespace": NAMESPACE}
    for text in ("b25l", "dHdv"):
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": secret, "data": {"k": text}}
        await kube.apply(body)
    await kube.get(SECRETS, NAMESPACE, "applies")


async def deletions(cast: Cast) -> None:
    """Play deletions that finalizers delay, and changes of objects being deleted."""
    kube, person, name = cast.operator, cast.person, "deletions"
    place = (CLUSTERS, NAMESPACE, name)
    await tried(kube.apply_status(told(cluster(name) | {"metadata": _place(name)})))
    body = cluster(name)
    body["metadata"]["finalizers"] = ["liftbridge.io/traced"]
    made = await person.create(body)
    await kube.apply_status(told(made, observedGeneration=1, replicas=3))
    await tried(kube.apply_status(told(made, observedGeneration=2)))
    live = await kube.get(*place)
    await kube.apply_status(told(live, observedGeneration=1, replicas=3))
    await kube.apply_status(told(live, observedGeneration=1))
    uid = Preconditions(made["metadata"]["uid"])
    await person.patch(*place, {"spec": {"replicas": 5}}, preconditions=uid)
    await person.patch(*place, {"metadata": {"annotations": {"a": "1"}}}, preconditions=uid)
    await person.delete(*place, preconditions=uid)
    await person.delete(*place, preconditions=uid)
    live = await kube.get(*place)
    await kube.apply_status(told(live, observedGeneration=2))
    await kube.patch(*place, {"metadata": {"finalizers": None}}, preconditions=uid)
    await tried(kube.get(*place))
    await tried(kube.apply_status(told(live, observedGeneration=3)))


def _place(name: str) -> Object:
    return {"name": name, "namespace": NAMESPACE, "uid": _OTHER, "resourceVersion": ""}


async def owners(cast: Cast) -> None:
    """Play lists with keys in a status, a Lease that changes holders, and a counted event."""
    kube, name = cast.operator, "owners"
    stream = {
        "apiVersion": STREAMS.api_version,
        "kind": STREAMS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"clusterRef": {"name": name}, "subject": "s", "replicationFactor": 3},
    }
    live = await cast.person.create(stream)
    for details in ((0, 1), (1,), (), (1, 0)):
        listed = [{"partition": detail, "leader": "b", "replicas": ["b"]} for detail in details]
        live = await kube.apply_status(told(live, observedGeneration=1, partitionDetails=listed))
    rng = Random(1)
    leases = [
        Lease(kube, namespace=NAMESPACE, name=name, identity=each, clock=SystemClock(), rng=rng)
        for each in "ab"
    ]
    for lease in leases:
        await lease.acquire()
        await lease.release()
    moments = count(0, 100)
    wall = SystemClock().wall
    events = Events(kube, instance=name, now=lambda: next(moments), wall=wall, rng=rng)
    owner = await cast.person.create(cluster(name))
    for _ in range(2):
        await events.record(owner, EventReason.BROKER_ADDED, {"broker": name})
    await kube.list_all(EVENTS, NAMESPACE)
    for one in (live, owner):
        await _let_go(cast, one)


async def adoption(cast: Cast) -> None:
    """Play changes of owners, and lists with selectors."""
    kube, person = cast.operator, cast.person
    owner = await person.create(cluster("adoption"))
    for one in ("adopted-1", "adopted-2", "other"):
        body = config(one, a="1")
        body["metadata"]["labels"] = {"app": one.partition("-")[0], "n": one[-1]}
        made = await person.create(body)
        if one != "other":
            reference = {
                "apiVersion": API_VERSION,
                "kind": CLUSTER_KIND,
                "name": "adoption",
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
            changes = {"metadata": {"ownerReferences": [reference]}}
            meant = Preconditions.of(made)
            await kube.patch(CONFIG_MAPS, NAMESPACE, one, changes, preconditions=meant)
    for selector in ("app=adopted", "app!=adopted,n", "app,n=2", "!app,n", "app=none"):
        await kube.list_all(CONFIG_MAPS, NAMESPACE, selector=selector)
    await kube.list_all(CLUSTERS, NAMESPACE)
    await _let_go(cast, owner)


async def pages(cast: Cast) -> None:
    """Play a list of two pages."""
    for number in range(PAGES_ITEMS):
        body = config(f"page-{number}")
        body["metadata"]["labels"] = {"traced": "pages"}
        await cast.person.create(body)
    found = await cast.operator.list_all(CONFIG_MAPS, NAMESPACE, selector="traced=pages")
    assert len(found.items) == PAGES_ITEMS


# -- the operator -------------------------------------------------------------------------------


async def passes(cast: Cast) -> None:
    """Play a reconciler that brings up a cluster without pods, follows a user, and lets go."""
    name = "passes"
    key = Key(CLUSTERS, NAMESPACE, name)
    moments = iter(range(EPOCH_MS, EPOCH_MS + 10_000_000, 100_000))
    now = [EPOCH_MS]
    reconciler = ClusterReconciler(
        cast.operator,
        fence=OpenFence(),
        connect=lambda _cluster, _tls: ModelAdmin(Stage(1)),
        issue=issue_at_once,
        image_of=image_of,
        clock_ms=lambda: now[0],
        fresh_id=lambda: "id-1",
        itself=Itself("0.1.0", "operators", {"app": "operator"}),
    )

    async def some() -> None:
        for _ in range(PASSES):
            now[0] = next(moments)
            await reconciler.reconcile(key)

    await cast.person.create(cluster(name))
    await some()
    live = await cast.person.get(CLUSTERS, NAMESPACE, name)
    uid = Preconditions(live["metadata"]["uid"])
    changes = {"spec": {"replicas": 5, "image": "liftbridge-broker:other"}}
    await cast.person.patch(CLUSTERS, NAMESPACE, name, changes, preconditions=uid)
    for kind, change in (
        (SERVICES, {"spec": {"publishNotReadyAddresses": False}}),
        (BUDGETS, {"spec": {"maxUnavailable": 2}}),
        (SETS, {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}),
    ):
        seen = await tried(cast.person.get(kind, NAMESPACE, names.brokers(name)))
        if seen is not None:
            meant = Preconditions.of(seen)
            await cast.person.patch(
                kind, NAMESPACE, names.brokers(name), change, preconditions=meant
            )
    await some()
    await cast.person.delete(CLUSTERS, NAMESPACE, name, preconditions=uid)
    await some()


async def deeds(cast: Cast) -> None:
    """Play the operator's actions on identity, set, claims, pods and budget, also late actions."""
    kube, name = cast.operator, "deeds"
    resource = await cast.person.create(cluster(name))
    spec = ClusterSpec.model_validate(dict(SPEC))
    subject = Cluster(name, NAMESPACE, resource["metadata"]["uid"], spec)
    inputs = Inputs("id-1", image_of(spec))
    rendered = render(subject, inputs)

    async def context() -> ActionContext:
        reads = await read(kube, resource)
        admin = ModelAdmin(Stage(1))
        return ActionContext(kube, admin, "", subject, inputs, rendered, reads, EPOCH_MS)

    await _identity(await context(), context)
    revision = rendered.revision
    size = 1 << 30
    await on_objects.create_set(await context(), act.CreateSet("id-1", 3, revision, "", "", size))
    await tried(
        on_objects.create_set(await context(), act.CreateSet("id-1", 3, revision, "", "", size))
    )
    await _set(await context(), context, revision)
    await _claims(cast, await context(), subject, inputs)
    await _pods(cast, await context(), rendered.template)
    for number in (1, 1, 0, None):
        await on_objects.set_budget(await context(), act.SetBudget(number))
    await _orphan(cast, await context(), context)


async def _identity(first: ActionContext, look: Look) -> None:
    for _ in range(2):
        await tried(on_objects.create_identity(first, act.CreateIdentity("id-1", is_started=False)))
    seen: ActionContext = await look()
    assert seen.reads.identity is not None
    action = act.WriteFounders(
        identity_of(seen.reads.identity).resource_version, (Member("deeds-0", "dir-0"),)
    )
    for _ in range(2):
        await tried(on_objects.write_founders(seen, action))


async def _set(first: ActionContext, look: Look, revision: str) -> None:
    assert first.reads.set is not None
    seen = set_of(first.reads.set)
    for good in (revision, revision, ""):  # the second is late
        action = act.SetTemplate(seen.uid, seen.resource_version, revision, good, "")
        await tried(on_objects.set_template(first, action))
    first = await look()
    assert first.reads.set is not None
    seen = set_of(first.reads.set)
    for replicas in (seen.replicas, 4, 5):
        action_ = act.SetReplicas(seen.uid, seen.resource_version, replicas)
        await tried(on_objects.set_replicas(first, action_))


async def _claims(cast: Cast, context: ActionContext, subject: Cluster, inputs: Inputs) -> None:
    await tried(cast.controllers.create(STORAGE_CLASS))
    name = names.claim(subject.name, 0)
    body = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels(subject, inputs)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "traced",
            "volumeName": "traced",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    made = await cast.controllers.create(body)
    bound = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
    uid = made["metadata"]["uid"]

    async def seen() -> tuple[str, str, int]:
        live = await cast.operator.get(CLAIMS, NAMESPACE, name)
        return name, uid, int(live["metadata"]["resourceVersion"])

    meant = Preconditions(uid)
    await cast.controllers.patch(
        CLAIMS, NAMESPACE, name, bound, preconditions=meant, subresource="status"
    )
    at = await seen()
    for size in (2 << 30, 3 << 30):  # the second is late
        await tried(on_objects.grow_claim(context, act.GrowClaim(*at, size)))
    for size in (2 << 30, 1 << 20):
        await tried(on_objects.grow_claim(context, act.GrowClaim(*await seen(), size)))
    for is_retired in (True, True, False):
        await on_objects.mark_claim(context, act.MarkClaim(*await seen(), is_retired))
    for late in (at, await seen()):
        await tried(on_objects.delete_claim(context, act.DeleteClaim(*late)))
    await on_objects.delete_claim(context, act.DeleteClaim(*await seen()))
    await tried(on_objects.mark_claim(context, act.MarkClaim(*await seen(), is_retired=True)))
    await cast.controllers.patch(
        CLAIMS, NAMESPACE, name, {"metadata": {"finalizers": None}}, preconditions=meant
    )
    await tried(on_objects.delete_claim(context, act.DeleteClaim(*at)))


async def _pods(cast: Cast, context: ActionContext, template: Object) -> None:
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": template["spec"]["serviceAccountName"], "namespace": NAMESPACE},
    }
    await cast.controllers.create(account)
    for number, spec in enumerate(({}, {"nodeName": "node-1"}, {"nodeName": "node-1"})):
        name = f"{context.cluster.name}-{number}"
        metadata = {**template["metadata"], "name": name, "namespace": NAMESPACE}
        data = {"name": names.DATA_VOLUME, "emptyDir": {}}
        volumes = [*template["spec"].get("volumes", ()), data]
        pod_spec = {**template["spec"], "volumes": volumes, **spec}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}
        made = await cast.controllers.create(body)
        uid, version = made["metadata"]["uid"], int(made["metadata"]["resourceVersion"])
        for token in ("t", "u"):  # the second is late
            await tried(on_objects.keep_pod(context, act.KeepPod(name, uid, version, token)))
        await tried(on_objects.delete_pod(context, _deletion(name, uid, version)))
        live = await cast.operator.get(PODS, NAMESPACE, name)
        version = int(live["metadata"]["resourceVersion"])
        await on_objects.keep_pod(context, act.KeepPod(name, uid, version, "t"))
        await tried(on_objects.delete_pod(context, _deletion(name, _OTHER, version)))
        await on_objects.delete_pod(context, _deletion(name, uid, version))
        live = await tried(cast.operator.get(PODS, NAMESPACE, name))
        if live is not None:
            version = int(live["metadata"]["resourceVersion"])
            await tried(on_objects.delete_pod(context, _deletion(name, uid, version)))
            await tried(cast.operator.get(PODS, NAMESPACE, name))
            if number == 1:
                late = _deletion(name, uid, version, is_forced=True)
                await tried(on_objects.delete_pod(context, late))
        await tried(on_objects.delete_pod(context, _deletion(name, uid, version)))
        await tried(cast.operator.get(PODS, NAMESPACE, name))


def _deletion(name: str, uid: str, version: int, *, is_forced: bool = False) -> act.DeletePod:
    return act.DeletePod(name, uid, version, is_forced=is_forced)


async def _orphan(cast: Cast, first: ActionContext, look: Look) -> None:
    assert first.reads.set is not None
    seen = set_of(first.reads.set)
    uid = Preconditions(seen.uid)
    place = (SETS, NAMESPACE, names.brokers(first.cluster.name))
    renewed = act.CreateSet("id-1", 3, first.rendered.revision, "", "", 2 << 30)
    stale = act.OrphanSet(seen.uid, seen.resource_version - 1, renewed)
    await tried(on_objects.orphan_set(first, stale))
    await on_objects.orphan_set(first, act.OrphanSet(seen.uid, seen.resource_version, renewed))
    first = await look()
    await cast.controllers.patch(*place, {"metadata": {"finalizers": None}}, preconditions=uid)
    await tried(cast.operator.get(*place))
    await _let_go(cast, first.reads.resource)


async def _let_go(cast: Cast, resource: Object) -> None:
    """Delete a resource as a user; the collector has nothing to do for it."""
    place = (kind_of(resource), NAMESPACE, resource["metadata"]["name"])
    uid = Preconditions(resource["metadata"]["uid"])
    await cast.person.delete(*place, preconditions=uid, propagation=Propagation.FOREGROUND)
    await cast.operator.get(*place)
    nothing = {"metadata": {"finalizers": None}}
    await cast.controllers.patch(*place, nothing, preconditions=uid)
    await tried(cast.operator.get(*place))


STORAGE_CLASS: Final[Object] = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "traced"},
    "provisioner": "traced",
    "allowVolumeExpansion": True,
}

STORIES: Final = {
    story.__name__: story
    for story in (writes, applies, deletions, owners, adoption, passes, deeds, pages)
}
"""Stories by name, which is that of their cluster, if any."""
