"""The list of guards speaks of the sources as they are; removing them is `raft.guards`' job."""

import pytest

from liftbridge_testkit.raft.guards import PACKAGE, SCRIPTS, read_guards, removed
from liftbridge_testkit.repository import ROOT

GUARDS = read_guards()


@pytest.mark.parametrize("guard", GUARDS, ids=[guard["name"] for guard in GUARDS])
def test_guard_is_where_the_list_says(guard):
    source = (ROOT / PACKAGE / "raft" / guard["file"]).read_text(encoding="utf-8")
    compile(removed(guard, source), guard["file"], "exec")
    assert (SCRIPTS / f"{guard['script']}.txt").exists()


def test_each_guard_has_a_class_and_those_of_depth_a_reason():
    assert [g["name"] for g in GUARDS if g["class"] not in ("S", "D")] == []
    assert [g["name"] for g in GUARDS if g["class"] == "D" and not g.get("reason")] == []


def test_names_are_unique_and_partners_exist():
    names = [guard["name"] for guard in GUARDS]
    assert len(set(names)) == len(names)
    assert [g["partner"] for g in GUARDS if g.get("partner", names[0]) not in names] == []
