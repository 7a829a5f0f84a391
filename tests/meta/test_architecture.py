"""The walks and names of ARCHITECTURE.md, and the ways to the places that contributors look for.

A walk has a heading, a paragraph that gives the number of its modules and of those that carry
everything of its kind, with their names, and numbered steps. A step begins with a code span: a
module and functions, each of which calls the next. Spans after that are calls that the step makes
on the way (with functions), and modules through which the next step is reached (without). A step
with "Back in" returns to a function of an earlier step.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from liftbridge_testkit.repository import ROOT, files, python_files, relative

ARCHITECTURE = ROOT / "ARCHITECTURE.md"
STYLE = ROOT / "STYLE.md"
README = ROOT / "README.md"
INTERNALS = ROOT / "docs" / "internals" / "index.md"
BROKER = "broker/src/liftbridge_broker/"
OPERATOR = "operator/src/liftbridge_operator/"
BASES = ("", BROKER, BROKER + "node/", OPERATOR)
"""Folders that paths on these pages begin in."""
CLICKS_MAX = 3
MODULES_MAX = {"A message": 10, "A fetch": 8, "A changed resource": 10}
"""Modules of each walk at most, without those that carry everything of its kind."""

FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
PLACE = re.compile(r"([\w/]+\.py)(?: ([\w.]+(?:, [\w.]+)*))?")
COUNTS = re.compile(r"(\d+) modules, and (\d+) more that [^(]*\(([^)]*)\)")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)[^)]*\)")
PATH = re.compile(r"[\w.-]*\w/[\w./-]*|[\w-]+\.(?:json|md|proto|py|toml|txt|yaml)")
NAME = re.compile(r"([a-zA-Z]\w*(?:\.\w+)*)(\(.*\))?")
DEFINED = re.compile(
    r"^ *(?:async )?(?:def|class) (\w+)|^(?: {4})?(\w+)(?:: .+)? = "
    r"|^ {4}(\w+): \S|^ {8}self\.(\w+)",
    re.MULTILINE,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# What is not of this repository: Python and its libraries, and words that STYLE.md rules out.
EXTERNAL = {
    *("Any", "NewType", "Protocol", "Struct", "TaskGroup", "assert_never", "asyncio", "log"),
    *("Helper", "Manager"),
}


class Place(NamedTuple):
    """A module, and functions of it, each of which calls the next."""

    module: str
    functions: tuple[str, ...]


class Step(NamedTuple):
    """A step of a walk: what runs, what it calls on the way, and what leads to the next step."""

    place: Place
    is_back: bool
    calls: tuple[Place, ...]
    between: tuple[str, ...]


class Walk(NamedTuple):
    """A walk of the page, with the numbers of modules that the page gives."""

    title: str
    module_count: int
    carrier_count: int
    carriers: tuple[str, ...]
    steps: tuple[Step, ...]


def spans(text: str) -> list[str]:
    """Code spans outside of fenced blocks, each in one line."""
    return [" ".join(span.split()) for span in SPAN.findall(FENCE.sub("", text))]


def place_of(span: str) -> Place | None:
    """The module and the functions that a span names, by their full names; `None` for others."""
    match = PLACE.fullmatch(span)
    if match is None:
        return None
    found: list[str] = []
    owner = ""
    for name in match[2].split(", ") if match[2] else ():
        full = name if "." in name or not owner else f"{owner}.{name}"
        owner = full.rpartition(".")[0]
        found.append(full)
    return Place(match[1], tuple(found))


def step_of(text: str) -> Step:
    places = [place for span in spans(text) if (place := place_of(span)) is not None]
    assert places, f"a step without a module: {text}"
    first, *rest = places
    return Step(
        first,
        text.startswith("Back in "),
        tuple(place for place in rest if place.functions),
        tuple(place.module for place in rest if not place.functions),
    )


def walks(page: str) -> list[Walk]:
    """The walks of a page; every section of this form is one."""
    found = []
    for section in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        head, *steps = re.split(r"^\d+\. ", section, flags=re.MULTILINE)
        counts = COUNTS.search(head)
        assert counts is not None, f"a walk without its numbers: {head}"
        title = head.partition("\n")[0]
        numbers = int(counts[1]), int(counts[2])
        texts = (text.partition("\n\n")[0] for text in steps)
        found.append(Walk(title, *numbers, tuple(spans(counts[3])), tuple(map(step_of, texts))))
    return found


def file_of(module: str) -> Path | None:
    paths = [ROOT / base / module for base in (BROKER, OPERATOR)]
    return next((path for path in paths if path.is_file()), None)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def functions_of(path: Path) -> dict[str, ast.AST]:
    """Functions and methods of a module, by `f` and `C.f`."""
    found: dict[str, ast.AST] = {}
    for node in tree_of(path).body:
        if isinstance(node, FUNCTIONS):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            inner = (one for one in node.body if isinstance(one, FUNCTIONS))
            found |= {f"{node.name}.{one.name}": one for one in inner}
    return found


def names_in(node: ast.AST) -> set[str]:
    """Names and attributes that code uses."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            found.add(one.id)
        elif isinstance(one, ast.Attribute):
            found.add(one.attr)
    return found


