"""By which rules brokers decide, and what moves of partitions may cost: as the specification asks.

Rules are raised once every broker knows them, and never lowered: a broker that does not know those
in force could not be a member any more.
"""

from liftbridge_operator.planning.actions import SetCatchUpRate, SetFeatureLevel
from liftbridge_operator.planning.decision import Outcome, Wait
from liftbridge_operator.planning.plan import awaits_level, candidates
from liftbridge_operator.planning.view import View


def bound_moves(view: View) -> Outcome | None:
    """Bound what leaders spend on replicas that are moved, before any is."""
    rate = view.wanted.catch_up_rate
    if view.metadata is None or view.metadata.catch_up_rate == rate or view.wanted.config_errors:
        return None
    return Outcome("", SetCatchUpRate(rate))


def raise_level(view: View) -> Outcome | None:
    """Put newer rules into force, once all brokers have the template that knows them."""
    if _knows_level(view) is not True:  # gate LEVEL_KNOWN
        return None
    return Outcome("", SetFeatureLevel(view.wanted.feature_level))


def unknown_level(view: View) -> list[Wait]:
    """The wait for brokers that know the rules, when no restart brings them."""
    if _knows_level(view) is not False:
        return []
    what = f"all brokers know feature level {view.wanted.feature_level}"
    return [Wait("FeatureLevelUnknown", view.wanted.name, what)]


def _knows_level(view: View) -> bool | None:
    """Whether all brokers know the rules that are asked for; None while a restart is due first."""
    if not awaits_level(view) or candidates(view):
        return None
    assert view.metadata is not None
    return view.metadata.known_level >= view.wanted.feature_level
