"""What the tests themselves must hold to: none is skipped, asserts nothing, or sleeps."""

import ast
from collections.abc import Iterator

import pytest

from liftbridge_testkit.repository import ROOT, python_files, relative

TEST_FILES = [
    path
    for path in python_files()
    if ROOT / "tests" in path.parents and path.name.startswith("test_")
]
SKIPS = {"skipif", "xfail", "importorskip", "skipTest", "skipIf", "skipUnless", "expectedFailure"}
SKIPPERS = {"pytest", "mark", "unittest"}  # whose `skip` it is; others may skip bytes
# A helper with such a name asserts; its own body is a matter of review.
ASSERTING = ("assert_", "check_", "expect_", "verify_", "run_state_machine")
CONTEXTS = {"raises", "warns", "fail", "assertRaises"}


def last_name(node: ast.expr) -> str:
    """`c` of `a.b.c` or of `c`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def skips(tree: ast.AST) -> Iterator[int]:
    """Lines that skip a test or expect it to fail."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (
            node.attr in SKIPS or (node.attr == "skip" and last_name(node.value) in SKIPPERS)
        ):
            yield node.lineno


def sleeps(tree: ast.AST) -> Iterator[int]:
    """Lines that wait for time to pass; a bare yield does not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) == "sleep":
            argument = node.args[0] if node.args else None
            if not (isinstance(argument, ast.Constant) and argument.value == 0):
                yield node.lineno


def asserts(function: ast.AST) -> bool:
    """Whether the body can fail by an assertion of its own."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
            return True
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            if name in CONTEXTS or name.lstrip("_").startswith(ASSERTING):
                return True
    return False


def without_assertion(tree: ast.AST) -> Iterator[str]:
    """Names of test functions that assert nothing."""
    functions = (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    for function in functions:
        if function.name.startswith("test_") and not asserts(function):
            yield function.name


def parsed() -> Iterator[tuple[str, ast.Module]]:
    for path in TEST_FILES:
        yield relative(path), ast.parse(path.read_text(encoding="utf-8"))


def test_no_test_is_skipped_or_expected_to_fail():
    assert [f"{name}:{line}" for name, tree in parsed() for line in skips(tree)] == []


def test_no_test_sleeps():
    assert [f"{name}:{line}" for name, tree in parsed() for line in sleeps(tree)] == []


def test_every_test_asserts_something():
    assert [f"{name}::{test}" for name, tree in parsed() for test in without_assertion(tree)] == []


def test_no_package_among_the_test_folders():
    packages = [
        relative(path)
        for path in python_files()
        if path.name == "__init__.py" and relative(path).startswith("tests/")
    ]
    assert [name for name in packages if "/testkit/src/" not in name] == []


@pytest.mark.parametrize(
    "source",
    [
        "pytest.skip('no server')",
        "@pytest.mark.skip\ndef test(): ...",
        "@pytest.mark.xfail\ndef test(): ...",
        "@pytest.mark.skipif(True, reason='x')\ndef test(): ...",
        "grpc = pytest.importorskip('grpc')",
    ],
)
def test_planted_skip_is_found(source):
    assert len(list(skips(ast.parse(source)))) == 1


def test_skipping_something_else_is_left_alone():
    assert list(skips(ast.parse("decoder.skip(block)"))) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("time.sleep(0.1)", 1),
        ("asyncio.sleep(delay)", 1),
        ("sleep(1)", 1),
        ("asyncio.sleep(0)", 0),
    ],
)
def test_planted_sleep_is_found(source, count):
    assert len(list(sleeps(ast.parse(source)))) == count


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("x = 1", ["test_x"]),
        ("assert True", ["test_x"]),
        ("print(checker.check)", ["test_x"]),
        ("assert x == 1", []),
        ("with pytest.raises(ValueError): f()", []),
        ("check_invariants(log)", []),
        ("_check_invariants(log)", []),
    ],
)
def test_planted_test_without_assertion_is_found(body, found):
    assert list(without_assertion(ast.parse(f"def test_x():\n    {body}"))) == found
