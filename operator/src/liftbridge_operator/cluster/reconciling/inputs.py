"""Inputs of a pass: the rendered cluster, the desired state and the facts for the status."""

from dataclasses import dataclass
from typing import Final

from liftbridge_operator.cluster.acting.context import Trouble
from liftbridge_operator.cluster.acting.ownership import owner_text
from liftbridge_operator.cluster.observing.answers import Answers
from liftbridge_operator.cluster.observing.assembly import pods_of
from liftbridge_operator.cluster.observing.closed import odd_fields
from liftbridge_operator.cluster.observing.desired import Specification, desired_of
from liftbridge_operator.cluster.observing.objects import (
    annotation_of,
    belongs_to,
    claim_of,
    identity_of,
    label_of,
    metadata_of,
    set_of,
    uid_of,
)
from liftbridge_operator.cluster.observing.prerequisites import unmet
from liftbridge_operator.cluster.observing.reads import Reads, data_claims, unmarked_claims
from liftbridge_operator.cluster.observing.times import moment_ms, moment_text
from liftbridge_operator.cluster.planning.observation import NO_VOLUME, DesiredState, DesiredVolume
from liftbridge_operator.cluster.planning.plan import ASKED
from liftbridge_operator.cluster.reconciling.ports import Itself, Served
from liftbridge_operator.cluster.reconciling.reached import (
    hosts_of,
    listeners_of,
    node_addresses,
    reached_of,
)
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, Rendered, pod_labels
from liftbridge_operator.cluster.rendering.workload import read_kept, read_record
from liftbridge_operator.cluster.reporting.status import News, Surroundings
from liftbridge_operator.kube.port import Kube, Object
from liftbridge_operator.model import names
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.cluster_status import (
    RetainedVolume,
    VolumeStatus,
)
from liftbridge_operator.model.values import QuantityText

UNREADABLE: Final = "unreadable"
CAUSES_MAX: Final = 8
"""Fields that are named as the cause of restarts."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A cluster, the inputs of rendering and the rendered objects of this pass."""

    cluster: Cluster
    inputs: Inputs
    rendered: Rendered


def cluster_of(reads: Reads, spec: ClusterSpec) -> Cluster:
    """Build the cluster to render from its resource."""
    return Cluster(
        name=reads.name,
        namespace=reads.namespace,
        uid=uid_of(reads.resource),
        spec=spec,
        restart=annotation_of(reads.resource, names.RESTART),
        key_request=annotation_of(reads.resource, names.ROTATE_KEYS),
    )


def inputs_of(
    reads: Reads, spec: ClusterSpec, *, image: str, cluster_id: str, itself: Itself
) -> Inputs:
    """Collect the inputs of rendering other than the specification."""
    is_mine = reads.set is not None and belongs_to(reads.set, uid_of(reads.resource))
    has = set_of(reads.set).replicas if reads.set is not None else 0
    return Inputs(
        cluster_id=cluster_id,
        image=image,
        recorded=read_record(reads.set) if is_mine and reads.set is not None else None,
        refused=read_kept(reads.refused) if is_mine else None,
        operator_namespace=itself.namespace,
        operator_labels=itself.labels,
        brokers=max(has, spec.replicas),
        reached=reached_of(reads.services),
        hosts=hosts_of(reads, spec),
        nodes=node_addresses(reads),
    )


def cluster_id_of(reads: Reads, fresh: str) -> str:
    """Return the cluster id: recorded in the identity, marked on a claim, or `fresh`.

    Raises:
        ValueError: The operator did not write the identity.
    """
    if reads.identity is not None:
        return identity_of(reads.identity).cluster_id
    ids = sorted({claim_of(claim).cluster_id for claim in reads.claims} - {""})
    return ids[0] if ids else fresh


def foreign_parts(reads: Reads) -> Trouble | None:
    """Report a StatefulSet of this name that no operator created, or a foreign identity."""
    found = []
    if reads.set is not None and not belongs_to(reads.set, uid_of(reads.resource)):
        found += [reads.set] if label_of(reads.set, names.CLUSTER) != reads.name else []
    if reads.identity and label_of(reads.identity, names.CLUSTER) not in ("", reads.name):
        found.append(reads.identity)
    for one in found:
        name = f"{one['kind']} {metadata_of(one)['name']}"
        return Trouble("Conflict", {"object": name, "detail": owner_text(one)})
    return None


def odd_of(reads: Reads, subject: Subject | None) -> tuple[str, ...]:
    """List immutable fields of the StatefulSet that differ from the rendered ones."""
    if subject is None or reads.set is None:
        return ()
    return odd_fields(reads.set, subject.cluster, subject.inputs)


async def desired_in(
    kube: Kube,
    reads: Reads,
    given: Specification,
    subject: Subject | None,
    answers: Answers,
    now_ms: int,
) -> DesiredState:
    """Return the desired state, with everything that keeps it from being carried out.

    Raises:
        KubeError: A Secret or ConfigMap that the specification names could not be read.
    """
    if subject is None:
        return desired_as_observed(reads, given.errors)
    spec = subject.cluster.spec
    lacking = await unmet(kube, reads.namespace, spec, answers.metadata)
    return desired_of(
        reads.resource,
        spec,
        revision=subject.rendered.revision,
        now_ms=now_ms,
        refusals=[*map(str, subject.rendered.refusals), *lacking],
        automatic=reads.automatic,
        causes=causes_of(reads.resource, subject.rendered),
    )