def is_in(function: str, names: Iterable[str]) -> bool:
    return function.rpartition(".")[2] in names


def wrong_places(walk: Walk) -> Iterator[str]:
    """Modules and functions of a walk that do not exist."""
    for module in {*walk.carriers, *(one for step in walk.steps for one in step.between)}:
        if file_of(module) is None:
            yield f"{walk.title}: no module {module}"
    for place in (one for step in walk.steps for one in (step.place, *step.calls)):
        path = file_of(place.module)
        if path is None:
            yield f"{walk.title}: no module {place.module}"
        elif not place.functions:
            yield f"{walk.title}: no function named in {place.module}"
        else:
            missing = (one for one in place.functions if one not in functions_of(path))
            yield from (f"{walk.title}: no {one} in {place.module}" for one in missing)


def names_of(place: Place) -> set[str]:
    """Names that the functions of a place use; all of its module without functions."""
    path = file_of(place.module)
    assert path is not None
    known = functions_of(path)
    nodes = [known[one] for one in place.functions] if place.functions else [tree_of(path)]
    return {name for node in nodes for name in names_in(node)}


def gaps(walk: Walk) -> Iterator[str]:
    """Functions of a walk that nothing before them calls or names."""
    reached: set[str] | None = None
    visited: set[tuple[str, str]] = set()
    for number, step in enumerate(walk.steps, 1):
        module, functions = step.place
        known = names_of(step.place)
        for before, after in pairwise(functions):
            if not is_in(after, names_of(Place(module, (before,)))):
                yield f"{walk.title}, step {number}: {before} does not call {after}"
        if step.is_back:
            if (module, functions[0]) not in visited:
                yield f"{walk.title}, step {number}: was not in {functions[0]} before"
        elif reached is not None and not is_in(functions[0], reached):
            yield f"{walk.title}, step {number}: nothing leads to {functions[0]}"
        for call in step.calls:
            if not is_in(call.functions[0], known):
                yield f"{walk.title}, step {number}: does not call {call.functions[0]}"
        visited |= {(module, one) for one in functions}
        reached = known.union(*(names_of(Place(one, ())) for one in step.between))


def wrong_counts(walk: Walk) -> Iterator[str]:
    """Numbers of modules that are not those of the steps."""
    crossed = {
        module
        for step in walk.steps
        for module in (step.place.module, *step.between, *(one.module for one in step.calls))
    }
    count = len(crossed - set(walk.carriers))
    if count != walk.module_count:
        yield f"{walk.title}: {count} modules, not {walk.module_count}"
    if len(walk.carriers) != walk.carrier_count:
        yield f"{walk.title}: {len(walk.carriers)} carry, not {walk.carrier_count}"


def faults(walk: Walk) -> list[str]:
    """All that is wrong with a walk."""
    wrong = list(wrong_places(walk))
    return wrong or [*gaps(walk), *wrong_counts(walk)]


@cache
def defined_names() -> frozenset[str]:
    """Names that the code defines: functions, classes, fields, variables, modules and packages."""
    found = {part for path in files(".py") for part in Path(relative(path)).with_suffix("").parts}
    for path in python_files():
        found |= defined_in(path)
    return frozenset(found)


def defined_in(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    return {name for names in DEFINED.findall(text) for name in names if name}


@cache
def members(name: str) -> frozenset[str]:
    """Methods and fields of the classes of a name, in all distributions."""
    found: set[str] = set()
    for path in python_files():
        text = path.read_text(encoding="utf-8")
        if "/src/" not in relative(path) or not re.search(rf"^class {name}\b", text, re.MULTILINE):
            continue
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.ClassDef) and node.name == name):
                continue
            for one in ast.walk(node):
                if isinstance(one, FUNCTIONS):
                    found.add(one.name)
                elif isinstance(one, ast.AnnAssign | ast.Assign):
                    targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                    found |= {ast.unparse(each).removeprefix("self.") for each in targets}
    return frozenset(found)


def is_known_path(path: str) -> bool:
    return any((ROOT / base / path).exists() for base in BASES)


