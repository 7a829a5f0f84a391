"""Conversion between JSON values and typed Python values, for `JsonCodec`.

A reader is built once for a type and then called for each value. Readers nest as deep as the type.
A recursive type refers to its own reader.
"""

import dataclasses
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from liftbridge_client.errors import UsageError

Reader = Callable[[Any], Any]
"""Converts a result of `json.loads` to the typed value; raises ValueError or TypeError."""

_Known = dict[object, Reader]


def written(value: object) -> object:
    """Convert a value that JSON does not support (`default` of `json.dumps`).

    Raises:
        TypeError: Its type is not supported.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def reader_of(kind: object) -> Reader:
    """Build the reader of a type.

    Raises:
        UsageError: JSON cannot represent the type, or cannot distinguish it from another.
    """
    return _reader(kind, {})


def _reader(kind: Any, known: _Known) -> Reader:
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin = get_origin(kind)
    if origin is not None:
        return _generic(kind, origin, known)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if dataclasses.is_dataclass(kind) or is_typeddict(kind):
        return _fields(kind, known)
    raise UsageError(_unknown(kind))


def _generic(kind: object, origin: Any, known: _Known) -> Reader:
    arguments = get_args(kind)
    if origin in (Union, UnionType):
        return _union([_reader(part, known) for part in arguments])
    if origin is Literal:
        return _literal(arguments)
    if origin in (list, Sequence, tuple, dict, Mapping):
        return _container(origin, arguments, known)
    if origin in (Required, NotRequired):
        return _reader(arguments[0], known)
    raise UsageError(_unknown(kind))


def _unknown(kind: object) -> str:
    return f"JsonCodec cannot read {kind!r} from JSON; use a codec of your own"


def _exactly(*kinds: type) -> Reader:
    """Build a reader that returns values of these types unchanged; a boolean is no number."""

    def read(value: Any) -> Any:
        if type(value) not in kinds:
            raise TypeError(f"{value!r:.100} is not of type {kinds[0].__name__}")
        return value

    return read


def _float(value: Any) -> float:
    return float(_exactly(float, int)(value))


def _time(value: Any) -> datetime:
    return datetime.fromisoformat(_exactly(str)(value))


def _bytes(value: Any) -> bytes:
    return b64decode(_exactly(str)(value), validate=True)


_SCALARS: Final[Mapping[object, Reader]] = {
    Any: lambda value: value,
    object: lambda value: value,
    None: _exactly(NoneType),
    NoneType: _exactly(NoneType),
    bool: _exactly(bool),
    int: _exactly(int),
    float: _float,
    str: _exactly(str),
    bytes: _bytes,
    datetime: _time,
    list: _exactly(list),
    dict: _exactly(dict),
}


def _union(readers: Sequence[Reader]) -> Reader:
    """Build a reader that uses the first member that accepts the value."""

    def read(value: Any) -> Any:
        reasons = []
        for reader in readers:
            try:
                return reader(value)
            except (ValueError, TypeError) as error:
                reasons.append(str(error))
        raise ValueError("; ".join(reasons))

    return read


def _literal(values: tuple[object, ...]) -> Reader:
    def read(value: Any) -> Any:
        for known in values:
            if type(known) is type(value) and known == value:
                return known
        raise ValueError(f"{value!r:.100} is not one of {values}")

    return read


def _container(origin: Any, arguments: tuple[Any, ...], known: _Known) -> Reader:
    if origin in (dict, Mapping):
        if arguments[0] is not str:
            raise UsageError("JsonCodec: the keys of a JSON object must be str")
        one = _reader(arguments[1], known)
        is_object = _exactly(dict)
        return lambda value: {name: one(part) for name, part in is_object(value).items()}
    is_array = _exactly(list)
    if origin is not tuple:
        one = _reader(arguments[0], known)
        return lambda value: [one(part) for part in is_array(value)]
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        one = _reader(arguments[0], known)
        return lambda value: tuple(one(part) for part in is_array(value))
    readers = [_reader(part, known) for part in arguments]
    return lambda value: tuple(
        read(part) for read, part in zip(readers, is_array(value), strict=True)
    )


def _fields(kind: Any, known: _Known) -> Reader:
    """Build a reader of objects with named fields: dataclasses and TypedDicts."""

    def later(value: Any) -> Any:
        return known[kind](value)

    if kind in known:
        return known[kind]
    known[kind] = later  # a field may have the type itself
    hints = get_type_hints(kind, include_extras=is_typeddict(kind))
    if dataclasses.is_dataclass(kind):
        fields = [field for field in dataclasses.fields(kind) if field.init]
        needed = frozenset(
            field.name
            for field in fields
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        names = [field.name for field in fields]
    else:
        needed = kind.__required_keys__
        names = list(hints)
    readers = {name: _reader(hints[name], known) for name in names}
    is_object = _exactly(dict)

    def read(value: Any) -> Any:
        given = is_object(value)
        missing = needed - given.keys()
        if missing:
            raise ValueError(f"{kind.__name__}: {', '.join(sorted(missing))} is missing")
        return kind(**{name: one(given[name]) for name, one in readers.items() if name in given})

    known[kind] = read
    return read
