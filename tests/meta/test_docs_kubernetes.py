"""Definitions, names and reference pages of the custom resources say what the models say."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from liftbridge_operator.model.catalogue import names
from liftbridge_operator.model.catalogue.generate import names_text
from liftbridge_operator.model.catalogue.load import ConditionSpec, Word, load_catalogue
from liftbridge_operator.model.crds.definitions import RESOURCES, Resource, definition, files
from liftbridge_testkit.repository import ROOT
from liftbridge_testkit.resources.schema import INT_OR_STRING, nodes

DEPLOYED = ROOT / "deploy" / "crds"
REFERENCE = ROOT / "docs" / "reference" / "kubernetes"
NAMES = ROOT / "operator" / "src" / "liftbridge_operator" / "model" / "catalogue" / "names.py"
CATALOGUE = load_catalogue()
DEFINITION_BYTES_MAX = 200_000


def schema_of(resource: Resource) -> dict[str, Any]:
    version = definition(resource)["spec"]["versions"][0]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def rows(heading: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> str:
    lines = [heading, ("---",) * len(heading), *body]
    return "\n" + "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines) + "\n"


def cell(text: str) -> str:
    """Text of a cell: one line, and no bar that would end it."""
    return " ".join(text.split()).replace("|", "\\|")


def kind_of(node: dict[str, Any]) -> str:
    if node.get(INT_OR_STRING):
        return "quantity"
    if node["type"] == "array":
        return f"list of {kind_of(node['items'])}"
    if "additionalProperties" in node:
        return f"map of {kind_of(node['additionalProperties'])}"
    if node.get("format") == "date-time":
        return "time"
    return str(node["type"])


def meaning_of(node: dict[str, Any], *, is_required: bool) -> str:
    parts = [node["description"]]
    if is_required:
        parts.append("*Required.*")
    if "enum" in node:
        parts.append("One of " + ", ".join(f"`{value}`" for value in node["enum"]) + ".")
    if node.get("type") == "integer" and node["maximum"] < 2**31 - 1:
        parts.append(f"{node['minimum']} to {node['maximum']}.")
    if "maxItems" in node:
        parts.append(f"At most {node['maxItems']} items.")
    if "maxProperties" in node:
        parts.append(f"At most {node['maxProperties']}.")
    return " ".join(parts)


def default_of(node: dict[str, Any]) -> str:
    default = node.get("default")
    if default is None or node.get("type") == "object":
        return "-"
    shown = yaml.safe_dump(default, default_flow_style=True, width=200).removesuffix("\n...\n")
    return f"`{shown.strip()}`"


def field_rows(schema: dict[str, Any], path: str) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    required = set(schema.get("required", ()))
    for name, node in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        meaning = meaning_of(node, is_required=name in required)
        found.append((f"`{here}`", kind_of(node), default_of(node), meaning))
        inner = node.get("items", node)
        found += field_rows(inner, here + ("[]" if "items" in node else ""))
    return found


def fields_text(resource: Resource, part: str) -> str:
    schema = schema_of(resource)["properties"][part]
    return rows(("Field", "Type", "Default", "Meaning"), field_rows(schema, part))


def rules_text(resource: Resource) -> str:
    body = []
    for path, node in nodes(schema_of(resource)):
        for entry in node.get("x-kubernetes-validations", ()):
            is_change = "yes" if "oldSelf" in entry["rule"] else "no"
            where = (path + entry.get("fieldPath", "")).lstrip(".")
            body.append((f"`{where}`", is_change, entry["message"]))
    return rows(("Field", "On update only", "Message"), body)


def columns_text(resource: Resource) -> str:
    body = [
        (column.name, f"`{column.path}`", column.description + (" `-o wide`" * column.priority))
        for column in resource.columns
    ]
    return rows(("Column", "Field", "Meaning"), body)


def condition_text(spec: ConditionSpec) -> str:
    told = "" if spec.presence == "always" else " Present only while it is True."
    wanted = {"good": "True is the desired status.", "bad": "False is the desired status."}
    text = f"\n## {spec.resource}: {spec.type}\n\n{spec.meaning} "
    text += wanted.get(spec.polarity, "Neither status is preferred.") + told + "\n"
    if spec.alert:
        statuses = " or ".join(spec.alert.statuses)
        text += (
            f"\nAlert `{spec.alert.name}` ({spec.alert.severity}): {statuses} for "
            f"{spec.alert.duration}.\n"
        )
    body = [
        (reason.status, f"`{reason.reason}`", told_text(reason.text.template), reason.runbook)
        for reason in spec.reasons.values()
    ]
    return text + rows(("Status", "Reason", "Message", "What to do"), body)


def told_text(template: str) -> str:
    """A template with its values shown as values."""
    return re.sub(r"{(\w+)}", r"*\1*", template)


def conditions_text() -> str:
    return "".join(condition_text(spec) for spec in CATALOGUE.conditions.values())


def words_text(heading: str, words: dict[str, Word]) -> str:
    has_runbook = any(word.runbook for word in words.values())
    top = (heading, "Meaning", "What to do") if has_runbook else (heading, "Meaning")
    body = [(f"`{word.name}`", word.meaning, word.runbook)[: len(top)] for word in words.values()]
    return rows(top, body)


def events_text() -> str:
    body = [
        (event.resource, f"`{event.reason}`", event.type, told_text(event.text.template))
        for event in CATALOGUE.events.values()
    ]
    return rows(("Resource", "Reason", "Type", "Message"), body)


CLUSTER, STREAM, PIPELINE, USER = RESOURCES
PAGES = (
    ("liftbridgecluster.md", CLUSTER),
    ("stream.md", STREAM),
    ("streampipeline.md", PIPELINE),
    ("liftbridgeuser.md", USER),
)
PARTS = [
    (page, mark, text)
    for page, resource in PAGES
    for mark, text in (
        ("columns", columns_text(resource)),
        ("fields", fields_text(resource, "spec")),
        ("rules", rules_text(resource)),
        ("status", fields_text(resource, "status")),
    )
] + [
    ("conditions.md", "conditions", conditions_text()),
    ("conditions.md", "waits", words_text("Wait", dict(CATALOGUE.waits))),
    ("conditions.md", "steps", words_text("Step", dict(CATALOGUE.steps))),
    ("conditions.md", "risks", words_text("Risk", dict(CATALOGUE.risks))),
    ("events.md", "events", events_text()),
]


@pytest.mark.parametrize(
    ("page", "mark", "text"), PARTS, ids=[f"{page}-{mark}" for page, mark, _ in PARTS]
)
def test_reference_repeats_models_and_catalogue(page, mark, text, rewrite):
    path = REFERENCE / page
    before = path.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {mark}: [^\n]*-->\n).*?(<!-- end of {mark} -->)", re.DOTALL)
    after, count = pattern.subn(lambda match: match[1] + text + match[2], before)
    assert count == 1
    if rewrite:
        path.write_text(after, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == after


def test_definitions_are_those_of_the_models(rewrite):
    wanted = files()
    if rewrite:
        for name, text in wanted.items():
            (DEPLOYED / name).write_text(text, encoding="utf-8")
    deployed = {path.name: path.read_text(encoding="utf-8") for path in DEPLOYED.iterdir()}
    assert deployed == wanted


def test_names_are_those_of_the_catalogue(rewrite):
    wanted = names_text(CATALOGUE)
    if rewrite:
        NAMES.write_text(wanted, encoding="utf-8")
    assert NAMES.read_text(encoding="utf-8") == wanted


@pytest.mark.parametrize("name", files())
def test_definition_is_small_enough_to_be_installed_with_any_tool(name):
    assert len(files()[name].encode()) < DEFINITION_BYTES_MAX


def test_every_word_of_the_catalogue_is_in_the_reference():
    conditions = (REFERENCE / "conditions.md").read_text(encoding="utf-8")
    events = (REFERENCE / "events.md").read_text(encoding="utf-8")
    told = [*names.Reason, *names.WaitFor, *names.StepAction, *names.RiskKind]
    assert [word for word in told if f"`{word}`" not in conditions] == []
    assert [word for word in names.EventReason if f"`{word}`" not in events] == []
