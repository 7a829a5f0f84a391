"""Structural schemas: form, defaults, and types and bounds of objects."""

from collections.abc import Iterator
from typing import Any, Final

import jsonschema

Schema = dict[str, Any]

_FORBIDDEN: Final = {
    "$ref",
    "$defs",
    "definitions",
    "patternProperties",
    "dependencies",
    "const",
    "if",
    "then",
    "else",
    "prefixItems",
    "propertyNames",
    "uniqueItems",
    "title",
}
# Type -> keys of which one is required, for each bound.
_DESIRED: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "object": (("maxProperties",),),
    "array": (("maxItems",), ("x-kubernetes-list-type",)),
    "string": (("maxLength", "enum", "format"),),
    "integer": (("minimum",), ("maximum",)),
    "boolean": (),
}
INT_OR_STRING: Final = "x-kubernetes-int-or-string"


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every schema within a schema, with its path."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from nodes(part, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def faults(schema: Schema) -> Iterator[str]:
    """Yield the faults of a schema that must be structural and bounded for the API server."""
    for path, node in nodes(schema):
        is_metadata = path == ".metadata"
        for key in sorted(_FORBIDDEN & set(node)):
            yield f"{path}: {key} is not structural"
        if node.get(INT_OR_STRING):
            if node.get("anyOf") != [{"type": "integer"}, {"type": "string"}]:
                yield f"{path}: an int-or-string has exactly these two types"
            continue
        if "anyOf" in node or "oneOf" in node or "allOf" in node:
            yield f"{path}: alternatives"
        yield from (f"{path}: {fault}" for fault in _bounds(node, is_metadata=is_metadata))


def _bounds(node: Schema, *, is_metadata: bool) -> Iterator[str]:
    kind = node.get("type")
    has_values = "additionalProperties" in node
    if kind == "object" and has_values == ("properties" in node) and not is_metadata:
        yield "either named properties or values"
    wanted = _DESIRED.get(kind or "")
    if wanted is None:
        yield f"type {kind}"
    elif kind != "object" or has_values:
        yield from (f"needs one of {keys}" for keys in wanted if not set(keys) & set(node))


def defaulted(schema: Schema, value: Any) -> Any:
    """Return the value with defaults of the schema filled in, top down, as the API server does."""
    if isinstance(value, dict):
        filled = dict(value)
        for name, part in schema.get("properties", {}).items():
            if name not in filled and "default" in part:
                filled[name] = part["default"]
            if name in filled:
                filled[name] = defaulted(part, filled[name])
        return filled
    if isinstance(value, list) and "items" in schema:
        return [defaulted(schema["items"], item) for item in value]
    return value


def unknown_fields(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """Yield the fields that strict validation refuses, and that are dropped otherwise."""
    if isinstance(value, dict) and "properties" in schema and path != ".metadata":
        for name, part in value.items():
            known = schema["properties"].get(name)
            if known is None:
                yield f"{path}.{name}"
            elif name != "metadata":
                yield from unknown_fields(known, part, f"{path}.{name}")
    elif isinstance(value, list) and "items" in schema:
        for item in value:
            yield from unknown_fields(schema["items"], item, f"{path}[]")


def errors(schema: Schema, value: Any) -> list[str]:
    """Return broken types and bounds, unknown fields, and duplicate keys of map lists."""
    checker = jsonschema.Draft202012Validator(schema)
    found = [f"{error.json_path}: {error.message}" for error in checker.iter_errors(value)]
    return [*found, *unknown_fields(schema, value), *_repeated(schema, value)]


def _repeated(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if name in value:
                yield from _repeated(part, value[name], f"{path}.{name}")
    elif isinstance(value, list):
        keys = schema.get("x-kubernetes-list-map-keys")
        is_set = schema.get("x-kubernetes-list-type") == "set"
        seen = [tuple(item.get(key) for key in keys) for item in value] if keys else list(value)
        if (keys or is_set) and any(seen.count(one) > 1 for one in seen):
            yield f"{path}: stands twice"
        for item in value:
            yield from _repeated(schema["items"], item, path)


def created(schema: Schema, value: Any) -> Any:
    """Return an object as rules see it at creation: without its status."""
    return {name: part for name, part in defaulted(schema, value).items() if name != "status"}
