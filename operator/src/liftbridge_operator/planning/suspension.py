"""No pods for a while, data kept; later as many as there were, never fewer.

How many pods the set is to have is recorded, so that a set that somebody else made smaller is known
from one that is suspended: a majority may be away, and nobody there to ask.
"""

from liftbridge_operator.planning.actions import Action, CreateSet, SetReplicas
from liftbridge_operator.planning.bootstrap import kept_count
from liftbridge_operator.planning.decision import Outcome, Wait
from liftbridge_operator.planning.observation import Observation
from liftbridge_operator.planning.view import View


def size_after(seen: Observation, action: Action | None) -> int | None:
    """Pods that the operator gave the set, once an action is done.

    Only who takes pods away makes it less: a set that is on its way back has not all of them yet.
    """
    brokers, size = seen.brokers, seen.recorded.size
    has = brokers.replicas if brokers is not None and not brokers.is_terminating else None
    if isinstance(action, SetReplicas | CreateSet):
        if not action.replicas or (has is not None and action.replicas < has):
            return action.replicas
        has = action.replicas
    return size if has is None else max(has, size or 0)


def restore(view: View) -> Outcome | None:
    """Pods that somebody took away with a smaller set come back, one after the other.

    They are brokers that nobody has emptied; from none all of them are needed at once.
    """
    brokers, size = view.seen.brokers, view.seen.recorded.size or 0
    if brokers is None or brokers.is_terminating or view.wanted.is_suspended:
        return None
    if brokers.replicas >= size:  # gate RESTORE
        return None
    count = brokers.replicas + 1 if brokers.replicas else max(size, kept_count(view))
    return Outcome("Reconciling", SetReplicas(brokers.uid, brokers.resource_version, count))


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
