"""Events of changes of the status, and of processes that an action starts or ends."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from liftbridge_operator.cluster.observing.objects import bytes_of
from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.observation import Observation
from liftbridge_operator.cluster.reporting.account import Account, filled
from liftbridge_operator.cluster.reporting.conditions import values_of
from liftbridge_operator.cluster.reporting.events import Happened
from liftbridge_operator.model.catalogue.load import load_catalogue
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.model.cluster import CLUSTER_KIND
from liftbridge_operator.model.units import GIB

WARNINGS: Final[Mapping[tuple[str, str], EventReason]] = {
    ("CertificatesReady", "Expiring"): EventReason.CERTIFICATE_EXPIRING,
    ("CertificatesReady", "Expired"): EventReason.CERTIFICATE_EXPIRING,
    ("Degraded", "NodeLost"): EventReason.NODE_LOST,
    ("MonitoringReady", "MissingRights"): EventReason.MISSING_RIGHTS,
    ("NatsConnected", "NatsUnreachable"): EventReason.NATS_UNREACHABLE,
    ("StorageReady", "Full"): EventReason.VOLUME_FULL,
}
"""Reasons of conditions that are reported as Events, besides those of `Stalled`."""

# -- of an action -------------------------------------------------------------------------------


def behind(action: act.Action, seen: Observation) -> tuple[Happened, ...]:
    """Return Events of processes that an action starts or ends.

    Args:
        action: The action.
        seen: Observation on which it was decided.
    """
    return tuple(one for one in (_roll_begins(action, seen), _joins(action, seen)) if one)


def _roll_begins(action: act.Action, seen: Observation) -> Happened | None:
    """Return the Event of a roll when the first pod of a new template is about to be created."""
    brokers, under_way = seen.brokers, seen.recorded.disruption
    is_recorded = isinstance(action, act.Record) and (
        under_way is None and action.recorded.disruption is not None
    )
    is_deleted = isinstance(action, act.DeletePod) and (
        under_way is None and action.template is not None
    )
    if brokers is None or brokers.revision == seen.desired.revision:
        return None
    if not (is_recorded or is_deleted):
        return None
    old = sum(1 for pod in seen.pods if pod.revision != seen.desired.revision)
    cause = ", ".join(seen.desired.causes)
    values = {"brokers": old, "revision": seen.desired.revision, "cause": cause or "spec"}
    return Happened(EventReason.ROLL_STARTED, values)


def _joins(action: act.Action, seen: Observation) -> Happened | None:
    """Return the Event of a broker that joins with a replaced volume, or of a reused one."""
    if isinstance(action, act.MarkClaim) and not action.is_retired:
        return Happened(EventReason.RETIRED_VOLUME, {"claim": action.name})
    if not isinstance(action, act.AddLearner):
        return None
    broker = action.member.broker
    given_up = {replacement.broker: replacement.volume_uid for replacement in seen.desired.replace}
    for claim in seen.claims:
        is_its = f"{seen.desired.name}-{claim.ordinal}" == broker
        if is_its and broker in given_up and claim.uid != given_up[broker]:
            return Happened(EventReason.BROKER_REPLACED, {"broker": broker, "claim": claim.name})
    return None


# -- of the status ------------------------------------------------------------------------------


def of_status(
    account: Account, before: Mapping[str, Any], made: Mapping[str, Any], moved: int = 0
) -> tuple[Happened, ...]:
    """Return Events of changes between two statuses.

    Args:
        account: Inputs of the status.
        before: The status that the resource had.
        made: The status that was written.
        moved: Number of partitions whose move has ended.
    """
    events = [*_of_plan(account, before.get("plan") or {})]
    events += _of_conditions(account, before, made)
    events += _of_volumes(before, made)
    events += _of_levels(before, made)
    if moved:
        events.append(Happened(EventReason.PARTITIONS_MOVED, {"partitions": moved}))
    return tuple(events)


def _of_plan(account: Account, before: Mapping[str, Any]) -> Iterator[Happened]:
    plan, approved = account.status.plan, account.seen.desired.approved_hash
    if not plan.hash:
        return
    if plan.hash != before.get("hash"):
        values = {"hash": plan.hash, "steps": plan.step_count, "risks": len(plan.risks)}
        yield Happened(EventReason.PLAN_PUBLISHED, values)
    if approved == plan.hash != before.get("approvedHash"):
        yield Happened(EventReason.PLAN_APPROVED, {"hash": plan.hash})


def _of_conditions(
    account: Account, before: Mapping[str, Any], made: Mapping[str, Any]
) -> list[Happened]:
    """Return Events of new reasons that a user has to resolve or should know."""
    former = {one["type"]: one.get("reason") for one in before.get("conditions") or ()}
    events = load_catalogue().events
    found: dict[EventReason, Happened] = {}
    for condition in made["conditions"]:
        kind, reason = condition["type"], condition["reason"]
        event = WARNINGS.get((kind, reason))
        if kind == "Stalled" and (CLUSTER_KIND, reason) in events:
            event = EventReason(reason)
        if event is None or former.get(kind) == reason:
            continue
        values = {"claim": "the claim", **values_of(account, kind)}
        text = events[CLUSTER_KIND, event.value].text
        found.setdefault(event, Happened(event, filled(values, text.fields)))
    return list(found.values())


def _of_volumes(before: Mapping[str, Any], made: Mapping[str, Any]) -> Iterator[Happened]:
    """Yield Events of volumes that have grown."""
    former = {name: size for name, _, size in _sizes(before)}
    uids = {name: uid for name, uid, _ in _sizes(before)}
    for name, uid, size in _sizes(made):
        if uids.get(name) == uid and size > former[name] > 0:
            values = {"claim": name, "size": f"{size / GIB:g}Gi"}
            yield Happened(EventReason.VOLUME_EXPANDED, values)


def _sizes(status: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield name, uid and capacity in bytes of each claim."""
    for broker in status.get("brokers") or ():
        for volume in broker.get("volumes") or ():
            yield str(volume.get("name")), str(volume.get("uid")), bytes_of(volume.get("capacity"))


def _of_levels(before: Mapping[str, Any], made: Mapping[str, Any]) -> Iterator[Happened]:
    """Yield Events of a completed roll and a raised feature level."""
    former, now = before.get("currentRevision"), made.get("currentRevision")
    if former and now and former != now:
        yield Happened(EventReason.ROLL_COMPLETED, {"revision": now})
    was, level = before.get("featureLevel"), made.get("featureLevel")
    if was and level and level > was:
        yield Happened(EventReason.FEATURE_LEVEL_RAISED, {"level": level})
