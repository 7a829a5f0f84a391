"""Arguments of public calls, checked by their annotations before anything is done.

Otherwise, a wrong type raises deep inside an error that names neither the argument nor a remedy, or
passes unnoticed: protobuf accepts `None` for an offset as 0.
"""

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from operator import index
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from liftbridge_client.core.message_parts import is_utf8
from liftbridge_client.errors import UsageError
from liftbridge_client.model import Start, Stop, StreamSettings, to_ns

_Call = TypeVar("_Call", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)

PARTS_OF_MESSAGES: Final = frozenset({"value", "key", "headers"})
"""Arguments checked by `check_message` instead, which also checks them in an `Outgoing`."""

_INT32: Final = (-(2**31), 2**31 - 1)
_INT64: Final = (-(2**63), 2**63 - 1)
_UINT64: Final = (0, 2**64 - 1)

BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(("partition", "partitions", "replication", "min_isr"), _INT32),
    **dict.fromkeys(("compact_max_goroutines", "a key of known"), _INT32),
    **dict.fromkeys(("stream_id", "partition_epoch", "broker_epoch", "unclean_epoch"), _UINT64),
    "member_epoch": _UINT64,
    "level": (0, 2**32 - 1),
    "bytes_per_second": _UINT64,
    "max_in_flight": (1, 1_000_000),
    "prefetch": (0, 1_000),
    **dict.fromkeys(("batch_messages", "buffer_messages"), (1, 1_000_000)),
    "buffer_bytes": (1, 2**40),
}
"""Integers with bounds other than 64 bits, set by the wire format or by buffers here."""

TIME_MAX: Final = timedelta(days=36_500)
"""Longer than any wait or retention in use, and fits into 64 bits in any unit."""

TIMES_MAX: Final = {"linger": timedelta(minutes=1)}
"""Durations with a lower bound.

A caller that awaits an ack would mistake a longer wait for a hang.
"""

_REMEDIES: Final[dict[object, str]] = {
    bool: "use True or False",
    int: "use int(...)",
    str: "use str(...), or decode it",
    timedelta: "use timedelta(seconds=...)",
    datetime: "use datetime.now(UTC)",
    Path: "use Path(...)",
    Start: "use Start.earliest(), Start.at(5) or another of its methods",
    Stop: "use Stop.latest(), Stop.at(5) or another of its methods",
    StreamSettings: "use StreamSettings(...)",
    Sequence: "use a list",
    Iterable: "use a list",
    Mapping: "use a dict",
}


DIGITS_BITS_MAX: Final = 128

_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class _Wrong(NamedTuple):
    """A value that breaks a rule, and the path to it."""

    path: str
    value: object
    rule: str
    remedy: str


_Rule = Callable[[str, Any], _Wrong | None]
"""Checks a value at a path; returns the violation, or `None`."""


