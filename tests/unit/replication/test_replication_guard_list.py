"""The list of the replication cores' guards and the marks in their code say the same."""

import ast
import re

import pytest
import yaml

from liftbridge_testkit.repository import ROOT

LIST = ROOT / "tests/guards/replication.yaml"
CODE = ROOT / "broker/src/liftbridge_broker/replication"
MARK = re.compile(r"# guard ([A-Z][\w.]*)$")

GUARDS = yaml.safe_load(LIST.read_text(encoding="utf-8"))


def marked_lines():
    """File and line of each mark."""
    found = {}
    for path in sorted(CODE.glob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            match = MARK.search(line)
            if match:
                assert match[1] not in found, f"{match[1]} is marked twice"
                found[match[1]] = (path.relative_to(ROOT).as_posix(), line)
    return found


MARKED = marked_lines()


def test_every_mark_is_listed_once():
    names = [guard["guard"] for guard in GUARDS]
    assert len(set(names)) == len(names)
    assert sorted(names) == sorted(MARKED)


@pytest.mark.parametrize("guard", GUARDS, ids=[guard["guard"] for guard in GUARDS])
def test_guard_can_be_removed_as_its_entry_says_and_its_test_exists(guard):
    file, line = MARKED[guard["guard"]]
    assert (file, line.count(guard["old"])) == (guard["file"], 1)
    assert guard["old"] != guard["new"]
    assert (guard["class"] == "D") == bool(guard.get("partner"))
    name, _, test = guard["test"].partition("::")
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
