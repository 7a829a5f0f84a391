"""Scale out by one broker: first its pod; `membership` adds the learner and perhaps a vote."""

from liftbridge_operator.planning import plan
from liftbridge_operator.planning.actions import MarkClaim, SetReplicas
from liftbridge_operator.planning.decision import Outcome, Wait
from liftbridge_operator.planning.observation import BrokerSet
from liftbridge_operator.planning.view import View

SCALING_UP = "ScalingUp"


def grow(view: View) -> Outcome | None:
    """Grow the set by one when all present brokers have joined."""
    brokers = view.seen.brokers
    if brokers is None or not brokers.replicas or brokers.replicas >= view.wanted.replicas:
        return None
    if brokers.revision == brokers.bad_revision:
        return None
    if view.metadata is None:
        return None  # a new broker needs a metadata leader to join
    for name in view.names:
        if not view.members.get(name) or name in view.absent():  # gate JOINED
            wait = Wait("BrokersNotReady", name, "the broker is ready and let in")
            return Outcome(SCALING_UP, waits=(wait,))
    return _one_more(view, brokers)


def bring_back(view: View) -> Outcome | None:
    """Start a broker beyond the set that has a vote or replicas: its removal was not complete."""
    brokers = view.seen.brokers
    if brokers is None or not plan.to_bring_back(view):  # gate FORGOTTEN
        return None
    return _one_more(view, brokers)


def _one_more(view: View, brokers: BrokerSet) -> Outcome:
    kept = view.claims.get(view.name(brokers.replicas))
    if kept is not None and kept.is_retired:  # gate UNMARK
        mark = MarkClaim(kept.name, kept.uid, kept.resource_version, is_retired=False)
        return Outcome(SCALING_UP, mark)
    larger = SetReplicas(brokers.uid, brokers.resource_version, brokers.replicas + 1)
    return Outcome(SCALING_UP, larger)
