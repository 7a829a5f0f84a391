"""Every Python file written by hand: lengths, calls that are not made here, silenced findings.

Lengths are a ratchet: `length_exceptions.txt` lists what is longer, with its present length; an
entry may only shrink, and goes when it is no longer needed.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from liftbridge_testkit.repository import PRODUCTS, python_files, relative

FILE_LINES_MAX = 600
CORE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
CORES = ("logformat", "http2", "raft", "replication", "controller", "groups")
EXCEPTIONS = Path(__file__).with_name("length_exceptions.txt")

FOLDER_MODULES_MAX = 20
UNIT = re.compile(
    r"^(?!.*timedelta)(_?(?:(?:(?:MICRO|MILLI)?SECOND|MINUTE|HOUR|DAY)(?:_NS)?|MS|[KMG]IB))\b",
    re.MULTILINE,
)
"""A unit that a module defines for itself."""

# Dotted name of a call -> what to do instead.
BANNED_CALLS = {
    "eval": "write the code down",
    "exec": "write the code down",
    "os.system": "subprocess.run with a list",
    "os.popen": "subprocess.run with a list",
    "yaml.load": "yaml.safe_load",
    "pickle.loads": "a format that cannot run code",
    "pickle.load": "a format that cannot run code",
    "marshal.loads": "a format that cannot run code",
}
BANNED_MODULES = {"pickle", "marshal", "shelve"}
NOQA = re.compile(r"#\s*(?:ruff:\s*)?noqa\b(?P<rest>.*)", re.IGNORECASE)
NOQA_WITH_REASON = re.compile(r":\s*[A-Z]+[0-9]+(?:\s*,\s*[A-Z]+[0-9]+)*\s+(?:-|#)\s*\S.*")
TYPE_IGNORE = re.compile(r"#\s*type:\s*ignore\b(?P<rest>.*)")
TYPE_IGNORE_WITH_REASON = re.compile(r"\[[a-z-]+(?:\s*,\s*[a-z-]+)*\]\s+#\s*\S.*")


def lengths(name: str, text: str) -> Iterator[tuple[str, int, int]]:
    """Name, length and limit of a file and of each of its functions."""
    core = any(f"liftbridge_broker/{package}/" in name for package in CORES)
    yield name, text.count("\n"), CORE_LINES_MAX if core else FILE_LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            yield f"{name}::{node.name}", length, FUNCTION_LINES_MAX


def crowded(names: Iterable[str]) -> dict[str, int]:
    """Folders of the product with too many modules, `__init__.py` apart, and their number."""
    counts = Counter(
        folder
        for folder, _, file in (name.rpartition("/") for name in names if name.startswith(PRODUCTS))
        if file != "__init__.py"
    )
    return {folder: count for folder, count in counts.items() if count > FOLDER_MODULES_MAX}


def own_units(name: str, text: str) -> list[str]:
    """Units that a module defines, other than the module `units` of its distribution."""
    return [] if name.endswith("/units.py") else UNIT.findall(text)


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute, empty for anything else."""
    if isinstance(node, ast.Attribute):
        prefix = dotted(node.value)
        return f"{prefix}.{node.attr}" if prefix else ""
    return node.id if isinstance(node, ast.Name) else ""


