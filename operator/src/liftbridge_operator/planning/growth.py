"""Larger volumes: claims first, before any gate; then the set is made again around its pods."""

from dataclasses import replace

from liftbridge_operator.planning import refusals
from liftbridge_operator.planning.actions import GrowClaim, OrphanSet, Record
from liftbridge_operator.planning.bootstrap import EXPANDING, wanted_set
from liftbridge_operator.planning.decision import Memory, Outcome, Wait
from liftbridge_operator.planning.observation import SetShape
from liftbridge_operator.planning.plan import too_small
from liftbridge_operator.planning.view import View

GROW = GrowClaim.__name__


def grow_claims(view: View, memory: Memory) -> Outcome | None:
    """Ask for more on the next claim that has less; never for less.

    One that was refused does not keep the others from growing.
    """
    due = growths(view)
    if not due:
        return None
    refused = [one for one in memory.refused if one.action == GROW]
    waiting = {one.object for one in refused if view.now < one.until_ms}
    grown = next((one for one in due if one.name not in waiting), due[0])
    return Outcome(EXPANDING, grown, waits=tuple(map(refusals.wait, refused)))


def growths(view: View) -> list[GrowClaim]:
    """What is to be asked for."""
    wanted, data = view.wanted, view.claims.values()
    return [
        GrowClaim(
            one.name,
            one.uid,
            one.resource_version,
            wanted.claim_bytes if one in data else wanted.raft_bytes,
        )
        for one in too_small(view)
    ]


def growing(view: View) -> list[Wait]:
    """Waits for volumes and file systems that are as large as was asked for."""
    claims = [*view.claims.values(), *view.seen.raft_claims]
    return [
        Wait("VolumeResizing", one.name, "its file system has the size that was asked for")
        for one in claims
        if 0 < one.capacity_bytes < one.requested_bytes and not one.is_retired
    ]


def remake_set(view: View, memory: Memory) -> Outcome | None:
    """A claim template cannot change: record the set, delete it without its pods, make it again.

    Not while volumes cannot grow: new brokers have what the others have.
    """
    brokers, shape = view.seen.brokers, view.seen.recorded.shape
    if brokers is None or brokers.is_terminating:
        return None
    if shape is None and any(one.action == GROW for one in memory.refused):  # gate CANNOT_GROW
        return None
    wanted = view.wanted
    if brokers.claim_bytes >= wanted.claim_bytes and brokers.raft_bytes >= wanted.raft_bytes:
        if shape is None:
            return None
        return Outcome(EXPANDING, _record(view, None))
    now = SetShape(brokers.replicas, brokers.revision, brokers.good_revision, brokers.bad_revision)
    if shape != now:  # gate SHAPE
        return Outcome(EXPANDING, _record(view, now))
    again = wanted_set(view, view.seen.identity.cluster_id if view.seen.identity else "")
    return Outcome(EXPANDING, OrphanSet(brokers.uid, brokers.resource_version, again))


def _record(view: View, shape: SetShape | None) -> Record:
    return Record(view.seen.resource_version, replace(view.seen.recorded, shape=shape))
