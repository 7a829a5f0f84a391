"""Every change of a `StreamPipeline` that admission accepts has a way back.

Each field of the schema is changed, and changed back: objects and conditions are as they were.
"""

import pytest

from liftbridge_operator.model.crds.definitions import RESOURCES, definition
from liftbridge_operator.pipelines.apply import KINDS
from liftbridge_testkit.kube.fields import copied
from liftbridge_testkit.operator_sim.perturbed import content
from liftbridge_testkit.pipelines_memory import KEY, PipelineWorld
from liftbridge_testkit.resources.changes import changes, is_admitted

(DEFINITION,) = (definition(one) for one in RESOURCES if one.kind == "StreamPipeline")
SCHEMA = DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
SHAPES = {
    "continuous": {},
    "once": {"mode": "Once", "type": "Audit"},
    "scheduled": {"mode": "Scheduled", "schedule": {"cron": "@hourly"}},
    "executors": {"runtime": "Executors", "executors": {"instances": 2}},
}


def standing(world):
    """All objects by kind and name, and what is told of them."""
    found = {
        (kind.kind, one["metadata"]["name"]): content(one)
        for kind in KINDS
        for one in world.kube.all_of(kind)
    }
    told = {(one["type"], one["reason"]) for one in world.status["conditions"]}
    return found, told


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_accepted_change_has_a_way_back(shape):
    world = PipelineWorld()
    world.put(**SHAPES[shape])
    await world.look(2)
    before, spec = standing(world), copied(world.kube.look(*KEY)["spec"])
    stuck, closed, count = {}, [], 0
    for place, changed in changes(SCHEMA, spec):
        if not is_admitted(SCHEMA, spec, changed):
            closed.append(place)  # the way back is refused, with the rule's words
            continue
        count += 1
        for one in (changed, spec):
            world.kube.edit(*KEY, lambda body, one=one: body.update(spec=copied(one)))
            world.clock.seconds += 30
            await world.look(2)
        if standing(world) != before:
            stuck[place] = sorted(standing(world)[1])
    assert count > 20
    assert (stuck, closed) == ({}, [])
    assert world.events.told == []
