"""The rules of the custom resources: each takes what it should and refuses what it should.

The same tables are given to a real API server by tests/e2e; here the rules run in Python, so that
a slip is seen without a cluster.
"""

import pytest

from liftbridge_operator.model.crds.definitions import RESOURCES, definition
from liftbridge_testkit.resources.examples import FOLDER, Example, load_examples, merged
from liftbridge_testkit.resources.rules import evaluate, refusals
from liftbridge_testkit.resources.schema import created, defaulted, errors, nodes

SCHEMAS = {
    resource.kind: definition(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for resource in RESOURCES
}
TABLES = {
    "LiftbridgeCluster": "cluster.yaml",
    "Stream": "stream.yaml",
    "StreamPipeline": "pipeline.yaml",
    "LiftbridgeUser": "user.yaml",
}
EXAMPLES = [example for name in TABLES.values() for example in load_examples(FOLDER / name)]


def rules_of(kind: str) -> dict[str, str]:
    """Expression of each rule by its name, found in the models."""
    found: dict[str, str] = {}
    waiting = [next(one.spec for one in RESOURCES if one.kind == kind)]
    seen: set[object] = set()
    while waiting:
        model = waiting.pop()
        if model in seen:
            continue
        seen.add(model)
        found |= {rule.name: rule.rule for rule in model.rules}
        waiting += list(models_in(model))
    whole = next(one.rules for one in RESOURCES if one.kind == kind)
    return found | {rule.name: rule.rule for rule in whole}


def models_in(model):
    """Models that fields of a model hold."""

    def parts(annotation):
        if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
            yield annotation
        for inner in getattr(annotation, "__args__", ()):
            yield from parts(inner)

    for field in model.model_fields.values():
        yield from parts(field.annotation)


def broken(example: Example) -> tuple[list[str], list[str]]:
    """What the schema says against an example, and the rules that it breaks."""
    schema = SCHEMAS[example.value["kind"]]
    value = defaulted(schema, example.value)
    faults = errors(schema, value)
    if example.before is None:
        return faults, [
            refusal.rule for refusal in refusals(schema, created(schema, example.value))
        ]
    before = defaulted(schema, example.before)
    assert (errors(schema, before), list(refusals(schema, before))) == ([], [])
    return faults, [refusal.rule for refusal in refusals(schema, value, before)]


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if one.is_accepted], ids=lambda one: one.name
)
def test_accepted_example_breaks_nothing(example):
    assert broken(example) == ([], [])


@pytest.mark.parametrize(
    "example",
    [one for one in EXAMPLES if not one.is_accepted and one.rule],
    ids=lambda one: one.name,
)
def test_refused_example_breaks_its_rule_and_no_other(example):
    faults, rules = broken(example)
    assert (faults, rules) == ([], [rules_of(example.value["kind"])[example.rule]])


@pytest.mark.parametrize(
    "example",
    [one for one in EXAMPLES if not one.is_accepted and not one.rule],
    ids=lambda one: str(one.value["spec"]),
)
def test_wrong_type_or_bound_is_refused_by_the_schema(example):
    assert len(broken_by_schema(example)) > 0


def broken_by_schema(example: Example) -> list[str]:
    schema = SCHEMAS[example.value["kind"]]
    return errors(schema, defaulted(schema, example.value))


@pytest.mark.parametrize("kind", TABLES)
def test_every_rule_has_an_accepted_and_a_refused_example(kind):
    examples = load_examples(FOLDER / TABLES[kind])
    rules = set(rules_of(kind))
    for is_accepted in (True, False):
        named = {one.rule for one in examples if one.is_accepted is is_accepted and one.rule}
        assert named == rules


@pytest.mark.parametrize("kind", TABLES)
def test_every_rule_stands_in_the_schema_and_has_a_name_of_its_own(kind):
    written = {
        entry["rule"]
        for _, node in nodes(SCHEMAS[kind])
        for entry in node.get("x-kubernetes-validations", ())
    }
    assert written == set(rules_of(kind).values())


def test_rule_about_a_change_is_one_that_names_the_former_value():
    transitions = [rule for rule in rules_of("Stream").values() if "oldSelf" in rule]
    assert len(transitions) == 5


def test_refusal_tells_the_values():
    schema = SCHEMAS["LiftbridgeCluster"]
    owned = next(one for one in EXAMPLES if one.rule == "config-extra-nats" and not one.is_accepted)
    told = [refusal.message for refusal in refusals(schema, defaulted(schema, owned.value))]
    assert told == ["clustering.namespace, logging.nats, nats.* are determined by spec.nats"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("quantity('1Gi').compareTo(quantity('1024Mi'))", 0),
        ("quantity('1500m').compareTo(quantity('1.5'))", 0),
        ("quantity('1.5Gi').isGreaterThan(quantity('1G'))", True),
        ("duration('1h30m') == duration('90m')", True),
        ("'1.2.3'.split('.')[1]", "2"),
        ("['a', 'b'].join(', ')", "a, b"),
    ],
)
def test_functions_of_kubernetes_are_as_there(expression, value):
    assert evaluate(expression, {}) == value


def test_merge_patch_removes_by_null_and_replaces_lists():
    assert merged({"a": 1, "b": {"c": 1}, "d": [1]}, {"a": None, "b": {"e": 2}, "d": [2]}) == {
        "b": {"c": 1, "e": 2},
        "d": [2],
    }
