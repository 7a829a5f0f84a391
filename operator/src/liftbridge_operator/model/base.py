"""What the models have in common: names, rules in CEL, and kinds of lists.

Defaults stand in the schema and nowhere else, so that what `kubectl get` shows is what holds; none
depends on the version of the operator. Lists and texts are bounded: the API server refuses a
definition whose rules could cost too much, and it estimates the cost from the bounds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

GROUP: Final = "liftbridge.io"
VERSION: Final = "v1alpha1"

_CAPITALS: Final = {"uid": "UID", "isr": "ISR", "ca": "CA"}


class RuleReason(StrEnum):
    """Machine-readable reason of a refusal by a rule."""

    INVALID = "FieldValueInvalid"
    FORBIDDEN = "FieldValueForbidden"
    REQUIRED = "FieldValueRequired"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition in CEL that the API server evaluates at each write.

    Attributes:
        name: What tests and documents call it; unique.
        rule: Expression that is true for what is accepted; `oldSelf` makes it one about changes.
        message: What is told at a refusal.
        message_expression: Expression of a message with values; `message` stands in for it.
        field: Path below the class that the refusal is told of, such as `.size`.
        reason: Kind of refusal.
    """

    name: str
    rule: str
    message: str
    message_expression: str = ""
    field: str = ""
    reason: RuleReason = RuleReason.INVALID

    @property
    def is_transition(self) -> bool:
        """Whether it compares with the value before."""
        return "oldSelf" in self.rule

    def schema(self) -> dict[str, str]:
        """Entry of `x-kubernetes-validations`."""
        entry = {"rule": self.rule, "message": self.message, "reason": self.reason.value}
        if self.message_expression:
            entry["messageExpression"] = self.message_expression
        if self.field:
            entry["fieldPath"] = self.field
        return entry


def immutable(name: str, field: str, what: str) -> Rule:
    """Rule of a class: `field` keeps its value, is not added later and not removed."""
    path = f"self.{field}"
    old = f"oldSelf.{field}"
    return Rule(
        name,
        f"has({path}) == has({old}) && (!has({path}) || {path} == {old})",
        f"{what} cannot be changed",
        field=f".{field}",
        reason=RuleReason.FORBIDDEN,
    )


def exactly_one(name: str, fields: Sequence[str], message: str) -> Rule:
    """Rule of a class: one of the fields is given, and no other."""
    given = ", ".join(f"has(self.{field})" for field in fields)
    return Rule(name, f"[{given}].exists_one(given, given)", message)


def camel(name: str) -> str:
    """Name of a field in a manifest: `volume_uid` is `volumeUID`."""
    first, *rest = name.split("_")
    return first + "".join(_CAPITALS.get(word, word.capitalize()) for word in rest)


class Model(BaseModel):
    """Base of all models: frozen, camelCase outside, rules in the schema.

    Attributes:
        rules: Checked by the API server on every write of the object this class describes.
    """

    model_config = ConfigDict(
        frozen=True,
        alias_generator=camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="ignore",
        use_attribute_docstrings=False,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The schema of pydantic with the rules of the class behind it."""
        schema = handler(core_schema)
        if cls.rules:
            resolved = handler.resolve_ref_schema(schema)
            resolved["x-kubernetes-validations"] = [rule.schema() for rule in cls.rules]
        return schema

    def manifest(self) -> dict[str, Any]:
        """The value as it stands in a manifest; what is not given is left out."""
        return self.model_dump(mode="json", exclude_none=True)

    def unread(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        """Paths of the manifest it was made of that it has no fields for, such as `.storage.later`.

        A definition of a newer version lets them through.
        """
        return tuple(_unread(given, self.model_dump(mode="json"), ""))


def _unread(given: Any, read: Any, path: str) -> Iterator[str]:
    if isinstance(given, Mapping) and isinstance(read, Mapping):
        for name, value in given.items():
            if name in read:
                yield from _unread(value, read[name], f"{path}.{name}")
            elif value is not None:
                yield f"{path}.{name}"
    elif isinstance(given, list) and isinstance(read, list):
        for number, (one, other) in enumerate(zip(given, read, strict=False)):
            yield from _unread(one, other, f"{path}[{number}]")


@dataclass(frozen=True, slots=True)
class ListOf:
    """How the API server merges a list, and how long it may become.

    Attributes:
        items_max: Most items.
        keys: Fields that tell items apart, which makes it a map; empty for other lists.
        is_set: Whether items are unique values.
        items_min: Fewest items.
    """

    items_max: int
    keys: tuple[str, ...] = ()
    is_set: bool = False
    items_min: int = 0

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The schema of the list with its bounds and kind."""
        schema = dict(handler(core_schema))
        schema["maxItems"] = self.items_max
        if self.items_min:
            schema["minItems"] = self.items_min
        schema["x-kubernetes-list-type"] = (
            "map" if self.keys else "set" if self.is_set else "atomic"
        )
        if self.keys:
            schema["x-kubernetes-list-map-keys"] = list(self.keys)
        return schema


_M = TypeVar("_M", bound=Model)


def section(model: Callable[[], _M], description: str) -> _M:
    """A field that holds a model whose own defaults stand when it is not given."""
    return Field(default_factory=model, description=description, json_schema_extra={"default": {}})


def option(description: str, **constraints: Any) -> Any:
    """A field that may be left out; nothing is then assumed in the schema."""
    return Field(default=None, description=description, **constraints)
