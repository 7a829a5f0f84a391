"""A tour of everything that the operator may do at an API server, by the operator's own code.

It runs on a real server under the operator's account, to test its rights, and on the model, to
compare its calls with the source. Watches are not part of it.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from liftbridge_operator.app import make_password
from liftbridge_operator.cluster.acting import on_objects
from liftbridge_operator.cluster.acting.context import ActionContext
from liftbridge_operator.cluster.acting.supply import forget_revisions
from liftbridge_operator.cluster.observing.objects import metadata_of, set_of
from liftbridge_operator.cluster.observing.reads import read
from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.decision import Wait
from liftbridge_operator.cluster.reconciling.ports import Itself
from liftbridge_operator.cluster.reconciling.reconciler import ClusterReconciler
from liftbridge_operator.cluster.rendering import nats
from liftbridge_operator.cluster.rendering.render import render
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, labels
from liftbridge_operator.cluster.securing.secret_store import SecretStore
from liftbridge_operator.cluster.x509 import CryptographyIssuer
from liftbridge_operator.kube.events import Events
from liftbridge_operator.kube.kinds import (
    CLAIMS,
    CLUSTERS,
    LEASES,
    PIPELINES,
    PODS,
    SECRETS,
    SETS,
    STREAMS,
    USERS,
    kind_of,
)
from liftbridge_operator.kube.port import Object, Preconditions
from liftbridge_operator.model import names
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.model.cluster import API_VERSION, CLUSTER_KIND, ClusterSpec
from liftbridge_operator.pipelines.reconciler import PipelineReconciler
from liftbridge_operator.pipelines.subject import Means
from liftbridge_operator.process.claims import CLAIM, HERE, RELEASE, AllClaims
from liftbridge_operator.process.clock import SystemClock
from liftbridge_operator.process.lease import Lease
from liftbridge_operator.process.reconciler import Key
from liftbridge_operator.streams.feed import StreamFeed
from liftbridge_operator.streams.reconciler import StreamReconciler
from liftbridge_operator.users.clusters import Clusters
from liftbridge_operator.users.reconciler import UserReconciler
from liftbridge_testkit.operator_sim.admin import ModelAdmin
from liftbridge_testkit.operator_sim.reconciled import SPEC, OpenFence, image_of
from liftbridge_testkit.operator_sim.stage import Stage
from liftbridge_testkit.operator_sim.traced import Cast
from liftbridge_testkit.pipelines_memory import MemoryArchives, pipeline
from liftbridge_testkit.streams_memory import (
    AskedPasses,
    HeardEvents,
    ManualClock,
    MemoryStreams,
    SeenBoard,
)
from liftbridge_testkit.users_memory import MemoryUsers

NAMESPACE: Final = "toured"
SYSTEM: Final = "liftbridge-system"
"""Namespace of the operator, with the name of its Lease."""

LEASE: Final = "liftbridge"
NAME: Final = "full"
PASSES: Final = 6
EXECUTOR_ROLE: Final = "liftbridge-executors"
"""Role for drivers, as named in the chart for this release."""
FULL: Final[dict[str, Any]] = {
    **SPEC,
    "tls": {"mode": "Generated"},
    "access": {"tokens": True},
    "listeners": [
        {"name": "internal", "tls": True},
        {"name": "second", "port": 9293},
    ],
    "monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
}
LESS: Final[dict[str, Any]] = {
    "listeners": [{"name": "internal", "tls": True}],
    "monitoring": None,
    "networkPolicy": {"enabled": False},
}
"""Specification requested later, which removes objects of the earlier specification."""

ASKING: Final[dict[str, Any]] = {
    **SPEC,
    "tls": {"mode": "CertManager", "issuerRef": {"name": "letters"}},
    "listeners": [{"name": "internal", "tls": True}],
}


async def tour(cast: Cast) -> None:
    """Do everything once.

    Args:
        cast: The operator and other actors with their rights. The namespaces `NAMESPACE` and
            `SYSTEM` and all definitions of the operator must exist.
    """
    await _lease(cast)
    await _clusters(cast)
    await _around_pods(cast)
    await _streams(cast)
    await _users(cast)
    await _pipelines(cast)
    await _events(cast)


async def _lease(cast: Cast) -> None:
    """Let one process lead after another, and take over a namespace without a claim."""
    clock = SystemClock()
    for identity in "ab":
        claims = AllClaims(
            cast.operator, namespace=SYSTEM, name=LEASE, clock=clock, on_gain=lambda: None
        )
        lease = Lease(
            cast.operator,
            namespace=SYSTEM,
            name=LEASE,
            identity=identity,
            clock=clock,
            rng=Random(1),
            others=claims,
            marks=claims.marks,
        )
        await cast.person.create(
            {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": CLAIM, "namespace": NAMESPACE, "labels": {RELEASE: HERE}},
                "spec": {},
            }
        )
        await lease.acquire()
        await lease.release()


async def _clusters(cast: Cast) -> None:
    """Bring up two clusters as far as possible without pods; then reduce one of them."""
    await _create(cast, NAME, FULL)
    await _create(cast, "asking", ASKING)
    looking = _looking(cast)
    await looking(NAME)
    await looking("asking")
    live = await cast.person.get(CLUSTERS, NAMESPACE, NAME)
    await cast.person.patch(
        CLUSTERS, NAMESPACE, NAME, {"spec": LESS}, preconditions=Preconditions(_uid(live))
    )
    for kind, name, change in (
        (SECRETS, names.nats_credentials(NAME), {"data": {nats.PASSWORDS[0]: None}}),
        (SETS, names.brokers(NAME), {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}),
    ):
        seen = await cast.person.get(kind, NAMESPACE, name)
        await cast.person.patch(
            kind, NAMESPACE, name, change, preconditions=Preconditions(_uid(seen))
        )
    await looking(NAME)


def _looking(cast: Cast) -> Callable[[str], Any]:
    """Run passes over a cluster, with all parts of a process except brokers."""
    wall = SystemClock().wall
    secret_store = SecretStore(
        cast.operator,
        CryptographyIssuer(),
        now_s=lambda: int(wall().timestamp()),
        password=make_password,
        key=make_password,
    )
    reconciler = ClusterReconciler(
        cast.operator,
        fence=OpenFence(),
        connect=lambda _cluster, _tls: ModelAdmin(Stage(1)),
        issue=secret_store,
        image_of=image_of,
        clock_ms=lambda: int(wall().timestamp() * 1_000),
        fresh_id=lambda: "id-1",
        itself=Itself("0.1.0", SYSTEM, {"app": "operator"}),
    )

    async def look(name: str) -> None:
        for _ in range(PASSES):
            await reconciler.reconcile(Key(CLUSTERS, NAMESPACE, name))

    return look


async def _around_pods(cast: Cast) -> None:
    """Test a pod that waits for a node, its claim, and the last pod of the set."""
    resource = await cast.person.get(CLUSTERS, NAMESPACE, NAME)
    spec = ClusterSpec.model_validate(resource["spec"])
    subject = Cluster(NAME, NAMESPACE, _uid(resource), spec)
    inputs = Inputs("id-1", image_of(spec))
    rendered = render(subject, inputs)
    claim = await cast.controllers.create(_claim(subject, inputs))
    pod = await cast.controllers.create(_pod(rendered.template))
    reads = await read(cast.operator, resource)
    context = ActionContext(
        cast.operator, ModelAdmin(Stage(1)), "", subject, inputs, rendered, reads, 1_000
    )
    pod_name = metadata_of(pod)["name"]
    await on_objects.keep_pod(context, act.KeepPod(pod_name, _uid(pod), _version(pod), "t"))
    seen = await cast.person.get(PODS, NAMESPACE, pod_name)
    await on_objects.delete_pod(context, act.DeletePod(pod_name, _uid(seen), _version(seen)))
    claim_name = metadata_of(claim)["name"]
    marked = act.MarkClaim(claim_name, _uid(claim), _version(claim), is_retired=True)
    await on_objects.mark_claim(context, marked)
    seen = await cast.person.get(CLAIMS, NAMESPACE, claim_name)
    await on_objects.delete_claim(context, act.DeleteClaim(claim_name, _uid(seen), _version(seen)))
    # The pod is gone, and the blockers of another pod are requested.
    waits = [Wait("PodMissing", pod_name, "the StatefulSet has recreated the pod")]
    for allowed in (1, None):
        reads = await read(cast.operator, resource, waits)
        context = ActionContext(
            cast.operator, ModelAdmin(Stage(1)), "", subject, inputs, rendered, reads, 1_000
        )
        await on_objects.set_budget(context, act.SetBudget(allowed))
    await forget_revisions(context, ())
    assert reads.set is not None, "the passes have made it"
    live = set_of(reads.set)
    again = act.CreateSet("id-1", live.replicas, rendered.revision, "", "", 2 << 30)
    await on_objects.orphan_set(context, act.OrphanSet(live.uid, live.resource_version, again))


async def _streams(cast: Cast) -> None:
    """Create a stream, and delete it with its resource."""
    brokers, clock = MemoryStreams(), ManualClock()

    async def connect(_body: Object) -> MemoryStreams:
        return brokers

    feed = StreamFeed(cast.operator, connect, AskedPasses(), clock)
    reconciler = StreamReconciler(
        cast.operator,
        feed,
        HeardEvents(),
        clock,
        fence=OpenFence(),
        board=SeenBoard(),
        is_namespaced=False,
    )
    body = {
        "apiVersion": STREAMS.api_version,
        "kind": STREAMS.kind,
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "clusterRef": {"name": NAME},
            "subject": "s",
            "replicationFactor": 1,
            "deletionPolicy": "Delete",
        },
    }
    made = await cast.person.create(body)
    key = Key(STREAMS, NAMESPACE, NAME)
    for _ in range(PASSES):
        await reconciler.reconcile(key)
    await cast.person.delete(*_place(made), preconditions=Preconditions(_uid(made)))
    await reconciler.reconcile(key)
    await feed.close()


async def _users(cast: Cast) -> None:
    """Create a user, and delete it with its access."""
    clock, issuer = ManualClock(), CryptographyIssuer()
    brokers = MemoryUsers(lambda: int(clock.wall().timestamp()))

    async def connect(_body: Object) -> MemoryUsers:
        return brokers

    reconciler = UserReconciler(
        cast.operator,
        Clusters(cast.operator, connect, issuer.describe, clock, (NAMESPACE,)),
        issuer,
        HeardEvents(),
        clock,
        fence=OpenFence(),
        board=SeenBoard(),
    )
    made = await cast.person.create(
        {
            "apiVersion": USERS.api_version,
            "kind": USERS.kind,
            "metadata": {"name": "toured-user", "namespace": NAMESPACE},
            "spec": {"clusterRef": {"name": NAME}, "authentication": {"token": {}}},
        }
    )
    key = Key(USERS, NAMESPACE, "toured-user")
    for _ in range(PASSES):
        await reconciler.reconcile(key)
    await cast.person.delete(*_place(made), preconditions=Preconditions(_uid(made)))
    for _ in range(PASSES):
        await reconciler.reconcile(key)
    await reconciler.close()


async def _pipelines(cast: Cast) -> None:
    """Run a pipeline in each mode and runtime in sequence, and suspend it."""
    brokers = MemoryArchives()

    async def connect(_body: Object, _first: str) -> MemoryArchives:
        return brokers

    reconciler = PipelineReconciler(
        cast.operator,
        connect,
        HeardEvents(),
        ManualClock(),
        board=SeenBoard(),
        means=Means("liftbridge-spark:1", EXECUTOR_ROLE),
    )
    made = await cast.person.create(pipeline(NAME, NAMESPACE, clusterRef={"name": NAME}))
    key = Key(PIPELINES, NAMESPACE, NAME)
    for change in (
        {},
        {"runtime": "Executors", "executors": {}},
        {"runtime": "Local", "executors": None, "mode": "Once"},
        {"suspend": True},
        {"mode": "Scheduled", "schedule": {"cron": "@hourly"}},
        {"mode": "Continuous", "schedule": None},
    ):
        seen = Preconditions(_uid(made))
        await cast.person.patch(*_place(made), {"spec": change}, preconditions=seen)
        await reconciler.reconcile(key)
    await reconciler.close()


async def _events(cast: Cast) -> None:
    """Record an event, and its repetition."""
    moments = iter((0.0, 100.0, 200.0, 300.0))
    events = Events(
        cast.operator,
        instance="tour",
        now=lambda: next(moments),
        wall=SystemClock().wall,
        rng=Random(1),
    )
    owner = await cast.person.get(CLUSTERS, NAMESPACE, NAME)
    for _ in range(2):
        await events.record(owner, EventReason.BROKER_ADDED, {"broker": NAME})


async def _create(cast: Cast, name: str, spec: dict[str, Any]) -> None:
    metadata = {"name": name, "namespace": NAMESPACE}
    named = {"apiVersion": API_VERSION, "kind": CLUSTER_KIND, "metadata": metadata}
    await cast.person.create({**named, "spec": spec})


def _claim(subject: Cluster, inputs: Inputs) -> Object:
    metadata = {
        "name": names.claim(subject.name, 0),
        "namespace": NAMESPACE,
        "labels": labels(subject, inputs),
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "toured",
            "volumeName": "toured",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def _pod(template: Object) -> Object:
    """Return a pod as created by the controller, on no node."""
    metadata = {**template["metadata"], "name": names.broker(NAME, 0), "namespace": NAMESPACE}
    data = {"name": names.DATA_VOLUME, "emptyDir": {}}
    spec = {**template["spec"], "volumes": [*template["spec"]["volumes"], data]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _uid(body: Object) -> str:
    return str(metadata_of(body)["uid"])


def _version(body: Object) -> int:
    return int(metadata_of(body)["resourceVersion"])


def _place(body: Object) -> tuple[Any, str, str]:
    return kind_of(body), NAMESPACE, str(metadata_of(body)["name"])
