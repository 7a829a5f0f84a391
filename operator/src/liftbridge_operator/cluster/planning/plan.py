"""The plan: disruptions that the specification causes, published before any of them starts.

Its hash covers the target and the kinds of risk, not the progress, so an approval is valid for the
whole change. While the metadata does not answer, the kinds last published remain.
"""

from hashlib import sha256
from typing import Final

from liftbridge_operator.cluster.planning.bootstrap import kept_count
from liftbridge_operator.cluster.planning.decision import Plan, Step
from liftbridge_operator.cluster.planning.observation import Claim, DesiredVolume, Pod, Replacement
from liftbridge_operator.cluster.planning.view import NAMES_MAX, View, ordinal_of, voters_for

STEPS_MAX: Final = 20
UNREPLICATED: Final = "PartitionsWithOneReplica"
METADATA: Final = "MetadataUnavailableDuringRestart"
ASKED: Final = "annotation liftbridge.io/restart-pods"
"""Cause of a requested restart, without a change of the specification."""
HELD: Final = "replicas or a vote that it has"
"""Cause of the return of a broker beyond the specified number."""
WEAK_GATE: Final = "MinISRGate"
LOWERED: Final = "ReplicationFactorLowered"
DELETED: Final = "VolumeDeleted"
CONSENTED: Final = frozenset({"Restart", "RemoveBroker"})
"""Steps that wait for windows and approval."""
DISRUPTIVE: Final = CONSENTED | {"ReplaceVolume", "Stop"}
"""Steps that stop or remove brokers."""


