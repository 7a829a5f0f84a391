"""Every gate of the planner is listed, can be removed, and its test notices.

Some are removed here, others each day; `LIFTBRIDGE_GUARD_DAY=n` repeats one. `make operator-gates`
removes all.
"""

import ast
import os
from datetime import UTC, datetime

import pytest

from liftbridge_testkit.operator_sim.gates import failure_of, read_gates, read_marks, without
from liftbridge_testkit.repository import ROOT

GATES = read_gates()
SAMPLE = 6
DAY = int(os.environ.get("LIFTBRIDGE_GUARD_DAY") or datetime.now(UTC).toordinal())


def sample():
    """Gates of a day: a stride through the list, another one each day."""
    names = sorted(GATES)
    stride = -(-len(names) // SAMPLE)
    return names[DAY % stride :: stride]


def test_every_mark_is_listed_and_every_gate_is_marked_once():
    marks = read_marks()
    assert sorted(GATES) == sorted(marks)
    assert {gate.name: [gate.file] for gate in GATES.values()} == marks


def test_gate_is_removed_as_its_entry_says():
    compiled = [compile(without(gate), gate.file, "exec") for gate in GATES.values()]
    assert len(compiled) == len(GATES)


def test_test_of_each_gate_exists():
    missing = []
    for gate in GATES.values():
        file, _, name = gate.scenario.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        if name not in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}:
            missing.append(gate.scenario)
    assert missing == []


@pytest.mark.parametrize("name", sample())
def test_test_notices_that_a_gate_is_gone(name):
    assert failure_of(GATES[name])


def test_seeds_notice_that_the_gate_of_in_sync_sets_is_gone():
    assert "InvariantError" in failure_of(GATES["LEADERS"], range(12))
