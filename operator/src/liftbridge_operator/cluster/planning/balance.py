"""Background work: the disruption budget, preferred leaders, even load."""

from liftbridge_operator.cluster.planning.actions import (
    Cordon,
    ElectPreferred,
    Move,
    Reassign,
    SetBudget,
    SetTemplate,
    TransferLeaders,
    TransferMetadataLeadership,
)
from liftbridge_operator.cluster.planning.decision import Outcome, Plan, Wait
from liftbridge_operator.cluster.planning.roll import PARTITIONS_MAX, heir_of, to_restore
from liftbridge_operator.cluster.planning.view import View, ordinal_of


def budget_for(view: View, plan: Plan) -> int | None:
    """Return the allowed evictions: 1 while the cluster is healthy and no change is under way."""
    if view.desired.replicas <= 1 and view.size <= 1:
        return None
    is_quiet = (
        view.seen.recorded.disruption is None
        and not plan.is_disruptive  # gate BUDGET
        and view.metadata is not None
        and not view.absent()
        and all(view.is_serving(name) for name in view.names)
        and all(view.is_full(partition) for partition in view.partitions())
    )
    return 1 if is_quiet else 0


def close_budget(view: View, plan: Plan) -> Outcome | None:
    """Set the budget to 0 in the pass that observes reduced redundancy or a disruptive change."""
    due = budget_for(view, plan)
    if due not in (1, view.seen.budget) and view.seen.brokers is not None:
        return Outcome("", SetBudget(due))
    return None


def open_budget(view: View, plan: Plan) -> Outcome | None:
    """Restore the budget when the cluster is healthy."""
    due = budget_for(view, plan)
    if view.seen.budget != due and view.seen.brokers is not None:
        return Outcome("", SetBudget(due))
    return None


def mark_good(view: View) -> Outcome | None:
    """Mark a template as good, once a broker with it has been ready for a while."""
    brokers = view.seen.brokers
    if brokers is None or brokers.good_revision == brokers.revision:
        return None
    for name, pod in view.pods.items():
        if pod.revision == brokers.revision and pod.is_ready and name not in view.absent():
            good = SetTemplate(
                brokers.uid,
                brokers.resource_version,
                brokers.revision,
                brokers.revision,
                brokers.bad_revision if brokers.bad_revision != brokers.revision else "",
            )
            return Outcome("", good)
    return None


def cordon(view: View) -> Outcome | None:
    """Cordon drained brokers, without moving their replicas."""
    for name in view.names:
        known, report = view.brokers.get(name), view.reports.get(name)
        if known is None or name not in view.drained:
            continue
        is_going = ordinal_of(name) >= max(
            view.desired.replicas, 1
        )  # scale-in empties and removes it
        if is_going or (report is not None and report.is_retired):
            continue
        if not known.is_cordoned or known.is_draining:
            return Outcome("", Cordon(name, is_draining=False))
    return None


def leave_ahead(view: View) -> Outcome | None:
    """Transfer leaderships away from brokers that are drained, or whose node is cordoned.

    Only brokers that stay take over, so leaderships do not move between two leaving brokers.
    """
    for name, pod in view.pods.items():
        if name not in view.leaving or pod.is_terminating:
            continue
        for partition in view.leads(name):
            heirs = [heir for heir in partition.isr if _stays(view, heir)]
            if heirs:
                to = "" if view.leaving == {name} else heirs[0]  # gate STAYS_TOO
                return Outcome("", TransferLeaders(name, to))
        if view.metadata is not None and view.metadata.leader == name:
            heir = heir_of(view, name)
            if heir and _stays(view, heir):
                return Outcome("", TransferMetadataLeadership(heir))
    return None


def _stays(view: View, broker: str) -> bool:
    """Return whether a broker can lead and is not about to leave."""
    return broker in view.pods and broker not in view.leaving and view.is_serving(broker)


def restore_leaders(view: View) -> Outcome | None:
    """Transfer leaderships back to first replicas."""
    due = to_restore(view)
    if not due:
        return None
    names = tuple((one.stream, one.number) for one in due[:PARTITIONS_MAX])
    return Outcome("", ElectPreferred(names))


def even_out(view: View) -> Outcome | None:
    """Move one replica from the fullest broker to the emptiest, if their counts differ by 2."""
    move = _next_move(view)
    if move is None or view.absent() or not all(map(view.is_full, view.partitions())):
        return None
    return Outcome("MovingPartitions", Reassign((move,)))


def uneven(view: View) -> list[Wait]:
    """Return the wait for even load, which also covers new brokers before their first move."""
    move = _next_move(view)
    if move is None:
        return []
    return [Wait("MovingPartitions", f"{move.stream}/{move.number}", "brokers hold equally many")]


def _next_move(view: View) -> Move | None:
    """Return the move that makes the load more even."""
    if not view.desired.is_rebalanced or view.metadata is None:
        return None
    counts = {
        name: sum(1 for _ in view.partitions(name))
        for name in view.names
        if view.is_serving(name) and not view.brokers[name].is_cordoned
    }
    if not counts:
        return None
    low = min(counts, key=lambda name: (counts[name], name))
    high = max(counts, key=lambda name: (counts[name], name))
    if counts[high] - counts[low] < 2:
        return None
    for partition in view.partitions(high):
        if low not in partition.replicas:
            target = tuple(low if name == high else name for name in partition.replicas)
            return Move(partition.stream, partition.number, target, partition.partition_epoch)
    return None
