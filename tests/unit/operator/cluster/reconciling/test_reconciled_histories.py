"""What tools see over whole histories, and operators that are killed and cut off at any call."""

import asyncio
from functools import cache
from random import Random

import pytest

from liftbridge_operator.kube.errors import KubeError
from liftbridge_testkit.kube.kstatus import kstatus, stale_claims
from liftbridge_testkit.operator_sim.reconciled import ReconciledWorld, UnreliableKube

SEEDS = range(3)
PASSES = 220


@cache
def history():
    """Of a cluster that came up, got another image, grew and shrank."""
    return asyncio.run(changes()).history


async def changes():
    world = ReconciledWorld()
    await world.until_ready()
    world.create_stream("s", "c-0", "c-1", "c-2", min_isr=2)
    world.edit(lambda spec: spec.update(image="liftbridge-broker:new"))
    await world.until_ready()
    world.edit(lambda spec: spec.update(replicas=4))
    await world.until_ready()
    world.edit(lambda spec: spec.update(replicas=3))
    await world.until_ready()
    return world


def test_tools_are_never_told_too_early_that_all_is_done():
    found = [(kstatus(body), is_so) for body, is_so in history()]
    assert ("Current", False) not in found
    assert ("Current", True) in found
    # From the moment a specification is written until it holds, nobody takes it for done.
    assert found[0][0] == "InProgress"
    assert [text for body, _ in history() for text in stale_claims(body)] == []
    generations = {body["metadata"]["generation"] for body, _ in history()}
    assert generations == {1, 2, 3, 4}


def test_conditions_of_every_moment_fit_together():
    before = {}
    for body, _ in history():
        told = {one["type"]: one for one in body["status"].get("conditions", ())}
        assert all(
            one["observedGeneration"] <= body["metadata"]["generation"] for one in told.values()
        )
        if told:
            is_working = told["Progressing"]["status"] == "True"
            assert is_working == ("Reconciling" in told)
            assert not ("Stalled" in told and is_working)
            assert not ("Reconciling" in told and told["Ready"]["status"] == "True")
        for kind, one in told.items():
            former = before.get(kind)
            if former is not None and former["status"] == one["status"]:
                assert one["lastTransitionTime"] == former["lastTransitionTime"]
        before = told or before


@pytest.mark.parametrize("seed", SEEDS)
async def test_operator_that_is_killed_and_cut_off_brings_everything_to_its_end(seed):
    rng = Random(seed)
    world = ReconciledWorld(seed=seed)
    kube = UnreliableKube(world.kube, rng, 0.06)
    world.restart(kube)
    wishes = [{"image": "liftbridge-broker:new"}, {"replicas": 4}, {"replicas": 3}]
    for number in range(PASSES):
        if number % 50 == 40 and wishes:
            if not world.stage.brokers.partitions and world.stage.brokers.registered:
                world.create_stream("s", *sorted(world.stage.brokers.registered)[:3])
            wish = wishes.pop(0)
            world.edit(lambda spec, wish=wish: spec.update(wish))
        if rng.random() < 0.03:
            world.restart(kube)
        try:
            await world.go_on()
        except KubeError:
            continue
    kube.rate = 0.0
    await world.until_ready()
    assert world.is_as_asked
    assert len(world.stage.brokers.histories) == 1
    assert ("Current", False) not in [(kstatus(body), is_so) for body, is_so in world.history]
