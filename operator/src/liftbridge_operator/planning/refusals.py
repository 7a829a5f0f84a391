"""Actions that were refused: each waits with back-off, and holds up nothing that protects.

A class that cannot grow, a quota, a port that is taken or an admission rule stands against one
action. It is told in the words of who refused it and tried again later, or at once when something
else is asked for; the stories after it go on. Only what takes brokers away stays behind an action
that it may rely upon.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from liftbridge_operator.planning import actions as act
from liftbridge_operator.planning.decision import Memory, Refused, Wait
from liftbridge_operator.planning.view import NAMES_MAX

BACKOFF_MS: Final = 5_000
BACKOFF_MAX_MS: Final = 300_000
KEEPING: Final = "Keep"
"""Instead of the kind of an action: an object around the set is brought to what was rendered."""

ISSUING: Final = "Issue"
"""Likewise: what certificates and keys are kept in."""

WATCHING: Final = "Watch"
"""Likewise: what the Prometheus operator goes by."""

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
"""What the API server says no to, as waits and as reasons of conditions."""

REFUSED_MAX: Final = 10 * NAMES_MAX
"""Refusals that are remembered: more than any cluster has objects, of two volumes for each broker
and a Service for each at several listeners. One that was forgotten would hold up what comes after
it, since it would be tried again in every pass."""

INDEPENDENT: Final = (
    act.GrowClaim,
    act.OrphanSet,
    act.SetCatchUpRate,
    act.SetFeatureLevel,
    act.ElectPreferred,
)
"""Actions without which everything else is as safe as with them."""

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
    """What somebody said against an action.

    Attributes:
        reason: A wait of the catalogue.
        text: In the words of who refused it.
        needs_person: Whether it does not end by itself.
        is_tried: Whether it was asked for; what was not is due at once.
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
"""What actions are about that do not name it."""


def object_of(action: act.Action) -> str:
    """What an action is about, for people: an object, a broker, or what has but one."""
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
    """Whether brokers, or what they have, may go by an action."""
    return isinstance(action, _TAKING_AWAY)


def noted(
    memory: Memory, action: str, object_: str, said: Refusal, *, generation: int, now: int
) -> Memory:
    """The memory with one more refusal.

    Args:
        memory: Of the decision.
        action: Kind of the action.
        object_: What it is about.
        said: What was said against it.
        generation: Of the specification that asks for it.
        now: Time of day, in milliseconds.
    """
    former = _find(memory.refused, action, object_, generation)
    count = (former.count if former is not None else 0) + said.is_tried
    # The first attempts come soon; no power of two grows beyond what is waited at most.
    pause = min(BACKOFF_MS << min(count - 1, 10), BACKOFF_MAX_MS) if said.is_tried else 0
    made = Refused(
        action, object_, said.reason, said.text, generation, count, now + pause, said.needs_person
    )
    others = [one for one in memory.refused if (one.action, one.object) != (action, object_)]
    return replace(memory, refused=(*others, made)[-REFUSED_MAX:])


def settled(memory: Memory, action: str, object_: str) -> Memory:
    """The memory without a refusal of what was done by now."""
    left = [one for one in memory.refused if (one.action, one.object) != (action, object_)]
    return replace(memory, refused=tuple(left))


def current(memory: Memory, generation: int) -> Memory:
    """The memory without refusals of what a former specification asked for."""
    left = [one for one in memory.refused if one.generation == generation]
    return replace(memory, refused=tuple(left))


def of(memory: Memory, action: act.Action) -> Refused | None:
    """The refusal of an action; None for none."""
    name, object_ = type(action).__name__, object_of(action)
    return next(
        (one for one in memory.refused if (one.action, one.object) == (name, object_)), None
    )


def wait(refused: Refused) -> Wait:
    """The wait that a refusal is."""
    return Wait(refused.reason, refused.object, refused.text, is_stalled=refused.needs_person)


def _find(all_: Iterable[Refused], action: str, object_: str, generation: int) -> Refused | None:
    key = (action, object_, generation)
    return next((one for one in all_ if (one.action, one.object, one.generation) == key), None)
