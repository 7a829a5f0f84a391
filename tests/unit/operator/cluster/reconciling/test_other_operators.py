"""An operator of another release takes over: it restarts nobody, and does nothing by halves."""

from liftbridge_operator.cluster.planning.observation import StuckCause
from liftbridge_operator.kube.kinds import SETS
from liftbridge_operator.model import names
from liftbridge_testkit.operator_sim.reconciled import ReconciledWorld

REST_PASSES = 8


async def ready_world():
    world = ReconciledWorld()
    await world.until_ready()
    await world.go_on(REST_PASSES)
    assert world.is_ready
    return world


async def other_operator(world, passes=20):
    """One that renders another image for the same version."""
    world.image_of = lambda spec: spec.image or f"mirror/broker:{spec.version}"
    world.restart()
    await world.go_on(passes)


def asked(world):
    (live,) = world.kube.all_of(SETS)
    return live["metadata"]["annotations"][names.ASKED]


async def test_change_that_pods_do_not_show_is_noted_and_takes_nothing_with_it():
    world = await ready_world()
    revision = world.status["revision"]
    world.edit(lambda spec: spec.update(scaling={"rebalance": "Never"}))
    await world.until_ready()
    await world.go_on(REST_PASSES)
    assert "Never" in asked(world)
    await other_operator(world)
    # Neither the exchange nor a wish that needs no restart puts into force what is held.
    world.edit(lambda spec: spec.update(scaling={"rebalance": "Automatic"}, replicas=4))
    await world.until_ready()
    await world.go_on(REST_PASSES)
    assert "Never" not in asked(world)
    assert world.status["held"]["causes"] == [
        "image liftbridge-broker:0.1.0 becomes mirror/broker:0.1.0"
    ]
    assert (world.kube.deletions, world.status["revision"]) == ([], revision)


async def test_asked_restart_takes_with_it_what_is_held():
    world = await ready_world()
    await other_operator(world)
    world.annotate(restart="now")
    await world.until(lambda: world.kube.deletions != [])
    await world.until_ready()
    assert "held" not in world.status
    assert world.status["image"] == "mirror/broker:0.1.0"


async def test_change_that_was_taken_back_is_not_tried_again():
    world = await ready_world()
    good = world.status["revision"]
    world.edit(lambda spec: spec.update(config={"logLevel": "debug"}))
    await world.until(lambda: world.status.get("plan") is not None)
    bad = world.status["plan"]["revision"]
    world.stage.kube.bad_revisions[bad] = StuckCause.CRASH_LOOP
    await world.until(lambda: world.condition("Stalled") == ("True", "BadRevision"))
    await world.until(lambda: all(one["ready"] for one in world.status["brokers"]))
    await world.go_on(REST_PASSES)
    deletions = list(world.kube.deletions)
    await other_operator(world)
    assert world.kube.deletions == deletions
    assert world.status["revision"] == good
    assert world.condition("Stalled") == ("True", "BadRevision")
    world.edit(lambda spec: spec.update(config={"logLevel": "error"}))
    await world.until_ready()
    assert world.status["revision"] not in {good, bad}


async def test_operator_that_does_not_know_a_field_does_nothing_and_names_it():
    world = await ready_world()
    revision = world.status["revision"]
    later = {"data": {"size": "1Gi", "later": {"than": "this"}}}
    world.edit(lambda spec: spec.update(replicas=5, storage=later, sooner=1))
    await world.go_on(20)
    assert world.condition("Stalled") == ("True", "InvalidSpec")
    (told,) = [one for one in world.status["conditions"] if one["type"] == "Stalled"]
    assert "spec.storage.data.later: only a newer operator knows this field" in told["message"]
    assert "spec.sooner: only a newer operator knows this field" in told["message"]
    (live,) = world.kube.all_of(SETS)
    assert (live["spec"]["replicas"], world.status["revision"]) == (3, revision)
    assert world.kube.deletions == []
    world.edit(lambda spec: [spec.pop("sooner"), spec["storage"]["data"].pop("later")])
    await world.until_ready()
    assert world.status["replicas"] == 5
