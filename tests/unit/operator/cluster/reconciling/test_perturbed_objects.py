"""The perturbation proof: whatever a person does to an object of a cluster is repaired or named.

Every change, addition and deletion of every field of every object that the operator owns, generated
from the objects as they stand, and their deletion; and every accepted change of the specification
has a way back.
"""

import json
from random import Random

import pytest

from liftbridge_operator.kube.errors import ForbiddenError, InvalidError
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICES,
    SETS,
)
from liftbridge_operator.model import names
from liftbridge_testkit.kube.fields import copied
from liftbridge_testkit.operator_sim.perturbed import (
    content,
    distinct,
    one_of_each_kind,
    perturbations,
)
from liftbridge_testkit.operator_sim.reconciled import NAMESPACE, ReconciledWorld

KINDS = (SERVICES, SERVICE_ACCOUNTS, NETWORK_POLICIES, BUDGETS, CONFIG_MAPS, SETS)
PASSES_MAX = 24
"""A minute of passes."""

REST_PASSES = 8
PARTS = 6
"""Tests that share the fields of the StatefulSet, which has the most."""

NEEDED = (
    ("spec",),
    ("spec", "template"),
    ("spec", "template", "metadata"),
    ("spec", "template", "spec"),
    ("spec", "ports"),
)
CLOSED = ("serviceName", "selector", "podManagementPolicy", "volumeClaimTemplates")
"""Fields of a StatefulSet that the API server lets nobody change."""


async def ready_world(spec=None):
    world = ReconciledWorld(spec)
    await world.until_ready()
    world.create_stream("s", *sorted(world.stage.api.pods)[:3], min_isr=1)
    await world.go_on(REST_PASSES)
    assert world.is_ready
    return world


def conditions(world):
    return {(one["type"], one["reason"]) for one in world.status["conditions"]}


def is_closed(kind, change):
    """Whether a real API server refuses a change; the model has no such rules.

    An object whose owner is another one is taken by the garbage collector, and comes back.
    """
    place = change.place
    if place[:2] == ("metadata", "ownerReferences") and place[-1] == "uid":
        return True
    if (kind, change.what, place) == (SETS, "add", ("spec",)):
        return True  # the API server keeps no field that it does not know
    is_needed = place in NEEDED
    if is_needed and change.what == "remove":
        return True
    if kind == CONFIG_MAPS:
        return change.place[0] in ("data", "immutable")
    return (
        kind == SETS
        and change.place[0] == "spec"
        and (change.place[1:2] and change.place[1] in CLOSED)
    )


async def fate_of(world, kind, name, rest):
    """Whether an object is as it was, or why not; empty for as it was."""
    before = content(rest)
    for _ in range(PASSES_MAX):
        await world.go_on()
        live = world.kube.look(kind, NAMESPACE, name)
        if live is not None and content(live) == before and world.is_ready:
            return ""
    if conditions(world) & {("Stalled", "Conflict"), ("Stalled", "Contested")}:
        return "named"
    return json.dumps([content(live) if live else None, sorted(conditions(world))])[:2_000]


async def perturb(world, kind, name, part=0):
    """Changes of an object one after the other; those that are neither repaired nor named."""
    rest = world.kube.look(kind, NAMESPACE, name)
    found, count = {}, 0
    for change in distinct(perturbations(rest))[part :: PARTS if kind == SETS else 1]:
        if is_closed(kind, change):
            continue
        count += 1
        try:
            world.kube.edit(kind, NAMESPACE, name, change.apply)
        except InvalidError:
            continue
        fate = await fate_of(world, kind, name, rest)
        if fate:
            if fate != "named":
                found[str(change)] = fate
            world.kube.put(copied(rest))
            await world.until_ready()
            rest = world.kube.look(kind, NAMESPACE, name)
    assert count, "something can be changed"
    return found


@pytest.mark.parametrize(
    ("kind", "part"),
    [(kind, part) for kind in KINDS for part in range(PARTS if kind == SETS else 1)],
    ids=lambda one: str(getattr(one, "kind", one)),
)
async def test_whatever_is_done_to_an_object_is_repaired_or_named(kind, part):
    world = await ready_world()
    found = {}
    for name in world.kube.names_of(kind):
        if name.endswith("-restart"):
            continue  # a note of the restart before
        found |= {
            f"{name}: {what}": why for what, why in (await perturb(world, kind, name, part)).items()
        }
    assert found == {}
    await world.go_on(REST_PASSES)  # what was changed back is told
    before = world.kube.changes
    await world.go_on(REST_PASSES)
    assert world.kube.changes == before


