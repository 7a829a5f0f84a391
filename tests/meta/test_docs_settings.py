"""The references of settings, metrics and log events say what the tables of the code say."""

import ast
import re
from collections.abc import Iterator

import pytest

from liftbridge_broker.adapters.observe.catalogue import (
    Combine,
    MetricSpec,
    MetricType,
    Scope,
    load_catalogue,
)
from liftbridge_broker.config.settings import Kind, Setting, Status
from liftbridge_broker.config.table import SECTIONS, SETTINGS
from liftbridge_broker.config.values import show_duration
from liftbridge_testkit.repository import ROOT, python_files, relative

REFERENCE = ROOT / "docs" / "reference"
CATALOGUE = load_catalogue()
BROKER = "broker/src/liftbridge_broker/"
# Calls that end in `Observer.transition`; the kind is the first text among their arguments.
REPORTING = {"transition", "report", "_report", "report_log"}
NONE = "-"


def marked(name: str) -> re.Pattern[str]:
    """The generated part of a document, with the marks around it."""
    return re.compile(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end of {name} -->)", re.DOTALL)


def rows(*cells: tuple[str, ...]) -> str:
    heading, *body = cells
    lines = [heading, ("---",) * len(heading), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def default_of(setting: Setting) -> str:
    if setting.derived:
        return setting.derived
    return f"`{setting.default}`" if setting.default else "none"


def meaning_of(setting: Setting) -> str:
    parts = [setting.doc]
    if setting.kind is Kind.CHOICE:
        parts.append("One of " + ", ".join(f"`{choice}`" for choice in setting.choices) + ".")
    if setting.kind in {Kind.INTEGER, Kind.SIZE} and setting.maximum < 2**63 - 1:
        parts.append(f"{setting.minimum} to {setting.maximum}.")
    elif setting.minimum > 0:
        is_time = setting.kind is Kind.DURATION
        parts.append(f"At least {show_duration(setting.minimum) if is_time else setting.minimum}.")
    if setting.flags:
        parts.append("Flags: " + ", ".join(f"`{flag}`" for flag in setting.flags) + ".")
    match setting.status:
        case Status.NO_EFFECT:
            parts.append(f"*No effect:* {setting.reason}.")
        case Status.WORKS if setting.is_reloadable:
            parts.append("*Reload.*")
        case _:
            pass
    return " ".join(parts)


def settings_text() -> str:
    text = ""
    for section, settings in SECTIONS.items():
        body = [
            (
                f"`{setting.key}`",
                setting.kind.value,
                default_of(setting),
                "yes" if setting.is_original else "no",
                meaning_of(setting),
            )
            for setting in settings
        ]
        heading = ("Key", "Type", "Default", "Original", "Meaning")
        text += f"\n### {section}\n\n{rows(heading, *body)}"
    return text + "\n"


def labels_of(spec: MetricSpec) -> str:
    shown = []
    for label in spec.labels:
        listed = spec.values.get(label)
        shown.append(f"`{label}`" + (f" ({', '.join(listed)})" if listed else ""))
    if spec.scope is Scope.STREAM:
        shown.insert(0, "`stream`")
    return ", ".join(shown) or NONE


def metric_meaning(spec: MetricSpec) -> str:
    joined = {Combine.MAX: " `_other` is the largest.", Combine.MIN: " `_other` is the smallest."}
    return spec.doc + joined.get(spec.combine, "")


def metrics_text() -> str:
    body = [
        (
            f"`{spec.full_name}`",
            spec.type.value,
            spec.unit or NONE,
            labels_of(spec),
            metric_meaning(spec),
        )
        for spec in CATALOGUE.metrics.values()
        if spec.scope is not Scope.PARTITION
    ]
    return "\n" + rows(("Name", "Type", "Unit", "Labels", "Meaning"), *body) + "\n"


def detail_text() -> str:
    body = [
        (f"`{spec.full_name}`", spec.type.value, spec.unit or NONE, spec.doc)
        for spec in CATALOGUE.of_scope(Scope.PARTITION)
    ]
    return "\n" + rows(("Name", "Type", "Unit", "Meaning"), *body) + "\n"


def events_text() -> str:
    body = [
        (
            f"`{spec.kind}`",
            spec.level.value,
            ", ".join(f"`{field}`" for field in spec.fields) or NONE,
            spec.doc
            + (f" Counted in `{CATALOGUE.metrics[spec.metric].full_name}`." if spec.metric else ""),
        )
        for spec in CATALOGUE.transitions.values()
    ]
    return "\n" + rows(("Event", "Level", "Fields", "Meaning"), *body) + "\n"


@pytest.mark.parametrize(
    ("document", "mark", "text"),
    [
        ("configuration.md", "table", settings_text()),
        ("metrics.md", "table", metrics_text()),
        ("metrics.md", "detail", detail_text()),
        ("logs.md", "table", events_text()),
    ],
)
def test_reference_repeats_the_table_of_the_code(document, mark, text, rewrite):
    path = REFERENCE / document
    before = path.read_text(encoding="utf-8")
    after, count = marked(mark).subn(lambda match: match[1] + text + match[2], before)
    assert count == 1
    if rewrite:
        path.write_text(after, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == after


def test_every_setting_metric_and_event_is_named_in_its_reference():
    wanted = {
        "configuration.md": list(SETTINGS),
        "metrics.md": [spec.full_name for spec in CATALOGUE.metrics.values()],
        "logs.md": list(CATALOGUE.transitions),
    }
    for document, names in wanted.items():
        text = (REFERENCE / document).read_text(encoding="utf-8")
        assert [name for name in names if f"| `{name}` |" not in text] == []


def sources() -> Iterator[tuple[str, ast.AST]]:
    for path in python_files():
        if relative(path).startswith(BROKER):
            yield relative(path), ast.parse(path.read_text(encoding="utf-8"))


def reported_kinds(tree: ast.AST) -> set[str]:
    """First texts among the arguments of calls that report a transition."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) in REPORTING:
            texts = [
                argument.value
                for argument in node.args
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            ]
            found |= set(texts[:1])
    return found


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def texts() -> set[str]:
    """Every text that stands in the code of the broker."""
    return {
        node.value
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_transition_that_the_code_tells_is_in_the_catalogue():
    unlisted = {
        f"{name}: {kind}"
        for name, tree in sources()
        for kind in reported_kinds(tree)
        if kind not in CATALOGUE.transitions
    }
    assert unlisted == set()


def test_nothing_is_in_the_catalogue_that_the_code_never_tells():
    told = texts()
    counted = {spec.metric for spec in CATALOGUE.transitions.values()}
    counted |= {spec.adds.metric for spec in CATALOGUE.transitions.values() if spec.adds}
    assert [kind for kind in CATALOGUE.transitions if kind not in told] == []
    assert [name for name in CATALOGUE.metrics if name not in told | counted] == []


def test_planted_transitions_are_found():
    source = """
self.host.transition("first", {})
observer.transition(kind, {})
self.report_log(stored, "second", path="third")
report("fourth")
"""
    assert reported_kinds(ast.parse(source)) == {"first", "second", "fourth"}


def test_metrics_are_told_in_the_unit_their_name_ends_in():
    for spec in CATALOGUE.metrics.values():
        if spec.type is MetricType.HISTOGRAM:
            assert spec.unit == "seconds"