def is_known_name(name: str) -> bool:
    """Whether the code defines a name; of a dotted one also the last part, in the first."""
    owner, dot, member = name.rpartition(".")
    if name.partition(".")[0] in EXTERNAL:
        return True
    if not dot:
        return name in defined_names()
    as_path = name.replace(".", "/")
    if is_known_path(as_path) or is_known_path(f"{as_path}.py"):
        return True
    module = next((file for base in BASES if (file := module_at(base, owner))), None)
    if module is not None:
        return member in defined_in(module)
    return member in members(owner.rpartition(".")[2])


def module_at(base: str, dotted: str) -> Path | None:
    path = ROOT / base / f"{dotted.replace('.', '/')}.py"
    return path if path.is_file() else None


def unknown(page: str) -> list[str]:
    """Code spans that look like a path or a name of the code, and name nothing that exists.

    Names of one word in small letters are left alone, like words with a placeholder.
    """
    found = []
    for span in spans(page):
        place, name = place_of(span), NAME.fullmatch(span)
        if place is not None and place.functions:
            path = file_of(place.module)
            known = path is not None and set(place.functions) <= set(functions_of(path))
        elif PATH.fullmatch(span):
            known = is_known_path(span)
        elif name is not None and (name[2] or re.search(r"[._]|^[A-Z][a-z]", name[1])):
            known = is_known_name(name[1])
        else:
            continue
        if not known:
            found.append(span)
    return found


def links(page: Path) -> list[tuple[str, Path]]:
    """Texts and targets of the links of a page to files of the repository."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    pairs = [(text, target) for text, target in LINK.findall(text) if ":" not in target]
    return [(text, (page.parent / target).resolve()) for text, target in pairs]


def clicks(start: Path) -> dict[Path, int]:
    """Fewest clicks from a page to each page and file that it leads to."""
    found, pending = {start: 0}, [start]
    for page in pending:
        for _, target in links(page) if page.suffix == ".md" else ():
            if target not in found and target.is_file():
                found[target] = found[page] + 1
                pending.append(target)
    return found


def places(page: Path) -> dict[str, list[tuple[str, Path]]]:
    """Entries of the list "Where is …", by their first words, with links to source files."""
    section = page.read_text(encoding="utf-8").partition("## Where is …\n")[2]
    rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE)[2:]
    return {
        topic: [
            (" ".join(text.strip("`").split()), (page.parent / target).resolve())
            for text, target in LINK.findall(cell)
            if target.endswith(".py")
        ]
        for topic, cell in rows
    }


def place_faults(page: Path, start: Path) -> list[str]:
    """Entries of a list "Where is …" that lead to no function, and links that lie too far."""
    found = []
    for topic, there in places(page).items():
        if not there:
            found.append(f"{topic}: no link to source")
        missing = ((name, path) for name, path in there if name not in functions_of(path))
        found += [f"{topic}: no {name} in {path.name}" for name, path in missing]
    reached = clicks(start)
    targets = (path for _, path in links(page))
    far = (path for path in targets if reached.get(path, CLICKS_MAX + 1) > CLICKS_MAX)
    return [*found, *(f"{path.name}: not in {CLICKS_MAX} clicks" for path in far)]


def test_walks_name_functions_that_call_one_another():
    found = walks(ARCHITECTURE.read_text(encoding="utf-8"))
    assert len(found) == 3
    assert [fault for walk in found for fault in faults(walk)] == []


def test_walks_cross_few_modules():
    found = {
        walk.title.partition(":")[0]: walk.module_count
        for walk in walks(ARCHITECTURE.read_text(encoding="utf-8"))
    }
    assert found.keys() == MODULES_MAX.keys()
    assert [title for title, count in found.items() if count > MODULES_MAX[title]] == []


TRUE_WALK = """### A message

3 modules, and 1 more that carries it (`api/grpc/call.py`).

1. `node/node.py Node.publish` passes it on.
2. `node/partition/partition.py Partition.publish, _append, _hold` stores it;
   `node/partition/pending_acks.py PendingAcks.add` keeps the ack.
3. Back in `node/partition/partition.py Partition.publish`.

