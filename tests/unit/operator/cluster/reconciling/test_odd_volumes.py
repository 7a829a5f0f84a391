"""Volumes that cannot become what is asked for are named with their cause, and have a way back.

A size that the driver does not make, for volumes that are there and for new ones; a class of
attributes that does not exist, likewise. Nothing else is held up, and each has a way back.
"""

import pytest

from liftbridge_operator.cluster.observing.objects import claim_of
from liftbridge_operator.kube.kinds import CLAIMS
from liftbridge_testkit.operator_sim.reconciled import ReconciledWorld

MINUTE_PASSES = 24
REST_PASSES = 8
GIB = 1 << 30
HUGE = "100Ti"
NEW_IMAGE = "liftbridge-broker:new"


def sized(size):
    return lambda spec: spec["storage"]["data"].update(size=size)


def with_attributes(name):
    def change(spec):
        spec["storage"]["data"].pop("volumeAttributesClassName", None)
        spec["storage"]["data"].update({"volumeAttributesClassName": name} if name else {})

    return change


async def ready_world(spec=None):
    world = ReconciledWorld(spec)
    await world.until_ready()
    world.create_stream("s", *sorted(world.stage.api.pods)[:3], min_isr=1)
    await world.go_on(REST_PASSES)
    assert world.is_ready
    return world


def claims_of(world):
    return [claim_of(one) for one in world.kube.all_of(CLAIMS)]


async def goes_on_beside(world):
    """Something else that is asked for is done meanwhile."""
    world.edit(lambda spec: spec.update(image=NEW_IMAGE))
    await world.until(lambda: world.status["updatedReplicas"] == 3)
    world.stage.kube.lose_node(world.stage.api.pods["c-1"].node)
    await world.until(lambda: world.status["readyReplicas"] == 2, MINUTE_PASSES)
    world.stage.kube.return_node(world.stage.api.pods["c-1"].node)
    await world.until(lambda: world.status["readyReplicas"] == 3)


@pytest.mark.parametrize("back", ["1Gi", "2Gi"])
async def test_size_that_is_infeasible_is_named_and_gates_nothing_and_has_a_way_back(back):
    world = await ready_world()
    world.stage.kube.size_max = 3 * GIB
    world.edit(sized(HUGE))
    named = ("False", "VolumeCannotGrow")
    await world.until(lambda: world.condition("StorageReady") == named, MINUTE_PASSES)
    await world.until(lambda: world.condition("Ready") == named, MINUTE_PASSES)
    assert world.condition("Stalled") == ("True", "VolumeCannotGrow")
    assert "no such size" in str(world.status["conditions"])
    await goes_on_beside(world)
    await world.until(lambda: world.condition("Ready") == named, MINUTE_PASSES)
    world.edit(sized(back))
    await world.until_ready()
    assert world.condition("Stalled") == ("", "")
    await world.go_on(MINUTE_PASSES)
    wanted = int(back[0]) * GIB
    assert [one.requested_bytes - wanted in (0, 1) for one in claims_of(world)] == [True] * 3
    world.edit(lambda spec: spec.update(replicas=4))
    await world.until_ready()
    assert claims_of(world)[3].capacity_bytes == wanted


async def test_size_of_which_no_volume_is_made_is_named_and_has_a_way_back():
    world = ReconciledWorld({"storage": {"data": {"size": HUGE}}})
    world.stage.kube.size_max = 3 * GIB
    await world.until(lambda: world.condition("StorageReady") == ("False", "Pending"), 24)
    world.edit(sized("2Gi"))
    await world.until_ready()
    assert [one.capacity_bytes for one in claims_of(world)] == [2 * GIB] * 3


@pytest.mark.parametrize("mended", ["fast", ""])
async def test_attributes_that_do_not_exist_are_named_on_new_volumes(mended):
    typo = {"size": "1Gi", "volumeAttributesClassName": "fats"}
    world = ReconciledWorld({"storage": {"data": typo}})
    world.attributes = frozenset({"fast"})
    await world.until(lambda: world.condition("StorageReady") == ("False", "Pending"), 24)
    message = next(
        one["message"] for one in world.status["conditions"] if one["type"] == "StorageReady"
    )
    assert "fats" in message
    assert world.condition("Ready")[0] == "False"
    world.edit(with_attributes(mended))
    await world.until_ready()
    assert {one.attributes_in_force for one in claims_of(world)} == {mended}


@pytest.mark.parametrize("mended", ["gold", "fast"])
async def test_attributes_that_do_not_exist_are_named_on_volumes_that_are_there(mended):
    fast = {"size": "1Gi", "volumeAttributesClassName": "fast"}
    world = await ready_world({"storage": {"data": fast}})
    world.attributes = frozenset({"fast", "gold"})
    world.edit(with_attributes("fats"))
    await world.until(
        lambda: world.condition("StorageReady") == ("False", "AttributesPending"), MINUTE_PASSES
    )
    assert "fats" in str(world.status["conditions"])
    await world.until(lambda: world.condition("Ready") == ("False", "Blocked"), MINUTE_PASSES)
    await goes_on_beside(world)
    await world.until(lambda: world.condition("Ready") == ("False", "Blocked"), MINUTE_PASSES)
    world.edit(with_attributes(mended))
    await world.until_ready()
    assert {one.attributes_in_force for one in claims_of(world)} == {mended}
    world.edit(lambda spec: spec.update(replicas=4))
    await world.until_ready()
    assert claims_of(world)[3].attributes_in_force == mended


async def test_set_and_claims_that_were_adopted_with_another_class_are_named_and_new_ones_have_it():
    world = await ready_world({"storage": {"data": {"size": "1Gi", "storageClassName": "slow"}}})
    world.edit(lambda spec: spec["storage"]["data"].update(storageClassName="fast"))
    await world.until(lambda: world.condition("StorageReady") == ("True", "OtherClass"))
    world.edit(lambda spec: spec.update(replicas=4))
    await world.until_ready()
    assert [one.class_name for one in claims_of(world)] == [*["slow"] * 3, "fast"]
    assert world.condition("StorageReady") == ("True", "OtherClass")
