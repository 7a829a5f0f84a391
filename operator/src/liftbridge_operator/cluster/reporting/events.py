"""Events of actions on clusters.

An Event is written once, when the action happens; the status reports lasting states.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.observation import Observation
from liftbridge_operator.cluster.reporting.account import listed
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.model.units import GIB

_SECOND_MS: Final = 1_000


class Happened(NamedTuple):
    """An Event with the values of its text."""

    reason: EventReason
    values: Mapping[str, object]


def of_action(
    action: act.Action, seen: Observation, fate: str = "kept", failure: str = ""
) -> Happened | None:
    """Return the Event of a completed action; None for none.

    Args:
        action: The action.
        seen: Observation on which it was decided.
        fate: Fate of the volume of a scaled-in broker.
        failure: Cause of a pod's failure with its revision; empty for unknown.
    """
    match action:
        case act.DeletePod():
            return _of_deletion(action, seen)
        case act.Record():
            return _of_record(action, seen)
        case act.SetReplicas():
            return _of_size(action, seen)
        case act.CreateSet() if seen.claims:
            values = {"claims": len(seen.claims), "cluster": action.cluster_id}
            return Happened(EventReason.VOLUMES_ADOPTED, values)
        case act.SetTemplate() if action.bad_revision == seen.desired.revision:
            return _of_return(action, seen, failure)
        case _:
            return _of_group(action, fate, seen.desired.drained)


def _of_group(action: act.Action, fate: str, drained: tuple[str, ...]) -> Happened | None:
    """Return the Event of an action on brokers and volumes."""
    found: Happened | None = None
    match action:
        case act.Bootstrap(cluster_id, founders, _):
            names = listed(founder.broker for founder in founders)
            values = {"cluster": cluster_id, "brokers": names}
            found = Happened(EventReason.BOOTSTRAPPED, values)
        case act.AddLearner(member):
            found = Happened(EventReason.BROKER_ADDED, {"broker": member.broker})
        case act.PromoteLearner(member):
            found = Happened(EventReason.VOTER_PROMOTED, {"broker": member.broker})
        case act.Cordon(broker, is_draining):
            cause = (
                "it will be removed" if is_draining else "it will be removed after other brokers"
            )
            cause = "it is drained" if broker in drained and not is_draining else cause
            found = Happened(EventReason.BROKER_CORDONED, {"broker": broker, "cause": cause})
        case act.Uncordon(broker):
            found = Happened(EventReason.BROKER_UNCORDONED, {"broker": broker})
        case act.RemoveBroker(broker, _):
            found = Happened(EventReason.BROKER_REMOVED, {"broker": broker, "fate": fate})
        case act.GrowClaim(name, _, _, size_bytes):
            values = {"claim": name, "size": f"{size_bytes / GIB:g}Gi"}
            found = Happened(EventReason.VOLUME_EXPANDING, values)
        case _:
            pass
    return found


def _of_deletion(action: act.DeletePod, seen: Observation) -> Happened | None:
    pod = next((one for one in seen.pods if one.name == action.name), None)
    under_way = seen.recorded.disruption
    if under_way is not None and under_way.pod_uid == action.uid:
        changed = f" for {', '.join(seen.desired.causes)}" if seen.desired.causes else ""
        cause = f"revision {seen.desired.revision} is rolled out{changed}"
        if action.uid in seen.desired.restarts:
            cause = "a restart was requested"
        return Happened(EventReason.BROKER_RESTARTING, {"pod": action.name, "cause": cause})
    if any(replacement.broker == action.name for replacement in seen.desired.replace):
        cause = "it starts over on an empty volume"
        return Happened(EventReason.BROKER_RESTARTING, {"pod": action.name, "cause": cause})
    cause = str(pod.stuck) if pod is not None and pod.stuck is not None else "it was not ready"
    return Happened(EventReason.STUCK_POD_REPLACED, {"pod": action.name, "cause": cause})


def _of_record(action: act.Record, seen: Observation) -> Happened | None:
    before = seen.recorded.disruption
    if before is None or action.recorded.disruption is not None:
        return None
    pod = next((one for one in seen.pods if one.name == before.broker), None)
    if pod is None or pod.uid == before.pod_uid:
        return None  # cancelled before it began
    seconds = (pod.changed_ms - before.since_ms) // _SECOND_MS
    return Happened(EventReason.BROKER_RESTARTED, {"pod": before.broker, "seconds": seconds})


def _of_size(action: act.SetReplicas, seen: Observation) -> Happened | None:
    if not action.replicas:
        return Happened(EventReason.SUSPENDED, {})
    has, size = seen.brokers.replicas if seen.brokers is not None else 0, seen.recorded.size or 0
    if has < size:
        values = {"manager": "an unknown manager", "field": ".spec.replicas"}
        return Happened(
            EventReason.DRIFT_REPAIRED, {**values, "object": f"StatefulSet/{seen.desired.name}"}
        )
    if seen.brokers is not None and not has:
        return Happened(EventReason.RESUMED, {})
    return None


def _of_return(action: act.SetTemplate, seen: Observation, failure: str) -> Happened:
    stuck = [pod.name for pod in seen.pods if pod.revision == action.bad_revision]
    return Happened(
        EventReason.ROLL_REVERTED,
        {
            "pod": listed(stuck),
            "revision": action.bad_revision,
            "former": action.good_revision,
            "cause": failure or "it is not ready",
        },
    )
