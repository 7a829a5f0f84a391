"""Gate of broker restarts: its conditions, and the two readings of them.

In order: no other broker is absent; process, pod and metadata agree on the broker's identity; every
other replica of its partitions is in sync; the metadata group keeps a majority of all voters;
connections and disks are healthy. The broker adds its own consent, a token. No condition times out.
"""

from dataclasses import replace
from typing import Final

from liftbridge_operator.cluster.planning.decision import GateReading, Memory, Plan, Wait
from liftbridge_operator.cluster.planning.observation import Partition, Pod
from liftbridge_operator.cluster.planning.view import View

READINGS_APART_MS: Final = 2_000
READINGS_GAP_MAX_MS: Final = 60_000
WAITS_MAX: Final = 20


def may_disrupt(view: View, plan: Plan) -> Wait | None:
    """Return the wait for a maintenance window or an approval, if any."""
    desired = view.desired
    if not desired.is_window_open:  # gate WINDOW
        return Wait("MaintenanceWindowClosed", desired.name, "the next window opens")
    if desired.needs_approval and desired.approved_hash != plan.hash:  # gate APPROVAL
        return Wait(
            "ApprovalRequired", desired.name, f"plan {plan.hash} is approved", is_stalled=True
        )
    return None


def accepts_unavailable(view: View, plan: Plan) -> bool:
    """Return whether the user accepted unavailable partitions or metadata during restarts."""
    desired = view.desired
    return desired.allows_unavailable or (plan.hash != "" and desired.approved_hash == plan.hash)


def blockers(view: View, pod: Pod, plan: Plan) -> tuple[Wait, ...]:
    """Return the blockers of the restart of a ready broker."""
    if view.metadata is None or not view.metadata.leader:  # gate QUORUM
        return (Wait("MetadataUnknown", view.desired.name, "the metadata group has a leader"),)
    waits = _of_pods(view, pod)
    waits += _of_partitions(view, pod.name, accepts=accepts_unavailable(view, plan))
    waits += _of_group(view, pod.name, accepts=accepts_unavailable(view, plan))
    return tuple(waits[:WAITS_MAX])


def _of_pods(view: View, pod: Pod) -> list[Wait]:
    """Return blockers by absent brokers, and by the identity and state of the broker itself."""
    waits = []
    if not view.is_current(pod):  # gate IDENTITY
        waits.append(Wait("AmbiguousIdentity", pod.name, "pod and broker are the same process"))
    report = view.reports.get(pod.name)
    if report is not None and report.is_disk_full:  # gate DISK
        waits.append(Wait("VolumeFull", pod.name, "its volume has free space"))
    if view.is_on_leaving_node(pod):  # gate CORDONED
        waits.append(Wait("NodeCordoned", pod.name, "its node accepts pods again"))
    others = [one for one in view.names if one != pod.name and not _may_stay_away(view, one)]
    return waits + [against for name in others for against in _of_other(view, name)]


def _of_other(view: View, name: str) -> list[Wait]:
    """Return problems of another broker, which has to stay available."""
    report, found = view.reports.get(name), []
    if name in view.absent():  # gate OTHERS
        found.append(Wait("AnotherDisruption", name, "the pod is ready and has settled"))
    elif not view.is_serving(name):  # gate ALIVE
        found.append(Wait("BrokerDown", name, "the broker is registered again"))
    elif report is None or not report.is_nats_connected:  # gate NATS
        found.append(Wait("NatsUnreachable", name, "the broker reaches NATS"))
    elif view.lacks_routes(name):  # gate ROUTES
        found.append(Wait("RoutesMissing", name, "its NATS server has routes to all other servers"))
    elif report.is_disk_full:  # gate DISKS
        found.append(Wait("VolumeFull", name, "its volume has free space"))
    return found


def _may_stay_away(view: View, broker: str) -> bool:
    """Return whether the weaker gate that the user chose lets a stopped broker stay absent."""
    if view.desired.needs_full_isr:
        return False
    pod = view.pods.get(broker)
    return not view.is_serving(broker) and (pod is None or not pod.is_running)


def _of_partitions(view: View, broker: str, *, accepts: bool) -> list[Wait]:
    """Return partitions that would lack more replicas than that of this broker."""
    waits = []
    for one in view.partitions(broker):
        others = set(one.replicas) - {broker}
        if one.target:  # gate MOVING
            waits.append(Wait("MovingPartitions", one.name, "its reassignment is done"))
        elif not others:
            if not accepts:  # gate UNREPLICATED
                waits.append(Wait("Unreplicated", one.name, "its unavailability is accepted"))
        elif _is_short(view, one, others):  # gate ISR
            behind = ", ".join(sorted(others - set(one.isr)))
            waits.append(Wait("IsrNotFull", one.name, f"{behind} is in sync"))
    return waits


def _is_short(view: View, partition: Partition, others: set[str]) -> bool:
    staying = others & set(partition.isr)
    if view.desired.needs_full_isr:
        return staying != others
    return staying != others and len(staying) < min(partition.min_isr, len(partition.replicas))


def _of_group(view: View, broker: str, *, accepts: bool) -> list[Wait]:
    """Return the blocker if the metadata group loses its majority without this broker."""
    if not view.is_voter(broker) or view.keeps_majority_without(broker):  # gate VOTERS
        return []
    if len(view.voters()) <= 2 and accepts:
        return []
    return [
        Wait("MetadataQuorumAtRisk", broker, "the other voters are a majority that has caught up")
    ]


def epoch_of(view: View, broker: str) -> str:
    """Return the term and partition epochs that must not change between two readings."""
    if view.metadata is None:
        return ""
    parts = [f"{view.metadata.term}"]
    parts += [f"{one.name}:{one.partition_epoch}" for one in view.partitions(broker)]
    return ",".join(parts)


def read(view: View, memory: Memory, broker: str) -> tuple[Memory, bool]:
    """Note an open gate; return whether two readings, apart in time, agree."""
    epoch, now, before = epoch_of(view, broker), view.now, memory.gate
    if (
        before is None
        or (before.broker, before.epoch) != (broker, epoch)
        or now - before.last_ms > READINGS_GAP_MAX_MS
    ):
        return replace(memory, gate=GateReading(broker, epoch, now, now)), False  # gate FIRST
    is_confirmed = now - before.first_ms >= READINGS_APART_MS  # gate TWICE
    return replace(memory, gate=replace(before, last_ms=now)), is_confirmed
