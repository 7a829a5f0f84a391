"""Evaluate CEL rules as the API server does: at each place of a schema, also on changes.

Of the functions that Kubernetes adds to CEL, only those used in this repository exist.
"""

import json
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple, cast

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel

from liftbridge_operator.model.values import size_bytes
from liftbridge_testkit.resources.schema import Schema


class Refusal(NamedTuple):
    """A rule that an object breaks."""

    path: str
    rule: str
    message: str


_ABSENT: Final = object()
EVALUATED_MAX: Final = 20_000
"""Maximum number of cached results: a change of one field leaves most expressions the same."""


def refusals(schema: Schema, value: Any, old: Any = _ABSENT, path: str = "") -> Iterator[Refusal]:
    """Yield the rules of the schema that the value breaks; `old` is the replaced value."""
    for entry in schema.get("x-kubernetes-validations", ()):
        is_transition = "oldSelf" in entry["rule"]
        if is_transition and old is _ABSENT:
            continue
        variables = {"self": value} | ({"oldSelf": old} if is_transition else {})
        if not evaluate(entry["rule"], _read(entry["rule"], variables)):
            yield Refusal(path, entry["rule"], _message(entry, variables))
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if name in value:
                before = old.get(name, _ABSENT) if isinstance(old, dict) else _ABSENT
                yield from refusals(part, value[name], before, f"{path}.{name}")
    elif isinstance(value, list):
        keys = schema.get("x-kubernetes-list-map-keys", ())
        for item in value:
            before = _same(old, item, keys)
            yield from refusals(schema["items"], item, before, f"{path}[]")


@cache
def _fields_of(rule: str) -> frozenset[str]:
    """Return the fields that a rule reads; empty for all."""
    named = re.findall(r"\b(?:self|oldSelf)\.(\w+)", rule)
    is_all = len(re.findall(r"\b(?:self|oldSelf)\b", rule)) > len(named)
    return frozenset() if is_all else frozenset(named)


def _read(rule: str, variables: dict[str, Any]) -> dict[str, Any]:
    """Return the variables with only the fields that a rule reads: most changes are of others."""
    fields = _fields_of(rule)
    if not fields:
        return variables
    return {
        name: {key: one for key, one in value.items() if key in fields}
        if isinstance(value, dict)
        else value
        for name, value in variables.items()
    }


def _same(old: Any, item: Any, keys: tuple[str, ...]) -> Any:
    """Return the item of the former list with the same keys; only map lists have one."""
    if keys and isinstance(old, list):
        for candidate in old:
            if all(candidate.get(key) == item.get(key) for key in keys):
                return candidate
    return _ABSENT


def _message(entry: dict[str, str], variables: dict[str, Any]) -> str:
    expression = entry.get("messageExpression")
    return str(evaluate(expression, variables)) if expression else entry["message"]


def evaluate(expression: str, variables: dict[str, Any]) -> Any:
    """Return the value of an expression. Errors raise, because the API server refuses then."""
    return _evaluated(expression, json.dumps(variables))


@lru_cache(maxsize=EVALUATED_MAX)
def _evaluated(expression: str, variables: str) -> Any:
    return _program(expression).evaluate(cast("Any", _given(variables)))


@lru_cache(maxsize=1)
def _given(variables: str) -> dict[str, Any]:
    """Return the variables of the rules at one place."""
    return {name: json_to_cel(value) for name, value in json.loads(variables).items()}


@cache
def _program(expression: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression), functions=_FUNCTIONS)


def _quantity(text: Any) -> Any:
    """Return a quantity in thousandths, so that comparison is exact."""
    written = str(text)
    if written.endswith("m"):
        return celtypes.IntType(int(written[:-1]))
    return celtypes.IntType(size_bytes(written) * 1_000 if "." not in written else _exact(written))


def _exact(written: str) -> int:
    number, _, fraction = written.partition(".")
    digits = fraction.rstrip("KMGTPik")
    unit = fraction[len(digits) :]
    thousandths = int(number) * 1_000 + int(digits.ljust(3, "0")[:3])
    return thousandths * size_bytes(f"1{unit}")


def _compare(one: Any, other: Any) -> Any:
    return celtypes.IntType((one > other) - (one < other))


def _split(text: Any, separator: Any) -> Any:
    return celtypes.ListType([celtypes.StringType(part) for part in str(text).split(separator)])


def _join(parts: Any, separator: Any) -> Any:
    return celtypes.StringType(str(separator).join(str(part) for part in parts))


_FUNCTIONS: Final[dict[str, Any]] = {
    "quantity": _quantity,
    "compareTo": _compare,
    "isGreaterThan": lambda one, other: celtypes.BoolType(one > other),
    "split": _split,
    "join": _join,
}
