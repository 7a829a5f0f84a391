"""The reconciler of clusters on the models, with real objects in JSON in between.

    world = ReconciledWorld(spec)
    await world.until_ready()
    world.edit(lambda spec: spec.update(replicas=5))
    await world.until_ready()

The API server is in memory. The model of the planner's schedules acts as controllers and kubelets.
After each tick, its pods, claims and nodes are written as by real controllers; before each tick,
the operator's writes are read back.
"""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any, Final

from liftbridge_operator.cluster.brokers.grpc_admin import TlsMaterial
from liftbridge_operator.cluster.observing.objects import (
    HOST_LABEL,
    ZONE_LABEL,
    budget_of,
    claim_of,
    identity_of,
    set_of,
)
from liftbridge_operator.cluster.observing.prerequisites import named_files
from liftbridge_operator.cluster.observing.times import exact_text
from liftbridge_operator.cluster.planning.observation import Claim, Pod, StuckCause
from liftbridge_operator.cluster.planning.refusals import Refusal
from liftbridge_operator.cluster.planning.view import ordinal_of
from liftbridge_operator.cluster.reconciling.ports import ImageOf, Issue, Issued, Itself, Served
from liftbridge_operator.cluster.reconciling.reconciler import ClusterReconciler
from liftbridge_operator.cluster.rendering.identity import ID_KEY
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, labels
from liftbridge_operator.cluster.reporting.account import Certificates
from liftbridge_operator.cluster.x509 import CryptographyIssuer
from liftbridge_operator.kube.errors import UnavailableError
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    NODES,
    PODS,
    SECRETS,
    SETS,
    Kind,
    kind_of,
)
from liftbridge_operator.kube.port import Kube, Object
from liftbridge_operator.model import names
from liftbridge_operator.model.catalogue.load import load_catalogue
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.model.cluster import API_VERSION, CLUSTER_KIND, FEATURE_LEVELS, ClusterSpec
from liftbridge_operator.model.values import size_bytes
from liftbridge_operator.process.reconciler import Key, RequeueAfter
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.operator_sim.admin import ModelAdmin
from liftbridge_testkit.operator_sim.brokers import Replicas
from liftbridge_testkit.operator_sim.stage import Stage

NAME: Final = "c"
NAMESPACE: Final = "n"
EPOCH_MS: Final = 1_800_000_000_000
"""Initial time of the models, which is after the creation of objects in memory."""
SPEC: Final[Mapping[str, Any]] = {
    "version": "0.1.0",
    "replicas": 3,
    "nats": {"embedded": {}},
    "storage": {"data": {"size": "1Gi"}},
}
FILES: Final[Mapping[str, str]] = {
    "tls.clientCA": CryptographyIssuer()
    .make_authority("clients", not_before_s=0, not_after_s=2_000_000_000)
    .cert.decode(),
    "access.jwt.keys": '{"keys": [{"kty": "OKP"}]}',
    "encryption.masterKeys": f"main {'ab' * 32}\n",
}
"""Files of users, by the field that names them."""

FINALIZER: Final = "liftbridge.io/testkit"
PASSES_MAX: Final = 400
TICK_MS: Final = 2_500

_WAITING: Final = {
    StuckCause.IMAGE_PULL: "ImagePullBackOff",
    StuckCause.CRASH_LOOP: "CrashLoopBackOff",
    StuckCause.CONFIG: "CreateContainerConfigError",
}


