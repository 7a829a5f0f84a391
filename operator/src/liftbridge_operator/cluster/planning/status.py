"""Compute the status from the observation, never from the former status."""

from collections.abc import Sequence
from dataclasses import replace

from liftbridge_operator.cluster.planning.decision import Decision, Memory, Plan, Status, Wait
from liftbridge_operator.cluster.planning.view import View

WAITS_MAX = 20


def carried(waits: Sequence[Wait], memory: Memory, now: int) -> tuple[Wait, ...]:
    """Return waits, each with the time since which it has been seen without a break."""
    known = {(wait.what, wait.object): min(wait.since_ms, now) for wait in memory.waits}
    unique = {(wait.what, wait.object): wait for wait in waits}
    return tuple(
        Wait(one.what, one.object, one.ends_when, known.get(key, now), one.is_stalled)
        for key, one in list(unique.items())[:WAITS_MAX]
    )


def with_wait(decision: Decision, wait: Wait, former: Memory, now: int) -> Decision:
    """Add a wait to a decision.

    Args:
        decision: The decision.
        wait: The wait.
        former: Memory of the pass before, with the start of each wait.
        now: Time of day, in milliseconds.
    """
    kept = carried([*decision.status.waits, wait], former, now)
    return replace(
        decision,
        status=replace(decision.status, waits=kept),
        memory=replace(decision.memory, waits=kept),
    )


def make(
    view: View, plan: Plan, *, waits: tuple[Wait, ...], progressing: str, is_acting: bool
) -> Status:
    """Compute the inputs of all conditions."""
    partitions = list(view.partitions())
    offline = sum(1 for partition in partitions if not partition.leader)
    under = sum(1 for partition in partitions if set(partition.replicas) - set(partition.isr))
    below = sum(1 for one in partitions if len(one.isr) < min(one.min_isr, len(one.replicas)))
    ready = [name for name in view.names if _is_ready(view, name)]
    degraded = _degraded(view, under, below)
    stalled = next((wait.what for wait in waits if wait.is_stalled), "")
    has_leader = view.metadata is not None and view.metadata.leader != ""
    is_ready = (
        has_leader
        and not (waits or plan.steps or is_acting or offline or under)
        and len(ready) == view.size == view.desired.replicas > 0
        and all(map(view.is_serving, view.names))
        and not {*view.pods, *view.brokers} - set(view.names)
        and not view.desired.is_suspended
        and not view.desired.config_errors
    )
    against = [*view.absent(), *(one.name for one in partitions if not view.is_full(one))]
    return Status(
        generation=view.desired.generation,
        replicas=view.size,
        ready_replicas=len(ready),
        is_ready=is_ready,
        is_available=None if view.metadata is None else bool(ready and has_leader and not offline),
        progressing="" if stalled else progressing,
        degraded=degraded,
        stalled=stalled,
        offline=offline,
        under_replicated=under,
        below_min_isr=below,
        disruption_blockers=tuple(against[:10]) if has_leader else ("MetadataUnknown",),
        waits=waits,
        plan=plan,
    )


def _is_ready(view: View, name: str) -> bool:
    pod = view.pods.get(name)
    return pod is not None and pod.is_ready and not pod.is_terminating


def _degraded(view: View, under: int, below: int) -> tuple[str, ...]:
    reasons = []
    if below:
        reasons.append("BelowMinISR")
    if under:
        reasons.append("UnderReplicated")
    if view.metadata and not all(view.is_serving(name) for name in view.names):
        reasons.append("BrokerDown")
    if any(report.is_disk_full for report in view.reports.values()):
        reasons.append("VolumeFull")
    return tuple(reasons)
