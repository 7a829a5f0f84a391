"""Volumes of other sizes: claims first, before any gate; then the set is made again around pods.

So it is with everything else of a set that cannot change: its pods and claims stay what they are.
"""

from dataclasses import replace

from liftbridge_operator.planning import plan, refusals
from liftbridge_operator.planning.actions import GrowClaim, OrphanSet, Record
from liftbridge_operator.planning.bootstrap import EXPANDING, wanted_set
from liftbridge_operator.planning.decision import Memory, Outcome, Wait
from liftbridge_operator.planning.observation import BrokerSet, SetShape
from liftbridge_operator.planning.view import View

GROW = GrowClaim.__name__


def grow_claims(view: View, memory: Memory) -> Outcome | None:
    """Ask for another size on the next claim that has not the one that is wanted.

    One that was refused does not keep the others from growing.
    """
    due = growths(view)
    if not due:
        return None
    refused = [one for one in memory.refused if one.action == GROW]
    waiting = {one.object for one in refused if view.now < one.until_ms}
    grown = next((one for one in due if one.name not in waiting), due[0])
    return Outcome(EXPANDING, grown, waits=tuple(map(refusals.wait, refused)))


def still_refused(view: View, memory: Memory) -> Memory:
    """The memory without refusals of volumes that somebody else let grow, or that are gone.

    Nothing would settle them, and the set would wait for ever for what nobody asks for any more.
    """
    due = {one.name for one in growths(view)}
    left = (one for one in memory.refused if one.action != GROW or one.object in due)
    return replace(memory, refused=tuple(left))


def growths(view: View) -> list[GrowClaim]:
    """What is to be asked for."""
    return [
        GrowClaim(one.name, one.uid, one.resource_version, size) for one, size in plan.resized(view)
    ]


def unfinished(view: View) -> list[Wait]:
    """Waits for volumes that are as large, and of the attributes, that were asked for."""
    found = []
    for one in plan.growing(view):
        if one.infeasible:
            found.append(Wait("VolumeCannotGrow", one.name, one.infeasible, is_stalled=True))
        else:
            ends_when = "its file system has the size that was asked for"
            found.append(Wait("VolumeResizing", one.name, ends_when))
    for one, attributes in plan.modified(view):
        ends_when = f"it has the VolumeAttributesClass {attributes}"
        found.append(Wait("VolumeModifying", one.name, ends_when))
    return found


def remake_set(view: View, memory: Memory) -> Outcome | None:
    """Record a set with what cannot change, delete it without its pods, and make it again.

    Before pods are waited for, which a set may be unable to make so. Not while volumes cannot grow:
    new brokers have what the others have.
    """
    brokers, shape = view.seen.brokers, view.seen.recorded.shape
    if brokers is None or brokers.is_terminating:
        return None
    if not brokers.odd and not _has_other_size(view, brokers):
        return Outcome(EXPANDING, _record(view, None)) if shape is not None else None
    cannot_grow = any(one.action == GROW for one in memory.refused)
    if shape is None and cannot_grow and not brokers.odd:  # gate CANNOT_GROW
        return None
    why = EXPANDING if _has_other_size(view, brokers) else "Reconciling"
    now = SetShape(brokers.replicas, brokers.revision, brokers.good_revision, brokers.bad_revision)
    if shape != now:  # gate SHAPE
        return Outcome(why, _record(view, now))
    again = wanted_set(view, view.seen.identity.cluster_id if view.seen.identity else "")
    return Outcome(why, OrphanSet(brokers.uid, brokers.resource_version, again))


def _has_other_size(view: View, brokers: BrokerSet) -> bool:
    """Whether the next claims would be too small, or larger than is wanted and any volume is."""
    wanted, data = view.wanted, view.claims.values()
    for made, asked, claims in (
        (brokers.claim_bytes, wanted.claim_bytes, data),
        (brokers.raft_bytes, wanted.raft_bytes, view.seen.raft_claims),
    ):
        if made < asked or (asked and made > max([asked, *(one.capacity_bytes for one in claims)])):
            return True
    return False


def _record(view: View, shape: SetShape | None) -> Record:
    return Record(view.seen.resource_version, replace(view.seen.recorded, shape=shape))