The end.
"""


def test_true_walk_is_accepted():
    assert [fault for walk in walks(TRUE_WALK) for fault in faults(walk)] == []


@pytest.mark.parametrize(
    ("true", "planted", "fault"),
    [
        ("node/node.py", "node/nodes.py", "no module node/nodes.py"),
        ("Node.publish", "Node.handle", "no Node.handle in node/node.py"),
        ("Node.publish", "Node.listen", "nothing leads to Partition.publish"),
        ("_append, _hold", "commit_to", "Partition.publish does not call Partition.commit_to"),
        ("_append, _hold", "_append", "does not call PendingAcks.add"),
        ("3. Back in", "3. In", "nothing leads to Partition.publish"),
        ("Partition.publish`.", "Partition.close`.", "was not in Partition.close before"),
        ("passes it", "leaves for `api/calls.py`, and passes it", "no module api/calls.py"),
        ("`api/grpc/call.py`", "`api/calls.py`", "no module api/calls.py"),
        ("3 modules", "2 modules", "3 modules, not 2"),
        ("1 more", "2 more", "1 carry, not 2"),
    ],
)
def test_planted_fault_of_a_walk_is_found(true, planted, fault):
    assert true in TRUE_WALK
    (walk,) = walks(TRUE_WALK.replace(true, planted))
    assert [one for one in faults(walk) if one.endswith(fault)] != []


def test_module_in_between_may_lead_to_the_next_step():
    page = TRUE_WALK.replace(
        "Node.publish` passes", "Node.listen` leaves for `api/batches.py`, passes"
    )
    (walk,) = walks(page.replace("3 modules", "4 modules"))
    assert faults(walk) == []


@pytest.mark.parametrize("page", [ARCHITECTURE, STYLE], ids=lambda page: page.name)
def test_pages_name_what_exists(page):
    assert unknown(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "span",
    [
        "node/nodes.py",
        "nodes/",
        "docs/adr/none.md",
        "no_such_module.py",
        "node/node.py Node.handle",
        "Node.handle",
        "node.metadata.bootstrap.lost_by",
        "NoSuchError",
        "Nowhere",
        "no_such_name",
        "no_such_call()",
    ],
)
def test_planted_name_of_what_does_not_exist_is_found(span):
    assert unknown(f"text `{span}` text") == [span]


@pytest.mark.parametrize(
    "span",
    [
        *("node/node.py", "node/", "peers/peer_link.py", "docs/adr/", "changes.d/", "errors.py"),
        *("node/node.py Node.publish", "Node.publish", "Node.next_deadline()", "Node.cluster"),
        *("node.metadata.bootstrap.founded_by", "node.metadata.bootstrap", "LiftbridgeError"),
        *("Files", "high_watermark", "asyncio.timeout", "test_*.py", "on_<event>", "make check"),
    ],
)
def test_name_of_what_exists_is_accepted(span):
    assert unknown(f"text `{span}` text") == []


def test_names_in_examples_are_left_alone():
    assert unknown("```python\n`NoSuchError`\n```\n") == []


def test_places_are_few_clicks_away_and_hold_what_their_links_say():
    assert places(INTERNALS) != {}
    assert place_faults(INTERNALS, README) == []


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| it is | [`f`](code.py) |", []),
        ("| it is | [`C.f`](code.py), [page](a.md) |", []),
        ("| it is | [`g`](code.py) |", ["it is: no g in code.py"]),
        ("| it is | [page](a.md) |", ["it is: no link to source"]),
        ("| it is | [`f`](code.py), [page](none.md) |", ["none.md: not in 3 clicks"]),
    ],
)
def test_planted_fault_of_a_place_is_found(tmp_path, row, fault):
    page, start = tmp_path / "index.md", tmp_path / "README.md"
    (tmp_path / "code.py").write_text("def f(): ...\nclass C:\n    def f(self): ...\n", "utf-8")
    start.write_text("[a](a.md)", "utf-8")
    (tmp_path / "a.md").write_text("[index](index.md)", "utf-8")
    page.write_text(f"## Where is …\n\n| Where | There |\n| --- | --- |\n{row}\n", "utf-8")
    assert place_faults(page, start) == fault


def test_place_that_is_too_far_away_is_found(tmp_path):
    ways = {"README.md": "a.md", "a.md": "b.md", "b.md": "index.md"}
    for name, target in ways.items():
        (tmp_path / name).write_text(f"[next]({target})", "utf-8")
    (tmp_path / "code.py").write_text("def f(): ...\n", "utf-8")
    rows = "| Where | There |\n| --- | --- |\n| it is | [`f`](code.py) |\n"
    (tmp_path / "index.md").write_text(f"## Where is …\n\n{rows}", "utf-8")
    found = place_faults(tmp_path / "index.md", tmp_path / "README.md")
    assert found == ["code.py: not in 3 clicks"]


def test_clicks_are_counted_on_the_shortest_way(tmp_path):
    for name, text in {
        "README.md": "[a](a.md) [b](sub/b.md) [web](https://example.org) ![c](c.png)",
        "a.md": "[b](sub/b.md#title) [README](README.md)",
        "sub/b.md": "[code](../code.py)\n```\n[none](none.md)\n```\n",
        "code.py": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    found = clicks(tmp_path / "README.md")
    names = {path.relative_to(tmp_path).as_posix(): count for path, count in found.items()}
    assert names == {"README.md": 0, "a.md": 1, "sub/b.md": 1, "code.py": 2}
