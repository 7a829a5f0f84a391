"""The plan: what the present specification will disrupt, published before anything is touched.

Its hash covers where it leads and what kinds of risk that has, not how far it got, so an approval
holds for the whole way. While the metadata does not answer the kinds last published stand.
"""

from hashlib import sha256
from typing import Final

from liftbridge_operator.planning.decision import Plan, Step
from liftbridge_operator.planning.observation import Pod
from liftbridge_operator.planning.view import View, voters_for

STEPS_MAX: Final = 20
UNREPLICATED: Final = "PartitionsWithOneReplica"
METADATA: Final = "MetadataUnavailableDuringRestart"
ASKED: Final = "annotation liftbridge.io/restart-pods"
"""Cause of a restart that no change of the specification asks for."""


def candidates(view: View) -> list[Pod]:
    """Pods that are to be replaced, in the order of their restarts.

    First who leads nothing, then members without a vote, voters, and the metadata leader last;
    among those the zone that was begun, who leads least, and the highest number.
    """
    old = [
        view.pods[name] for name in view.names if name in view.pods and view.is_due(view.pods[name])
    ]
    waiting = {pod.zone for pod in old}
    begun = {pod.zone for pod in view.pods.values() if pod.revision == view.revision} & waiting

    def key(pod: Pod) -> tuple[int, bool, int, int]:
        leads = len(view.leads(pod.name))
        return _group(view, pod.name, leads), pod.zone not in begun, leads, -pod.ordinal

    return sorted(old, key=key)


def _group(view: View, broker: str, leads: int) -> int:
    if view.metadata is not None and view.metadata.leader == broker:
        return 3
    if not leads:
        return 0
    return 2 if view.is_voter(broker) else 1


def make(view: View) -> Plan:
    """The plan of what is still to be done, with the hash of all of it."""
    steps = [
        Step("Restart", pod.name, "spec" if pod.revision != view.revision else ASKED)
        for pod in candidates(view)
    ]
    steps += [
        Step("ReplaceVolume", one.broker, "spec.replaceBrokers")
        for one in view.wanted.replace
        if (claim := view.claims.get(one.broker)) is not None and claim.uid == one.volume_uid
    ]
    wanted = view.wanted.replicas
    if view.wanted.is_suspended:
        steps += [Step("Stop", name, "spec.suspend") for name in view.names]
    elif view.size:
        steps += [
            Step("RemoveBroker", view.name(one), "spec.replicas")
            for one in range(len(view.names) - 1, max(wanted, 1) - 1, -1)
        ]
    if not steps:
        return Plan()
    risks = risks_of(view)
    text = repr((view.wanted.revision, wanted, view.wanted.is_suspended, risks))
    if view.wanted.restarts:  # gate APPROVED_RESTARTS
        text += repr(sorted(view.wanted.restarts))
    digest = sha256(text.encode()).hexdigest()[:12]
    return Plan(digest, tuple(steps[:STEPS_MAX]), len(steps), risks)


def risks_of(view: View) -> tuple[str, ...]:
    """Kinds of unavailability that restarts of all brokers, one after the other, come with."""
    if view.metadata is None:
        return view.seen.recorded.risks
    found = []
    if voters_for(min(view.size, view.wanted.replicas)) <= 2:
        found.append(METADATA)
    if any(len(one.replicas) == 1 for one in view.partitions()):
        found.append(UNREPLICATED)
    return tuple(found)