async def test_set_that_is_made_again_by_hand_is_made_again_as_it_was():
    """As by `kubectl replace --force`: of each field that nobody could change otherwise."""
    world = await ready_world()
    pods = {name: one.uid for name, one in world.stage.api.pods.items()}
    rest = world.kube.look(SETS, NAMESPACE, "c")
    found, count = {}, 0
    for change in distinct(perturbations(rest)):
        if (
            change.place[:1] != ("spec",)
            or change.place[1:2] == ()
            or change.place[1] not in CLOSED
        ):
            continue
        if change.what == "add" and change.place[-1] in (0, "metadata"):
            continue  # the API server keeps no field that it does not know
        count += 1
        made = copied(rest)
        change.apply(made)
        world.kube.remove(SETS, NAMESPACE, "c")
        world.kube.put(made)
        fate = await fate_of(world, SETS, "c", rest)
        if fate:
            found[str(change)] = fate
            world.kube.put(copied(rest))
            await world.until_ready()
    assert count > 20, "something cannot be changed"
    assert list(found) == []
    assert {name: one.uid for name, one in world.stage.api.pods.items()} == pods


async def test_set_that_would_make_its_pods_in_turn_does_not_keep_a_quorum_from_coming_back():
    world = await ready_world()
    made = world.kube.look(SETS, NAMESPACE, "c")
    made["spec"]["podManagementPolicy"] = "OrderedReady"
    world.kube.remove(SETS, NAMESPACE, "c")
    world.kube.put(made)
    for pod in list(world.stage.api.pods.values()):
        world.stage.kube.force_delete(pod)
        world.stage.brokers.kill(pod.name)
    await world.go_on(2)
    assert not world.is_ready
    await world.until_ready()
    assert world.kube.look(SETS, NAMESPACE, "c")["spec"]["podManagementPolicy"] == "Parallel"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
async def test_object_that_is_deleted_comes_back(kind):
    world = await ready_world()
    for name in world.kube.names_of(kind):
        rest = world.kube.look(kind, NAMESPACE, name)
        if name.endswith("-restart"):
            continue
        world.kube.remove(kind, NAMESPACE, name)
        for _ in range(PASSES_MAX):
            await world.go_on()
        live = world.kube.look(kind, NAMESPACE, name)
        assert live is not None, name
        assert live["metadata"]["labels"] == rest["metadata"]["labels"]
        await world.until_ready()


@pytest.mark.parametrize("seed", range(4))
async def test_one_of_each_kind_side_by_side_is_repaired_or_named(seed):
    """As the story on a real cluster, by the same choice."""
    world = await ready_world()
    by_name = {kind.kind: kind for kind in KINDS}
    for what in ("change", "add", "remove"):
        live = [
            copied(one)
            for kind in KINDS
            for one in world.kube.all_of(kind)
            if not one["metadata"]["name"].endswith("-restart")
        ]
        done = one_of_each_kind(
            live,
            what,
            Random(f"{what} {seed}"),
            may_change=lambda body, change: not is_closed(by_name[body["kind"]], change),
            replace=world.kube.put,
        )
        assert [one.before["kind"] for one in done] == sorted(by_name)
        assert {one.change.what for one in done} == {what}
        for one in done:
            kind, name = by_name[one.before["kind"]], one.before["metadata"]["name"]
            assert await fate_of(world, kind, name, one.before) in ("", "named")


FOUND_BY = ("labels", "annotations", "ownerReferences")


async def marks_of(world, kind, name):
    return {part: world.kube.look(kind, NAMESPACE, name)["metadata"].get(part) for part in FOUND_BY}


@pytest.mark.parametrize("kind", [CLAIMS, PODS], ids=lambda kind: kind.kind)
async def test_what_was_made_of_the_set_is_found_whatever_it_loses(kind):
    world = await ready_world(
        {"storage": {"data": {"size": "1Gi"}, "retention": {"whenDeleted": "Delete"}}}
    )
    found, count = {}, 0
    for name in world.kube.names_of(kind)[1:2]:
        before = await marks_of(world, kind, name)
        uid = world.kube.look(kind, NAMESPACE, name)["metadata"]["uid"]
        marks = {"apiVersion": "v1", "kind": kind.kind}
        marks["metadata"] = {part: copied(value) for part, value in before.items() if value}
        for change in distinct(perturbations(marks)):
            is_lost = change.what != "add" and change.place[1] == "labels"
            if not is_lost and str(change) != "remove metadata.ownerReferences":
                continue
            count += 1
            world.kube.edit(kind, NAMESPACE, name, change.apply)
            await world.go_on(3)
            live = world.kube.look(kind, NAMESPACE, name)
            if ("Stalled", "Conflict") in conditions(world):  # the id of another cluster is named
                assert change.place[-1] == names.CLUSTER_ID
                live["metadata"]["labels"] = copied(before["labels"])
                world.kube.put(live)
                await world.go_on(3)
                live = world.kube.look(kind, NAMESPACE, name)
            is_same = live["metadata"]["uid"] == uid and world.is_ready
            if not is_same or await marks_of(world, kind, name) != before:
                found[f"{name}: {change}"] = await marks_of(world, kind, name)
    assert count > 8, "something can be lost"
    assert found == {}
    assert len(world.stage.api.pods) == 3
    await world.go_on(REST_PASSES)
    before = world.kube.changes
    await world.go_on(REST_PASSES)
    assert world.kube.changes == before


