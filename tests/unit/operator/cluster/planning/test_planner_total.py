"""The planner is pure and total: equal arguments, equal answers, and it never raises."""

from dataclasses import fields, is_dataclass, replace
from enum import Enum
from random import Random
from types import NoneType, UnionType
from typing import get_args, get_origin, get_type_hints

import pytest

from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.decide import decide
from liftbridge_operator.cluster.planning.decision import Memory
from liftbridge_operator.cluster.planning.observation import Observation
from liftbridge_testkit.operator_sim.samples import healthy
from liftbridge_testkit.operator_sim.world import World

TEXTS = ("", "c", "c-0", "c-1", "c-2", "c--3", "c-٣", "uid-c-0", "dir-c-1", "id", "r1", "r2", "s")
NUMBERS = (-5, -1, 0, 1, 2, 3, 5, 10, 30, 2_000, 10_000_000)
PLAIN = {str: TEXTS, int: NUMBERS, bool: (False, True), NoneType: (None,)}
HINTS: dict[type, dict[str, object]] = {}


def any_value(rng, kind):
    """Something of a type, sensible or not."""
    if kind in PLAIN:
        return rng.choice(PLAIN[kind])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return rng.choice(list(kind))
    if get_origin(kind) is UnionType:
        return any_value(rng, rng.choice(get_args(kind)))
    if get_origin(kind) is not tuple:
        return any_of(rng, kind)
    inner = get_args(kind)
    if inner[-1] is ...:
        inner = (inner[0],) * rng.randrange(5)
    return tuple(any_value(rng, one) for one in inner)


def any_of(rng, kind):
    hints = HINTS.setdefault(kind, get_type_hints(kind))
    return kind(**{one.name: any_value(rng, hints[one.name]) for one in fields(kind)})


def bent(rng, value):
    """A sensible observation with some fields, anywhere in it, replaced by anything."""
    hints = HINTS.setdefault(type(value), get_type_hints(type(value)))
    changes = {}
    for one in fields(value):
        held = getattr(value, one.name)
        if rng.random() < 0.012:
            changes[one.name] = any_value(rng, hints[one.name])
        elif is_dataclass(held):
            changes[one.name] = bent(rng, held)
        elif isinstance(held, tuple) and held and is_dataclass(held[0]):
            changes[one.name] = tuple(bent(rng, item) for item in held if rng.random() < 0.9)
    return replace(value, **changes)


@pytest.mark.parametrize("seed", range(8))
def test_no_observation_makes_it_raise_and_equal_ones_are_answered_alike(seed):
    rng = Random(seed)
    seen_actions = set()
    for _ in range(60):
        wish = {"replicas": rng.choice((1, 2, 3, 5)), "revision": rng.choice(("r1", "r2"))}
        seen = bent(rng, healthy(rng.choice((1, 2, 3, 4, 5)), **wish))
        memory = any_of(rng, Memory) if rng.random() < 0.3 else Memory()
        first, second = decide(seen, memory), decide(seen, memory)
        assert first == second
        hash(first)
        assert first.action is None or isinstance(first.action, act.Action)
        seen_actions.add(type(first.action).__name__)
    assert len(seen_actions) >= 3


def test_nonsense_does_not_make_it_raise():
    rng = Random(99)
    for _ in range(80):
        seen = any_of(rng, Observation)
        assert decide(seen, any_of(rng, Memory)).status.generation == seen.desired.generation


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_not_ready_says_what_it_waits_for(seed):
    world = World(seed)
    decisions = []
    world.stage.published = lambda _, decision: decisions.append(decision)
    world.run()
    silent = [
        one.status
        for one in decisions
        if one.action is None
        and not one.status.is_ready
        and not one.status.waits
        and not one.status.plan.steps
    ]
    assert silent == []
