"""Larger volumes: claims first, before any gate; then the set is made again around its pods."""

from dataclasses import replace

from liftbridge_operator.planning.actions import GrowClaim, OrphanSet, Record
from liftbridge_operator.planning.decision import Outcome
from liftbridge_operator.planning.observation import SetShape
from liftbridge_operator.planning.view import View

EXPANDING = "ExpandingVolumes"


def grow_claims(view: View) -> Outcome | None:
    """Ask for more on the next claim that has less; never for less."""
    for claim in view.claims.values():
        if claim.requested_bytes < view.wanted.claim_bytes and not claim.is_terminating:
            if claim.is_retired:
                continue
            grown = GrowClaim(
                claim.name, claim.uid, claim.resource_version, view.wanted.claim_bytes
            )
            return Outcome(EXPANDING, grown)
    return None


def remake_set(view: View) -> Outcome | None:
    """A claim template cannot change: record the set, delete it without its pods, make it again."""
    brokers, shape = view.seen.brokers, view.seen.recorded.shape
    if brokers is None or brokers.is_terminating:
        return None
    if brokers.claim_bytes >= view.wanted.claim_bytes:
        if shape is None:
            return None
        return Outcome(EXPANDING, _record(view, None))
    now = SetShape(brokers.replicas, brokers.revision, brokers.good_revision, brokers.bad_revision)
    if shape != now:  # gate SHAPE
        return Outcome(EXPANDING, _record(view, now))
    return Outcome(EXPANDING, OrphanSet(brokers.uid, brokers.resource_version))


def _record(view: View, shape: SetShape | None) -> Record:
    return Record(view.seen.resource_version, replace(view.seen.recorded, shape=shape))