async def test_claim_that_lost_its_label_grows_with_the_others():
    world = await ready_world()
    world.restart()
    name = names.claim("c", 1)
    world.kube.edit(CLAIMS, NAMESPACE, name, lambda body: body["metadata"].pop("labels"))
    world.edit(WISHES["size"])
    await world.until_ready()
    spec = world.kube.look(CLAIMS, NAMESPACE, name)["spec"]
    assert spec["resources"]["requests"]["storage"] == str(2 << 30)


async def test_claim_without_its_label_is_adopted_by_the_next_resource():
    world = await ready_world()
    ids = {one["metadata"]["labels"][names.CLUSTER_ID] for one in world.kube.all_of(CLAIMS)}
    for name in world.kube.names_of(CLAIMS):
        world.kube.edit(CLAIMS, NAMESPACE, name, lambda body: body["metadata"].pop("labels", None))
    for name in world.kube.names_of(SETS):
        world.kube.remove(SETS, NAMESPACE, name)
    await world.go_on(3)
    await world.until_ready()
    labels = [one["metadata"]["labels"] for one in world.kube.all_of(CLAIMS)]
    assert {one[names.CLUSTER_ID] for one in labels} == ids


async def test_kept_volume_stays_marked_as_kept():
    world = await ready_world({"replicas": 4})
    world.edit(lambda spec: spec.update(replicas=3))
    await world.until_ready()
    await world.go_on(REST_PASSES)
    name = names.claim("c", 3)
    before = await marks_of(world, CLAIMS, name)
    assert names.RETIRED in before["annotations"]
    for part in ("labels", "annotations"):
        world.kube.edit(CLAIMS, NAMESPACE, name, lambda body, part=part: body["metadata"].pop(part))
        await world.go_on(3)
        assert await marks_of(world, CLAIMS, name) == before
    world.edit(lambda spec: spec.update(replicas=4))
    await world.until_ready()
    assert names.RETIRED not in (await marks_of(world, CLAIMS, name))["annotations"]


WISHES = {
    "size": lambda spec: spec["storage"]["data"].update(size="2Gi"),
    "replicas": lambda spec: spec.update(replicas=4),
    "fewer": lambda spec: spec.update(replicas=2, disruption={"allowUnreplicated": True}),
    "settings": lambda spec: spec.update(config={"logLevel": "debug"}),
    "image": lambda spec: spec.update(image="liftbridge-broker:new"),
    "outside": lambda spec: spec.update(
        listeners=[{"name": "internal"}, {"name": "outside", "type": "NodePort", "port": 9_300}]
    ),
    "suspend": lambda spec: spec.update(suspend=True),
    "policy": lambda spec: spec.update(networkPolicy={"enabled": False}),
    "class of attributes": lambda spec: spec["storage"]["data"].update(
        volumeAttributesClassName="fast"
    ),
}


def refusing(kube, words, is_refused):
    """The API server refuses some writes, in the words of a real one."""

    def admit(verb, body):
        if is_refused(verb, body):
            raise words

    kube.admit = admit


@pytest.mark.parametrize("wish", WISHES)
async def test_every_change_has_a_way_back(wish):
    world = await ready_world()
    before = copied(world.resource["spec"])
    world.edit(WISHES[wish])
    await world.go_on(3)
    world.edit(lambda spec: (spec.clear(), spec.update(copied(before))))
    await world.until_ready()
    assert world.condition("Stalled") == ("", "")


