"""Sizes of the product's classes: a class with many fields and methods has more than one job."""

import ast
from collections.abc import Iterator

from liftbridge_testkit.repository import PRODUCTS, python_files, relative

FIELDS_MAX = 25
METHODS_MAX = 35


def own_attributes(method: ast.AST) -> Iterator[str]:
    """Attributes of `self` that a method assigns."""
    for node in ast.walk(method):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            yield node.attr


def is_constant(annotation: ast.expr) -> bool:
    """Return whether a class, and not its instances, has what is declared so."""
    return ast.unparse(annotation).startswith(("ClassVar", "Final"))


def sizes(tree: ast.AST) -> Iterator[tuple[str, int, int]]:
    """Name, number of fields and number of methods of each class; properties are methods."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        fields: set[str] = set()
        methods: set[str] = set()
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                methods.add(part.name)
                fields.update(own_attributes(part))
            elif (
                isinstance(part, ast.AnnAssign)
                and isinstance(part.target, ast.Name)
                and not is_constant(part.annotation)
            ):
                fields.add(part.target.id)
        yield node.name, len(fields), len(methods)


def test_no_class_of_the_product_grows_beyond_the_bounds():
    assert {
        f"{relative(path)} {name}": (fields, methods)
        for path in python_files()
        if relative(path).startswith(PRODUCTS)
        for name, fields, methods in sizes(ast.parse(path.read_text(encoding="utf-8")))
        if fields > FIELDS_MAX or methods > METHODS_MAX
    } == {}


def test_fields_and_methods_are_counted_once():
    text = """
class Planted:
    LIMIT: ClassVar[int] = 1
    declared: int

    def __init__(self):
        self.declared, self.other = 1, [2]

    @property
    def size(self):
        return len(self.other)

    @size.setter
    def size(self, value):
        self.other[0] = value
        other.third = value
"""
    assert list(sizes(ast.parse(text))) == [("Planted", 2, 2)]
