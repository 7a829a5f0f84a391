"""The reference page of the operator's process says what its tables say."""

import re
from collections.abc import Sequence

import pytest

from liftbridge_operator.process.metrics import load_metrics
from liftbridge_operator.process.settings import SETTINGS, Setting
from liftbridge_operator.process.watches import OF_CLUSTERS, OF_PIPELINES, RESOURCES
from liftbridge_testkit.repository import ROOT

PAGE = ROOT / "docs" / "reference" / "kubernetes" / "operator.md"
CHART = ROOT / "helm" / "liftbridge-operator"
SOURCES = ROOT / "operator" / "src" / "liftbridge_operator"
TOLD = re.compile(r"\b(?:count|observe|read)\(\s*\"(\w+)\"")


def rows(heading: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> str:
    lines = [heading, ("---",) * len(heading), *body]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def values_of(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    if setting.kind in {"integer", "seconds"}:
        most = "" if setting.maximum >= 2**31 - 1 else f" to {setting.maximum:g}"
        return f"{setting.minimum:g}{most}"
    return setting.kind


def default_of(setting: Setting) -> str:
    default = setting.default
    if setting.kind == "seconds":
        return f"`{default:g}`"
    text = ",".join(default) if isinstance(default, tuple) else str(default)
    return f"`{text}`" if text else "-"


def settings_text() -> str:
    body = [
        (f"`{one.flag}`", f"`{one.variable}`", values_of(one), default_of(one), one.doc)
        for one in SETTINGS
    ]
    return rows(("Flag", "Variable", "Values", "Default", "Meaning"), body)


def metrics_text() -> str:
    body = [
        (
            f"`{one.full_name}`",
            one.type,
            one.unit or "-",
            ", ".join(
                f"`{label}`" + (f" ({', '.join(one.values[label])})" if label in one.values else "")
                for label in one.labels
            )
            or "-",
            " ".join(one.doc.split()),
        )
        for one in load_metrics().values()
    ]
    return rows(("Name", "Type", "Unit", "Labels", "Meaning"), body)


def watched_text() -> str:
    body = [(f"`{kind.qualified}`", "all") for kind in RESOURCES]
    body += [(f"`{kind.qualified}`", "of clusters") for kind in OF_CLUSTERS]
    body += [(f"`{kind.qualified}`", "of pipelines") for kind in OF_PIPELINES]
    return rows(("Resource", "Which"), body)


@pytest.mark.parametrize(
    ("mark", "text"),
    [("settings", settings_text()), ("metrics", metrics_text()), ("watched", watched_text())],
)
def test_reference_repeats_the_tables_of_the_operator(mark, text, rewrite):
    before = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {mark}: [^\n]*-->\n).*?(<!-- end of {mark} -->)", re.DOTALL)
    after, count = pattern.subn(lambda match: match[1] + text + match[2], before)
    assert count == 1
    if rewrite:
        PAGE.write_text(after, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == after


def test_every_metric_is_told_and_every_told_one_is_listed():
    told = {
        name
        for path in sorted(SOURCES.rglob("*.py"))
        for name in TOLD.findall(path.read_text(encoding="utf-8"))
    }
    assert set(load_metrics()) <= told
    in_process = {
        name
        for path in sorted((SOURCES / "process").glob("*.py"))
        for name in TOLD.findall(path.read_text(encoding="utf-8"))
    }
    assert in_process == set(load_metrics())


def test_chart_uses_metrics_and_variables_that_exist():
    names = {spec.full_name for spec in load_metrics().values()}
    suffixes = ("_bucket", "_count", "_sum")
    variables = {setting.variable for setting in SETTINGS}
    used_metrics, used_variables = set(), set()
    for path in sorted(CHART.rglob("*")):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            used_metrics |= set(re.findall(r"\bliftbridge_operator_[a-z_]+", text))
            used_variables |= set(re.findall(r"\bLIFTBRIDGE_OPERATOR_[A-Z_]+", text))
    plain = {
        next((name.removesuffix(end) for end in suffixes if name.endswith(end)), name)
        for name in used_metrics
    }
    assert plain
    assert plain <= names
    assert used_variables
    assert used_variables <= variables
