"""Refused actions: each is retried with back-off, and does not block protective actions.

A storage class that cannot grow, a quota, a port in use or an admission rule blocks one action. The
refusal is reported with its message and the action is retried later, or at once when the
specification changes; later rules continue. Only actions that stop or remove brokers wait for a
refused action on which they may rely.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.decision import Memory, Refused, Wait
from liftbridge_operator.cluster.planning.view import NAMES_MAX

BACKOFF_MS: Final = 5_000
BACKOFF_MAX_MS: Final = 300_000
KEEPING: Final = "Keep"
"""In place of the kind of an action: an object around the set is applied as rendered."""

ISSUING: Final = "Issue"
"""Likewise: Secrets with certificates and keys."""

WATCHING: Final = "Watch"
"""Likewise: objects for the Prometheus operator."""

STATUS: Final = "WriteStatus"
"""Likewise: the status of the cluster; the next one that is written names the failure."""

REFUSALS: Final = frozenset(
    {
        "AdmissionDenied",
        "Contested",
        "MissingRights",
        "NoAnswer",
        "PodMissing",
        "PortTaken",
        "QuotaExceeded",
        "UnsupportedChange",
        "VolumeCannotGrow",
    }
)
"""Kinds of refusal by the API server, as waits and as reasons of conditions."""

REFUSED_MAX: Final = 10 * NAMES_MAX
"""Bound of remembered refusals: more than the objects of any cluster, with two volumes for each
broker and a Service for each at several listeners. A forgotten refusal would block later actions,
since its action would be retried in every pass."""

INDEPENDENT: Final = (
    act.GrowClaim,
    act.OrphanSet,
    act.SetCatchUpRate,
    act.SetFeatureLevel,
    act.ElectPreferred,
)
"""Actions on whose completion the safety of no other action depends."""

_TAKING_AWAY: Final = (
    act.DeletePod,
    act.DeleteClaim,
    act.CheckRestart,
    act.Record,
    act.OrphanSet,
    act.RemoveMember,
    act.Retire,
    act.SetReplicas,
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal of an action.

    Attributes:
        reason: A wait of the catalogue.
        text: Message of the refusal.
        needs_person: Whether only a user can resolve it.
        is_tried: Whether the request was sent; an unsent one is due at once.
    """

    reason: str
    text: str
    needs_person: bool = True
    is_tried: bool = True


_OBJECTS: Final[Mapping[type, str]] = {
    act.CreateIdentity: "the ConfigMap of its identity",
    act.WriteFounders: "the ConfigMap of its identity",
    act.CreateSet: "the StatefulSet",
    act.SetTemplate: "the StatefulSet",
    act.SetReplicas: "the StatefulSet",
    act.OrphanSet: "the StatefulSet",
    act.SetBudget: "the PodDisruptionBudget",
}
"""Objects of actions that do not carry a name."""


def object_of(action: act.Action) -> str:
    """Return the display name of an action's object: an object, a broker, or a singleton."""
    match action:
        case act.Record() if action.recorded.disruption is not None:
            return f"the ConfigMap for the restart of {action.recorded.disruption.broker}"
        case act.AddLearner() | act.PromoteLearner() | act.RemoveMember() | act.Retire():
            return action.member.broker
        case act.TransferMetadataLeadership():
            return action.to
        case _:
            known = _OBJECTS.get(type(action), type(action).__name__)
            return str(getattr(action, "name", "") or getattr(action, "broker", "") or known)


def takes_away(action: act.Action) -> bool:
    """Return whether an action may stop or remove brokers, or delete their data."""
    return isinstance(action, _TAKING_AWAY)


def noted(
    memory: Memory, action: str, object_: str, denied: Refusal, *, generation: int, now: int
) -> Memory:
    """Add a refusal to the memory.

    Args:
        memory: Memory of the decision.
        action: Kind of the action.
        object_: Object of the action.
        denied: The refusal.
        generation: Generation of the specification.
        now: Time of day, in milliseconds.
    """
    former = _find(memory.refused, action, object_, generation)
    count = (former.count if former is not None else 0) + denied.is_tried
    # The pause doubles with each refusal up to its maximum; the shift is bounded.
    pause = min(BACKOFF_MS << min(count - 1, 10), BACKOFF_MAX_MS) if denied.is_tried else 0
    made = Refused(
        action,
        object_,
        denied.reason,
        denied.text,
        generation,
        count,
        now + pause,
        denied.needs_person,
    )
    others = [one for one in memory.refused if (one.action, one.object) != (action, object_)]
    return replace(memory, refused=(*others, made)[-REFUSED_MAX:])


def settled(memory: Memory, action: str, object_: str) -> Memory:
    """Drop the refusal of an action that has succeeded."""
    left = [one for one in memory.refused if (one.action, one.object) != (action, object_)]
    return replace(memory, refused=tuple(left))


def current(memory: Memory, generation: int) -> Memory:
    """Drop refusals of former generations of the specification."""
    left = [refusal for refusal in memory.refused if refusal.generation == generation]
    return replace(memory, refused=tuple(left))


def of(memory: Memory, action: act.Action) -> Refused | None:
    """Return the refusal of an action; None for none."""
    name, object_ = type(action).__name__, object_of(action)
    return next(
        (one for one in memory.refused if (one.action, one.object) == (name, object_)), None
    )


def wait(refused: Refused) -> Wait:
    """Return the wait that reports a refusal."""
    return Wait(refused.reason, refused.object, refused.text, is_stalled=refused.needs_person)


def _find(all_: Iterable[Refused], action: str, object_: str, generation: int) -> Refused | None:
    key = (action, object_, generation)
    return next((one for one in all_ if (one.action, one.object, one.generation) == key), None)
