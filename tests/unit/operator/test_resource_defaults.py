"""Definitions of other releases: defaults stay, later fields have none, and no field is lost.

A default that changes is a change of every cluster by whoever exchanges the operator. A field with
a default stands in every resource: the former operator does not know it, and does nothing then.
"""

import re

import pytest
import yaml

from liftbridge_operator.model.crds import guard
from liftbridge_operator.model.crds.definitions import RESOURCES, definition
from liftbridge_operator.model.stream import StreamSpec
from liftbridge_operator.streams.resources import resource_of
from liftbridge_testkit.repository import ROOT
from liftbridge_testkit.resources.schema import nodes

RECORDED = ROOT / "tests" / "unit" / "operator" / "defaults.yaml"
STREAM = {"clusterRef": {"name": "c"}, "subject": "s", "replicationFactor": 1}


def specification(resource):
    schema = definition(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema["properties"]["spec"]


def defaults():
    """Every default of a specification, by its path; of a section, that it has one."""
    found = {}
    for resource in RESOURCES:
        for path, node in nodes(specification(resource)):
            if "default" in node:
                told = "section" if node.get("type") == "object" else node["default"]
                found[f"{resource.kind}{path}"] = told
    return found


def test_defaults_are_those_of_the_first_release(rewrite):
    if rewrite:
        RECORDED.write_text(yaml.safe_dump(defaults()), encoding="utf-8")
    assert defaults() == yaml.safe_load(RECORDED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one.plural)
def test_definition_lists_every_field_of_its_specification(resource):
    listed = definition(resource)["metadata"]["annotations"][guard.FIELDS].split(" ")
    paths = {
        re.sub(r"\[\]|\{\}", "", path).lstrip(".") for path, _ in nodes(specification(resource))
    }
    assert sorted(listed) == sorted(paths - {""})


def test_policy_is_about_our_definitions():
    names = [resource.name for resource in RESOURCES]
    (rule,) = guard.policy(names)["spec"]["matchConstraints"]["resourceRules"]
    assert rule["resourceNames"] == names
    assert guard.binding()["spec"] == {"policyName": guard.NAME, "validationActions": ["Deny"]}


def test_fields_that_are_not_known_are_named_wherever_they_stand():
    given = STREAM | {"a": {}, "b": None, "config": {"c": 0, "encryption": True}}
    assert StreamSpec.model_validate(given).unread(given) == (".a", ".config.c")
    assert StreamSpec.model_validate(STREAM).unread(STREAM) == ()


def test_stream_with_fields_of_a_newer_operator_is_not_read():
    metadata = {"namespace": "n", "name": "s", "uid": "u"}
    known = resource_of({"metadata": metadata, "spec": STREAM})
    newer = resource_of({"metadata": metadata, "spec": STREAM | {"config": {"later": 1}}})
    assert (known.spec is None, known.unread) == (False, "")
    assert newer.spec is None
    assert newer.unread == "only a newer operator knows spec.config.later"
