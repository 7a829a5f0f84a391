"""Set the feature level and the catch-up rate of moves as specified.

The feature level is raised once every broker supports it, and never lowered: a broker that does not
support the level in force could no longer be a member.
"""

from liftbridge_operator.cluster.planning.actions import SetCatchUpRate, SetFeatureLevel
from liftbridge_operator.cluster.planning.decision import Outcome, Wait
from liftbridge_operator.cluster.planning.plan import awaits_level, candidates
from liftbridge_operator.cluster.planning.view import View


def bound_moves(view: View) -> Outcome | None:
    """Bound the catch-up rate of moved replicas, before any move."""
    rate = view.desired.catch_up_rate
    if view.metadata is None or view.metadata.catch_up_rate == rate or view.desired.config_errors:
        return None
    return Outcome("", SetCatchUpRate(rate))


def raise_level(view: View) -> Outcome | None:
    """Raise the feature level, once all brokers have the template that supports it."""
    if _knows_level(view) is not True:  # gate LEVEL_KNOWN
        return None
    return Outcome("", SetFeatureLevel(view.desired.feature_level))


def unknown_level(view: View) -> list[Wait]:
    """Return the wait for brokers that support the level, when no restart is due."""
    if _knows_level(view) is not False:
        return []
    what = f"all brokers know feature level {view.desired.feature_level}"
    return [Wait("FeatureLevelUnknown", view.desired.name, what)]


def _knows_level(view: View) -> bool | None:
    """Return whether all brokers support the level; None if not needed or a restart is due."""
    if not awaits_level(view) or candidates(view):
        return None
    assert view.metadata is not None
    return view.metadata.known_level >= view.desired.feature_level