class OpenFence:
    """A fence that lets everything through until it is closed."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def check(self, namespace: str) -> None:
        """See the port."""
        del namespace  # all belong to this release
        if self.error is not None:
            raise self.error


async def issue_at_once(
    cluster: Cluster,
    inputs: Inputs,
    *,
    may_write: bool,
    served: Served | None,
    held: Mapping[str, Refusal],
) -> Issued:
    """Issue certificates immediately."""
    del cluster, inputs, may_write, served, held
    known = Certificates("Valid", "", not_after_ms=EPOCH_MS + 10**10)
    return Issued(known, TlsMaterial(b"ca", b"cert", b"key"))


def image_of(spec: ClusterSpec) -> str:
    """Return the image of a version."""
    return spec.image or f"liftbridge-broker:{spec.version}"


def _changed(body: Object, change: Callable[[dict[str, Any]], object]) -> None:
    change(body["spec"])


class UnreliableKube:
    """Each call may end without an answer, whether executed or not.

    Attributes:
        rate: Share of such calls.
    """

    def __init__(self, kube: MemoryKube, rng: Random, rate: float) -> None:
        self._kube = kube
        self._rng = rng
        self.rate = rate

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        """Return a call of the port."""
        call: Callable[..., Awaitable[object]] = getattr(self._kube, name)

        async def unreliable(*args: object, **kwargs: object) -> object:
            if self._rng.random() < self.rate / 2:
                raise UnavailableError("the request was lost")
            answer = await call(*args, **kwargs)
            if self._rng.random() < self.rate / 2:
                raise UnavailableError("the answer was lost")
            return answer

        return unreliable


class ReconciledWorld:
    """A cluster, its models, and an operator process over them.

    Attributes:
        history: The resource after each write, and whether its spec was fulfilled.
        passes: Passes so far.
        events: Reason and text of each event, in order.
        issue: Issuer of certificates, for started operators.
        image_of: Images of versions, for started operators.
        attributes: Existing VolumeAttributesClasses; None for all requested classes.
    """

    def __init__(self, spec: Mapping[str, Any] | None = None, seed: int = 1) -> None:
        """Create the resource."""
        self.stage = Stage(seed)
        self.stage.is_wild = False
        self.stage.now = EPOCH_MS
        self.kube = MemoryKube()
        self.admin = ModelAdmin(self.stage)
        self.fence = OpenFence()
        self.issue: Issue = issue_at_once
        self.image_of: ImageOf = image_of
        self.attributes: frozenset[str] | None = None
        self.key = Key(CLUSTERS, NAMESPACE, NAME)
        self.history: list[tuple[Object, bool]] = []
        self.passes = 0
        self.events: list[tuple[str, str]] = []
        self._uids: dict[str, str] = {}
        self._written: dict[tuple[str, str], object] = {}
        self._pulled = self._pushed = -1
        self.reconciler = self.restart()
        self.kube.on_change = self._on_change
        # A new cluster has the latest feature level.
        self.stage.brokers.feature_level = max(FEATURE_LEVELS)
        self.put_files({**SPEC, **(spec or {})})
        self.put_resource({**SPEC, **(spec or {})})
        self._push()

    def restart(self, kube: Kube | None = None) -> ClusterReconciler:
        """Start a new operator process, without memory."""
        self.reconciler = ClusterReconciler(
            kube or self.kube,
            fence=self.fence,
            connect=lambda _cluster, _tls: self.admin,
            issue=self.issue,
            image_of=self.image_of,
            clock_ms=lambda: self.now_ms,
            fresh_id=lambda: "id-1",
            itself=Itself("0.1.0", "operators", {"app": "operator"}),
            events=self,
        )
        return self.reconciler

    async def record(
        self, resource: Object, reason: EventReason, values: Mapping[str, object]
    ) -> None:
        """Record an event; its text has exactly these values."""
        spec = load_catalogue().events[resource["kind"], reason.value]
        self.events.append((reason.value, spec.text.fill(values)))

    @property
    def now_ms(self) -> int:
        """Current time of day, for all actors."""
        return self.stage.now

    def put_files(self, spec: Mapping[str, Any]) -> None:
        """Create the Secrets and ConfigMaps that a specification names, as the user."""
        for file in named_files(ClusterSpec.model_validate(spec)):
            text = FILES[file.field]
            is_secret = file.kind == SECRETS
            body = {
                "apiVersion": "v1",
                "kind": file.kind.kind,
                "metadata": {"name": file.name, "namespace": NAMESPACE},
                "data": {file.key: b64encode(text.encode()).decode() if is_secret else text},
            }
            self.kube.put(body)

    def put_resource(self, spec: Mapping[str, Any]) -> None:
        """Create the resource as the user."""
        self.kube.put(
            {
                "apiVersion": API_VERSION,
                "kind": CLUSTER_KIND,
                "metadata": {"name": NAME, "namespace": NAMESPACE},
                "spec": deepcopy(dict(spec)),
                "status": {"observedGeneration": -1},
            }
        )

    # -- users ----------------------------------------------------------------

    @property
    def resource(self) -> Object:
        """The LiftbridgeCluster."""
        return self.kube.all_of(CLUSTERS)[0]

    @property
    def status(self) -> dict[str, Any]:
        """Status of the resource."""
        found: dict[str, Any] = self.resource["status"]
        return found

    def condition(self, kind: str) -> tuple[str, str]:
        """Return status and reason of a condition; empty for none."""
        for one in self.status.get("conditions", ()):
            if one["type"] == kind:
                return one["status"], one["reason"]
        return "", ""

    @property
    def is_ready(self) -> bool:
        """Return the result of `kubectl wait`."""
        generation = self.resource["metadata"]["generation"]
        is_current = self.status.get("observedGeneration") == generation
        return is_current and self.condition("Ready")[0] == "True"

    def edit(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the specification as the user."""
        self.kube.edit(CLUSTERS, NAMESPACE, NAME, lambda body: _changed(body, change))

    def annotate(self, **annotations: str) -> None:
        """Set annotations of the operator's group as the user."""

        def change(body: Object) -> None:
            found = body["metadata"].setdefault("annotations", {})
            found.update({f"liftbridge.io/{key}": value for key, value in annotations.items()})

        self.kube.edit(CLUSTERS, NAMESPACE, NAME, change)

    def create_stream(self, name: str, *brokers: str, min_isr: int = 1) -> None:
        """Create a stream of one partition, as a user."""
        key = (name, 0)
        model = self.stage.brokers
        model.partitions[key] = Replicas(key, brokers, brokers, brokers[0], min_isr)
        for broker in brokers:
            model.processes[broker].disk.logs[key] = 0

    def _on_change(self, event: str, body: Object) -> None:
        if body["kind"] == CLUSTER_KIND and event != "DELETED":
            self._note()

    def _note(self) -> None:
        self.history.append((self.resource, self.is_as_asked))

    @property
    def is_as_asked(self) -> bool:
        """Return whether number, readiness and images of pods match the specification."""
        spec = self.resource["spec"]
        pods = self.kube.all_of(PODS)
        wanted = spec.get("image") or f"liftbridge-broker:{spec['version']}"
        images = {pod["spec"]["containers"][0].get("image") for pod in pods}
        ready = [pod for pod in self.stage.api.pods.values() if pod.is_ready]
        return len(pods) == len(ready) == spec["replicas"] and images == {wanted}

    # -- time ---------------------------------------------------------------------------------

    async def go_on(self, passes: int = 1) -> RequeueAfter | None:
        """Run ticks, with a pass after each."""
        again = None
        for _ in range(passes):
            self.tick()
            self.passes += 1
            again = await self.reconciler.reconcile(self.key)
        return again

    async def until(self, condition: Callable[[], bool], passes_max: int = PASSES_MAX) -> None:
        """Continue until a condition holds.

        Raises:
            AssertionError: It does not hold within the bound.
        """
        for _ in range(passes_max):
            if condition():
                return
            await self.go_on()
        waits = [(one["what"], one["object"]) for one in self.status.get("waits", ())]
        conditions = [(one["type"], one["reason"]) for one in self.status["conditions"]]
        raise AssertionError(f"not so after {passes_max} passes: {waits} {conditions}")

    async def until_ready(self) -> None:
        """Continue until the current generation is ready."""
        await self.until(lambda: self.is_ready)

    def tick(self, ms: int = TICK_MS) -> None:
        """Run controllers, kubelets and brokers."""
        self._pull()
        self.stage.tick(ms)
        self._push()

    # -- from JSON to the models --------------------------------------------------------------

    def _pull(self) -> None:
        if self._pulled == self.kube.changes:
            return  # no client wrote
        self._pulled = self.kube.changes
        api = self.stage.api
        sets = self.kube.all_of(SETS)
        api.brokers = set_of(sets[0]) if sets else None
        given = sets[0]["spec"] if sets else {}
        self.stage.kube.is_ordered = given.get("podManagementPolicy") == "OrderedReady"
        self.stage.kube.binds = all(
            self._exists(one.get("spec", {}).get("volumeAttributesClassName"))
            for one in given.get("volumeClaimTemplates", ())
        )
        budgets = self.kube.all_of(BUDGETS)
        api.budget = budget_of(budgets[0]) if budgets else None
        named = {one["metadata"]["name"]: one for one in self.kube.all_of(CONFIG_MAPS)}
        written = named.get(names.identity(NAME))
        is_ours = written is not None and ID_KEY in written.get("data", {})
        api.identity = identity_of(written) if written is not None and is_ours else None
        self._pull_pods()
        self._pull_claims()

    def _pull_pods(self) -> None:
        api = self.stage.api
        live = {one["metadata"]["name"]: one for one in self.kube.all_of(PODS)}
        for pod in list(api.pods.values()):
            body = live.get(pod.name)
            if body is None:
                self.stage.kube.force_delete(pod)
            elif body["metadata"].get("deletionTimestamp") and not pod.is_terminating:
                api.put_pod(pod, is_terminating=True)

    def _pull_claims(self) -> None:
        api = self.stage.api
        for body in self.kube.all_of(CLAIMS):
            seen = claim_of(body)
            claim = api.claims.get(names.broker(NAME, seen.ordinal))
            if claim is None or seen.name != names.claim(NAME, seen.ordinal):
                continue
            changes = {
                "requested_bytes": seen.requested_bytes,
                "is_retired": seen.is_retired,
                "is_terminating": seen.is_terminating,
            }
            if any(getattr(claim, key) != value for key, value in changes.items()):
                api.put_claim(claim, **changes)

    # -- from the models to JSON --------------------------------------------------------------

    def _push(self) -> None:
        api = self.stage.api
        for node in api.nodes.values():
            if self._is_new("node", node.name, node):
                self.kube.put(_node_body(node.name, node.is_ready, node.is_unschedulable))
        for name in self.kube.names_of(NODES):
            if name not in api.nodes:
                self.kube.remove(NODES, "", name)
        for data in api.claims.values():
            claim = replace(data, name=names.claim(NAME, data.ordinal))
            if self._is_new("claim", claim.name, claim):
                self._put(self._claim_as_made(claim))
            self._push_raft_claim(claim)
        self._push_attributes()
        for pod in api.pods.values():
            if self._is_new("pod", pod.name, pod):
                self._push_pod(pod)
        self._remove_gone()

    def _exists(self, attributes: str | None) -> bool:
        return attributes is None or self.attributes is None or attributes in self.attributes

    def _push_attributes(self) -> None:
        """Write the attributes that claims request to volumes, if the classes exist."""
        for body in self.kube.all_of(CLAIMS):
            wanted = body["spec"].get("volumeAttributesClassName")
            status = body["status"]
            if wanted is None or status["phase"] != "Bound":
                continue
            told: Object = {"currentVolumeAttributesClassName": wanted}
            if not self._exists(wanted):
                target = {"targetVolumeAttributesClassName": wanted, "status": "Pending"}
                told = {"modifyVolumeStatus": target}
            kept = {name: value for name, value in status.items() if name != "modifyVolumeStatus"}
            if {**kept, **told} != status:
                body["status"] = {**kept, **told}
                self.kube.put(body, "external-resizer")

    def _push_raft_claim(self, data: Claim) -> None:
        """Grow the claim for metadata immediately, if there is a separate claim for data."""
        storage = self.resource["spec"]["storage"]
        if "raft" not in storage:
            return
        name = names.claim(NAME, data.ordinal, names.RAFT_VOLUME)
        live = self._live(CLAIMS, name)
        size = claim_of(live).requested_bytes if live else size_bytes(storage["raft"]["size"])
        claim = replace(data, name=name, requested_bytes=size, capacity_bytes=size)
        if self._is_new("claim", name, claim):
            self._put(self._claim_as_made(claim))

    def _claim_as_made(self, claim: Claim) -> Object:
        """Return a claim from its set's template, or its current value, with its size."""
        live, identity = self._live(CLAIMS, claim.name), self.stage.api.identity
        made = _claim_body(claim, identity.cluster_id if identity else "")
        sets = self.kube.all_of(SETS)
        templates = sets[0]["spec"].get("volumeClaimTemplates", ()) if sets else ()
        specs = (template.get("spec", {}) for template in templates if _makes(template, claim.name))
        made["spec"] = (live["spec"] if live else next(specs, {})) | made["spec"]
        if claim.is_bound and live is not None:
            in_force = live["status"].get("currentVolumeAttributesClassName")
            made["status"] |= {"currentVolumeAttributesClassName": in_force} if in_force else {}
        return made

    def _remove_gone(self) -> None:
        api = self.stage.api
        for name in self.kube.names_of(PODS):
            if name not in api.pods:
                self.kube.remove(PODS, NAMESPACE, name)
        for name in self.kube.names_of(CLAIMS):
            if names.broker(NAME, ordinal_of(name)) not in api.claims:
                self.kube.remove(CLAIMS, NAMESPACE, name)

    def _is_new(self, kind: str, name: str, value: object) -> bool:
        if self._written.get((kind, name)) == value:
            return False
        self._written[kind, name] = value
        return True

    def _push_pod(self, pod: Pod) -> None:
        body = self._live(PODS, pod.name)
        if body is not None and self._uids.get(body["metadata"]["uid"]) != pod.uid:
            self.kube.remove(PODS, NAMESPACE, pod.name)
            body = None
        made = self._put(_pod_body(pod, self._template(), body))
        self._uids[made["metadata"]["uid"]] = pod.uid
        if made["metadata"]["uid"] != pod.uid:
            self._rename(pod, made["metadata"]["uid"])

    def _rename(self, pod: Pod, uid: str) -> None:
        """Rename a new pod to the uid from the API server, which the models then use."""
        container = self.stage.kube.containers.pop(pod.uid, None)
        if container is not None:
            self.stage.kube.containers[uid] = container
        renamed = self.stage.api.put_pod(pod, uid=uid)
        self._uids[uid] = uid
        self._written["pod", pod.name] = renamed

    def _template(self) -> Object:
        sets = self.kube.all_of(SETS)
        found: Object = sets[0]["spec"]["template"] if sets else {"metadata": {}, "spec": {}}
        return found

    def _live(self, kind: Kind, name: str) -> Object | None:
        if name not in self.kube.names_of(kind):
            return None
        return next(one for one in self.kube.all_of(kind) if one["metadata"]["name"] == name)

    def _put(self, body: Object) -> Object:
        live = self._live(kind_of(body), body["metadata"]["name"])
        if live is not None:  # fields of other writers stay
            kept = live["metadata"]
            body["metadata"]["annotations"] = {
                **body["metadata"].get("annotations", {}),
                **kept.get("annotations", {}),
            }
            body["metadata"]["labels"] = kept.get("labels", {})
            for name in ("ownerReferences", "deletionTimestamp"):
                if name in kept:
                    body["metadata"].setdefault(name, kept[name])
        return self.kube.put(body, "kube-controller-manager")


