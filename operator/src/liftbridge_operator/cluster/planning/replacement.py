"""Replace lost volumes, and claims that have no volume yet.

`replace_volume`: on request, when nothing needs the old volume. Steps: gate, proof that the process
has ended, vote removed, claim deleted, pod deleted; the set recreates both, and the broker joins as
a learner that copies everything. Done when the claim has another uid.

`replace_unbound`: a claim cannot be changed before it has a volume. A claim without one holds no
data, so a wrong or deleted storage class, or a size that no driver provides, is fixed by changing
the resource.
"""

from liftbridge_operator.cluster.planning import plan
from liftbridge_operator.cluster.planning.actions import (
    Action,
    DeleteClaim,
    DeletePod,
    RemoveMember,
)
from liftbridge_operator.cluster.planning.decision import Outcome, Wait
from liftbridge_operator.cluster.planning.membership import can_remove
from liftbridge_operator.cluster.planning.observation import Pod, Replacement
from liftbridge_operator.cluster.planning.view import View

REPLACING = "ReplacingBroker"


def replace_volume(view: View) -> Outcome | None:
    """Return the next step for the first broker whose volume is to be replaced."""
    waiting = plan.to_replace(view)
    return _step(view, waiting[0]) if waiting else None


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


def _step(view: View, request: Replacement) -> Outcome:
    name = request.broker
    pod, claim = view.pods.get(name), view.claims.get(name)
    against = _against(view, request, pod)
    if against is not None:
        return Outcome(REPLACING, waits=(against,))
    for member in view.members.get(name, ()):
        report = view.reports.get(name)
        is_new = (
            report is not None and claim is None and report.data_dir_id == member.member.data_dir_id
        )
        if member.is_voter and not is_new:
            if not can_remove(view, member):
                wait = Wait("MetadataQuorumAtRisk", name, "the other voters have caught up")
                return Outcome(REPLACING, waits=(wait,))
            return Outcome(REPLACING, RemoveMember(member.member))
    action: Action | None = None
    if claim is not None and not claim.is_terminating:
        action = DeleteClaim(claim.name, claim.uid, claim.resource_version)
    elif pod is not None and (not pod.is_terminating or _is_gone(view, pod)):
        action = DeletePod(pod.name, pod.uid, pod.resource_version, is_forced=_is_gone(view, pod))
    if action is None:
        wait = Wait("VolumeTerminating", name, "the old volume is gone")
        return Outcome(REPLACING, waits=(wait,))
    return Outcome(REPLACING, action)


def _is_gone(view: View, pod: Pod) -> bool:
    """Return whether the node of a pod is proven to run nothing any more."""
    if view.seen.nodes is None or not pod.node:
        return False
    node = view.nodes.get(pod.node)
    return node is None or node.is_gone


def _against(view: View, request: Replacement, pod: Pod | None) -> Wait | None:
    """Return the wait for replicas elsewhere, for voters, or for proof that the process ended."""
    name = request.broker
    if view.metadata is None or not view.metadata.leader:
        return Wait("MetadataUnknown", name, "the metadata group has a leader")
    for one in view.partitions(name):
        others = set(one.replicas) - {name}
        if not others or others - set(one.isr):  # gate ELSEWHERE
            return Wait("IsrNotFull", one.name, f"its replicas besides {name} are in sync")
    if view.is_voter(name) and not view.keeps_majority_without(name):  # gate VOTERS_ELSEWHERE
        return Wait("MetadataQuorumAtRisk", name, "the other voters are a majority")
    return _might_run(view, request, pod)


def _might_run(view: View, request: Replacement, pod: Pod | None) -> Wait | None:
    """Return the wait for proof that the old process has ended."""
    name = request.broker
    if pod is None or request.is_forced or _is_gone(view, pod):
        return None
    # A pod that was never scheduled runs nothing; its predecessor was proven to have ended.
    if pod.node and (pod.is_running or view.is_node_lost(pod)):  # gate PROOF
        return Wait("ProofMissing", name, "its node is deleted or out of service, or it is forced")
    if view.is_serving(name):  # gate FENCED
        return Wait("BrokerAlive", name, "the metadata group has fenced it")
    return None