def checked(function: _Call) -> _Call:
    """Make a call raise `UsageError` for arguments that its annotations exclude.

    Arguments whose annotation is not a checkable type, such as a type variable, pass.
    """
    parameters = inspect.signature(function).parameters
    spread = [p.name for p in parameters.values() if p.kind is inspect.Parameter.VAR_POSITIONAL]
    names = list(parameters)
    last = names.index(spread[0]) if spread else len(names) - 1
    rules = {
        name: rule
        for name, parameter in parameters.items()
        if name not in {"self", *PARTS_OF_MESSAGES}
        and (rule := _rule_of(parameter.annotation)) is not None
    }

    def check(arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
        given = [(names[min(index, last)], value) for index, value in enumerate(arguments)]
        for name, value in (*given, *named.items()):
            if name in rules and (wrong := rules[name](name, value)) is not None:
                raise UsageError(f"{wrong.path} {shown(wrong.value)}: {wrong.rule}; {wrong.remedy}")

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        check(arguments, named)
        return function(*arguments, **named)

    @functools.wraps(function)
    async def call_later(*arguments: Any, **named: Any) -> Any:
        check(arguments, named)
        return await function(*arguments, **named)

    @functools.wraps(function)
    async def iterate(*arguments: Any, **named: Any) -> Any:
        check(arguments, named)
        async with aclosing(function(*arguments, **named)) as items:
            async for item in items:
                yield item

    if inspect.isasyncgenfunction(function):
        return cast("_Call", iterate)
    return cast("_Call", call_later if inspect.iscoroutinefunction(function) else call)


def checked_calls(kind: _Class) -> _Class:
    """Make all public methods of a class refuse arguments that their annotations exclude."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, checked(method))
    return kind


def shown(value: object) -> str:
    """Format a value for a message, truncated; Python refuses to print very long numbers."""
    if isinstance(value, int) and value.bit_length() > DIGITS_BITS_MAX:
        return f"of {value.bit_length()} bits"
    return _SHORT.repr(value)


def _rule_of(annotation: Any) -> _Rule | None:
    """Convert an annotation to a rule; `None` if nothing can be checked."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _any_of(parts)
    if origin is Literal:
        return functools.partial(_check_choice, parts)
    if origin is Mapping:
        return functools.partial(_check_mapping, _rule_of(parts[0]), _rule_of(parts[1]))
    if origin in (Sequence, Iterable):
        return functools.partial(_check_items, origin, _rule_of(parts[0]))
    if origin is Callable:
        return _check_callable
    kind = origin or annotation
    return functools.partial(_check_kind, kind) if inspect.isclass(kind) else None


def _any_of(parts: Sequence[Any]) -> _Rule | None:
    """Accept any member of a union, also `None`; the first member reports the violation."""
    rules = [_rule_of(part) for part in parts if part is not NoneType]
    if None in rules:
        return None
    may_be_none = NoneType in parts

    def check(path: str, value: Any) -> _Wrong | None:
        if value is None and may_be_none:
            return None
        wrongs = [rule(path, value) for rule in rules if rule is not None]
        return None if None in wrongs else wrongs[0]

    return check


def _check_choice(choices: Sequence[str], path: str, value: Any) -> _Wrong | None:
    if isinstance(value, str) and value in choices:
        return None
    return _Wrong(path, value, f"must be one of {', '.join(choices)}", "correct the spelling")


def _check_callable(path: str, value: Any) -> _Wrong | None:
    return None if callable(value) else _Wrong(path, value, "must be callable", "use a function")


def _check_mapping(
    of_key: _Rule | None, of_value: _Rule | None, path: str, mapping: Any
) -> _Wrong | None:
    if not isinstance(mapping, Mapping):
        return _Wrong(path, mapping, "must be a mapping", _REMEDIES[Mapping])
    keys = ((of_key, f"a key of {path}", key) for key in mapping)
    values = ((of_value, f"{path}[{key!r}]", value) for key, value in mapping.items())
    return _first((*keys, *values))


def _check_items(origin: Any, of_item: _Rule | None, path: str, items: Any) -> _Wrong | None:
    """Refuse text or bytes as a list; do not look into iterables that can be consumed only once."""
    is_list = isinstance(items, origin) and not isinstance(items, str | bytes)
    if not is_list:
        rule = "must be a sequence" if origin is Sequence else "must be iterable, and no text"
        return _Wrong(path, items, rule, _REMEDIES[origin])
    if origin is not Sequence or of_item is None:
        return None
    return _first((of_item, f"{path}[{index}]", item) for index, item in enumerate(items))


def _first(found: Iterable[tuple[_Rule | None, str, Any]]) -> _Wrong | None:
    wrongs = (rule(path, value) for rule, path, value in found if rule is not None)
    return next((wrong for wrong in wrongs if wrong is not None), None)


def _check_kind(kind: type, path: str, value: Any) -> _Wrong | None:
    if kind is int:
        return _check_whole(path, value)
    # A class itself would also pass a protocol check.
    if not isinstance(value, kind) or (isinstance(value, type) and kind is not type):
        remedy = _REMEDIES.get(kind, f"use an instance of liftbridge_client.{kind.__name__}")
        return _Wrong(path, value, f"must be a {kind.__name__}", remedy)
    if isinstance(value, str):
        rule = "must be text that UTF-8 can encode"
        return None if is_utf8(value) else _Wrong(path, value, rule, "replace its lone surrogates")
    if isinstance(value, timedelta):
        return _check_time(path, value)
    if isinstance(value, datetime):
        to_ns(value)
        return None
    return _first(_fields(kind, path, value))


def _name(path: str) -> str:
    """Return the name of the parameter or field at the end of a path."""
    return path.rpartition(".")[2].partition("[")[0]


def _check_time(path: str, value: timedelta) -> _Wrong | None:
    longest = TIMES_MAX.get(_name(path), TIME_MAX)
    if timedelta(0) <= value <= longest:
        return None
    rule = "must not be negative" if value < timedelta(0) else f"must be at most {longest}"
    return _Wrong(path, value, rule, "correct it")


def _check_whole(path: str, value: Any) -> _Wrong | None:
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:  # a numpy array also has `__index__`
        number = None
    if number is None:
        return _Wrong(path, value, "must be a whole number", _REMEDIES[int])
    low, high = BOUNDS.get(_name(path), _INT64)
    if low <= number <= high:
        return None
    return _Wrong(path, value, f"must be from {low} to {high}", "correct it")


def _fields(kind: type, path: str, value: Any) -> Iterator[tuple[_Rule | None, str, Any]]:
    """Iterate over the fields of a named tuple or dataclass."""
    if hasattr(kind, "_fields") or hasattr(kind, "__dataclass_fields__"):
        for name, rule in _rules_of(kind).items():
            yield rule, f"{path}.{name}", getattr(value, name)


@functools.cache
def _rules_of(kind: type) -> Mapping[str, _Rule | None]:
    return {name: _rule_of(hint) for name, hint in get_type_hints(kind).items()}
