"""No pods for a while, data kept; later as many as there were, never fewer."""

from liftbridge_operator.planning.actions import SetReplicas
from liftbridge_operator.planning.bootstrap import kept_count
from liftbridge_operator.planning.decision import Outcome, Wait
from liftbridge_operator.planning.view import View


def suspend_or_resume(view: View) -> Outcome | None:
    """Take the set to no pods, or back to all that have a volume in use."""
    brokers = view.seen.brokers
    if brokers is None:
        return None
    if view.wanted.is_suspended:
        if brokers.replicas:
            none = SetReplicas(brokers.uid, brokers.resource_version, 0)
            return Outcome("Suspending", none)
        return Outcome("", waits=(Wait("Suspended", view.wanted.name, "suspend is taken back"),))
    if brokers.replicas or not view.wanted.replicas:
        return None
    # Those with volumes in use first; what the specification wants besides comes by scaling.
    count = kept_count(view) or view.wanted.replicas  # gate RESUME
    return Outcome("Resuming", SetReplicas(brokers.uid, brokers.resource_version, count))
