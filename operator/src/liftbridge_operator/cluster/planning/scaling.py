"""Scale by one broker: out with its pod first, and in without losing a record.

Out: the set grows by one; `membership` adds the learner and perhaps a vote.

In: the highest broker leaves, once it holds nothing. Steps: metadata leadership transferred,
cordon, replicas moved, seen empty twice, vote removed, directory marked as retired, claim marked as
kept, and only then a smaller set. A request withdrawn half-way ends the cordon; after the directory
is retired it completes and the broker returns as a new one.
"""

from dataclasses import replace

from liftbridge_operator.cluster.planning import gate, membership
from liftbridge_operator.cluster.planning.actions import (
    Action,
    Cordon,
    MarkClaim,
    Move,
    Reassign,
    RemoveMember,
    Retire,
    SetReplicas,
    TransferMetadataLeadership,
    Uncordon,
)
from liftbridge_operator.cluster.planning.decision import Memory, Outcome, Plan, Wait
from liftbridge_operator.cluster.planning.observation import BrokerSet, Member, Partition
from liftbridge_operator.cluster.planning.plan import to_bring_back
from liftbridge_operator.cluster.planning.roll import heir_of
from liftbridge_operator.cluster.planning.view import View, ordinal_of

SCALING_UP = "ScalingUp"
SCALING_DOWN = "ScalingDown"
MOVES_MAX = 100
EMPTY_APART_MS = 2_000
EMPTY_GAP_MAX_MS = 60_000


def grow(view: View) -> Outcome | None:
    """Grow the set by one when all present brokers have joined."""
    brokers = view.seen.brokers
    if brokers is None or not brokers.replicas or brokers.replicas >= view.desired.replicas:
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
    if brokers is None or not to_bring_back(view):  # gate FORGOTTEN
        return None
    return _one_more(view, brokers)


def _one_more(view: View, brokers: BrokerSet) -> Outcome:
    kept = view.claims.get(view.name(brokers.replicas))
    if kept is not None and kept.is_retired:  # gate UNMARK
        mark = MarkClaim(kept.name, kept.uid, kept.resource_version, is_retired=False)
        return Outcome(SCALING_UP, mark)
    larger = SetReplicas(brokers.uid, brokers.resource_version, brokers.replicas + 1)
    return Outcome(SCALING_UP, larger)


def victim_of(view: View) -> str:
    """Return the next broker to remove; empty for none."""
    brokers = view.seen.brokers
    if brokers is None or brokers.replicas <= 1:
        return ""
    name = view.name(brokers.replicas - 1)
    report = view.reports.get(name)
    if brokers.replicas > max(view.desired.replicas, 1) or (
        report is not None and report.is_retired
    ):
        return name
    return ""


def is_begun(view: View) -> bool:
    """Return whether the removal of a broker has started."""
    name = victim_of(view)
    report, known = view.reports.get(name), view.brokers.get(name)
    return (report is not None and report.is_retired) or (known is not None and known.is_draining)


def shrink(view: View, memory: Memory, plan: Plan) -> Outcome | None:
    """Return the next step of removing the highest broker."""
    name, brokers = victim_of(view), view.seen.brokers
    if not name or brokers is None:
        return None
    report = view.reports.get(name)
    if report is not None and report.is_retired:
        return _remove_pod(view, brokers, name)
    refusal = gate.may_disrupt(view, plan) or _cannot_move(view)
    if refusal is not None:
        return Outcome("", waits=(refusal,))
    if view.metadata is None or not view.metadata.leader:
        wait = Wait("MetadataUnknown", name, "the metadata group has a leader")
        return Outcome(SCALING_DOWN, waits=(wait,))
    return _move_off(view, memory, name)


def _move_off(view: View, memory: Memory, name: str) -> Outcome:
    """Move everything off the broker, then remove its vote."""
    action = _prepare(view, name)
    if action is not None:
        return Outcome(SCALING_DOWN, action)
    held = [
        partition
        for partition in view.partitions()
        if name in partition.replicas or name in partition.target
    ]
    if held:  # gate DRAINED
        waits = tuple(
            Wait("MovingPartitions", one.name, f"it has no replica on {name}") for one in held[:10]
        )
        return Outcome(SCALING_DOWN, waits=waits, memory=replace(memory, empty=("", 0)))
    return _empty(view, memory, name)


