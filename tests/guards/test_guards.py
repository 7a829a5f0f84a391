"""The lists of guards and the marks in the code say the same, and some guards are removed.

Which ones changes by the day; `LIFTBRIDGE_GUARD_DAY=n` repeats one. `make guards` removes all.
"""

import ast
import os
from datetime import UTC, datetime

import pytest

from liftbridge_testkit.guards.listing import read_guards, read_marks
from liftbridge_testkit.guards.removal import without
from liftbridge_testkit.guards.run import failure_of
from liftbridge_testkit.guards.table import PAGE, table
from liftbridge_testkit.repository import ROOT

GUARDS = read_guards()
RULES = """
    C1 C2 C3 C4.isr C4.can_lead C4.keep C4.elr C4.3a C4.epoch E.full E.isr E.unclean
    C5.1 C5.2 C5.3 C5.4 C5.5 C5.6 C5.7 C5.8 C5.9 C5.10
    C6 C7 C8 C9 C10 C11 C12 C13 C14 C15 C16 C17 C18 C19 C20 C21 C30 C31
    L1 L2 L3.a L3.b L3.c L3.d L3.e L3.f L3.assign L4 L5 L6 L7 L8
    F1 F2 F3.partition F3.epoch F3.offset F3.correlates F3.min F3.floor F3.records F4 F5 R
"""
"""Rules of the protocol; each guard's name begins with its rule."""

SAMPLE = 12
DAY = int(os.environ.get("LIFTBRIDGE_GUARD_DAY") or datetime.now(UTC).toordinal())


def sample():
    """Guards of a day: a stride through all lists, another one each day until all were removed."""
    names = sorted(GUARDS)
    stride = -(-len(names) // SAMPLE)
    return names[DAY % stride :: stride]


def test_every_mark_is_listed_and_every_guard_is_marked_once():
    marks = read_marks()
    assert sorted(GUARDS) == sorted(marks)
    assert [places for places in marks.values() if len(places) > 1] == []
    assert [
        guard.name
        for guard in GUARDS.values()
        if marks[guard.name][0].partition(":")[0] != guard.file
    ] == []


def test_guard_is_removed_as_its_entry_says():
    sources = {file: (ROOT / file).read_text() for file in {one.file for one in GUARDS.values()}}
    for guard in GUARDS.values():
        removed = without(sources[guard.file], [guard])
        assert removed != sources[guard.file]
        compile(removed, guard.file, "exec")


def test_classes_have_what_they_need():
    guards = GUARDS.values()
    assert [one.name for one in guards if one.kind not in {"S", "D"}] == []
    assert [one.name for one in guards if (one.kind == "D") != bool(one.reason)] == []
    assert [one.name for one in guards if one.partners and one.kind == "S"] == []
    assert [one.name for one in guards if not {*one.partners} <= {*GUARDS} - {one.name}] == []


def test_every_rule_of_the_protocol_has_a_guard():
    assert [
        rule
        for rule in RULES.split()
        if not any(name == rule or name.startswith((f"{rule}.", f"{rule}_")) for name in GUARDS)
    ] == []


def test_scenario_of_each_guard_exists():
    missing = []
    for scenario in {guard.scenario for guard in GUARDS.values()}:
        name, _, test = scenario.partition("::")
        path = ROOT / name
        if not path.exists() or (test and test not in functions(path)):
            missing.append(scenario)
    assert missing == []


def functions(path):
    """Names of the test functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("name", sample())
def test_scenario_notices_that_a_guard_is_gone(name):
    assert failure_of([GUARDS[name]], GUARDS[name].scenario)


def test_scenario_passes_without_removing_anything():
    assert failure_of([], next(iter(GUARDS.values())).scenario) == ""


def test_page_shows_the_lists_and_the_results(rewrite):
    if rewrite:
        PAGE.write_text(table(GUARDS), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == table(GUARDS)