def desired_as_observed(reads: Reads, errors: tuple[str, ...]) -> DesiredState:
    """Return the observed state as the desired one, since the specification cannot be read."""
    brokers = set_of(reads.set) if reads.set is not None else None
    return DesiredState(
        name=reads.name,
        generation=int(metadata_of(reads.resource).get("generation") or 0),
        replicas=brokers.replicas if brokers else 0,
        revision=brokers.revision if brokers else UNREADABLE,
        data_volume=DesiredVolume(brokers.claim_bytes) if brokers else NO_VOLUME,
        config_errors=errors,
    )


def served_of(reads: Reads, answers: Answers) -> Served:
    """Return the files that brokers report as loaded, and the brokers that have to report."""
    pods = pods_of(reads)
    ready = tuple(pod.name for pod in pods if pod.is_ready and not pod.is_terminating)
    loaded = {report.broker: dict(report.certificates) for report in answers.reports}
    keys = {report.broker: report.peer_keys for report in answers.reports}
    desired = set_of(reads.set).replicas if reads.set is not None else 0
    return Served(ready, loaded, keys, are_all=len(ready) == len(pods) == desired)


# -- for the status -----------------------------------------------------------------------------


def pending_claims(reads: Reads) -> tuple[str, ...]:
    """List claims in use without a bound volume."""
    return _in_phase(reads, "Pending")


def lost_claims(reads: Reads) -> tuple[str, ...]:
    """List claims in use whose volume is lost."""
    return _in_phase(reads, "Lost")


def unresized_claims(reads: Reads) -> tuple[str, ...]:
    """List claims in use whose volume is larger than its file system."""
    return tuple(
        str(metadata_of(claim)["name"])
        for claim in reads.claims
        if _phase(claim) == "FileSystemResizePending" and not annotation_of(claim, names.RETIRED)
    )


def causes_of(resource: Object, rendered: Rendered) -> tuple[str, ...]:
    """List changed fields that pods do not have yet: those in the planned restarts, then new ones.

    Once the set has the new template, a comparison finds no difference, though pods still lack it.
    """
    steps = ((resource.get("status") or {}).get("plan") or {}).get("steps") or ()
    cause = next((str(step.get("cause")) for step in steps if step.get("action") == "Restart"), "")
    before = cause.split(", ") if cause not in ("", "spec", ASKED) else []
    return tuple(dict.fromkeys((*before, *rendered.causes)))[:CAUSES_MAX]


def _in_phase(reads: Reads, phase: str) -> tuple[str, ...]:
    return tuple(
        str(metadata_of(claim)["name"])
        for claim in reads.claims
        if (claim.get("status") or {}).get("phase") == phase
        and not annotation_of(claim, names.RETIRED)
    )


def surroundings(
    reads: Reads, answers: Answers, subject: Subject | None, itself: Itself, news: News
) -> Surroundings:
    """Collect the parts of the status that do not come from the planner."""
    if subject is None:
        return Surroundings(operator_version=itself.version, news=news)
    cluster, revision = subject.cluster, subject.rendered.revision
    pods = pods_of(reads)
    held = subject.rendered.held
    is_rolled = bool(pods) and all(pod.revision == revision for pod in pods)
    before = (reads.resource.get("status") or {}).get("version") or ""
    return Surroundings(
        selector=",".join(f"{key}={value}" for key, value in pod_labels(cluster).items()),
        version=cluster.spec.version if is_rolled else before,
        image=subject.rendered.image,
        operator_version=itself.version,
        restart_request=cluster.restart if is_rolled else "",
        listeners=listeners_of(cluster, subject.inputs, answers.reports),
        volumes=_volumes(reads),
        retained=_retained(reads),
        news=news,
        held=(held.revision, held.causes) if held is not None else ("", ()),
    )


def _volumes(reads: Reads) -> dict[str, tuple[VolumeStatus, ...]]:
    volumes: dict[str, tuple[VolumeStatus, ...]] = {}
    for one in reads.claims:
        claim = claim_of(one)
        broker = names.broker(reads.name, claim.ordinal)
        if claim.is_retired:
            continue
        made = VolumeStatus(
            name=claim.name, uid=claim.uid, capacity=_capacity(one), phase=_phase(one)
        )
        volumes[broker] = (*volumes.get(broker, ()), made)
    return volumes


def _capacity(claim: Object) -> QuantityText | None:
    size = ((claim.get("status") or {}).get("capacity") or {}).get("storage")
    return QuantityText(str(size)) if size else None


def _phase(claim: Object) -> str:
    status = claim.get("status") or {}
    kinds = {condition.get("type") for condition in status.get("conditions") or ()}
    for kind in ("FileSystemResizePending", "Resizing"):
        if kind in kinds:
            return kind
    return str(status.get("phase") or "Pending")


def _retained(reads: Reads) -> tuple[RetainedVolume, ...]:
    unmarked = unmarked_claims(reads)
    return tuple(
        RetainedVolume(name=name, uid=uid_of(claim), since=moment_text(moment_ms(since)))
        for claim in data_claims(list(reads.claims), reads.name)
        if (name := str(metadata_of(claim)["name"]))
        and (since := annotation_of(claim, names.RETIRED) or unmarked.get(name, ""))
    )
