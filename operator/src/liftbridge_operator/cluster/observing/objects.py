"""Parse objects of Kubernetes from JSON into the planner's values.

Nothing here raises for contents of an object, except for the identity: a missing or malformed field
is read as absent. The planner has resource versions as numbers, as the API server's are, and never
compares them.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from liftbridge_operator.cluster.observing import marks
from liftbridge_operator.cluster.observing.times import moment_ms
from liftbridge_operator.cluster.planning.observation import (
    BrokerSet,
    Claim,
    Identity,
    Member,
    Node,
    Pod,
    StuckCause,
)
from liftbridge_operator.cluster.planning.view import ordinal_of
from liftbridge_operator.cluster.rendering.identity import read_identity
from liftbridge_operator.model import names
from liftbridge_operator.model.cluster import CLUSTER_KIND
from liftbridge_operator.model.values import size_bytes

Json = Mapping[str, Any]

ZONE_LABEL: Final = names.ZONES[0]
MANAGER: Final = "app.kubernetes.io/managed-by"
HOST_LABEL: Final = "kubernetes.io/hostname"
_BYTES_MAX: Final = 1 << 63
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"

PULL_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
CONFIG_REASONS: Final = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "PreCreateHookError",
        "PreStartHookError",
    }
)


def metadata_of(body: Json) -> Json:
    """Return the metadata of an object."""
    metadata: Json = body.get("metadata") or {}
    return metadata


def uid_of(body: Json) -> str:
    """Return the uid of an object."""
    return str(metadata_of(body).get("uid") or "")


def version_of(body: Json) -> int:
    """Return the resource version of an object."""
    text = str(metadata_of(body).get("resourceVersion") or "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def is_terminating(body: Json) -> bool:
    """Return whether the deletion of an object has started."""
    return bool(metadata_of(body).get("deletionTimestamp"))


def annotation_of(body: Json, key: str) -> str:
    """Return an annotation; empty for none."""
    return str((metadata_of(body).get("annotations") or {}).get(key) or "")


def label_of(body: Json, key: str) -> str:
    """Return a label; empty for none."""
    return str((metadata_of(body).get("labels") or {}).get(key) or "")


def bytes_of(quantity: object) -> int:
    """Return the bytes of a quantity, also in the API server's rewritten forms; 0 for none."""
    text = str(quantity or "0")
    try:
        return size_bytes(text)
    except ValueError:
        pass
    try:
        exact = Decimal(text[:-1]) / 1000 if text.endswith("m") else Decimal(text)
    except InvalidOperation:
        return 0
    # Kubernetes has no larger amount, and the text may be a number too large to expand.
    is_amount = exact.is_finite() and 0 <= exact < _BYTES_MAX
    return int(exact.to_integral_value("ROUND_CEILING")) if is_amount else 0


# -- pods ---------------------------------------------------------------------------------------


def pod_of(body: Json, *, zone: str = "", is_lost: bool = False) -> Pod:
    """Parse a pod of the set.

    Args:
        body: The object.
        zone: Zone of its node, if nodes may be read; else its own label is used.
        is_lost: Whether the node that holds its volume is lost.
    """
    metadata, status = metadata_of(body), body.get("status") or {}
    created_ms = moment_ms(metadata.get("creationTimestamp"))
    ready = _condition(status, "Ready")
    changed_ms = moment_ms(ready.get("lastTransitionTime")) or created_ms
    is_running = _is_running(status)
    stuck = None if is_running else _stuck(status, is_lost=is_lost)
    name = str(metadata.get("name") or "")
    return Pod(
        name=name,
        ordinal=ordinal_of(name),
        uid=uid_of(body),
        resource_version=version_of(body),
        revision=annotation_of(body, names.REVISION),
        node=str((body.get("spec") or {}).get("nodeName") or ""),
        zone=zone or label_of(body, ZONE_LABEL),
        created_ms=created_ms,
        changed_ms=changed_ms,
        is_ready=ready.get("status") == "True",
        is_running=is_running,
        is_terminating=is_terminating(body),
        stuck=stuck,
        # The status has no start of a failure; the pod has been unready since then at the latest.
        stuck_since_ms=changed_ms if stuck is not None else 0,
        kept=annotation_of(body, marks.KEPT),
    )


