"""Deletion of a resource: the fate of its stream, and when the finalizer is removed.

A stream is deleted only when the resource requests `Delete` and the stream is empty, or a user
confirmed the deletion. In doubt the stream stays; where no operator could manage it any more, the
resource is released without it.
"""

from dataclasses import replace
from typing import Final

from liftbridge_operator.model.base import GROUP
from liftbridge_operator.model.catalogue.claim import Claim
from liftbridge_operator.model.catalogue.names import EventReason, Reason, StreamConditionType
from liftbridge_operator.model.stream import DeletionPolicy, ManagementPolicy
from liftbridge_operator.streams.actions import Delete, RemoveFinalizer
from liftbridge_operator.streams.decide import (
    REFUSED_SECONDS,
    Decision,
    health,
    refusal_of,
    unknown_of,
)
from liftbridge_operator.streams.marks import CONFIRM_DELETE, mark_of
from liftbridge_operator.streams.observation import (
    UNKNOWN,
    Ask,
    ClusterState,
    ObservedStream,
    Resource,
    Seen,
)

BLOCKED_SECONDS: Final = 30.0
"""Time after which a blocked deletion is reconciled again."""

Type = StreamConditionType


def decide_deletion(resource: Resource, seen: Seen) -> Decision:
    """Decide the action and the conditions of a resource that is being deleted.

    Args:
        resource: The resource.
        seen: The rest of the observation.
    """
    decision = _decided(resource, seen)
    before = refusal_of(decision, seen)
    if before is None:
        return decision
    values = {"stream": resource.stream_name, "detail": before.detail}
    blocked = _blocked(resource, seen, Claim(Reason.REFUSED, values), before.detail)
    action = decision.action if before.is_due else None
    return replace(blocked, action=action, requeue_seconds=REFUSED_SECONDS)


def _decided(resource: Resource, seen: Seen) -> Decision:
    """Decide without regard to earlier refusals."""
    claims = _claims(resource, seen)
    if not resource.has_finalizer:
        return Decision(claims)
    mine = mark_of(resource.namespace, resource.name, resource.uid)
    stream = seen.stream if seen.stream is not None and seen.stream.owner == mine else None
    mark = stream.stream_id if stream is not None else 0
    if _keeps_stream(resource, seen) or seen.is_ending is True:
        forgotten = (EventReason.STREAM_FORGOTTEN, {"stream": resource.stream_name})
        return Decision(claims, RemoveFinalizer(mark), event=forgotten if mark else None)
    if seen.is_ending is UNKNOWN:
        return Decision(claims, ask=Ask.NAMESPACE)
    if not seen.cluster.is_heard:
        values = {"cluster": seen.cluster.name, "keep": _to_keep(resource)}
        claim = Claim(Reason.CLUSTER_UNREACHABLE, values)
        return _blocked(resource, seen, claim, "no broker answers")
    return _delete(resource, seen, stream)


def _delete(resource: Resource, seen: Seen, stream: ObservedStream | None) -> Decision:
    """Delete the stream when it is empty, or when a user confirmed the deletion."""
    claims = _claims(resource, seen)
    if stream is None:
        return Decision(claims, RemoveFinalizer())
    if seen.cluster.state is ClusterState.PAUSED:
        return Decision(claims, requeue_seconds=BLOCKED_SECONDS)
    if resource.confirmed == str(stream.stream_id) or seen.messages == 0:
        return Decision(claims, Delete(stream.stream_id))
    if seen.messages is UNKNOWN:
        return Decision(claims, ask=Ask.MESSAGES)
    confirm = _to_confirm(resource, stream.stream_id)
    values: dict[str, object] = {
        "stream": stream.name,
        "confirm": confirm,
        "keep": _to_keep(resource),
    }
    if seen.messages is None:
        claim = Claim(Reason.CONFIRMATION_REQUIRED, values)
        return _blocked(resource, seen, claim, f"to confirm it, type {confirm}")
    claim = Claim(Reason.NOT_EMPTY, {**values, "messages": seen.messages})
    return _blocked(resource, seen, claim, f"it is not empty; to confirm it, type {confirm}")


def _to_confirm(resource: Resource, stream_id: int) -> str:
    """Return the command that confirms deletion of the messages."""
    return f"kubectl annotate --overwrite {_named(resource)} {CONFIRM_DELETE}={stream_id}"


def _to_keep(resource: Resource) -> str:
    """Return the command that deletes the resource and keeps the stream."""
    patch = '{"spec":{"deletionPolicy":"Retain"}}'
    return f"kubectl patch {_named(resource)} --type=merge -p '{patch}'"


def _named(resource: Resource) -> str:
    return f"streams.{GROUP} {resource.name} -n {resource.namespace}"


def _keeps_stream(resource: Resource, seen: Seen) -> bool:
    """Return whether the resource is deleted and its stream stays."""
    spec = resource.spec
    return (
        spec is None
        or spec.deletion_policy is DeletionPolicy.RETAIN
        or spec.management_policy is ManagementPolicy.OBSERVE
        or seen.is_namespaced
        or not seen.cluster.is_allowed
        or seen.cluster.state in (ClusterState.MISSING, ClusterState.DELETING)
    )


def _blocked(resource: Resource, seen: Seen, claim: Claim, detail: str) -> Decision:
    claims = {**_claims(resource, seen), Type.DELETION_BLOCKED: claim}
    values = {"stream": resource.stream_name, "detail": detail}
    return Decision(
        claims,
        event=(EventReason.DELETION_BLOCKED, values),
        requeue_seconds=BLOCKED_SECONDS,
    )


def _claims(resource: Resource, seen: Seen) -> dict[StreamConditionType, Claim]:
    ready = Claim(Reason.DELETING, {"stream": resource.stream_name})
    unknown = unknown_of(resource, seen)
    if unknown is not None:
        return {Type.READY: ready, Type.SYNCED: unknown, Type.HEALTHY: unknown}
    assert seen.stream is not None
    return {Type.READY: ready, Type.SYNCED: Claim(Reason.EQUAL), Type.HEALTHY: health(seen.stream)}
