"""Changes of a specification that admission accepts, for each field of its schema.

    for place, spec in changes(schema, before): ...

The schema gives the fields, so future fields are included. Each field that is set gets another
value or is removed. Each field that is not set gets a value, with all fields below it. Changes that
the schema or a rule of the resource refuses are left out; `is_admitted` checks both.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from liftbridge_testkit.kube.fields import copied
from liftbridge_testkit.resources.rules import refusals
from liftbridge_testkit.resources.schema import Schema, defaulted, errors

WORDS: Final = (
    *("other", "2Gi", "500m", "7m", "0 3 * * *", "Europe/Berlin", "s3://other/archive", "debug"),
    *(
        "0.2.0",
        "a.example.com",
        "/other",
        "10.0.0.0/8",
        "RWO",
        "other:1",
        "1",
        "2026-01-01T00:00:00Z",
    ),
    *("20s", "2h", "1000h", "02:30", "nats://other:4222", "ReadWriteOncePod"),
)
"""Strings to try; the first that is admitted is the other value of a field."""

DEPTH_MAX: Final = 3
_GONE: Final = object()


def is_admitted(schema: Schema, spec: Any, before: Any) -> bool:
    """Return whether the API server accepts one specification as a replacement of another."""
    new, old = (defaulted(schema, copied(one)) for one in (spec, before))
    return not errors(schema, new) and not list(refusals(schema, new, old))


def changes(schema: Schema, spec: Any, seen: set[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the field and the whole specification of each admitted change.

    Args:
        schema: Schema of the specification.
        spec: Specification to change.
        seen: Fields to leave out; each changed field is added.
    """
    seen = set() if seen is None else seen
    for place, changed in _changes(schema, spec, "", DEPTH_MAX):
        if place not in seen and changed != spec and is_admitted(schema, changed, spec):
            seen.add(place)
            yield place, changed


def together(
    schema: Schema, spec: Any, changed: Iterable[tuple[str, Any]]
) -> list[tuple[list[str], Any]]:
    """Return specifications with many changed fields, as few of them as admission allows."""
    made: list[tuple[list[str], Any]] = []
    for place, one in changed:
        for number, (places, so_far) in enumerate(made):
            both = _both(spec, so_far, one)
            if both is not None and is_admitted(schema, both, spec):
                made[number] = ([*places, place], both)
                break
        else:
            made.append(([place], one))
    return made


def _both(base: Any, one: Any, other: Any) -> Any:
    """Return the value that two changes result in; `None` where they conflict."""
    if base in (one, other):
        return one if other == base else other
    if base is _GONE:
        base = {}
    if not all(isinstance(value, dict) for value in (base, one, other)):
        return None
    found = {}
    for name in {**base, **one, **other}:
        made = _both(*(value.get(name, _GONE) for value in (base, one, other)))
        if made is None:
            return None
        if made is not _GONE:
            found[name] = made
    return found


def _changes(node: Schema, value: Any, at: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and "properties" in node:
        for name, inner in node["properties"].items():
            rest = {key: one for key, one in value.items() if key != name}
            for place, made in _of_field(inner, value, name, f"{at}.{name}", depth - 1):
                yield place, {**rest, name: made}
            if name in value:
                yield f"{at}.{name} (gone)", rest
        return
    for one in _values(node, depth):
        yield at, one
    if isinstance(value, list) and value and depth > 0:
        yield f"{at} (one gone)", value[:-1]
        for one in _values(node["items"], depth - 1):
            yield f"{at} (one more)", [*value, one]
        for place, made in _changes(node["items"], value[-1], f"{at}[]", depth - 1):
            yield place, [*value[:-1], made]


def _of_field(
    node: Schema, value: Any, name: str, at: str, depth: int
) -> Iterator[tuple[str, Any]]:
    """Yield other values of a set field, values of an unset field, and those of fields below."""
    if name in value:
        yield from _changes(node, value[name], at, depth)
        return
    for one in _values(node, depth):
        yield at, one
        if depth > 0 and isinstance(one, dict | list):
            yield from _changes(node, one, at, depth)


def _values(node: Schema, depth: int) -> Iterator[Any]:
    """Yield values of a field, the smallest of each kind."""
    if "enum" in node:
        yield from node["enum"]
    elif node.get("x-kubernetes-int-or-string"):
        yield from ("500m", "2Gi")
    elif node.get("type") == "boolean":
        yield from (True, False)
    elif node.get("type") in ("integer", "number"):
        least = int(node.get("minimum", 1))
        yield from (least, least + 1)
    elif node.get("type") == "string":
        yield from (word for word in WORDS if not errors(node, word))
    elif node.get("type") == "array":
        yield from ([value] for value in _values(node["items"], depth - 1))
    elif depth > 0:
        yield from _objects(node, depth)


def _objects(node: Schema, depth: int) -> Iterator[Any]:
    if "properties" not in node:
        inner = node.get("additionalProperties")
        if isinstance(inner, dict):
            yield from ({"other": value} for value in _values(inner, depth - 1))
        return
    made = {}
    for name in node.get("required", ()):
        first = next(_values(node["properties"][name], depth - 1), None)
        if first is None:
            return
        made[name] = first
    yield made