def _condition(status: Json, kind: str) -> Json:
    for condition in status.get("conditions") or ():
        if condition.get("type") == kind:
            found: Json = condition
            return found
    return {}


def _is_running(status: Json) -> bool:
    return any((one.get("state") or {}).get("running") is not None for one in _of_broker(status))


def _stuck(status: Json, *, is_lost: bool) -> StuckCause | None:
    """Return the cause that keeps the main container from running; None for none."""
    if status.get("reason") == "NodeLost" or is_lost:
        return StuckCause.NODE_LOST
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return StuckCause.UNSCHEDULABLE
    # A sidecar that does not start keeps the broker from starting.
    for one in (*(status.get("initContainerStatuses") or ()), *_of_broker(status)):
        cause = _cause(one)
        if cause is not None:
            return cause
    return None


def _of_broker(status: Json) -> Sequence[Json]:
    listed = status.get("containerStatuses") or ()
    return [one for one in listed if one.get("name") == names.BROKER_CONTAINER]


def _cause(status: Json) -> StuckCause | None:
    """Return the cause that keeps a container from running."""
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    reason = waiting.get("reason")
    if reason in PULL_REASONS:
        return StuckCause.IMAGE_PULL
    if reason in CONFIG_REASONS:
        return StuckCause.CONFIG
    terminated = state.get("terminated") or {}
    has_failed = bool(terminated) and terminated.get("exitCode") != 0
    if reason == "CrashLoopBackOff" or has_failed:
        return StuckCause.CRASH_LOOP
    return None


# -- sets, claims, volumes, nodes, budgets --------------------------------------------------------


def set_of(body: Json) -> BrokerSet:
    """Parse the StatefulSet."""
    spec = body.get("spec") or {}
    claims = {
        metadata_of(template).get("name"): template.get("spec") or {}
        for template in spec.get("volumeClaimTemplates") or ()
    }
    data, raft = claims.get(names.DATA_VOLUME, {}), claims.get(names.RAFT_VOLUME, {})
    return BrokerSet(
        uid=uid_of(body),
        resource_version=version_of(body),
        replicas=int(spec.get("replicas") or 0),
        revision=annotation_of(spec.get("template") or {}, names.REVISION),
        good_revision=annotation_of(body, names.GOOD_REVISION),
        bad_revision=annotation_of(body, names.BAD_REVISION),
        claim_bytes=_asked_bytes(data),
        is_terminating=is_terminating(body),
        raft_bytes=_asked_bytes(raft),
        created_ms=moment_ms(metadata_of(body).get("creationTimestamp")),
    )


def _asked_bytes(spec: Json) -> int:
    """Return the size that the specification of a claim requests."""
    return bytes_of(((spec.get("resources") or {}).get("requests") or {}).get("storage"))


def claim_of(body: Json) -> Claim:
    """Parse a claim of a broker."""
    name = str(metadata_of(body).get("name") or "")
    status = body.get("status") or {}
    is_bound = status.get("phase") not in (None, "", "Pending")
    return Claim(
        name=name,
        ordinal=ordinal_of(name),
        uid=uid_of(body),
        resource_version=version_of(body),
        cluster_id=label_of(body, names.CLUSTER_ID),
        requested_bytes=_asked_bytes(body.get("spec") or {}),
        capacity_bytes=bytes_of((status.get("capacity") or {}).get("storage"))
        if status.get("phase") == "Bound"
        else 0,
        is_retired=annotation_of(body, names.RETIRED) != "",
        is_terminating=is_terminating(body),
        class_name=str((body.get("spec") or {}).get("storageClassName") or ""),
        is_bound=is_bound,
        attributes_class=str((body.get("spec") or {}).get("volumeAttributesClassName") or ""),
        attributes_in_force=str(status.get("currentVolumeAttributesClassName") or ""),
        attributes_state=_attributes_state(status),
        infeasible=_infeasible(status),
        created_ms=moment_ms(metadata_of(body).get("creationTimestamp")),
    )