def _node_body(name: str, is_ready: bool, is_unschedulable: bool) -> Object:
    zone = f"zone-{int(name.rpartition('-')[2]) % 3}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {ZONE_LABEL: zone, HOST_LABEL: name}},
        "spec": {"unschedulable": True} if is_unschedulable else {},
        "status": {"conditions": [{"type": "Ready", "status": "True" if is_ready else "Unknown"}]},
    }


def _claim_body(claim: Claim, cluster_id: str) -> Object:
    cluster = Cluster(NAME, NAMESPACE, "", ClusterSpec.model_validate(dict(SPEC)))
    body: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim.name,
            "namespace": NAMESPACE,
            "labels": labels(cluster, Inputs(cluster_id, "")),
            "finalizers": [FINALIZER],
        },
        "spec": {"resources": {"requests": {"storage": str(claim.requested_bytes)}}},
        "status": {"phase": "Bound", "capacity": {"storage": str(claim.capacity_bytes)}},
    }
    if not claim.is_bound:
        body["status"] = {"phase": "Pending"}
    elif claim.infeasible:
        body["status"] |= {
            "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
            "conditions": [
                {"type": "ControllerResizeError", "status": "True", "message": claim.infeasible}
            ],
        }
    return body


def _pod_body(pod: Pod, template: Object, live: Object | None) -> Object:
    """Return a pod as written by kubelets and controllers."""
    metadata = (live or template)["metadata"]
    status: Object = {
        "conditions": [
            {
                "type": "Ready",
                "status": str(pod.is_ready),
                "lastTransitionTime": exact_text(pod.changed_ms),
            },
            {"type": "PodScheduled", "status": str(pod.stuck is not StuckCause.UNSCHEDULABLE)},
        ],
        "containerStatuses": [_container(pod)],
    }
    if pod.stuck is StuckCause.NODE_LOST:
        status["reason"] = "NodeLost"
    made: Object = {
        "name": pod.name,
        "namespace": NAMESPACE,
        "labels": metadata.get("labels", {}),
        "annotations": {**metadata.get("annotations", {}), names.REVISION: pod.revision},
        "finalizers": [FINALIZER],
    }
    if pod.is_terminating:
        made["deletionTimestamp"] = exact_text(pod.changed_ms)
    spec = dict((live or template)["spec"])
    if pod.node:
        spec["nodeName"] = pod.node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": spec, "status": status}


def _container(pod: Pod) -> Object:
    state: Object = {"waiting": {"reason": "ContainerCreating"}}
    if pod.is_running:
        state = {"running": {}}
    elif pod.stuck in _WAITING:
        state = {"waiting": {"reason": _WAITING[pod.stuck]}}
    return {"name": names.BROKER_CONTAINER, "state": state, "ready": pod.is_ready}


def _makes(template: Object, claim: str) -> bool:
    """Return whether a template creates a claim, by its name."""
    return claim.startswith(str((template.get("metadata") or {}).get("name")))
