"""Documentation that repeats what the code says: it must say the same, and all of it."""

import ast
import re
from pathlib import Path

import pytest

from liftbridge_broker import errors
from liftbridge_testkit.repository import ROOT, python_files, relative

REFERENCE = ROOT / "docs" / "reference"
COMPATIBILITY = REFERENCE / "compatibility.md"
CONNECTORS = ROOT / "docs" / "explanation" / "spark.md"
SECURITY = ROOT / "docs" / "explanation" / "security.md"
ERRORS = REFERENCE / "errors.md"
TABLE = re.compile(r"(<!-- table: .*? -->\n).*?(<!-- end of table -->)", re.DOTALL)
ROW = re.compile(r"^\| (F\d\d) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
TEST_ID = re.compile(r"`([^`]+)`")
STATUSES = {"done", "to come", "left out"}


def error_table() -> str:
    """The table of `errors.md`: one row for each class, in order of definition."""
    lines = ["| Code | Status | Retriable | Class | Meaning |", "| --- | --- | --- | --- | --- |"]
    for kind in errors.error_classes():
        if kind.__module__ != errors.__name__:
            continue  # another test's, imported into this process
        assert kind.__doc__ is not None
        meaning = " ".join(kind.__doc__.partition("\n\n")[0].split())
        retriable = "yes" if kind.retriable else "no"
        cells = (f"`{kind.code}`", kind.status.name, retriable, f"`{kind.__name__}`", meaning)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def defined_tests(path: Path) -> set[str]:
    """Tests of a file: `test_x`, and `TestY::test_x` for those in a class."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            found |= {f"{node.name}::{n.name}" for n in node.body if isinstance(n, functions)}
        elif isinstance(node, ast.Assign):  # TestLog = LogMachine.TestCase
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def missing_tests(cell: str) -> list[str]:
    """Tests named in a cell of the table that do not exist."""
    missing = []
    for test in TEST_ID.findall(cell):
        name, _, inner = test.partition("::")
        path = ROOT / name
        if not path.is_file() or inner not in defined_tests(path):
            missing.append(test)
    return missing


def rows() -> list[tuple[str, str, str, str]]:
    return ROW.findall(COMPATIBILITY.read_text(encoding="utf-8"))


def test_every_error_is_documented(rewrite):
    text = ERRORS.read_text(encoding="utf-8")
    expected = TABLE.sub(lambda match: match[1] + "\n" + error_table() + "\n" + match[2], text)
    if rewrite:
        ERRORS.write_text(expected, encoding="utf-8")
    assert ERRORS.read_text(encoding="utf-8") == expected


def test_every_error_of_the_broker_is_defined_in_the_one_table():
    names = {kind.__name__ for kind in errors.error_classes()}
    elsewhere = [
        f"{relative(path)}: {node.name}"
        for path in python_files()
        if "broker/src/" in relative(path) and path.name != "errors.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and names & {base.id for base in node.bases if isinstance(base, ast.Name)}
    ]
    assert elsewhere == []


def test_compatibility_lists_all_features_of_the_original_in_order():
    assert [row[0] for row in rows()] == [f"F{number:02}" for number in range(1, 63)]
    assert {row[2] for row in rows()} <= STATUSES


def test_features_that_are_done_name_a_test_and_others_do_not():
    wrong = [
        feature
        for feature, _, status, tests in rows()
        if bool(TEST_ID.findall(tests)) != (status == "done")
    ]
    assert wrong == []


def test_tests_named_for_features_exist():
    assert [name for *_, tests in rows() for name in missing_tests(tests)] == []


def test_rows_beside_other_connectors_are_shown_by_tests():
    page = CONNECTORS.read_text(encoding="utf-8").partition("## Compared with other connectors")[2]
    compared, shown = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()]
        for part in re.findall(
            r"^\| Row \|[^\n]*\n\| ---[^\n]*\n((?:\|[^\n]*\n)+)", page, re.MULTILINE
        )
    )
    assert [row[0] for row in compared] == [row[0] for row in shown]
    assert {len(row) for row in compared} == {6}
    assert [row[0] for row in shown if not TEST_ID.findall(row[1])] == []
    assert [test for row in shown for test in missing_tests(row[1])] == []


def tables(page: str) -> list[list[list[str]]]:
    """Tables of a page: their rows of cells, the head first."""
    found = re.findall(r"^(\|[^\n]*\n)\| ---[^\n]*\n((?:\|[^\n]*\n)+)", page, re.MULTILINE)
    return [
        [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in (head + body).splitlines()
        ]
        for head, body in found
    ]


def test_each_line_about_security_names_a_test():
    first, *threats = tables(SECURITY.read_text(encoding="utf-8"))
    assert first[0] == ["Question", "Answered by"]
    assert {tuple(head[-1:]) for head, *_ in threats} == {("Test",)}
    assert {len(row) for table in threats for row in table} == {3}
    lines = [row for _, *rows in threats for row in rows]
    assert [row[0] for row in lines if not TEST_ID.findall(row[2])] == []
    assert [test for row in lines for test in missing_tests(row[2])] == []


@pytest.mark.parametrize(
    ("cell", "missing"),
    [
        ("`tests/meta/test_documentation.py::test_every_error_is_documented`", 0),
        ("`tests/meta/test_documentation.py::test_no_such`", 1),
        ("`tests/meta/no_such_file.py::test_x`", 1),
        ("`tests/meta/test_documentation.py`", 1),
        ("none", 0),
    ],
)
def test_planted_name_of_a_missing_test_is_found(cell, missing):
    assert len(missing_tests(cell)) == missing