def candidates(view: View) -> list[Pod]:
    """Return pods to replace, in the order of their restarts.

    Brokers that lead nothing come first, then learners, voters, and the metadata leader last;
    among those first the zone already started, then the fewest leaderships, then the highest
    ordinal.
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
    """Make the plan of the remaining steps, with the hash of the whole change."""
    due = candidates(view)
    steps = [Step("GrowVolume", one.name, "spec.storage") for one, _ in resized(view)]
    steps += [
        Step("ReplaceVolume", view.name(claim.ordinal), "spec.storage") for claim in unbound(view)
    ]
    steps += _replacements(view)
    changed = ", ".join(view.desired.causes) or "spec"
    steps += [
        Step("Restart", pod.name, changed if pod.revision != view.revision else ASKED)
        for pod in due
    ]
    steps += _of_size(view)
    if awaits_level(view) and (due or view.known_level >= view.desired.feature_level):
        steps.append(Step("RaiseFeatureLevel", view.desired.name, "spec.featureLevel"))
    if not steps:
        return Plan()
    risks = risks_of(view)
    desired = view.desired.replicas
    text = repr((view.desired.revision, desired, view.desired.is_suspended, risks))
    if view.desired.restarts:  # gate APPROVED_RESTARTS
        text += repr(sorted(view.desired.restarts))
    digest = sha256(text.encode()).hexdigest()[:12]
    kinds = {step.what for step in steps}
    return Plan(
        digest,
        tuple(steps[:STEPS_MAX]),
        len(steps),
        risks,
        is_disruptive=not kinds.isdisjoint(DISRUPTIVE),
        needs_consent=not kinds.isdisjoint(CONSENTED),
    )


def in_use(view: View) -> list[tuple[Claim, DesiredVolume]]:
    """Return claims in use, with the desired properties of each."""
    kept = {claim.ordinal for claim in view.claims.values() if claim.is_retired}
    claims = [(claim, view.desired.data_volume) for claim in view.claims.values()]
    claims += [(claim, view.desired.raft_volume) for claim in view.seen.raft_claims]
    return [(claim, volume) for claim, volume in claims if claim.ordinal not in kept]


def resized(view: View) -> list[tuple[Claim, int]]:
    """Return claims that have to request another size, with that size.

    After an infeasible request the driver does not try a smaller size by itself: the claim then
    requests the desired size, but more than its volume has, since no volume shrinks (KEP-1790).
    """
    sizes = []
    for claim, volume in in_use(view):
        if claim.is_terminating or not claim.is_bound:
            continue
        least = max(volume.size_bytes, claim.capacity_bytes + 1)
        if claim.requested_bytes < volume.size_bytes:
            sizes.append((claim, volume.size_bytes))
        elif volume.size_bytes and claim.infeasible and claim.requested_bytes > least:
            sizes.append((claim, least))
    return sizes


def growing(view: View) -> list[Claim]:
    """Return claims whose volume or file system is smaller than desired."""
    return [
        one
        for one, volume in in_use(view)
        if 0 < one.capacity_bytes < min(one.requested_bytes, volume.size_bytes)
    ]


def modified(view: View) -> list[tuple[Claim, str]]:
    """Return claims whose volume lacks the desired attributes class, with that class."""
    return [
        (claim, volume.attributes_class)
        for claim, volume in in_use(view)
        if claim.is_bound
        and volume.attributes_class
        and claim.attributes_in_force != volume.attributes_class
    ]


def unbound(view: View) -> list[Claim]:
    """Return claims in use without a volume that differ from the specification."""
    brokers, desired = view.seen.brokers, view.desired
    # A set that differs from the rendered one would create the same claim again. A claim created
    # from the rendered set is accepted as it is, since an admission rule may have changed it.
    if brokers is None or brokers.odd:
        return []
    if (brokers.claim_bytes, brokers.raft_bytes) != (
        desired.data_volume.size_bytes,
        desired.raft_volume.size_bytes,
    ):
        return []
    return [
        one
        for one, volume in in_use(view)
        if not one.is_bound  # gate UNBOUND
        and one.created_ms <= brokers.created_ms
        and not _is_as_desired(one, volume)
    ]


def _is_as_desired(claim: Claim, volume: DesiredVolume) -> bool:
    """Return whether a claim matches the specification; any class matches the default one."""
    return (
        (not volume.storage_class or claim.class_name == volume.storage_class)
        and claim.attributes_class == volume.attributes_class
        and claim.requested_bytes == volume.size_bytes
    )


def awaits_level(view: View) -> bool:
    """Return whether the desired feature level is higher than that in force."""
    known = view.metadata
    return known is not None and known.feature_level < view.desired.feature_level  # gate LEVEL_UP


def to_replace(view: View) -> list[Replacement]:
    """Return unfinished replacements: the old claim exists, or the pod exists without a claim.

    Where neither exists the set recreates both.
    """
    replacements = []
    for one in view.desired.replace:
        claim = view.claims.get(one.broker)
        is_left = one.broker in view.pods if claim is None else claim.uid == one.volume_uid
        if is_left:
            replacements.append(one)
    return replacements


def _replacements(view: View) -> list[Step]:
    return [Step("ReplaceVolume", one.broker, "spec.replaceBrokers") for one in to_replace(view)]


def _of_size(view: View) -> list[Step]:
    """Return the steps that stop, start, add and remove brokers."""
    desired, brokers = view.desired.replicas, view.seen.brokers
    if view.desired.is_suspended:
        return [Step("Stop", name, "spec.suspend") for name in view.names]
    if not view.size:
        is_stopped = brokers is not None and not brokers.is_terminating
        stopped = range(kept_count(view) or min(desired, NAMES_MAX))
        return [Step("Start", view.name(one), "spec.suspend") for one in stopped if is_stopped]
    back = to_bring_back(view)
    report = view.reports.get(view.name(len(view.names) - 1))
    # A broker with a retired directory is removed even if desired again; it returns as a new one.
    is_going = not back and report is not None and report.is_retired
    reached = len(view.names) + len(back)
    staying = max(min(desired, reached - is_going), 1)
    leaving, coming = range(reached - 1, staying - 1, -1), range(staying, min(desired, NAMES_MAX))
    return [
        *(Step("AddBroker", view.name(ordinal), HELD) for ordinal in back),
        *(Step("RemoveBroker", view.name(ordinal), "spec.replicas") for ordinal in leaving),
        *(Step("AddBroker", view.name(ordinal), "spec.replicas") for ordinal in coming),
    ]


def to_bring_back(view: View) -> range:
    """Return ordinals beyond the set that hold a vote or replicas, or were not removed by us."""
    if not view.names:
        return range(0)
    held = [name for partition in view.partitions() for name in partition.replicas]
    held += [voter.member.broker for voter in view.voters()]
    reached = max(max(map(ordinal_of, held), default=-1) + 1, view.seen.recorded.size or 0)
    return range(len(view.names), min(reached, NAMES_MAX))


def risks_of(view: View) -> tuple[str, ...]:
    """Return the kinds of risk of the plan; a risk once taken remains part of it."""
    if view.metadata is None:
        return view.seen.recorded.risks
    return (*_of_restarts(view), *_of_changes(view))


def _of_changes(view: View) -> list[str]:
    """Return risks of the changes; those taken stay listed, so that the plan's hash is stable."""
    desired, found = view.desired, [] if view.desired.needs_full_isr else [WEAK_GATE]
    is_shrinking = 0 < desired.replicas < view.size and not desired.is_suspended
    is_lowered = is_shrinking and any(
        partition.stream in desired.automatic_factor and len(partition.replicas) > desired.replicas
        for partition in view.partitions()
    )
    if is_lowered or (is_shrinking and LOWERED in view.seen.recorded.risks):
        found.append(LOWERED)
    is_replaced = bool(_replacements(view))
    if is_replaced or (is_shrinking and desired.deletes_volumes):
        found.append(DELETED)
    return found


def _of_restarts(view: View) -> tuple[str, ...]:
    """Return the unavailability caused by restarting all brokers one after the other."""
    risks = []
    if voters_for(min(view.size, view.desired.replicas)) <= 2:
        risks.append(METADATA)
    if any(len(partition.replicas) == 1 for partition in view.partitions()):
        risks.append(UNREPLICATED)
    return tuple(risks)
