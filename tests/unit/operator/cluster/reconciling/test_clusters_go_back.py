"""Every change of a `LiftbridgeCluster` that admission accepts has a way back.

Each field of the schema is changed, and changed back: objects and status are as they were, or a
condition names what cannot go back.
"""

from functools import cache

import pytest
import yaml

from liftbridge_operator.cluster.rendering.render import render
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    PODS,
    PROMETHEUS_RULES,
    SERVICE_ACCOUNTS,
    SERVICE_MONITORS,
    SERVICES,
    SETS,
)
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.crds.definitions import RESOURCES, definition
from liftbridge_testkit.kube.fields import copied
from liftbridge_testkit.operator_sim.perturbed import content
from liftbridge_testkit.operator_sim.reconciled import ReconciledWorld
from liftbridge_testkit.resources.changes import changes, is_admitted, together
from liftbridge_testkit.resources.clusters import PATHS, cluster_of, inputs_for
from liftbridge_testkit.resources.schema import defaulted

(DEFINITION,) = (definition(one) for one in RESOURCES if one.kind == "LiftbridgeCluster")
SCHEMA = DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
KINDS = (
    *(BUDGETS, CLAIMS, CONFIG_MAPS, NETWORK_POLICIES, PODS, PROMETHEUS_RULES),
    *(SERVICE_ACCOUNTS, SERVICE_MONITORS, SERVICES, SETS),
)
PASSES_MAX = 60
QUIET_PASSES = 6
ONE_WAY = (".featureLevel", ".encryption")
"""Fields of which the API refuses the way back: brokers write what former ones cannot read."""

HISTORY = {
    "observedGeneration": "counts changes, those that were changed back among them",
    "lastTransitionTime": "a condition may have been another one meanwhile",
    "since": "a wait may have ended meanwhile, and begun again",
    "podUID": "pods were started anew",
    "lastRestart": "pods were started anew",
    "retainedVolumes": "a broker that left leaves its volume, which is kept and told here",
}
"""Fields of the status that tell what was, with the reason why they are others afterwards."""

KEPT = {"Larger", "OtherAttributes"}
"""Reasons of `StorageReady` by which volumes are named that cannot become what they were."""


OTHER_FILES = {
    "access": {
        "jwt": {
            "issuer": "other",
            "audience": "other",
            "keys": {"configMapKeyRef": {"name": "other", "key": "other"}},
        }
    },
    "encryption": {"masterKeys": {"name": "other", "key": "other"}},
}
"""Files that changed specifications name."""

SHAPES = ("least", "embedded", "ephemeral", "outside", "secured", "guarded")
"""Golden clusters, of one broker: a field is changed in the first that has it."""


def spec_of(shape):
    """The specification of a golden cluster."""
    path = next(one for one in PATHS if one.stem == shape)
    spec = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
    spec["replicas"] = 1
    spec.get("config", {}).get("streams", {}).pop("minISR", None)  # of two brokers at least
    return spec


def standing(world):
    """All that the operator keeps, and what it tells, but for `HISTORY`."""
    told = without_history(copied(world.status))
    brokers, conditions = told.pop("brokers"), told.pop("conditions")
    volumes = {one["id"]: one.pop("volumes") for one in brokers}
    found = {"volumes of brokers": volumes, "status of brokers": brokers}
    found |= {f"status.{name}": value for name, value in told.items()}
    found |= {f"condition {one['type']}": one for one in conditions}
    for kind in KINDS:
        for one in world.kube.all_of(kind):
            name, body = one["metadata"]["name"], content(one)
            if kind == CLAIMS and name.endswith(tuple(volumes)):
                found[f"volumes: {name}"] = body
            elif kind != CLAIMS and not name.endswith("-restart"):
                found[f"{kind.kind} {name}"] = body
            if kind == SETS:
                found["volumes of the set"] = body["spec"].pop("volumeClaimTemplates", None)
    return found


def is_named(world, left):
    """Whether only volumes are others, and a condition says so."""
    is_told = world.is_ready and world.condition("StorageReady")[1] in KEPT
    return is_told and all(
        one.startswith("volumes") or one == "condition StorageReady" for one in left
    )


def without_history(value):
    if isinstance(value, dict):
        return {key: without_history(one) for key, one in value.items() if key not in HISTORY}
    return [without_history(one) for one in value] if isinstance(value, list) else value


def differences(before, after):
    return sorted(key for key in {**before, **after} if before.get(key) != after.get(key))


def rendered(spec):
    """Revision of the pods, and everything beside them."""
    parsed = ClusterSpec.model_validate(spec)
    made = render(cluster_of(parsed), inputs_for(parsed))
    return made.revision, (made.objects, parsed.storage, parsed.replicas, made.refusals)


def grouped(spec, seen):
    """Changes one by one; those with a way back that only make other pods go together."""
    alone, of_pods = [], []
    revision, beside = rendered(spec)
    for place, changed in changes(SCHEMA, spec, seen):
        other, others = rendered(changed)
        is_of_pods = other != revision and others == beside and is_admitted(SCHEMA, spec, changed)
        (of_pods if is_of_pods else alone).append((place, changed))
    return [([place], one) for place, one in alone] + together(SCHEMA, spec, of_pods)


@cache
def by_shape():
    """Changes of each shape, and each field in the first shape alone that has it."""
    seen = set()
    return {shape: grouped(spec_of(shape), seen) for shape in SHAPES}


async def changed_to(world, spec, is_done):
    """Let a change settle: until it is done, or nothing more happens."""
    world.edit(lambda body: (body.clear(), body.update(defaulted(SCHEMA, copied(spec)))))
    quiet = 0
    for _ in range(PASSES_MAX):
        writes = world.kube.changes
        await world.go_on()
        quiet = quiet + 1 if world.kube.changes == writes else 0
        if is_done() or quiet >= QUIET_PASSES:
            return


async def settled_world(spec):
    world = ReconciledWorld(defaulted(SCHEMA, spec))
    world.put_files(spec | OTHER_FILES)
    await world.until_ready()
    world.create_stream("s", *sorted(world.stage.api.pods), min_isr=1)
    await world.go_on(QUIET_PASSES)
    return world


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_accepted_change_has_a_way_back(shape):
    spec = spec_of(shape)
    world = await settled_world(spec)
    before, stuck, one_way = standing(world), {}, set()
    for places, changed in by_shape()[shape]:
        if not is_admitted(SCHEMA, spec, changed):
            one_way |= set(places)
            continue
        await changed_to(world, changed, lambda: world.is_ready)
        await changed_to(world, spec, lambda now=before: world.is_ready and standing(world) == now)
        left = differences(before, standing(world))
        if left and not is_named(world, left):
            stuck[", ".join(places)] = left
        before = standing(world)
    assert stuck == {}
    assert {field for field in one_way if not field.startswith(ONE_WAY)} == set()


def test_many_fields_are_changed():
    made = (one for groups in by_shape().values() for places, _ in groups for one in places)
    assert len(set(made)) > 200
