"""Pods that do not serve: replace due ones first, and revert a bad template.

A pod whose container does not run can be replaced without consent of brokers, even without a
quorum; so a cluster recovers from a bad change. Pods are still replaced one at a time.
"""

from liftbridge_operator.cluster.planning import gate
from liftbridge_operator.cluster.planning.actions import DeletePod, SetTemplate, TransferLeaders
from liftbridge_operator.cluster.planning.decision import Memory, Outcome, Plan, Wait
from liftbridge_operator.cluster.planning.observation import BrokerSet, Pod, StuckCause
from liftbridge_operator.cluster.planning.view import SETTLE_MS, UNREADY_MS, View

ROLLING = "RollingUpdate"
MISSING = "PodMissing"
NOT_READY = "BrokersNotReady"
MISSING_MS = 30_000
"""Time in which a set creates a missing pod, unless its creation fails."""


def template_for(view: View) -> SetTemplate | None:
    """Return the write of the desired template; None when the set has it."""
    brokers = view.seen.brokers
    if brokers is None or brokers.revision == view.revision:
        return None
    return SetTemplate(
        brokers.uid,
        brokers.resource_version,
        view.revision,
        brokers.good_revision,
        brokers.bad_revision,
    )


def take_back(view: View) -> Outcome | None:
    """Revert to the last good template when a pod is stuck with one that never worked."""
    brokers = view.seen.brokers
    if brokers is None or brokers.revision == brokers.good_revision:
        return None
    for pod in view.pods.values():
        if pod.revision == brokers.revision and _is_stuck_by_itself(view, pod):
            return _bad(view, brokers, pod)
    return None


def _bad(view: View, brokers: BrokerSet, pod: Pod) -> Outcome | None:
    if not brokers.good_revision:
        if brokers.revision != view.revision:
            return None  # another template is desired now: the pod is replaced
        return Outcome("", waits=(bad_revision(pod.name),))
    written = SetTemplate(
        brokers.uid,
        brokers.resource_version,
        brokers.good_revision,
        brokers.good_revision,
        brokers.revision,
    )
    return Outcome(ROLLING, written)


def bad_revision(name: str) -> Wait:
    """Return the wait for a specification with which pods start."""
    return Wait("BadRevision", name, "the specification is corrected", is_stalled=True)


def missing(view: View, memory: Memory, name: str) -> Wait:
    """Return the wait for a missing pod; it needs a user if the set does not create it soon.

    Only events of the set report the cause: a quota, an admission rule, a service account.
    """
    waits = [wait for wait in memory.waits if wait.object == name]
    is_long = any(
        (one.what == MISSING and one.is_stalled)
        # A restarted process knows since when it waits, but not that the wait is stalled.
        or (one.what in (MISSING, NOT_READY) and view.now - one.since_ms >= MISSING_MS)
        for one in waits
    )
    if not is_long:
        return Wait(NOT_READY, name, "the pod is ready")
    unknown = f"`kubectl describe statefulset {view.desired.name}` shows the cause"
    why = dict(view.seen.failed_creates).get(name, unknown)
    return Wait(MISSING, name, why, is_stalled=True)


def _is_stuck_by_itself(view: View, pod: Pod) -> bool:
    return (
        view.is_stuck(pod)
        and not pod.is_terminating
        and not view.is_node_lost(pod)  # gate NODE_LOST
        and not _lacks_nodes(view, pod)  # gate CORDONED_AWAY
    )


def _lacks_nodes(view: View, pod: Pod) -> bool:
    """Return whether a pod may be unschedulable because nodes are cordoned or not ready."""
    return pod.stuck is StuckCause.UNSCHEDULABLE and any(
        node.is_unschedulable or not node.is_ready for node in view.nodes.values()
    )


def replace_first(view: View, plan: Plan) -> Outcome | None:
    """Replace a pod that is due and is stuck, or has not been ready for long."""
    old = [
        pod
        for name in view.names
        if (pod := view.pods.get(name)) is not None
        and view.is_due(pod)
        and not pod.is_terminating
        and not view.is_node_lost(pod)
        and (view.is_stuck(pod) or _is_unready(view, pod))
    ]
    if not old:
        return None
    refusal = gate.may_disrupt(view, plan)
    if refusal is not None:
        return Outcome("", waits=(refusal,))
    for name, pod in view.pods.items():
        if pod.is_terminating or view.now - pod.created_ms < SETTLE_MS:  # gate ONE_STUCK
            wait = Wait("AnotherDisruption", name, "the pod has gone, or has settled")
            return Outcome(ROLLING, waits=(wait,))
    against = []
    for pod in sorted(old, key=lambda one: (one.is_running, -one.ordinal)):
        if pod.is_running and _has_heirs(view, pod):
            return Outcome(ROLLING, TransferLeaders(pod.name))
        needed = _needed(view, pod, plan) if pod.is_running else None
        if needed is None:
            return Outcome(
                ROLLING,
                DeletePod(pod.name, pod.uid, pod.resource_version, template=template_for(view)),
            )
        against.append(needed)
    return Outcome(ROLLING, waits=tuple(against[: gate.WAITS_MAX]))


def _is_unready(view: View, pod: Pod) -> bool:
    return not pod.is_ready and view.now - pod.changed_ms >= UNREADY_MS


def _has_heirs(view: View, pod: Pod) -> bool:
    """Return whether a running, unready pod leads partitions that other replicas could lead."""
    return any(set(one.isr) - {pod.name} for one in view.leads(pod.name))  # gate UNREADY_LEADERS


def _needed(view: View, pod: Pod, plan: Plan) -> Wait | None:
    """Return the wait if a majority, records or availability depend on a running, unready pod."""
    if _is_needed_voter(view, pod):  # gate NEEDED_VOTER
        return Wait("MetadataQuorumAtRisk", pod.name, "the other voters are a majority")
    for one in view.partitions(pod.name):
        others = set(one.replicas) - {pod.name}
        if pod.name in one.isr and others - set(one.isr):  # gate NEEDED
            return Wait("IsrNotFull", one.name, f"its replicas besides {pod.name} are in sync")
        is_alone = one.leader == pod.name and not others
        if is_alone and not gate.accepts_unavailable(view, plan):  # gate NEEDED_ALONE
            return Wait("Unreplicated", one.name, "its unavailability is accepted")
    return None


def _is_needed_voter(view: View, pod: Pod) -> bool:
    """Return whether the metadata group, of three or more voters, needs this pod's vote."""
    is_alive = any(member.is_voter and member.is_alive for member in view.members.get(pod.name, ()))
    return is_alive and len(view.voters()) > 2 and not view.keeps_majority_without(pod.name)
