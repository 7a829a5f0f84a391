"""Resize volumes: claims first, before any gate; then recreate the set around its pods.

The same recreation changes all other immutable fields of a set: its pods and claims stay.
"""

from dataclasses import replace

from liftbridge_operator.cluster.planning import plan, refusals
from liftbridge_operator.cluster.planning.actions import GrowClaim, OrphanSet, Record
from liftbridge_operator.cluster.planning.bootstrap import EXPANDING, wanted_set
from liftbridge_operator.cluster.planning.decision import Memory, Outcome, Wait
from liftbridge_operator.cluster.planning.observation import BrokerSet, SetShape
from liftbridge_operator.cluster.planning.view import View

GROW = GrowClaim.__name__


def grow_claims(view: View, memory: Memory) -> Outcome | None:
    """Request the desired size on the next claim that lacks it.

    A refused claim does not keep other claims from growing.
    """
    due = growths(view)
    if not due:
        return None
    refused = [refusal for refusal in memory.refused if refusal.action == GROW]
    waiting = {refusal.object for refusal in refused if view.now < refusal.until_ms}
    grown = next((one for one in due if one.name not in waiting), due[0])
    return Outcome(EXPANDING, grown, waits=tuple(map(refusals.wait, refused)))


def still_refused(view: View, memory: Memory) -> Memory:
    """Drop refusals of claims that no longer have to grow, or that were deleted.

    No other rule drops them, and the set would wait forever.
    """
    due = {growth.name for growth in growths(view)}
    left = (one for one in memory.refused if one.action != GROW or one.object in due)
    return replace(memory, refused=tuple(left))


def growths(view: View) -> list[GrowClaim]:
    """Return the sizes to request."""
    return [
        GrowClaim(one.name, one.uid, one.resource_version, size) for one, size in plan.resized(view)
    ]


def unfinished(view: View) -> list[Wait]:
    """Return waits for volumes that lack the requested size or attributes."""
    waits = []
    for one in plan.growing(view):
        if one.infeasible:
            waits.append(Wait("VolumeCannotGrow", one.name, one.infeasible, is_stalled=True))
        else:
            ends_when = "its file system has the size that was asked for"
            waits.append(Wait("VolumeResizing", one.name, ends_when))
    for one, attributes in plan.modified(view):
        ends_when = f"it has the VolumeAttributesClass {attributes}"
        waits.append(Wait("VolumeModifying", one.name, ends_when))
    return waits


def remake_set(view: View, memory: Memory) -> Outcome | None:
    """Record a set whose immutable fields differ, delete it without its pods, and recreate it.

    This comes before any wait for pods, which such a set may be unable to create. It is not done
    while volumes cannot grow: new brokers get volumes like those of other brokers.
    """
    brokers, shape = view.seen.brokers, view.seen.recorded.shape
    if brokers is None or brokers.is_terminating:
        return None
    if not brokers.odd and not _has_other_size(view, brokers):
        return Outcome(EXPANDING, _record(view, None)) if shape is not None else None
    cannot_grow = any(refusal.action == GROW for refusal in memory.refused)
    if shape is None and cannot_grow and not brokers.odd:  # gate CANNOT_GROW
        return None
    why = EXPANDING if _has_other_size(view, brokers) else "Reconciling"
    now = SetShape(brokers.replicas, brokers.revision, brokers.good_revision, brokers.bad_revision)
    if shape != now:  # gate SHAPE
        return Outcome(why, _record(view, now))
    again = wanted_set(view, view.seen.identity.cluster_id if view.seen.identity else "")
    return Outcome(why, OrphanSet(brokers.uid, brokers.resource_version, again))


def _has_other_size(view: View, brokers: BrokerSet) -> bool:
    """Return whether new claims would be too small, or larger than desired and than any volume."""
    desired, data = view.desired, view.claims.values()
    for made, asked, claims in (
        (brokers.claim_bytes, desired.data_volume.size_bytes, data),
        (brokers.raft_bytes, desired.raft_volume.size_bytes, view.seen.raft_claims),
    ):
        if made < asked or (
            asked and made > max([asked, *(claim.capacity_bytes for claim in claims)])
        ):
            return True
    return False


def _record(view: View, shape: SetShape | None) -> Record:
    return Record(view.seen.resource_version, replace(view.seen.recorded, shape=shape))
