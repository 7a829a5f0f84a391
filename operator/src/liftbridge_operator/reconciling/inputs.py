"""Everything that one pass knows before it does anything."""

from dataclasses import dataclass
from typing import Final

from liftbridge_operator.acting.context import Trouble
from liftbridge_operator.acting.ownership import whose
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.cluster_status import (
    RetainedVolume,
    VolumeStatus,
)
from liftbridge_operator.model.values import QuantityText
from liftbridge_operator.observing.answers import Answers
from liftbridge_operator.observing.assembly import pods_of
from liftbridge_operator.observing.closed import odd_fields
from liftbridge_operator.observing.objects import (
    annotation_of,
    belongs_to,
    claim_of,
    identity_of,
    label_of,
    metadata_of,
    set_of,
    uid_of,
)
from liftbridge_operator.observing.reads import Reads, data_claims, unmarked_claims
from liftbridge_operator.observing.times import moment_ms, moment_text
from liftbridge_operator.planning.observation import Wanted
from liftbridge_operator.planning.plan import ASKED
from liftbridge_operator.reconciling.ports import Itself, Served
from liftbridge_operator.reconciling.reached import (
    hosts_of,
    listeners_of,
    node_addresses,
    reached_of,
)
from liftbridge_operator.rendering import names
from liftbridge_operator.rendering.subject import Cluster, Inputs, Rendered, pod_labels
from liftbridge_operator.rendering.workload import read_kept, read_record
from liftbridge_operator.reporting.status import News, Surroundings

UNREADABLE: Final = "unreadable"
CAUSES_MAX: Final = 8
"""Fields that are named as the cause of restarts."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A cluster as it is rendered in this pass."""

    cluster: Cluster
    inputs: Inputs
    rendered: Rendered


def cluster_of(reads: Reads, spec: ClusterSpec) -> Cluster:
    """The resource as it is rendered."""
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
    """What rendering takes beside the specification."""
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
    """The id of the cluster, as it is or as it will be written.

    Raises:
        ValueError: The identity was written by somebody else.
    """
    if reads.identity is not None:
        return identity_of(reads.identity).cluster_id
    ids = sorted({claim_of(one).cluster_id for one in reads.claims} - {""})
    return ids[0] if ids else fresh


def foreign_parts(reads: Reads) -> Trouble | None:
    """A StatefulSet of this name that no operator made, or an identity of another cluster."""
    found = []
    if reads.set is not None and not belongs_to(reads.set, uid_of(reads.resource)):
        found += [reads.set] if label_of(reads.set, names.CLUSTER) != reads.name else []
    if reads.identity and label_of(reads.identity, names.CLUSTER) not in ("", reads.name):
        found.append(reads.identity)
    for one in found:
        name = f"{one['kind']} {metadata_of(one)['name']}"
        return Trouble("Conflict", {"object": name, "detail": whose(one)})
    return None


def odd_of(reads: Reads, subject: Subject | None) -> tuple[str, ...]:
    """Fields of the set that nobody can change, and that are not as rendered."""
    if subject is None or reads.set is None:
        return ()
    return odd_fields(reads.set, subject.cluster, subject.inputs)


def wanted_as_is(reads: Reads, errors: tuple[str, ...]) -> Wanted:
    """Exactly what exists as the desired state, when the desired state cannot be read."""
    brokers = set_of(reads.set) if reads.set is not None else None
    return Wanted(
        name=reads.name,
        generation=int(metadata_of(reads.resource).get("generation") or 0),
        replicas=brokers.replicas if brokers else 0,
        revision=brokers.revision if brokers else UNREADABLE,
        claim_bytes=brokers.claim_bytes if brokers else 0,
        config_errors=errors,
    )


def served_of(reads: Reads, answers: Answers) -> Served:
    """What brokers say of the files that they loaded, and who has to say it."""
    pods = pods_of(reads)
    ready = tuple(pod.name for pod in pods if pod.is_ready and not pod.is_terminating)
    loaded = {one.broker: dict(one.certificates) for one in answers.reports}
    keys = {one.broker: one.peer_keys for one in answers.reports}
    wanted = set_of(reads.set).replicas if reads.set is not None else 0
    return Served(ready, loaded, keys, are_all=len(ready) == len(pods) == wanted)


# -- for the status -----------------------------------------------------------------------------


def pending_claims(reads: Reads) -> tuple[str, ...]:
    """Claims in use that no volume is bound to."""
    return _in_phase(reads, "Pending")


def lost_claims(reads: Reads) -> tuple[str, ...]:
    """Claims in use whose volume is gone."""
    return _in_phase(reads, "Lost")


def unresized_claims(reads: Reads) -> tuple[str, ...]:
    """Claims in use whose volume is larger than its file system."""
    return tuple(
        str(metadata_of(one)["name"])
        for one in reads.claims
        if _phase(one) == "FileSystemResizePending" and not annotation_of(one, names.RETIRED)
    )


def causes_of(resource: Object, rendered: Rendered) -> tuple[str, ...]:
    """Fields that pods do not show yet: those that were told, while pods wait, and new ones.

    Once a template is in force nothing differs from it any more, though pods are still to get it.
    """
    steps = ((resource.get("status") or {}).get("plan") or {}).get("steps") or ()
    told = next((str(one.get("cause")) for one in steps if one.get("action") == "Restart"), "")
    before = told.split(", ") if told not in ("", "spec", ASKED) else []
    return tuple(dict.fromkeys((*before, *rendered.causes)))[:CAUSES_MAX]


def _in_phase(reads: Reads, phase: str) -> tuple[str, ...]:
    return tuple(
        str(metadata_of(one)["name"])
        for one in reads.claims
        if (one.get("status") or {}).get("phase") == phase and not annotation_of(one, names.RETIRED)
    )


def surroundings(
    reads: Reads, answers: Answers, subject: Subject | None, itself: Itself, news: News
) -> Surroundings:
    """What the status tells beside the planner's."""
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
    found: dict[str, tuple[VolumeStatus, ...]] = {}
    for one in reads.claims:
        claim = claim_of(one)
        broker = names.broker(reads.name, claim.ordinal)
        if claim.is_retired:
            continue
        made = VolumeStatus(
            name=claim.name, uid=claim.uid, capacity=_capacity(one), phase=_phase(one)
        )
        found[broker] = (*found.get(broker, ()), made)
    return found


def _capacity(claim: Object) -> QuantityText | None:
    found = ((claim.get("status") or {}).get("capacity") or {}).get("storage")
    return QuantityText(str(found)) if found else None


def _phase(claim: Object) -> str:
    status = claim.get("status") or {}
    kinds = {one.get("type") for one in status.get("conditions") or ()}
    for kind in ("FileSystemResizePending", "Resizing"):
        if kind in kinds:
            return kind
    return str(status.get("phase") or "Pending")


def _retained(reads: Reads) -> tuple[RetainedVolume, ...]:
    unmarked = unmarked_claims(reads)
    return tuple(
        RetainedVolume(name=name, uid=uid_of(one), since=moment_text(moment_ms(since)))
        for one in data_claims(list(reads.claims), reads.name)
        if (name := str(metadata_of(one)["name"]))
        and (since := annotation_of(one, names.RETIRED) or unmarked.get(name, ""))
    )
