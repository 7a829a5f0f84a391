"""The plan: what the present specification will disrupt, published before anything is touched.

Its hash covers where it leads and what kinds of risk that has, not how far it got, so an approval
holds for the whole way. While the metadata does not answer the kinds last published stand.
"""

from hashlib import sha256
from typing import Final, NamedTuple

from liftbridge_operator.planning.bootstrap import kept_count
from liftbridge_operator.planning.decision import Plan, Step
from liftbridge_operator.planning.observation import Claim, Pod, Replacement
from liftbridge_operator.planning.view import NAMES_MAX, View, ordinal_of, voters_for

STEPS_MAX: Final = 20
UNREPLICATED: Final = "PartitionsWithOneReplica"
METADATA: Final = "MetadataUnavailableDuringRestart"
ASKED: Final = "annotation liftbridge.io/restart-pods"
"""Cause of a restart that no change of the specification asks for."""
HELD: Final = "replicas or a vote that it has"
"""Cause of the return of a broker that the specification has no place for."""
WEAK_GATE: Final = "MinISRGate"
LOWERED: Final = "ReplicationFactorLowered"
DELETED: Final = "VolumeDeleted"
CONSENTED: Final = frozenset({"Restart", "RemoveBroker"})
"""Steps that wait for windows and approval."""
DISRUPTIVE: Final = CONSENTED | {"ReplaceVolume", "Stop"}
"""Steps by which brokers go away."""


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
    due = candidates(view)
    steps = [Step("GrowVolume", one.name, "spec.storage") for one, _ in resized(view)]
    steps += [
        Step("ReplaceVolume", view.name(one.ordinal), "spec.storage") for one in unbound(view)
    ]
    steps += _replacements(view)
    changed = ", ".join(view.wanted.causes) or "spec"
    steps += [
        Step("Restart", pod.name, changed if pod.revision != view.revision else ASKED)
        for pod in due
    ]
    steps += _of_size(view)
    if awaits_level(view) and (due or view.known_level >= view.wanted.feature_level):
        steps.append(Step("RaiseFeatureLevel", view.wanted.name, "spec.featureLevel"))
    if not steps:
        return Plan()
    risks = risks_of(view)
    wanted = view.wanted.replicas
    text = repr((view.wanted.revision, wanted, view.wanted.is_suspended, risks))
    if view.wanted.restarts:  # gate APPROVED_RESTARTS
        text += repr(sorted(view.wanted.restarts))
    digest = sha256(text.encode()).hexdigest()[:12]
    kinds = {one.what for one in steps}
    return Plan(
        digest,
        tuple(steps[:STEPS_MAX]),
        len(steps),
        risks,
        is_disruptive=not kinds.isdisjoint(DISRUPTIVE),
        needs_consent=not kinds.isdisjoint(CONSENTED),
    )


class Asked(NamedTuple):
    """What the specification asks for of a volume; empty texts for the default, or for none."""

    size_bytes: int
    class_name: str
    attributes: str


def in_use(view: View) -> list[tuple[Claim, Asked]]:
    """Claims of brokers, and what is asked for of each."""
    wanted = view.wanted
    kept = {one.ordinal for one in view.claims.values() if one.is_retired}
    of_data = Asked(wanted.claim_bytes, wanted.claim_class, wanted.claim_attributes)
    of_raft = Asked(wanted.raft_bytes, wanted.raft_class, wanted.raft_attributes)
    found = [(one, of_data) for one in view.claims.values()]
    found += [(one, of_raft) for one in view.seen.raft_claims]
    return [(one, asked) for one, asked in found if one.ordinal not in kept]


def resized(view: View) -> list[tuple[Claim, int]]:
    """Claims that are to ask for another size, and for which.

    What a driver can never do it does not try for less by itself: the claim asks for what is wanted
    by now, though for more than its volume has, since no volume shrinks (KEP-1790).
    """
    found = []
    for one, asked in in_use(view):
        if one.is_terminating or not one.is_bound:
            continue
        least = max(asked.size_bytes, one.capacity_bytes + 1)
        if one.requested_bytes < asked.size_bytes:
            found.append((one, asked.size_bytes))
        elif asked.size_bytes and one.infeasible and one.requested_bytes > least:
            found.append((one, least))
    return found


def growing(view: View) -> list[Claim]:
    """Claims whose volume or file system is smaller than is asked for by now."""
    return [
        one
        for one, asked in in_use(view)
        if 0 < one.capacity_bytes < min(one.requested_bytes, asked.size_bytes)
    ]


def modified(view: View) -> list[tuple[Claim, str]]:
    """Claims with a volume that has not the attributes that are asked for yet, and these."""
    return [
        (one, asked.attributes)
        for one, asked in in_use(view)
        if one.is_bound and asked.attributes and one.attributes_in_force != asked.attributes
    ]