def _infeasible(status: Json) -> str:
    """Return the reason for an infeasible requested size of a claim; empty for none."""
    states = status.get("allocatedResourceStatuses") or {}
    state = str(states.get("storage") or "")
    if not state.endswith("Infeasible"):
        return ""
    kind = "NodeResizeError" if state.startswith("Node") else "ControllerResizeError"
    return str(_condition(status, kind).get("message") or f"its driver says {state}")


def _attributes_state(status: Json) -> str:
    """Return the state of a change of attributes; empty when the driver reports none."""
    state = str((status.get("modifyVolumeStatus") or {}).get("status") or "")
    message = str(_condition(status, "ModifyVolumeError").get("message") or "")
    return f"{state}: {message}" if state and message else state or message


def hosts_of(volume: Json) -> tuple[str, ...]:
    """Return nodes on which a volume can be used; empty for any."""
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required") or {}
    hosts: list[str] = []
    for term in required.get("nodeSelectorTerms") or ():
        for match_expression in term.get("matchExpressions") or ():
            if (
                match_expression.get("key") == HOST_LABEL
                and match_expression.get("operator") == "In"
            ):
                hosts += match_expression.get("values") or ()
    return tuple(dict.fromkeys(hosts))


def is_volume_lost(claim: Json, volumes: Mapping[str, Json], nodes: Sequence[Json]) -> bool:
    """Return whether every node that could have the volume of a claim is deleted or not ready.

    Args:
        claim: The claim.
        volumes: Readable volumes, by name.
        nodes: All nodes; a node that is not listed was deleted.
    """
    volume = volumes.get(str((claim.get("spec") or {}).get("volumeName") or ""))
    if volume is None:
        return False
    hosts = hosts_of(volume)
    alive = {
        name
        for node in nodes
        if node_of(node).is_ready
        for name in (node_of(node).name, label_of(node, HOST_LABEL))
    }
    return bool(hosts) and not alive.intersection(hosts)


def node_of(body: Json) -> Node:
    """Parse a node."""
    spec = body.get("spec") or {}
    taints = {taint.get("key") for taint in spec.get("taints") or ()}
    return Node(
        name=str(metadata_of(body).get("name") or ""),
        is_ready=_condition(body.get("status") or {}, "Ready").get("status") == "True",
        is_unschedulable=bool(spec.get("unschedulable")),
        is_gone=OUT_OF_SERVICE in taints,
    )


def budget_of(body: Json) -> int | None:
    """Return `maxUnavailable` of a PodDisruptionBudget; None when it is not a number."""
    allowed = (body.get("spec") or {}).get("maxUnavailable")
    return allowed if isinstance(allowed, int) else None


# -- identity -----------------------------------------------------------------------------------


def identity_of(body: Json) -> Identity:
    """Parse the identity of the cluster.

    Raises:
        ValueError: The ConfigMap is malformed; the text says how.
    """
    cluster_id, founders, is_started = read_identity(dict(body))
    members = tuple(Member(broker, directory) for broker, directory in founders)
    return Identity(version_of(body), cluster_id, members, is_started)


def is_owned_by(body: Json, uid: str) -> bool:
    """Return whether an object has an owner with this uid."""
    owners = metadata_of(body).get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def belongs_to(body: Json, uid: str) -> bool:
    """Return whether an object belongs to a cluster: by its owner, or as a managed orphan.

    An object with another resource as its owner belongs to that one.
    """
    owners = metadata_of(body).get("ownerReferences") or ()
    is_orphan = all(owner.get("kind") != CLUSTER_KIND for owner in owners)
    return is_owned_by(body, uid) or (is_orphan and label_of(body, MANAGER) == names.MANAGED_BY)
