"""Types of texts and numbers in manifests, with their bounds and parsers.

Patterns mean the same to the API server (RE2), pydantic and Python's `re`: anchored, without
look-around.
"""

import re
from decimal import Decimal
from typing import Annotated, Any, Final, NewType

from pydantic import BeforeValidator, StringConstraints, WithJsonSchema

_SIZE_PATTERN: Final = r"^[0-9]{1,18}(\.[0-9]{1,3})?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"
_CPU_PATTERN: Final = r"^([0-9]{1,7}m|[0-9]{1,4}(\.[0-9]{1,3})?)$"
_DURATION_PATTERN: Final = r"^(0|([0-9]{1,9}(\.[0-9]{1,6})?(ms|s|m|h)){1,4})$"

INTEGER_MAX: Final = 2**53 - 1
"""Largest whole number in a manifest: beyond it the API server, which reads bounds as floating
point, refuses the definition."""

QuantityText = NewType("QuantityText", str)
"""An amount with an optional unit, as Kubernetes writes it: `10Gi`, `500m`, `1073741824`."""

DurationText = NewType("DurationText", str)
"""A time in Go's syntax: `250ms`, `15s`, `1h30m`, `0`."""


def _quantity_schema(pattern: str) -> dict[str, Any]:
    return {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": pattern,
        "minimum": 0,
        "maxLength": 24,
    }


def _whole_as_text(value: object) -> object:
    """Accept quantities written as whole numbers; internally they are texts."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number else value


Size = Annotated[
    QuantityText,
    BeforeValidator(_whole_as_text),
    StringConstraints(max_length=24, pattern=_SIZE_PATTERN),
    WithJsonSchema(_quantity_schema(_SIZE_PATTERN)),
]
"""Bytes."""

Cpu = Annotated[
    QuantityText,
    BeforeValidator(_whole_as_text),
    StringConstraints(max_length=24, pattern=_CPU_PATTERN),
    WithJsonSchema(_quantity_schema(_CPU_PATTERN)),
]
"""Cores, or thousandths of a core with the unit `m`."""

Duration = Annotated[
    DurationText,
    StringConstraints(max_length=40, pattern=_DURATION_PATTERN),
]

Label = Annotated[str, StringConstraints(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
"""A DNS label: names of namespaces, services and ports."""

LabelOrAny = Annotated[
    str, StringConstraints(max_length=63, pattern=r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$")
]
"""Name of a namespace, or `*` for all."""

ObjectName = Annotated[
    str, StringConstraints(max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
]
"""Name of an object of Kubernetes."""

SecretKey = Annotated[str, StringConstraints(max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
"""Key of a Secret or ConfigMap."""

QualifiedName = Annotated[
    str,
    StringConstraints(
        max_length=317,
        pattern=r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$",
    ),
]
"""Key of a label, a taint or an annotation."""

LabelValue = Annotated[
    str, StringConstraints(max_length=63, pattern=r"^([A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?)?$")
]
Text = Annotated[str, StringConstraints(max_length=256)]
LongText = Annotated[str, StringConstraints(max_length=1_024)]
Timestamp = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""A moment in RFC 3339, such as `2026-11-21T18:00:00Z`; the API server checks it."""

_UNITS: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "Pi": 1 << 50,
}
_SIZE: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,3})?)(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?")
_DURATION_UNITS_NS: Final = {
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DURATION_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h)")


def size_bytes(quantity: str) -> int:
    """Convert a size to bytes, rounded up as in Kubernetes.

    Raises:
        ValueError: The text is not a size.
    """
    found = _SIZE.fullmatch(quantity)
    if found is None:
        raise ValueError(f"{quantity!r} is not a size such as 10Gi")
    exact = Decimal(found[1]) * _UNITS[found[2] or ""]
    return int(exact) + (exact != int(exact))


def duration_ns(text: str) -> int:
    """Convert a duration to nanoseconds.

    Raises:
        ValueError: The text is not a duration.
    """
    if not re.fullmatch(_DURATION_PATTERN, text):
        raise ValueError(f"{text!r} is not a duration such as 15s")
    return sum(
        int(Decimal(number) * _DURATION_UNITS_NS[unit])
        for number, unit in _DURATION_PART.findall(text)
    )
