"""Common parts of the models: names, rules in CEL, and kinds of lists.

Defaults are in the schema only, so `kubectl get` shows the values in effect; none depends on the
version of the operator. Lists and texts are bounded: the API server refuses a definition whose
rules could cost too much, and it estimates the cost from the bounds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError
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
        name: Unique name, used in tests and documents.
        rule: Expression that is true for accepted values; with `oldSelf` a transition rule.
        message: Message of a refusal.
        message_expression: Expression of a message with values; `message` is the fallback.
        field: Path below the class that a refusal names, such as `.size`.
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
        """Return whether it compares with the previous value."""
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
    """Rule of a class: `field` cannot be changed, added later or removed."""
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
    """Rule of a class: exactly one of the fields is given."""
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
        """Add the rules of the class to pydantic's schema."""
        schema = handler(core_schema)
        if cls.rules:
            resolved = handler.resolve_ref_schema(schema)
            resolved["x-kubernetes-validations"] = [rule.schema() for rule in cls.rules]
        return schema

    @classmethod
    def read_spec(cls, given: Mapping[str, Any]) -> tuple[Self | None, str]:
        """Parse a specification, or return why it is unreadable: it may be of another CRD version.

        Args:
            given: The field `spec` of an object.
        """
        try:
            spec = cls.model_validate(given)
        except ValidationError:
            return None, "it cannot be read"
        unread = ", ".join(f"spec{path}" for path in spec.unread(given))
        return (None, f"only a newer operator knows {unread}") if unread else (spec, "")

    def manifest(self) -> dict[str, Any]:
        """Convert to a manifest; fields that are not given are left out."""
        return self.model_dump(mode="json", exclude_none=True)

    def unread(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        """Paths of its manifest for which the model has no field, such as `.storage.later`.

        A newer definition accepts them.
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
    """How the API server merges a list, and how long it may be.

    Attributes:
        items_max: Largest number of items.
        keys: Fields that identify an item, which makes the list a map; empty for other lists.
        is_set: Whether items are unique values.
        items_min: Smallest number of items.
    """

    items_max: int
    keys: tuple[str, ...] = ()
    is_set: bool = False
    items_min: int = 0

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add the bounds and kind of the list to its schema."""
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
    """A field that holds a model, whose defaults apply if the field is not given."""
    return Field(default_factory=model, description=description, json_schema_extra={"default": {}})


def option(description: str, **constraints: Any) -> Any:
    """An optional field without a default in the schema."""
    return Field(default=None, description=description, **constraints)
