"""A configuration or template that somebody deletes is put again as long as a pod may need it."""

import pytest

from liftbridge_operator.cluster.planning.observation import StuckCause
from liftbridge_operator.kube.kinds import CONFIG_MAPS, SETS
from liftbridge_operator.model import names
from liftbridge_testkit.operator_sim.reconciled import NAME, NAMESPACE, ReconciledWorld

REST_PASSES = 8
STEMS = (names.config(NAME, ""), names.revision(NAME, ""))


async def ready_world(spec=None):
    world = ReconciledWorld(spec)
    await world.until_ready()
    await world.go_on(REST_PASSES)
    assert world.is_ready
    return world


def kept(world):
    """Configurations and templates: what is in them, by their names."""
    return {
        one["metadata"]["name"]: one["data"]
        for one in world.kube.all_of(CONFIG_MAPS)
        if one["metadata"]["name"].startswith(STEMS)
    }


def delete_all(world):
    """Somebody clears up."""
    found = kept(world)
    for name in found:
        world.kube.remove(CONFIG_MAPS, NAMESPACE, name)
    return found


def debugging(spec):
    spec.update(config={"logLevel": "debug"})


async def test_what_pods_have_is_put_again_while_a_change_waits_for_its_approval():
    world = await ready_world({"disruption": {"mode": "Approval"}})
    in_force = kept(world)
    world.edit(debugging)
    await world.until(lambda: world.condition("Stalled") == ("True", "ApprovalRequired"))
    both = delete_all(world)
    assert len(both) == 4
    assert {name: both[name] for name in in_force} == in_force
    await world.go_on()
    assert kept(world) == both
    world.annotate(approve=world.status["plan"]["hash"])
    await world.until_ready()
    await world.go_on(REST_PASSES)
    assert len(kept(world)) == 2
    assert not kept(world).keys() & in_force.keys()


async def test_what_pods_have_is_put_again_while_the_specification_is_refused():
    world = await ready_world()
    world.edit(lambda spec: spec.update(topology={"zoneLabel": "rack"}))
    await world.go_on(REST_PASSES)
    assert world.condition("Stalled") == ("True", "InvalidSpec")
    in_force = delete_all(world)
    await world.go_on()
    assert kept(world) == in_force


async def test_what_pods_have_is_put_again_while_another_operator_would_render_otherwise():
    world = await ready_world()
    world.image_of = lambda spec: spec.image or f"mirror/broker:{spec.version}"
    world.restart()
    await world.go_on(REST_PASSES)
    assert world.status["held"]["causes"] != []
    in_force = delete_all(world)
    await world.go_on()
    assert kept(world) == in_force


async def test_what_waiting_pods_have_is_put_again_in_the_middle_of_a_roll():
    world = await ready_world()
    former = world.status["revision"]
    template = names.revision(NAME, former)
    config = next(name for name in kept(world) if name != template)
    in_force = kept(world)
    world.edit(debugging)
    await world.until(lambda: world.kube.deletions != [])
    (live,) = world.kube.all_of(SETS)
    assert live["metadata"]["annotations"][names.REVISION] != former
    world.kube.remove(CONFIG_MAPS, NAMESPACE, config)
    await world.go_on()
    assert kept(world)[config] == in_force[config]
    await world.until_ready()


@pytest.mark.parametrize("passes", [0, 1])
async def test_configuration_of_a_template_that_is_written_back_is_put_again(passes):
    world = await ready_world()
    good = kept(world)
    config = next(name for name in good if name.startswith(STEMS[0]))
    world.edit(debugging)
    await world.until(lambda: world.status.get("plan") is not None)
    world.stage.kube.bad_revisions[world.status["plan"]["revision"]] = StuckCause.CRASH_LOOP
    await world.until(lambda: world.condition("Stalled") == ("True", "BadRevision"))
    await world.go_on(passes)
    world.kube.remove(CONFIG_MAPS, NAMESPACE, config)
    await world.go_on()
    assert kept(world)[config] == good[config]


async def test_paused_cluster_gets_nothing_before_it_is_looked_after_again():
    world = await ready_world()
    world.edit(lambda spec: spec.update(paused=True, config={"logLevel": "debug"}))
    await world.go_on(REST_PASSES)
    in_force = delete_all(world)
    await world.go_on(REST_PASSES)
    assert kept(world) == {}
    world.edit(lambda spec: spec.update(paused=False, disruption={"mode": "Approval"}))
    await world.go_on()
    assert {name: kept(world)[name] for name in in_force} == in_force