def unbound(view: View) -> list[Claim]:
    """Claims in use without a volume that ask for something else than the specification does."""
    brokers, wanted = view.seen.brokers, view.wanted
    # A set that is not as it is rendered would make the same claim again, and whatever it made
    # is as it can be, though some admission rule changes what claims ask for.
    if brokers is None or brokers.odd:
        return []
    if (brokers.claim_bytes, brokers.raft_bytes) != (wanted.claim_bytes, wanted.raft_bytes):
        return []
    return [
        one
        for one, asked in in_use(view)
        if not one.is_bound  # gate UNBOUND
        and one.created_ms <= brokers.created_ms
        and not _is_as_asked(one, asked)
    ]


def _is_as_asked(claim: Claim, asked: Asked) -> bool:
    """Whether a claim asks for what the specification does; the default class has many names."""
    return (
        (not asked.class_name or claim.class_name == asked.class_name)
        and claim.attributes_class == asked.attributes
        and claim.requested_bytes == asked.size_bytes
    )


def awaits_level(view: View) -> bool:
    """Whether newer rules of decision are wanted than are in force."""
    known = view.metadata
    return known is not None and known.feature_level < view.wanted.feature_level  # gate LEVEL_UP


def to_replace(view: View) -> list[Replacement]:
    """Replacements of volumes that are not done: the old claim is there, or its pod is without one.

    Where neither is there the set makes both again.
    """
    found = []
    for one in view.wanted.replace:
        claim = view.claims.get(one.broker)
        is_left = one.broker in view.pods if claim is None else claim.uid == one.volume_uid
        if is_left:
            found.append(one)
    return found


def _replacements(view: View) -> list[Step]:
    return [Step("ReplaceVolume", one.broker, "spec.replaceBrokers") for one in to_replace(view)]


def _of_size(view: View) -> list[Step]:
    """Brokers that stop, start, come and go."""
    wanted, brokers = view.wanted.replicas, view.seen.brokers
    if view.wanted.is_suspended:
        return [Step("Stop", name, "spec.suspend") for name in view.names]
    if not view.size:
        is_stopped = brokers is not None and not brokers.is_terminating
        stopped = range(kept_count(view) or min(wanted, NAMES_MAX))
        return [Step("Start", view.name(one), "spec.suspend") for one in stopped if is_stopped]
    back = to_bring_back(view)
    said = view.reports.get(view.name(len(view.names) - 1))
    # Past the mark of its directory a broker goes, also when it is wanted again: as a new one.
    is_going = not back and said is not None and said.is_retired
    reached = len(view.names) + len(back)
    staying = max(min(wanted, reached - is_going), 1)
    leaving, coming = range(reached - 1, staying - 1, -1), range(staying, min(wanted, NAMES_MAX))
    return [
        *(Step("AddBroker", view.name(one), HELD) for one in back),
        *(Step("RemoveBroker", view.name(one), "spec.replicas") for one in leaving),
        *(Step("AddBroker", view.name(one), "spec.replicas") for one in coming),
    ]


def to_bring_back(view: View) -> range:
    """Brokers beyond the set that have a vote or replicas, or that somebody else took out of it."""
    if not view.names:
        return range(0)
    held = [name for one in view.partitions() for name in one.replicas]
    held += [one.member.broker for one in view.voters()]
    reached = max(max(map(ordinal_of, held), default=-1) + 1, view.seen.recorded.size or 0)
    return range(len(view.names), min(reached, NAMES_MAX))


def risks_of(view: View) -> tuple[str, ...]:
    """Kinds of unavailability that the plan comes with; what is lost by it once is lost for it."""
    if view.metadata is None:
        return view.seen.recorded.risks
    return (*_of_restarts(view), *_of_changes(view))


def _of_changes(view: View) -> list[str]:
    """What is given up. As it is done, it would no longer be seen, and the plan be another."""
    wanted, found = view.wanted, [] if view.wanted.needs_full_isr else [WEAK_GATE]
    is_shrinking = 0 < wanted.replicas < view.size and not wanted.is_suspended
    is_lowered = is_shrinking and any(
        one.stream in wanted.automatic_factor and len(one.replicas) > wanted.replicas
        for one in view.partitions()
    )
    if is_lowered or (is_shrinking and LOWERED in view.seen.recorded.risks):
        found.append(LOWERED)
    is_replaced = bool(_replacements(view))
    if is_replaced or (is_shrinking and wanted.deletes_volumes):
        found.append(DELETED)
    return found


def _of_restarts(view: View) -> tuple[str, ...]:
    """Unavailability that restarts of all brokers, one after the other, come with."""
    found = []
    if voters_for(min(view.size, view.wanted.replicas)) <= 2:
        found.append(METADATA)
    if any(len(one.replicas) == 1 for one in view.partitions()):
        found.append(UNREPLICATED)
    return tuple(found)
