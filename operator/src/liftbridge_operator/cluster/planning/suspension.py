"""Suspend and resume: remove all pods and keep the data; later restore as many as before.

The number of pods is recorded, which distinguishes a set that another party scaled down from a
suspended one: a majority may be missing, so that no broker can answer.
"""

from liftbridge_operator.cluster.planning.actions import Action, CreateSet, SetReplicas
from liftbridge_operator.cluster.planning.bootstrap import kept_count
from liftbridge_operator.cluster.planning.decision import Outcome, Wait
from liftbridge_operator.cluster.planning.observation import Observation
from liftbridge_operator.cluster.planning.view import View


def size_after(seen: Observation, action: Action | None) -> int | None:
    """Return the number of pods to record after an action.

    Only an action that removes pods lowers it: a set that is being restored lacks some of them.
    """
    brokers, size = seen.brokers, seen.recorded.size
    has = brokers.replicas if brokers is not None and not brokers.is_terminating else None
    if isinstance(action, SetReplicas | CreateSet):
        if not action.replicas or (has is not None and action.replicas < has):
            return action.replicas
        has = action.replicas
    return size if has is None else max(has, size or 0)


def restore(view: View) -> Outcome | None:
    """Restore pods of a set that another party scaled down, one at a time.

    They are brokers that were not emptied; a set without pods needs all of them at once.
    """
    brokers, size = view.seen.brokers, view.seen.recorded.size or 0
    if brokers is None or brokers.is_terminating or view.desired.is_suspended:
        return None
    if brokers.replicas >= size:  # gate RESTORE
        return None
    count = brokers.replicas + 1 if brokers.replicas else max(size, kept_count(view))
    return Outcome("Reconciling", SetReplicas(brokers.uid, brokers.resource_version, count))


def suspend_or_resume(view: View) -> Outcome | None:
    """Scale the set to 0, or back to all brokers that have a volume in use."""
    brokers = view.seen.brokers
    if brokers is None:
        return None
    if view.desired.is_suspended:
        if brokers.replicas:
            none = SetReplicas(brokers.uid, brokers.resource_version, 0)
            return Outcome("Suspending", none)
        return Outcome("", waits=(Wait("Suspended", view.desired.name, "spec.suspend is false"),))
    if brokers.replicas or not view.desired.replicas:
        return None
    # Brokers with volumes in use come first; a scale-out adds the other specified ones.
    count = kept_count(view) or view.desired.replicas  # gate RESUME
    return Outcome("Resuming", SetReplicas(brokers.uid, brokers.resource_version, count))
