"""Removing guards: what is taken out, what tells of its work, and what is kept of a run."""

import builtins
from types import ModuleType

import pytest

from liftbridge_testkit.guards.listing import Guard, GuardError
from liftbridge_testkit.guards.removal import REACHED, _Loader, instrumented, without
from liftbridge_testkit.guards.results import Results, Search
from liftbridge_testkit.guards.run import Reach

SOURCE = """
def bounded(number, limit):
    if number > limit:  # guard X.limit
        return limit
    return abs(number)  # guard X.sign Y


def either(first, second):
    return (
        first
        or second  # guard X.second
    )
"""
LIMIT = ("X.limit", "if number > limit:", "if False:")
SIGN = ("X.sign", "abs(number)", "number")
SECOND = ("X.second", "or second", "")


def guard(name, old, new):
    return Guard(name, "S", "x.py", old, new, "x.txt", ("raft",), (), "seeds", "")


def functions(source):
    module = ModuleType("x")
    _Loader("x", "x.py", source).exec_module(module)
    return module.bounded, module.either


def test_guards_are_taken_out_of_their_lines():
    bounded, either = functions(without(SOURCE, [guard(*LIMIT), guard(*SIGN), guard(*SECOND)]))
    assert (bounded(-9, 5), bounded(9, 5)) == (-9, 9)
    assert either(0, 1) == 0


@pytest.mark.parametrize(
    "entry", [("X.none", "number", ""), ("X.limit", "limits", ""), ("X.limit", "i", "")]
)
def test_what_is_not_exactly_once_in_the_line_of_a_mark_is_an_error(entry):
    with pytest.raises(GuardError, match=r"has no mark of|not exactly once"):
        without(SOURCE, [guard(*entry)])


def test_instrumented_source_does_the_same_and_tells_when_a_guard_makes_a_difference(monkeypatch):
    reached = set()

    def tell(name, truth):
        if truth:
            reached.add(name)
        return truth

    monkeypatch.setattr(builtins, REACHED, tell, raising=False)
    source, dumb = instrumented(SOURCE, [guard(*LIMIT), guard(*SIGN), guard(*SECOND)])
    bounded, either = functions(source)
    assert dumb == []
    assert (either(1, 1), reached) == (1, set())
    assert (bounded(-3, 5), reached) == (3, {"X.sign"})
    assert (bounded(9, 5), reached) == (5, {"X.sign", "X.limit"})
    assert (either(0, 1), reached) == (1, {"X.sign", "X.limit", "X.second"})


def test_half_an_expression_cannot_tell():
    _, dumb = instrumented(SOURCE, [guard("X.sign", "abs(", "(")])
    assert [one.name for one in dumb] == ["X.sign"]


def test_results_count_for_their_entry_and_their_version(tmp_path):
    path = tmp_path / "results.json"
    known = guard(*LIMIT)
    results = Results(path, "1")
    results.of(known).seeds["raft"] = Search(limit=8, reached=3, seed=7, failure="x")
    results.save({known.name: known})
    again = Results(path, "1")
    assert again.of(known).found == ("raft", Search(limit=8, reached=3, seed=7, failure="x"))
    assert Results(path, "2").of(known).found is None
    assert Results(path, "1").of(guard("X.limit", "number > limit", "False")).found is None


def test_only_seeds_with_the_guard_at_work_are_run():
    reach = Reach("raft", [frozenset({"a"}), frozenset(), frozenset({"b"}), frozenset({"a", "b"})])
    assert reach.seeds({"a"}, 0, 4) == [0, 3]
    assert reach.seeds({"a", "b"}, 1, 4) == [2, 3]
