"""Each field by which a template becomes another one is named as the cause, and no other."""

from collections.abc import Iterator
from typing import Any

import pytest

from liftbridge_operator.cluster.rendering.render import render
from liftbridge_operator.cluster.rendering.workload import record_of
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.crds.definitions import RESOURCES, object_schema
from liftbridge_testkit.resources.clusters import PATHS, cluster_of, inputs_for, load_spec

SCHEMA = next(object_schema(one) for one in RESOURCES if one.kind == "LiftbridgeCluster")
BASE = load_spec(next(path for path in PATHS if path.stem == "embedded"))
OTHER_TEXTS = ("other", "7s", "7Mi", "10.0.0.0/8", "0.9.9", "Never")


def leaves(schema, path=()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Paths of the specification that hold one value, with their schemas."""
    for name, part in schema.get("properties", {}).items():
        if part.get("properties"):
            yield from leaves(part, (*path, name))
        elif part.get("type") in ("string", "integer", "boolean"):
            yield (*path, name), part


def values(part, present):
    """Values that a leaf may have instead."""
    if part["type"] == "boolean":
        return (not present,)
    if part["type"] == "integer":
        return (present + 1, present - 1) if isinstance(present, int) else (part.get("minimum", 1),)
    return tuple(one for one in (*part.get("enum", ()), *OTHER_TEXTS) if one != present)


def changed(path, part):
    """The specification with a leaf that has another value; None where none of ours fits."""
    given = BASE.model_dump(mode="json")
    place = given
    for name in path[:-1]:
        place = place[name]
        if place is None:
            return None
    present = place.get(path[-1])
    for value in values(part, present):
        place[path[-1]] = value
        try:
            return ClusterSpec.model_validate(given)
        except ValueError:
            continue
    return None


def causes(spec, restart="", former=BASE):
    """What is named when a specification takes the place of the one before."""
    there = render(cluster_of(former), inputs_for(former))
    inputs = inputs_for(spec, recorded=record_of(there))
    return there, render(cluster_of(spec, restart=restart), inputs)


CHANGES = {
    ".".join(path): spec
    for path, part in leaves(SCHEMA["properties"]["spec"])
    if (spec := changed(path, part)) is not None
}


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_field_that_changes_the_template_is_named_alone(path):
    there, here = causes(CHANGES[path])
    is_other = there.revision != here.revision
    assert here.causes == ((f"spec.{path}",) if is_other else ())


def test_fields_are_tried_that_change_templates_and_that_do_not():
    found = {path: causes(spec)[1].causes for path, spec in CHANGES.items()}
    assert sum(1 for one in found.values() if one) > 20
    assert sum(1 for one in found.values() if not one) > 10


def test_all_fields_of_a_change_are_named_and_none_that_restarts_nobody():
    spec = BASE.model_validate(
        BASE.model_dump(mode="json")
        | {"image": "broker:2", "replicas": 7, "paused": True}
        | {"config": BASE.config.model_dump(mode="json") | {"logLevel": "debug"}}
    )
    assert set(causes(spec)[1].causes) == {"spec.image", "spec.config.logLevel"}


def test_restart_that_was_asked_for_is_named():
    assert causes(BASE, restart="now")[1].causes == ("annotation liftbridge.io/restart",)
