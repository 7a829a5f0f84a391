"""Claims that ask for something else than the resource does: those without a volume are made again.

Nothing can be changed on a claim before it has a volume. One that waits for it holds nothing, so
that a class that was named wrong, or is gone, or a size that nobody has, is mended by a resource
that asks for another.
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
