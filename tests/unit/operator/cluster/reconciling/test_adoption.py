"""What has the name of an object of the cluster and belongs to another one stays what it is."""

from copy import deepcopy

from liftbridge_operator.cluster.observing.reads import restart_name
from liftbridge_operator.kube.kinds import ALL_KINDS, CLAIMS, CLUSTERS, PODS, kind_of
from liftbridge_testkit.operator_sim.reconciled import NAME, NAMESPACE, ReconciledWorld

SPEC = {"listeners": [{"name": "internal"}, {"name": "other", "port": 9293}]}
PASSES = 40


def owned_by_another(world, body):
    """An object of another cluster, with its labels, in the place of one of this cluster."""
    what = {"apiVersion": "liftbridge.io/v1alpha1", "kind": "LiftbridgeCluster"}
    other = world.kube.put({**what, "metadata": {"name": "other", "namespace": NAMESPACE}})
    taken = deepcopy(body)
    taken["metadata"] = {
        "name": body["metadata"]["name"],
        "namespace": NAMESPACE,
        "labels": {"liftbridge.io/cluster": "other"},
        "ownerReferences": [{**what, "name": "other", "uid": other["metadata"]["uid"]}],
    }
    taken.pop("status", None)
    world.kube.put(taken)
    return taken


async def parts():
    """All objects of a cluster that is ready, but for those that a controller makes of its set."""
    world = ReconciledWorld(SPEC)
    await world.until_ready()
    await world.go_on(3)
    kinds = [kind for kind in ALL_KINDS if kind not in (PODS, CLAIMS, CLUSTERS)]
    found = [one for kind in kinds for one in world.kube.all_of(kind)]
    return [one for one in found if one["metadata"].get("namespace") == NAMESPACE]


async def met(world, taken):
    """Whether the conditions name an object and whose it is, and it is as it was before."""
    kind, name = kind_of(taken), taken["metadata"]["name"]
    before = await world.kube.get(kind, NAMESPACE, name)
    for _ in range(PASSES):
        await world.go_on()
    said = [one["message"] for one in world.status["conditions"]]
    places = (f"{taken['kind']}/{name}", f"{taken['kind']} {name}", f"the {taken['kind']} ")
    is_named = any(place in one and "other" in one for place in places for one in said)
    return is_named, await world.kube.get(kind, NAMESPACE, name) == before


async def test_no_object_of_another_cluster_is_taken_over():
    found = {}
    for body in await parts():
        world = ReconciledWorld(SPEC)
        taken = owned_by_another(world, body)
        found[taken["kind"], taken["metadata"]["name"]] = await met(world, taken)
    assert len(found) > 8
    assert {one: outcome for one, outcome in found.items() if outcome != (True, True)} == {}


async def test_token_of_a_restart_is_kept_in_no_object_of_another_cluster():
    world = ReconciledWorld(SPEC)
    await world.until_ready()
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": restart_name(NAME)},
        "data": {"a": "b"},
    }
    taken = owned_by_another(world, body)
    world.edit(lambda spec: spec.update(image="liftbridge-broker:other"))
    assert await met(world, taken) == (True, True)
    assert world.kube.deletions == []