def banned(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and reason of each call or import that is not made in this repository."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in BANNED_CALLS:
                yield node.lineno, f"{name}: {BANNED_CALLS[name]}"
            for keyword in node.keywords:
                value = keyword.value
                is_false = isinstance(value, ast.Constant) and value.value is False
                if keyword.arg == "shell" and not is_false:
                    yield node.lineno, "shell=True: pass a list"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in BANNED_MODULES:
                    yield node.lineno, f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and node.module in BANNED_MODULES:
            yield node.lineno, f"from {node.module} import"


def wrapped_errors(tree: ast.AST) -> Iterator[int]:
    """Line of each raise below `except*`: Python before 3.11.4 wraps its error in a group."""
    for node in ast.walk(tree):
        if isinstance(node, ast.TryStar):
            inner = (one for handler in node.handlers for one in ast.walk(handler))
            yield from (one.lineno for one in inner if isinstance(one, ast.Raise))


def shared_errors(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and reason of each error that a module makes once, for all who raise it."""
    for node in tree.body:
        value = (
            getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign) else None
        )
        if isinstance(value, ast.Call) and dotted(value.func).endswith(("Error", "Exception")):
            yield node.lineno, "make it where it is raised: it keeps the frames of each raise"


def silenced(line: str) -> str:
    """What is wrong with the way a line silences a tool, empty when nothing is."""
    noqa = NOQA.search(line)
    if noqa and not NOQA_WITH_REASON.fullmatch(noqa["rest"]):
        return "write `# noqa: CODE - reason`"
    ignore = TYPE_IGNORE.search(line)
    if ignore and not TYPE_IGNORE_WITH_REASON.fullmatch(ignore["rest"]):
        return "write `# type: ignore[code]  # reason`"
    return ""


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a file that hold a comment, with their numbers."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if "#" in line:
            yield number, line


def test_no_file_and_no_function_grows_beyond_its_limit():
    too_long = {
        name: length
        for path in python_files()
        for name, length, limit in lengths(relative(path), path.read_text(encoding="utf-8"))
        if length > limit
    }
    lines = EXCEPTIONS.read_text(encoding="utf-8").splitlines()
    pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    assert too_long == {name: int(length) for name, _, length in pairs}


def test_no_folder_of_the_product_has_too_many_modules():
    assert crowded(relative(path) for path in python_files()) == {}


def test_planted_crowd_of_modules_is_found():
    modules = [f"client/src/planted/m{n}.py" for n in range(FOLDER_MODULES_MAX)]
    package = "client/src/planted/__init__.py"
    assert crowded([*modules, package, "client/src/planted/inner/more.py"]) == {}
    assert crowded([*modules, package, "client/src/planted/more.py"]) == {
        "client/src/planted": FOLDER_MODULES_MAX + 1
    }
    assert crowded(f"tests/unit/planted/m{n}.py" for n in range(FOLDER_MODULES_MAX + 1)) == {}


def test_units_are_defined_once():
    found = {
        relative(path): own_units(relative(path), path.read_text(encoding="utf-8"))
        for path in python_files()
        if relative(path).startswith((*PRODUCTS, "tests/testkit/"))
    }
    assert {name: units for name, units in found.items() if units} == {}


@pytest.mark.parametrize("line", ["_SECOND_NS: Final = 10**9", "MS = 1_000_000", "MIB = 1 << 20"])
def test_planted_unit_is_found(line):
    assert own_units("broker/src/x.py", f"import re\n{line}\n") == [re.split(r"\W", line)[0]]
    assert own_units("broker/src/model/units.py", line) == []
    assert own_units("broker/src/x.py", f"SLOW_{line.removeprefix('_')}\n    {line}\n") == []


def test_nothing_calls_what_is_banned():
    found = [
        f"{relative(path)}:{line}: {reason}"
        for path in python_files()
        for line, reason in banned(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_nothing_is_raised_below_a_star():
    assert [
        f"{relative(path)}:{line}: raise it after the block"
        for path in python_files()
        for line in wrapped_errors(ast.parse(path.read_text(encoding="utf-8")))
    ] == []


@pytest.mark.parametrize(("star", "found"), [("*", [4]), ("", [])])
def test_planted_raise_below_a_star_is_found(star, found):
    source = f"try:\n    run()\nexcept{star} ValueError as group:\n    raise KeyError from group"
    assert list(wrapped_errors(ast.parse(source))) == found


def test_no_error_is_made_once_and_raised_again_and_again():
    assert [
        f"{relative(path)}:{line}: {reason}"
        for path in python_files()
        if "/src/" in relative(path)
        for line, reason in shared_errors(ast.parse(path.read_text(encoding="utf-8")))
    ] == []


@pytest.mark.parametrize("source", ["GONE = GoneError('x')", "GONE: Final = errors.GoneError('x')"])
def test_planted_error_of_a_module_is_found(source):
    assert len(list(shared_errors(ast.parse(source)))) == 1


def test_every_silenced_finding_has_a_code_and_a_reason():
    found = [
        f"{relative(path)}:{number}: {problem}"
        for path in python_files()
        if path != Path(__file__)
        for number, line in comments(path)
        if (problem := silenced(line))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "exec('x = 1')",
        "import os\nos.system('ls')",
        "import yaml\nyaml.load(text)",
        "import pickle",
        "from pickle import loads",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=flag)",
    ],
)
def test_planted_call_is_found(source):
    assert len(list(banned(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source", ["yaml.safe_load(text)", "run(['ls'], shell=False)", "model.eval()", "evaluate()"]
)
def test_innocent_call_is_left_alone(source):
    assert list(banned(ast.parse(source))) == []


@pytest.mark.parametrize(
    "line",
    [
        "x = 1  # noqa",
        "x = 1  # noqa: E501",
        "# ruff: noqa",
        "x = 1  # noqa: reason without a code",
        "x: int = f()  # type: ignore",
        "x: int = f()  # type: ignore[misc]",
        "x: int = f()  # type: ignore # no code",
    ],
)
def test_planted_silence_without_code_or_reason_is_found(line):
    assert silenced(line) != ""


@pytest.mark.parametrize(
    "line",
    [
        "x = 1  # noqa: E501 - a table row",
        "x = 1  # noqa: E501, S101 - a table row",
        "x: int = f()  # type: ignore[misc]  # the stub of f is wrong",
    ],
)
def test_silence_with_code_and_reason_is_accepted(line):
    assert silenced(line) == ""


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("planted.py", FILE_LINES_MAX),
        ("broker/src/liftbridge_broker/http2/planted.py", CORE_LINES_MAX),
    ],
)
def test_lengths_of_a_planted_file_are_seen(name, limit):
    text = "async def long():\n" + "    pass\n" * FUNCTION_LINES_MAX
    length = FUNCTION_LINES_MAX + 1
    assert list(lengths(name, text)) == [
        (name, length, limit),
        (f"{name}::long", length, FUNCTION_LINES_MAX),
    ]
