"""Rolling restart of ready brokers, one at a time, each verified before the next.

Steps: gate read twice, consent of the broker, metadata and partition leaderships transferred,
budget at 0, restart written to the status, the observed pod deleted; then the new pod is ready,
holds the recorded offsets, has its leaderships back and has settled. Every step is decided again
from the observation, so the operator may stop between any two. It never forces a restart: a gate
that stays closed is a wait.
"""

from dataclasses import replace

from liftbridge_operator.cluster.planning import gate
from liftbridge_operator.cluster.planning.actions import (
    Action,
    CheckRestart,
    DeletePod,
    ElectPreferred,
    KeepPod,
    Record,
    TransferLeaders,
    TransferMetadataLeadership,
)
from liftbridge_operator.cluster.planning.decision import (
    Memory,
    Outcome,
    Plan,
    Token,
    TokenAnswer,
    Wait,
)
from liftbridge_operator.cluster.planning.observation import Disruption, Partition, Pod, Recorded
from liftbridge_operator.cluster.planning.plan import candidates
from liftbridge_operator.cluster.planning.stuck import ROLLING, template_for
from liftbridge_operator.cluster.planning.view import SETTLE_MS, View, ordinal_of

PARTITIONS_MAX = 1_000
TOKEN_LEFT_MS = 10_000
"""Minimum remaining validity of a token for its use."""


def start(view: View, memory: Memory, plan: Plan) -> Outcome | None:
    """Prepare the restart of the next candidate until it is recorded."""
    due = candidates(view)
    if not due:
        return None
    refusal = gate.may_disrupt(view, plan)
    if refusal is not None:
        return Outcome("", waits=(refusal,), memory=replace(memory, gate=None))
    first: tuple[Wait, ...] = ()
    for pod in due:
        against = gate.blockers(view, pod, plan)
        if not against:
            return _prepare(view, memory, plan, pod)
        first = first or against
    return Outcome(ROLLING, waits=first, memory=replace(memory, gate=None))


def _prepare(view: View, memory: Memory, plan: Plan, pod: Pod) -> Outcome:
    """Prepare a restart behind the open gate: second reading, consent, leaderships, record."""
    memory, is_confirmed = gate.read(view, memory, pod.name)
    if not is_confirmed:
        wait = Wait("GateReading", pod.name, "a second check finds the gate open")
        return Outcome(ROLLING, waits=(wait,), memory=memory)
    accepts = gate.accepts_unavailable(view, plan)
    token = memory.token
    if token is None or not _is_usable(view, token, pod):  # gate TOKEN
        ask = CheckRestart(pod.name, pod.uid, accepts, view.desired.needs_full_isr)
        waits = tuple(
            Wait("RiskUnknown", pod.name, one or "the broker consents") for one in memory.refusal
        )
        return Outcome(ROLLING, ask, waits=waits, memory=replace(memory, token=None))
    move = _move_away(view, pod)
    if move is not None:
        return Outcome(ROLLING, move, memory=memory)
    recorded = replace(
        view.seen.recorded,
        disruption=Disruption(
            pod.name, pod.uid, token.text, token.expires_ms, view.now, token.partitions
        ),
    )
    return Outcome(ROLLING, Record(view.seen.resource_version, recorded), memory=memory)


def _is_usable(view: View, token: Token, pod: Pod) -> bool:
    return (
        (token.broker, token.pod_uid) == (pod.name, pod.uid)
        and token.text != ""
        and token.expires_ms - view.now >= TOKEN_LEFT_MS
    )


def remember(memory: Memory, action: Action, answer: TokenAnswer | None) -> Memory:
    """Keep the answer to this pass's action for the next pass.

    Args:
        memory: Memory of the decision.
        action: The action.
        answer: Answer to `CheckRestart`; None for other actions, and when it failed.
    """
    if not isinstance(action, CheckRestart) or answer is None:
        return memory
    if not answer.text or answer.blockers:
        return replace(memory, token=None, refusal=answer.blockers)
    token = Token(action.broker, action.pod_uid, answer.text, answer.expires_ms, answer.partitions)
    return replace(memory, token=token, refusal=())


def _move_away(view: View, pod: Pod) -> Action | None:
    """Transfer leaderships that another broker can take, that of the metadata first."""
    if view.metadata is not None and view.metadata.leader == pod.name:
        heir = heir_of(view, pod.name)
        if heir:  # gate METADATA_LEADER
            return TransferMetadataLeadership(heir)
    if any(set(one.isr) - {pod.name} for one in view.leads(pod.name)):  # gate LEADERS
        return TransferLeaders(pod.name)
    return None


def heir_of(view: View, broker: str) -> str:
    """Return the next metadata leader: a caught-up voter; best staying, restarted, low ordinal."""
    near = [one for one in view.voters() if one.member.broker != broker and view.is_caught_up(one)]

    def key(name: str) -> tuple[bool, bool, int]:
        pod = view.pods.get(name)
        return name in view.leaving, pod is None or view.is_due(pod), ordinal_of(name)

    return min((voter.member.broker for voter in near), key=key, default="")


