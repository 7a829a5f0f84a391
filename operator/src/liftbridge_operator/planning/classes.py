"""Recreate claims that have no volume and differ from the specification.

A claim cannot be changed before it has a volume. A claim without one holds no data, so a wrong or
deleted storage class, or a size that no driver provides, is fixed by changing the resource.
"""

from liftbridge_operator.planning import plan
from liftbridge_operator.planning.actions import DeleteClaim, DeletePod
from liftbridge_operator.planning.decision import Outcome
from liftbridge_operator.planning.view import View

REPLACING = "ReplacingBroker"


def replace_unbound(view: View) -> Outcome | None:
    """Delete the next claim to recreate, and then the pod that waits for it."""
    for claim in plan.unbound(view):
        if not claim.is_terminating:
            gone = DeleteClaim(claim.name, claim.uid, claim.resource_version, is_alone=True)
            return Outcome(REPLACING, gone)
        pod = view.pods.get(view.name(claim.ordinal))
        if pod is not None and not pod.node and not pod.is_terminating:  # gate WAITS_FOR_CLAIM
            return Outcome(REPLACING, DeletePod(pod.name, pod.uid, pod.resource_version))
    return None
