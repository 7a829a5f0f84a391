"""The perturbation proof over pipelines: whatever a person does to an object is repaired or named.

Every change, addition and deletion of every field of every object of each shape of a pipeline,
generated from the objects as they stand.
"""

import json
from datetime import timedelta

import pytest

from liftbridge_operator.kube.errors import InvalidError
from liftbridge_operator.kube.kinds import CRON_JOBS, DEPLOYMENTS, JOBS, ROLE_BINDINGS
from liftbridge_operator.pipelines.apply import KINDS
from liftbridge_testkit.kube.fields import copied
from liftbridge_testkit.operator_sim.perturbed import content, distinct, perturbations
from liftbridge_testkit.pipelines_memory import PipelineWorld

SHAPES = {
    "continuous": {},
    "once": {"mode": "Once"},
    "scheduled": {"mode": "Scheduled", "schedule": {"cron": "@hourly"}},
    "executors": {
        "runtime": "Executors",
        "executors": {"instances": 2},
        "credentials": {"serviceAccountAnnotations": {"cloud/role": "archive"}},
    },
}
PASSES = 2
"""Within a minute of passes."""

OPEN_OF_JOB = (
    "suspend",
    "parallelism",
    "backoffLimit",
    "activeDeadlineSeconds",
    "ttlSecondsAfterFinished",
)
NEEDED = (("spec",), ("spec", "ports"), ("roleRef",), ("spec", "template"), ("spec", "jobTemplate"))


async def ready_world(changes):
    world = PipelineWorld()
    world.put(**changes)
    await world.look(2)
    return world


def is_closed(kind, change):
    """Whether a real API server refuses a change; the model has no such rules.

    An object whose owner is another one is taken by the garbage collector, and comes back.
    """
    place = change.place
    if place[:2] == ("metadata", "ownerReferences") and place[-1] == "uid":
        return True
    if change.what == "add" and place == ("spec",):
        return True  # the API server keeps no field that it does not know
    if change.what == "remove" and place in NEEDED:
        return True
    if kind == JOBS and place[0] == "spec":
        return place[1:2] == () or place[1] not in OPEN_OF_JOB
    if kind == DEPLOYMENTS:
        return place[:2] == ("spec", "selector")
    return kind == ROLE_BINDINGS and place[0] == "roleRef"


async def fate_of(world, kind, name, rest):
    """Whether an object is as it was, or why not; empty for as it was."""
    for _ in range(PASSES):
        world.clock.seconds += 30
        await world.look()
    live = world.kube.look(kind, "shop", name)
    if live is not None and content(live) == content(rest):
        return ""
    if world.reason("Ready") in ("Conflict", "Contested"):
        return "named"
    return json.dumps([live and content(live), world.reason("Ready")])[:2_000]


async def perturb(world, kind, name):
    """Changes of an object one after the other; those that are neither repaired nor named."""
    rest = world.kube.look(kind, "shop", name)
    found, count = {}, 0
    for change in distinct(perturbations(rest)):
        if is_closed(kind, change):
            continue
        try:
            world.kube.edit(kind, "shop", name, change.apply)
        except InvalidError:
            continue
        count += 1
        fate = await fate_of(world, kind, name, rest)
        if fate:
            if fate != "named":
                found[f"{kind.kind}/{name}: {change}"] = fate
            world.kube.put(copied(rest))
            await world.look(2)
    assert count, "something can be changed"
    return found


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_is_done_to_an_object_is_repaired_or_named(shape):
    world = await ready_world(SHAPES[shape])
    reason = world.reason("Ready")
    found = {}
    for kind in KINDS:
        for name in world.kube.names_of(kind):
            found |= await perturb(world, kind, name)
    assert found == {}
    assert world.reason("Ready") == reason
    world.kube.writes.clear()
    await world.look(3)
    assert world.kube.writes == []


@pytest.mark.parametrize("shape", SHAPES)
async def test_object_that_is_deleted_comes_back(shape):
    world = await ready_world(SHAPES[shape])
    for kind in KINDS:
        for name in world.kube.names_of(kind):
            rest = world.kube.look(kind, "shop", name)
            world.kube.remove(kind, "shop", name)
            await world.look()
            assert content(world.kube.look(kind, "shop", name)) == content(rest)


async def test_what_is_added_while_no_operator_runs_is_taken_away():
    world = await ready_world({})
    before = content(world.kube.look(DEPLOYMENTS, "shop", "p-pipeline"))

    def add(body):
        body["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "none"}

    world.kube.edit(DEPLOYMENTS, "shop", "p-pipeline", add)
    world.reconciler = world.operator()
    await world.look()
    assert content(world.kube.look(DEPLOYMENTS, "shop", "p-pipeline")) == before


@pytest.mark.parametrize("shape", SHAPES)
async def test_object_that_lost_its_label_while_no_operator_ran_goes_when_it_is_not_needed(shape):
    world = await ready_world(SHAPES[shape])
    for kind in KINDS:
        for name in world.kube.names_of(kind):
            world.kube.edit(kind, "shop", name, lambda body: body["metadata"].pop("labels"))
    other = "scheduled" if shape != "scheduled" else "continuous"
    world.put(**SHAPES[other])
    world.reconciler = world.operator()
    await world.look()
    fresh = await ready_world(SHAPES[other])
    assert {kind: world.kube.names_of(kind) for kind in KINDS} == {
        kind: fresh.kube.names_of(kind) for kind in KINDS
    }


async def test_note_of_a_controller_stays():
    world = await ready_world({})
    live = world.kube.look(DEPLOYMENTS, "shop", "p-pipeline")
    noted = {"deployment.kubernetes.io/revision": "1"}
    live["metadata"]["annotations"] = noted
    world.kube.put(live, manager="kube-controller-manager", part="status")
    await world.look(2)
    assert world.kube.look(DEPLOYMENTS, "shop", "p-pipeline")["metadata"]["annotations"] == noted
    assert world.events.told == []
    world.kube.writes.clear()
    await world.look(2)
    assert world.kube.writes == []


@pytest.mark.parametrize("days", [0, 3])
async def test_object_that_somebody_fights_for_is_named_and_written_ever_less_often(days):
    world = await ready_world({})
    for number in range(12):
        world.kube.edit(
            DEPLOYMENTS,
            "shop",
            "p-pipeline",
            lambda body, number=number: body["spec"].update(replicas=2 + number),
        )
        await world.look()
    assert world.reason("Ready") == "Contested"
    assert "kubectl" in world.message("Ready")
    assert world.kube.look(DEPLOYMENTS, "shop", "p-pipeline")["spec"]["replicas"] == 13
    world.clock.set_back = timedelta(days=days)
    world.clock.seconds += 61
    await world.look(2)
    assert world.kube.look(DEPLOYMENTS, "shop", "p-pipeline")["spec"]["replicas"] == 1
    assert world.reason("Ready") == "Starting"


@pytest.mark.parametrize("kind", [CRON_JOBS, DEPLOYMENTS], ids=lambda kind: kind.kind)
async def test_process_that_begins_writes_nothing_that_changes_an_object(kind):
    shape = "scheduled" if kind == CRON_JOBS else "continuous"
    world = await ready_world(SHAPES[shape])
    before = world.kube.changes
    world.reconciler = world.operator()
    await world.look(2)
    assert world.kube.changes == before
    assert world.events.told == []