def finish(view: View, memory: Memory, plan: Plan) -> Outcome | None:
    """Continue the recorded restart."""
    recorded = view.seen.recorded
    under_way = recorded.disruption
    if under_way is None:
        return None
    if view.seen.brokers is not None and ordinal_of(under_way.broker) >= view.size:
        return _clear(view, memory)
    pod = view.pods.get(under_way.broker)
    if pod is None:
        return _wait("PodMissing", under_way.broker, "the StatefulSet has recreated the pod")
    if pod.uid == under_way.pod_uid:
        if pod.is_terminating:
            return _wait("PodStopping", pod.name, "the broker has stopped")
        return _leave(view, memory, plan, pod, under_way)
    return _come_back(view, memory, pod, under_way)


def _wait(what: str, name: str, ends_when: str) -> Outcome:
    return Outcome(ROLLING, waits=(Wait(what, name, ends_when),))


def _clear(view: View, memory: Memory) -> Outcome:
    """Clear the record: the restart is complete, or has to be prepared again."""
    recorded: Recorded = replace(view.seen.recorded, disruption=None)
    done = Record(view.seen.resource_version, recorded)
    return Outcome(ROLLING, done, memory=replace(memory, gate=None, token=None))


def _leave(view: View, memory: Memory, plan: Plan, pod: Pod, under_way: Disruption) -> Outcome:
    """Delete the pod, if all conditions of the recorded restart still hold."""
    is_due = view.is_due(pod)
    is_expired = under_way.expires_ms - view.now < TOKEN_LEFT_MS
    if (
        pod.kept == under_way.token  # gate KEPT
        or not is_due
        or is_expired  # gate EXPIRED
        or gate.may_disrupt(view, plan) is not None
        or gate.blockers(view, pod, plan)  # gate AGAIN
    ):
        return _give_up(view, memory, pod, under_way)
    memory, is_confirmed = gate.read(view, memory, pod.name)
    if not is_confirmed:
        wait = Wait("GateReading", pod.name, "a second check finds the gate open")
        return Outcome(ROLLING, waits=(wait,), memory=memory)
    move = _move_away(view, pod)
    if move is not None:
        return Outcome(ROLLING, move, memory=memory)
    gone = DeletePod(pod.name, pod.uid, pod.resource_version, template=template_for(view))
    return Outcome(ROLLING, gone, memory=memory)


def _give_up(view: View, memory: Memory, pod: Pod, under_way: Disruption) -> Outcome:
    """Cancel a recorded restart, once no deletion of the pod can succeed any more.

    The pod may have been deleted already: by a call of this process that this list of pods is too
    old to show, or by another process that was suspended before its call and continues later. Both
    carry a version of the pod from before the write to it, so either the write or the deletion is
    refused.
    """
    if pod.kept != under_way.token:  # gate KEEP
        keep = KeepPod(pod.name, pod.uid, pod.resource_version, under_way.token)
        return Outcome(ROLLING, keep, memory=replace(memory, gate=None, token=None))
    return _clear(view, memory)


def _come_back(view: View, memory: Memory, pod: Pod, under_way: Disruption) -> Outcome:
    """Wait until the new pod has caught up, then transfer its leaderships back."""
    if not pod.is_ready or pod.is_terminating:
        return _wait("BrokersNotReady", pod.name, "the pod is ready")
    missing = _missing(view, pod, under_way)
    if missing:
        waits = tuple(Wait("CatchingUp", pod.name, one) for one in missing[:10])
        return Outcome(ROLLING, waits=waits)
    due = to_restore(view, pod.name)
    if due:
        names = tuple((one.stream, one.number) for one in due[:PARTITIONS_MAX])
        return Outcome(ROLLING, ElectPreferred(names))
    if view.now - pod.changed_ms < SETTLE_MS:
        return _wait("Settling", pod.name, "the pod has been ready for a while")
    return _clear(view, memory)


def _missing(view: View, pod: Pod, under_way: Disruption) -> tuple[str, ...]:
    """Return waits for what a restarted broker still lacks."""
    if view.metadata is None:
        return ("the metadata group has a leader",)
    if not view.is_current(pod) or not view.is_serving(pod.name):
        return ("the broker is registered again",)
    apart = [name for name in view.names if view.lacks_routes(name)]
    if apart:  # gate ROUTES_BACK
        return (f"the NATS server beside {apart[0]} has routes to all other servers",)
    return _unproven(view, pod, under_way)


def _unproven(view: View, pod: Pod, under_way: Disruption) -> tuple[str, ...]:
    """Return the recorded offsets that a broker has not proved to hold."""
    verification = view.seen.verification
    if verification is None or verification.token != under_way.token:  # gate VERIFY
        return ("the broker reports its log ends",)
    if verification.is_other_directory:
        behind = [one.name for one in view.partitions(pod.name) if pod.name not in one.isr]
        return tuple(f"{name} is in sync" for name in behind)
    if not verification.is_complete:  # gate COMPLETE
        return verification.blockers or ("the broker has all recorded records",)
    return ()


def to_restore(view: View, broker: str = "") -> list[Partition]:
    """Return partitions whose first replica does not lead but could."""
    partitions = []
    for partition in view.partitions():
        first = partition.replicas[0] if partition.replicas else ""
        if not first or partition.leader == first or partition.target or first not in partition.isr:
            continue
        is_meant = not broker or first == broker
        if is_meant and view.is_serving(first) and first not in view.leaving:  # gate STAYS
            partitions.append(partition)
    return partitions
