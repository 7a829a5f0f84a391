"""What goes on beside changes: the budget for others, leaders to where they belong, even load."""

from liftbridge_operator.planning.actions import (
    ElectPreferred,
    Move,
    Reassign,
    SetBudget,
    SetTemplate,
    TransferLeaders,
)
from liftbridge_operator.planning.decision import Outcome, Plan
from liftbridge_operator.planning.roll import PARTITIONS_MAX, to_restore
from liftbridge_operator.planning.view import View


def budget_for(view: View, plan: Plan) -> int | None:
    """How many pods others may take: one while nothing is missing and nothing under way."""
    if view.wanted.replicas <= 1 and view.size <= 1:
        return None
    is_quiet = (
        view.seen.recorded.disruption is None
        and not plan.steps  # gate BUDGET
        and view.metadata is not None
        and not view.absent()
        and all(view.is_serving(name) for name in view.names)
        and all(view.is_full(one) for one in view.partitions())
    )
    return 1 if is_quiet else 0


def close_budget(view: View, plan: Plan) -> Outcome | None:
    """Take the budget to none in the pass that sees something missing."""
    due = budget_for(view, plan)
    if due not in (1, view.seen.budget) and view.seen.brokers is not None:
        return Outcome("", SetBudget(due))
    return None


def open_budget(view: View, plan: Plan) -> Outcome | None:
    """Give it back when all is well."""
    due = budget_for(view, plan)
    if view.seen.budget != due and view.seen.brokers is not None:
        return Outcome("", SetBudget(due))
    return None


def mark_good(view: View) -> Outcome | None:
    """Note that a template works, once a broker with it has been ready for a while."""
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


def leave_ahead(view: View) -> Outcome | None:
    """Leaderships away from brokers whose node is about to be drained, unless all are."""
    if not view.nodes or all(one.is_unschedulable for one in view.nodes.values()):
        return None
    for name, pod in view.pods.items():
        node = view.nodes.get(pod.node)
        if node is None or not node.is_unschedulable or pod.is_terminating:
            continue
        if any(_has_heir(view, one.isr, name) for one in view.leads(name)):
            return Outcome("", TransferLeaders(name))
    return None


def _has_heir(view: View, isr: tuple[str, ...], leaving: str) -> bool:
    """Whether somebody on a node that stays could lead."""
    for one in isr:
        pod = view.pods.get(one)
        node = view.nodes.get(pod.node) if pod else None
        if one != leaving and node is not None and not node.is_unschedulable:
            return view.is_serving(one)
    return False


def restore_leaders(view: View) -> Outcome | None:
    """Give leaderships back to first replicas."""
    due = to_restore(view)
    if not due:
        return None
    names = tuple((one.stream, one.number) for one in due[:PARTITIONS_MAX])
    return Outcome("", ElectPreferred(names))


def even_out(view: View) -> Outcome | None:
    """Move one replica from the fullest broker to the emptiest, when two or more apart."""
    if not view.wanted.is_rebalanced or view.metadata is None or view.absent():
        return None
    if not all(view.is_full(one) for one in view.partitions()):
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
    for one in view.partitions(high):
        if low not in one.replicas:
            target = tuple(low if name == high else name for name in one.replicas)
            move = Move(one.stream, one.number, target, one.partition_epoch)
            return Outcome("MovingPartitions", Reassign((move,)))
    return None
