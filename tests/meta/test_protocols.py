"""A protocol of the broker outside of `ports/` stands for two implementations or more.

With one, the concrete class says more: a part gets the parts below it, what all parts share
(`node.context`), or a plain callable for what leads upwards. An implementation is a class of the
broker that has every member of the protocol, its own or inherited, with as many parameters.
`SINGLE` names the protocols with fewer; it may only shrink. Three of them are the way from a
connection, or a call, up to its owner.
"""

import ast
from collections.abc import Iterable, Iterator

import pytest

from liftbridge_testkit.repository import python_files, relative

BROKER = "broker/src/liftbridge_broker/"
PORTS = f"{BROKER}ports/"
SINGLE = {
    "adapters/nats/connection.py ConnectionHandler",
    "api/grpc/call.py CallPort",
    "api/grpc/owner.py ConnectionOwner",
    "storage/log/view.py LogView",
}

Members = dict[str, int]
"""Members of a class by name: number of parameters of a method, -1 for an attribute or property."""

Classes = dict[str, list[ast.ClassDef]]


def names_of(nodes: Iterable[ast.expr]) -> Iterator[str]:
    """Last parts of names, without what is in brackets."""
    for node in nodes:
        inner = node.value if isinstance(node, ast.Subscript) else node
        if isinstance(inner, ast.Name | ast.Attribute):
            yield inner.id if isinstance(inner, ast.Name) else inner.attr


def is_protocol(node: ast.ClassDef) -> bool:
    return any(
        isinstance(base, ast.Name) and base.id == "Protocol"
        for base in (one.value if isinstance(one, ast.Subscript) else one for one in node.bases)
    )


def own_members(node: ast.ClassDef) -> Members:
    found: Members = {}
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
            found.setdefault(one.attr, -1)
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            is_value = any("property" in name for name in names_of(one.decorator_list))
            args = one.args
            count = len(args.posonlyargs) + len(args.args) + len(args.kwonlyargs)
            found[one.name] = -1 if is_value else count
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            found[one.target.id] = -1
    return found


def members(node: ast.ClassDef, classes: Classes) -> Members:
    """Members of a class, with those of the bases that the broker defines."""
    found: Members = {}
    for name in names_of(node.bases):
        for base in classes.get(name, []) if name != node.name else ():
            found |= members(base, classes)
    return found | own_members(node)


def classes_in(sources: dict[str, str]) -> list[tuple[str, ast.ClassDef]]:
    return [
        (name, node)
        for name, text in sources.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    ]


def counted(sources: dict[str, str]) -> dict[str, int]:
    """Number of implementations of each protocol outside of `ports/`."""
    found = classes_in(sources)
    by_name: Classes = {}
    for _, node in found:
        by_name.setdefault(node.name, []).append(node)
    concrete = [members(node, by_name) for _, node in found if not is_protocol(node)]
    return {
        f"{name.removeprefix(BROKER)} {node.name}": sum(
            members(node, by_name).items() <= one.items() for one in concrete
        )
        for name, node in found
        if is_protocol(node) and not name.startswith(PORTS)
    }


def broker_sources() -> dict[str, str]:
    paths = {relative(path): path for path in python_files()}
    return {
        name: path.read_text(encoding="utf-8")
        for name, path in paths.items()
        if name.startswith(BROKER)
    }


def test_every_protocol_outside_of_the_ports_has_two_implementations():
    counts = counted(broker_sources())
    assert {name for name, count in counts.items() if count < 2} == SINGLE


PROTOCOL = """
class Sink(Protocol):
    size: int

    @property
    def is_open(self): ...

    def take(self, one): ...
"""
FIRST = """
class First:
    is_open = True

    def __init__(self):
        self.size = self.is_open = 0

    def take(self, one): ...
"""


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ("", 1),
        ("class Second(First):\n    pass", 2),
        ("class Second:\n    size: int\n    is_open: bool\n    def take(self, other): ...", 2),
        ("class Second:\n    size: int\n    is_open: bool\n    def take(self): ...", 1),
        ("class Second:\n    size: int\n    def take(self, one): ...", 1),
        ("class Other(Sink, Protocol): ...", 1),
    ],
)
def test_implementations_of_a_planted_protocol_are_counted(more, count):
    text = f"{PROTOCOL}{FIRST}{more}"
    assert counted({f"{BROKER}planted.py": text})["planted.py Sink"] == count


def test_planted_protocol_of_the_ports_is_left_alone():
    assert counted({f"{PORTS}planted.py": PROTOCOL}) == {}