@pytest.mark.parametrize("wish", [one for one in WISHES if one not in ("fewer", "policy")])
async def test_every_change_that_is_refused_is_named_and_has_a_way_back(wish):
    world = await ready_world()
    before = copied(world.resource["spec"])
    claims = (CLAIMS.kind, SERVICES.kind, SETS.kind)
    words = InvalidError("admission webhook denied the request: no", status=422)
    refusing(world.kube, words, lambda _verb, body: body["kind"] in claims)
    world.edit(WISHES[wish])
    await world.until(lambda: world.condition("Ready") == ("False", "AdmissionDenied"))
    world.edit(lambda spec: (spec.clear(), spec.update(copied(before))))
    world.kube.admit = None
    await world.until_ready()
    assert world.condition("Stalled") == ("", "")


@pytest.mark.parametrize("replicas", [0, 1, 2, 5])
async def test_set_scaled_by_hand_is_brought_back(replicas):
    world = await ready_world()
    events = len(world.events)
    world.kube.edit(SETS, NAMESPACE, "c", lambda body: body["spec"].update(replicas=replicas))
    for _ in range(10):  # the operator is away until brokers that are left have lost their quorum
        world.tick()
    await world.until(lambda: world.is_ready and len(world.stage.api.pods) == 3)
    told = {reason for reason, _ in world.events[events:]}
    assert told & {"Resumed", "Suspended", "QuorumLost"} == set()


async def test_port_that_is_taken_is_named_and_holds_nothing_else_up():
    world = await ready_world()
    words = InvalidError("spec.ports[0].nodePort: provided port is already allocated", status=422)
    refusing(
        world.kube,
        words,
        lambda _verb, body: body["kind"] == "Service" and "outside" in body["metadata"]["name"],
    )
    world.edit(WISHES["outside"])
    world.edit(lambda spec: spec.update(networkPolicy={"enabled": False}))
    await world.until(lambda: world.condition("Ready") == ("False", "PortTaken"))
    assert world.kube.names_of(NETWORK_POLICIES) == []
    world.restart()
    await world.go_on()
    assert world.condition("Ready") == ("False", "PortTaken")


async def test_volumes_that_cannot_grow_are_named_and_hold_nothing_else_up():
    world = await ready_world()
    words = ForbiddenError(
        "persistentvolumeclaims is forbidden: only dynamically provisioned pvc can be resized and "
        "the storageclass that provisions the pvc must support resize",
        status=403,
    )
    refusing(world.kube, words, lambda _verb, body: body["kind"] == CLAIMS.kind)
    world.edit(WISHES["size"])
    await world.go_on()
    assert world.condition("Ready") == ("False", "VolumeCannotGrow")
    assert world.condition("Stalled") == ("True", "VolumeCannotGrow")
    world.edit(WISHES["image"])
    await world.until(lambda: world.status["updatedReplicas"] == 3)
    world.edit(lambda spec: spec["storage"]["data"].update(size="1Gi"))
    await world.until_ready()


async def test_what_is_taken_away_while_no_operator_runs_is_put_back():
    world = await ready_world()
    before = world.kube.look(SETS, NAMESPACE, "c")["spec"]

    def bare(body):
        body["spec"]["template"]["spec"]["containers"][0].pop("env")

    world.kube.edit(SETS, NAMESPACE, "c", bare)
    world.restart()
    await world.go_on(2)
    assert world.kube.look(SETS, NAMESPACE, "c")["spec"] == before


async def test_one_lost_answer_changes_nothing_that_is_said():
    world = await ready_world()
    before = len(world.history)
    world.admin.is_silent = True
    await world.go_on()
    world.admin.is_silent = False
    await world.go_on(3)
    assert len(world.history) == before
    world.admin.is_silent = True
    await world.until(lambda: not world.is_ready, passes_max=4)
    assert world.status["readyReplicas"] == 3


async def test_what_controllers_note_on_an_object_stays_theirs():
    world = await ready_world()
    live = world.kube.look(SERVICES, NAMESPACE, "c-internal")
    live["metadata"].setdefault("annotations", {})["cloud/neg"] = "{}"
    world.kube.put(live, manager="cloud-controller-manager")
    await world.go_on(REST_PASSES)
    kept = await world.kube.get(SERVICES, NAMESPACE, "c-internal")
    assert kept["metadata"]["annotations"] == {"cloud/neg": "{}"}
    assert "drift" not in world.status
    before = world.kube.changes
    await world.go_on(REST_PASSES)
    assert world.kube.changes == before


async def test_object_that_somebody_fights_for_is_named():
    world = await ready_world()
    for number in range(12):
        world.kube.edit(
            SERVICES,
            NAMESPACE,
            "c-internal",
            lambda body, number=number: body["spec"]["selector"].update(x=str(number)),
        )
        await world.go_on()
    assert world.condition("Stalled") == ("True", "Contested")
    await world.until_ready()
