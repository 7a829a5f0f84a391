"""One pass: evaluate the rules in the order of urgency, and take the first action."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from liftbridge_operator.cluster.planning import (
    balance,
    bootstrap,
    clock,
    gate,
    growth,
    membership,
    plan,
    refusals,
    replacement,
    roll,
    rules,
    scaling,
    status,
    stuck,
    suspension,
)
from liftbridge_operator.cluster.planning.decision import Decision, Memory, Outcome, Plan, Wait
from liftbridge_operator.cluster.planning.observation import Observation
from liftbridge_operator.cluster.planning.view import ACTION_MS, View

Story = Callable[[], Outcome | None]  # a rule: an action, a wait, or None if it does not apply


def decide(seen: Observation, memory: Memory) -> Decision:
    """Decide the next action and the status.

    The same arguments give the same answer, and no observation makes it raise.

    Args:
        seen: Observation of this pass.
        memory: Memory of the decision before, with the answer to its action (`roll.remember`); a
            new memory after a start.
    """
    seen, memory = clock.as_counted(seen, memory)
    view = View(seen)
    made = plan.make(view)
    memory = growth.still_refused(view, refusals.current(memory, seen.desired.generation))
    waits: list[Wait] = _of_objects(memory, view)
    progressing = ""
    action = None
    is_held = False
    for story in _stories(view, memory, made):
        outcome = story()
        if outcome is None:
            continue
        refused = refusals.of(memory, outcome.action) if outcome.action is not None else None
        waits += outcome.waits
        if refused is not None:
            waits.append(refusals.wait(refused))
            if view.now < refused.until_ms:  # gate REFUSED
                is_held = is_held or not isinstance(outcome.action, refusals.INDEPENDENT)
                memory = outcome.memory or memory
                continue
        progressing = progressing or outcome.progressing
        memory = outcome.memory or memory
        is_kept_back = is_held and outcome.action and refusals.takes_away(outcome.action)
        action = None if is_kept_back else outcome.action  # gate KEPT_BACK
        break
    # Work beside changes, such as the disruption budget, does not make a cluster less ready.
    is_changing = action is not None and progressing != ""
    waits += _besides(view, memory, is_acting=is_changing)
    kept = status.carried(waits, memory, view.now)
    new_status = status.make(view, made, waits=kept, progressing=progressing, is_acting=is_changing)
    return Decision(action, view.now + ACTION_MS, new_status, replace(memory, waits=kept))


def _stories(view: View, memory: Memory, made: Plan) -> Iterator[Story]:
    """Yield the rules in order."""
    desired = view.desired
    if desired.is_deleting:
        return
    if desired.is_paused:  # gate PAUSED
        yield lambda: Outcome("", waits=(Wait("Paused", desired.name, "spec.paused is false"),))
        return
    yield lambda: bootstrap.conflict(view)
    yield lambda: growth.grow_claims(view, memory)
    yield lambda: bootstrap.create(view)
    yield lambda: balance.close_budget(view, made)
    yield lambda: suspension.restore(view)
    yield lambda: growth.remake_set(view, memory)
    yield lambda: replacement.replace_unbound(view)
    yield lambda: stuck.take_back(view)
    yield lambda: stuck.replace_first(view, made)
    yield lambda: bootstrap.found(view)
    yield lambda: _acting(replacement.replace_volume(view))
    yield lambda: membership.repair(view)
    yield lambda: suspension.suspend_or_resume(view)
    yield lambda: roll.finish(view, memory, made)  # gate ONE_AT_A_TIME
    yield lambda: membership.follow(view)
    yield lambda: rules.bound_moves(view)
    yield lambda: scaling.revert(view)
    yield lambda: balance.cordon(view)
    yield lambda: replacement.replace_volume(view)
    yield lambda: scaling.bring_back(view)
    yield lambda: scaling.shrink(view, memory, made) if scaling.is_begun(view) else None
    yield lambda: balance.mark_good(view)
    # Restarts that wait for consent or a window do not block a drain.
    is_held = gate.may_disrupt(view, made) is not None
    yield lambda: balance.leave_ahead(view) if is_held else None
    yield lambda: roll.start(view, memory, made)
    yield lambda: scaling.shrink(view, memory, made)
    yield lambda: scaling.grow(view)
    yield lambda: rules.raise_level(view)
    yield lambda: balance.leave_ahead(view)
    yield lambda: balance.restore_leaders(view)
    yield lambda: balance.even_out(view)
    yield lambda: balance.open_budget(view, made)


def _of_objects(memory: Memory, view: View) -> list[Wait]:
    """Return waits for objects around the set that the API server refuses."""
    if view.desired.is_deleting or view.desired.is_paused:
        return []
    about = (refusals.KEEPING, refusals.STATUS)
    return [refusals.wait(refusal) for refusal in memory.refused if refusal.action in about]


def _acting(outcome: Outcome | None) -> Outcome | None:
    """Drop an outcome without an action, so that its waits do not block later rules."""
    return outcome if outcome is not None and outcome.action is not None else None


def _besides(view: View, memory: Memory, *, is_acting: bool) -> list[Wait]:
    """Return waits outside of rules: everything that keeps the cluster from being ready."""
    desired, brokers = view.desired, view.seen.brokers
    if desired.is_deleting or desired.is_paused or desired.is_suspended:
        return []
    waits = [bootstrap.invalid(view)] if desired.config_errors else []
    if brokers is not None and brokers.bad_revision == desired.revision:
        waits.append(stuck.bad_revision(desired.name))
    if is_acting or brokers is None:
        return waits
    if view.metadata is None:
        waits.append(Wait("MetadataUnknown", desired.name, "the metadata group has a leader"))
    for name in view.names:
        pod = view.pods.get(name)
        if pod is None:
            waits.append(stuck.missing(view, memory, name))
        elif not pod.is_ready:
            cause = pod.stuck or "BrokersNotReady"
            waits.append(Wait(str(cause), name, "the pod is ready"))
    leaving = sorted({*view.pods, *view.brokers} - set(view.names))
    ends_when = "the broker has stopped and is forgotten"
    waits += [Wait("PodStopping", name, ends_when) for name in leaving]
    waits += rules.unknown_level(view) + growth.unfinished(view)
    return waits + _of_partitions(view) + balance.uneven(view)


def _of_partitions(view: View) -> list[Wait]:
    waits = []
    for partition in view.partitions():
        if partition.target:
            waits.append(Wait("MovingPartitions", partition.name, "its reassignment is done"))
        elif not partition.leader:
            waits.append(Wait("PartitionsOffline", partition.name, "a replica in sync is back"))
        elif set(partition.replicas) - set(partition.isr):
            waits.append(Wait("UnderReplicated", partition.name, "all its replicas are in sync"))
    return waits
