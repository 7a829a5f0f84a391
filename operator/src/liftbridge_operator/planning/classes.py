"""Claims of another storage class than is asked for: those without a volume are made again.

A class cannot be changed on a claim. One that waits for a volume holds nothing, so that a name that
was wrong, or a class that is gone, is mended by a resource that asks for another.
"""

from liftbridge_operator.planning import plan
from liftbridge_operator.planning.actions import DeleteClaim, DeletePod
from liftbridge_operator.planning.decision import Outcome
from liftbridge_operator.planning.view import View

REPLACING = "ReplacingBroker"


def replace_unbound(view: View) -> Outcome | None:
    """The next claim to be made again, and then the pod that waits for it."""
    for claim in plan.unbound(view):
        if not claim.is_terminating:
            gone = DeleteClaim(claim.name, claim.uid, claim.resource_version, is_alone=True)
            return Outcome(REPLACING, gone)
        pod = view.pods.get(view.name(claim.ordinal))
        if pod is not None and not pod.node and not pod.is_terminating:  # gate WAITS_FOR_CLAIM
            return Outcome(REPLACING, DeletePod(pod.name, pod.uid, pod.resource_version))
    return None
