"""Larger volumes: claims first, before any gate; then the set is made again around its pods."""

from dataclasses import replace

from liftbridge_operator.planning.actions import GrowClaim, OrphanSet, Record
from liftbridge_operator.planning.bootstrap import EXPANDING
from liftbridge_operator.planning.decision import Outcome, Wait
from liftbridge_operator.planning.observation import SetShape
from liftbridge_operator.planning.plan import too_small
from liftbridge_operator.planning.view import View


def grow_claims(view: View) -> Outcome | None:
    """Ask for more on the next claim that has less; never for less."""
    for claim in too_small(view):
        is_data = claim in view.claims.values()
        size = view.wanted.claim_bytes if is_data else view.wanted.raft_bytes
        grown = GrowClaim(claim.name, claim.uid, claim.resource_version, size)
        return Outcome(EXPANDING, grown)
    return None


def growing(view: View) -> list[Wait]:
    """Waits for volumes and file systems that are as large as was asked for."""
    claims = [*view.claims.values(), *view.seen.raft_claims]
    return [
        Wait("VolumeResizing", one.name, "its file system has the size that was asked for")
        for one in claims
        if 0 < one.capacity_bytes < one.requested_bytes and not one.is_retired
    ]


def remake_set(view: View) -> Outcome | None:
    """A claim template cannot change: record the set, delete it without its pods, make it again."""
    brokers, shape = view.seen.brokers, view.seen.recorded.shape
    if brokers is None or brokers.is_terminating:
        return None
    wanted = view.wanted
    if brokers.claim_bytes >= wanted.claim_bytes and brokers.raft_bytes >= wanted.raft_bytes:
        if shape is None:
            return None
        return Outcome(EXPANDING, _record(view, None))
    now = SetShape(brokers.replicas, brokers.revision, brokers.good_revision, brokers.bad_revision)
    if shape != now:  # gate SHAPE
        return Outcome(EXPANDING, _record(view, now))
    return Outcome(EXPANDING, OrphanSet(brokers.uid, brokers.resource_version))


def _record(view: View, shape: SetShape | None) -> Record:
    return Record(view.seen.resource_version, replace(view.seen.recorded, shape=shape))
