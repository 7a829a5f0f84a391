"""The list of the controller's guards and the marks in its code say the same."""

import ast
import re

import yaml

from liftbridge_testkit.repository import ROOT

LIST = ROOT / "tests/guards/controller.yaml"
CODE = ROOT / "broker/src/liftbridge_broker/controller"
MARK = re.compile(r"# guard ([A-Z][\w. ]*)$")

GUARDS: list[dict[str, str]] = yaml.safe_load(LIST.read_text(encoding="utf-8"))


def marked_lines() -> dict[str, tuple[str, str]]:
    """File and line of each mark."""
    found = {}
    for path in sorted(CODE.glob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            match = MARK.search(line)
            for guard in match[1].split() if match else ():
                assert guard not in found, f"{guard} is marked twice"
                found[guard] = (path.relative_to(ROOT).as_posix(), line)
    return found


def test_every_mark_is_listed_once_and_every_guard_is_marked() -> None:
    names = [guard["guard"] for guard in GUARDS]

    assert len(set(names)) == len(names)
    assert sorted(names) == sorted(marked_lines())


def test_a_guard_can_be_removed_as_its_entry_says() -> None:
    marks = marked_lines()
    wrong = [
        guard["guard"]
        for guard in GUARDS
        if marks[guard["guard"]][0] != guard["file"]
        or marks[guard["guard"]][1].count(guard["old"]) != 1
        or guard["old"] == guard["new"]
    ]
    assert wrong == []


def test_masked_guards_name_what_masks_them() -> None:
    wrong = [
        guard["guard"]
        for guard in GUARDS
        if guard["class"] not in {"S", "D"} or (guard["class"] == "D") != bool(guard.get("partner"))
    ]
    assert wrong == []


def test_the_test_of_each_guard_exists() -> None:
    missing = []
    for guard in GUARDS:
        name, _, test = guard["test"].partition("::")
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
        if test not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            missing.append(guard["test"])
    assert missing == []
