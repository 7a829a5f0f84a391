"""Conversion of pydantic's schemas to structural schemas, the dialect of the API server.

A structural schema has a type at every level, no references, no alternatives and no unknown
properties. Optional fields are not required; `null` is not a value.
"""

from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel

Schema = dict[str, Any]

_DROPPED: Final = ("title", "$defs", "additionalProperties")
_INT32_MAX: Final = 2**31 - 1


def structural(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _converted(schema, schema.get("$defs", {}))


def _converted(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    schema = _resolved(schema, definitions)
    if schema.get("x-kubernetes-int-or-string"):
        return _ordered({key: schema[key] for key in _kept(schema)})
    found = {key: schema[key] for key in _kept(schema) if key not in {"properties", "items"}}
    if "properties" in schema:
        found["properties"] = {
            name: _converted(part, definitions) for name, part in schema["properties"].items()
        }
    if "items" in schema:
        found["items"] = _without_description(_converted(schema["items"], definitions))
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        found["additionalProperties"] = _converted(values, definitions)
        found.pop("default", None)  # an empty map means the same as none
    if schema.get("type") == "integer":
        is_small = schema.get("maximum", _INT32_MAX + 1) <= _INT32_MAX
        found["format"] = "int32" if is_small else "int64"
    if "default" in found:
        # The API server checks rules on a default as written, without nested defaults.
        found["default"] = _filled(found, found["default"])
    return _ordered(found)


def _filled(schema: Schema, value: Any) -> Any:
    """Complete a default with the defaults of its parts."""
    if isinstance(value, dict):
        parts = schema.get("properties", {})
        given = {name: part["default"] for name, part in parts.items() if "default" in part}
        given |= value
        return {name: _filled(parts.get(name, {}), part) for name, part in given.items()}
    if isinstance(value, list):
        return [_filled(schema.get("items", {}), item) for item in value]
    return value


def _resolved(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Resolve references and drop the alternative `null`; outer keywords take precedence."""
    while "$ref" in schema or ("anyOf" in schema and _is_optional(schema)):
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            inner = definitions[name]
        else:
            inner = next(part for part in schema["anyOf"] if part.get("type") != "null")
        near = {key: value for key, value in schema.items() if key not in {"$ref", "anyOf"}}
        schema = {**inner, **near}
    return schema


def _is_optional(schema: Schema) -> bool:
    return any(part.get("type") == "null" for part in schema["anyOf"])


def _kept(schema: Schema) -> Iterator[str]:
    """Yield the keywords that are kept.

    Defaults that mean "not given" are dropped: the API server would write them into every object.
    """
    for key, value in schema.items():
        says_nothing = key == "default" and (value is None or value == [])
        if key not in _DROPPED and not says_nothing:
            yield key


def _without_description(schema: Schema) -> Schema:
    """Drop the description of items: their list has one."""
    return {key: value for key, value in schema.items() if key != "description"}


def _ordered(schema: Schema) -> Schema:
    """Order keywords: the most important ones first, the rest alphabetically."""
    first = ("description", "type", "format", "default", "enum", "required", "properties")
    known = [key for key in first if key in schema]
    return {key: schema[key] for key in [*known, *sorted(set(schema) - set(known))]}
