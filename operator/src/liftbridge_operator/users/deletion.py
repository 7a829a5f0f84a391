"""Deletion of a resource: the identity ends first, then the finalizer is removed.

With its cluster the identity is gone. While brokers do not answer, the deletion waits, and says how
to give that up.
"""

from dataclasses import replace
from typing import Final

from liftbridge_operator.model.base import GROUP
from liftbridge_operator.model.catalogue.claim import Claim
from liftbridge_operator.model.catalogue.names import EventReason, Reason, UserConditionType
from liftbridge_operator.streams.observation import ClusterState
from liftbridge_operator.users.actions import Action, RemoveFinalizer
from liftbridge_operator.users.decide import (
    REFUSED_SECONDS,
    Decision,
    claims_of,
    refusal_of,
    withdrawal,
)
from liftbridge_operator.users.marks import CONFIRM_DELETE
from liftbridge_operator.users.observation import Resource, Seen

BLOCKED_SECONDS: Final = 10.0
"""Time after which a blocked deletion is reconciled again."""

Type = UserConditionType


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
    values = {
        "principal": resource.principal,
        "detail": before.detail,
        "leave": _to_leave(resource),
    }
    blocked = _blocked(resource, seen, Claim(Reason.REFUSED, values), before.detail)
    action = decision.action if before.is_due else None
    return replace(blocked, action=action, requeue_seconds=REFUSED_SECONDS)


def _decided(resource: Resource, seen: Seen) -> Decision:
    """Decide without regard to earlier refusals."""
    claims = claims_of(seen, Claim(Reason.DELETING, {"principal": resource.principal}))
    if not resource.has_finalizer:
        return Decision(claims)
    if seen.cluster.state in (ClusterState.MISSING, ClusterState.DELETING):
        return Decision(claims, RemoveFinalizer())
    action = withdrawal(resource, seen)
    if seen.cluster.is_heard and action is None:
        event = (EventReason.USER_REMOVED, {"principal": resource.principal})
        return Decision(claims, RemoveFinalizer(), event)
    if resource.confirmed == resource.uid:
        event = (EventReason.USER_ABANDONED, {"principal": resource.principal})
        return Decision(claims, RemoveFinalizer(), event)
    return _withdraw(resource, seen, action)


def _withdraw(resource: Resource, seen: Seen, action: Action | None) -> Decision:
    """Take the identity away, once the cluster can be changed."""
    claims = claims_of(seen, Claim(Reason.DELETING, {"principal": resource.principal}))
    if seen.cluster.state is ClusterState.PAUSED:
        return Decision(claims, requeue_seconds=BLOCKED_SECONDS)
    if not seen.cluster.is_heard:
        values = {"cluster": seen.cluster.name, "leave": _to_leave(resource)}
        claim = Claim(Reason.CLUSTER_UNREACHABLE, values)
        return _blocked(resource, seen, claim, "no broker answers")
    return Decision(claims, action)


def _to_leave(resource: Resource) -> str:
    """Return the command that releases the resource and leaves what is at the brokers."""
    named = f"liftbridgeusers.{GROUP} {resource.name} -n {resource.namespace}"
    return f"kubectl annotate --overwrite {named} {CONFIRM_DELETE}={resource.uid}"


def _blocked(resource: Resource, seen: Seen, claim: Claim, detail: str) -> Decision:
    ready = Claim(Reason.DELETING, {"principal": resource.principal})
    values = {"principal": resource.principal, "detail": detail}
    return Decision(
        {**claims_of(seen, ready), Type.DELETION_BLOCKED: claim},
        event=(EventReason.DELETION_BLOCKED, values),
        requeue_seconds=BLOCKED_SECONDS,
    )