def _prepare(view: View, name: str) -> Action | None:
    """Transfer metadata leadership, cordon, and lower replication factors where needed."""
    assert view.metadata is not None
    if view.metadata.leader == name:
        heir = heir_of(view, name)
        if heir:
            return TransferMetadataLeadership(heir)
    for one in reversed(view.names):
        known = view.brokers.get(one)
        if known is None or ordinal_of(one) < max(view.desired.replicas, 1):
            continue
        if not known.is_cordoned or (one == name and not known.is_draining):
            return Cordon(one, is_draining=one == name)
    moves = [_smaller(one, name) for one in view.partitions(name) if not _places(view, one)]
    due = tuple(move for move in moves if move is not None)
    return Reassign(due[:MOVES_MAX]) if due else None


def _places(view: View, partition: Partition) -> list[str]:
    """Return staying brokers without a replica of a partition."""
    staying = view.names[: max(view.desired.replicas, 1)]
    return [name for name in staying if name not in partition.replicas]


def _cannot_move(view: View) -> Wait | None:
    """Return the wait for a stream whose fixed factor exceeds the number of staying brokers."""
    for partition in view.partitions():
        factor = len(partition.target or partition.replicas)
        is_free = partition.stream in view.desired.automatic_factor
        if not is_free and factor > max(view.desired.replicas, 1):  # gate FACTOR
            return Wait(
                "ScaleDownBlocked",
                partition.name,
                f"the replication factor of {partition.stream} is lowered",
                is_stalled=True,
            )
    return None


def _smaller(partition: Partition, victim: str) -> Move | None:
    """Return the move that drops the leaving replica, when all other replicas are in sync."""
    others = tuple(replica for replica in partition.replicas if replica != victim)
    if partition.target or not others or set(others) - set(partition.isr):  # gate SHRINK
        return None
    return Move(partition.stream, partition.number, others, partition.partition_epoch)


def _empty(view: View, memory: Memory, name: str) -> Outcome:
    """Confirm twice that the broker is empty, then remove its vote and retire its directory."""
    seen_by, first_ms = memory.empty
    is_old = seen_by != name or view.now - first_ms > EMPTY_GAP_MAX_MS
    if is_old:
        memory = replace(memory, empty=(name, view.now))
    if is_old or view.now - first_ms < EMPTY_APART_MS:  # gate EMPTY_TWICE
        wait = Wait("Verifying", name, "a second check finds no replicas")
        return Outcome(SCALING_DOWN, waits=(wait,), memory=memory)
    for member in view.members.get(name, ()):
        if member.is_voter:
            if not membership.can_remove(view, member):
                wait = Wait("MetadataQuorumAtRisk", name, "the other voters have caught up")
                return Outcome(SCALING_DOWN, waits=(wait,))
            return Outcome(SCALING_DOWN, RemoveMember(member.member))
    report, pod = view.reports.get(name), view.pods.get(name)
    if report is None or pod is None or report.start_id != pod.uid:
        wait = Wait("BrokersNotReady", name, "the broker runs and can retire its directory")
        return Outcome(SCALING_DOWN, waits=(wait,))
    return Outcome(SCALING_DOWN, Retire(Member(name, report.data_dir_id)))


def _remove_pod(view: View, brokers: BrokerSet, name: str) -> Outcome:
    """Mark the claim of a retired directory, then shrink the set."""
    claim = view.claims.get(name)
    if claim is not None and not claim.is_retired:  # gate MARK
        mark = MarkClaim(claim.name, claim.uid, claim.resource_version, is_retired=True)
        return Outcome(SCALING_DOWN, mark)
    smaller = SetReplicas(brokers.uid, brokers.resource_version, brokers.replicas - 1)
    return Outcome(SCALING_DOWN, smaller)


def revert(view: View) -> Outcome | None:
    """End cordons that are no longer desired."""
    for name in view.names:
        known = view.brokers.get(name)
        if known is None or not known.is_cordoned or name in view.drained:
            continue
        report = view.reports.get(name)
        if report is not None and report.is_retired:
            continue  # it is removed first, and returns as a new broker
        if ordinal_of(name) < view.desired.replicas:
            return Outcome("MovingPartitions", Uncordon(name))
    return None
