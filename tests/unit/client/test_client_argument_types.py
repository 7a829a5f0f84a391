"""Every public call refuses what its annotations exclude, by name and with a remedy."""

import inspect
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import get_args, get_type_hints

import numpy as np
import pytest

import liftbridge_client as client
from liftbridge_client import (
    Numbering,
    Start,
    Stop,
    StreamSettings,
    TlsFiles,
    UsageError,
    by_key,
    connect,
    round_robin,
)
from liftbridge_client.core.arguments import PARTS_OF_MESSAGES, shown
from liftbridge_client.core.partitioners import choose

HUGE = 10**5000  # Python refuses to print it
WRONG = {
    "None": None,
    "text": "text",
    "surrogate": "\ud800",
    "bytes": b"b",
    "whole": 5,
    "huge": HUGE,
    "least": -HUGE,
    "half": 1.5,
    "nan": float("nan"),
    "true": True,
    "list": [None],
    "mapping": {None: None},
    "iterator": iter(()),
    "class": datetime,
    "naive": datetime(2020, 1, 1),  # noqa: DTZ001 - that is the mistake
    "first year": datetime(1, 1, 1, tzinfo=UTC),
    "last year": datetime(9999, 12, 31, tzinfo=UTC),
    "negative": timedelta(-1),
    "longest": timedelta.max,
    "array": np.array([1]),
    "numbers": np.array([1, 2]),
}
RIGHT = {
    "None": {"None"},
    "Optional": {"None"},
    "str": {"text"},
    "bytes": {"bytes"},
    "int": {"whole"},
    "bool": {"true"},
    "Callable": {"class"},
    "Iterable": {"list", "mapping", "iterator", "array", "numbers"},
    "Union": {"list"},  # messages of a batch are looked at one by one, behind this
}
"""What suits an annotation with one of these words in front of any bracket."""

RECORDS = {
    "settings": StreamSettings(),
    "tls": TlsFiles(),
    "start": Start.new(),
    "stop": Stop.never(),
    "numbering": Numbering("name", 0),
}
"""Arguments with fields, which are checked as well."""


_CALLERS = (
    client.Client,
    client.Streams,
    client.Stream,
    client.Consumers,
    client.AdminClient,
)


def calls():
    """Public calls, by name."""
    yield "connect", client.connect
    yield "connect_admin", client.connect_admin
    for kind in _CALLERS:
        for name, call in vars(kind).items():
            if inspect.isfunction(call) and not name.startswith("_"):
                yield f"{kind.__name__}.{name}", call
    for name in ("publish_batch", "aclose"):
        yield f"Publisher.{name}", vars(client.Publisher)[name]


def suits(annotation, label):
    written = inspect.formatannotation(annotation)
    parts = written.split(" | ") if not written.startswith("Optional[") else ["Optional", "Codec"]
    if "Union[" in written:
        parts.append("Union")
    words = {part.split("[")[0].split(".")[-1] for part in parts}
    return any(label in RIGHT.get(word, ()) for word in words)


CASES = [
    (call, parameter, label)
    for _, call in calls()
    for parameter in inspect.signature(call).parameters.values()
    if parameter.name not in {"self", *PARTS_OF_MESSAGES}
    for label in WRONG
    if not suits(parameter.annotation, label)
]
FIELDS = [
    (name, field, label)
    for name, record in RECORDS.items()
    for field, hint in get_type_hints(type(record)).items()
    for label in WRONG
    if not suits(hint, label)
]


async def refused(call, parameter, value):
    """The text of the refusal of an argument, given alone: it comes before all else."""
    has_self = "self" in inspect.signature(call).parameters
    first = (object(),) if has_self else ()
    is_spread = parameter.kind is inspect.Parameter.VAR_POSITIONAL
    spread, named = ((value,), {}) if is_spread else ((), {parameter.name: value})
    try:
        made = call(*first, *spread, **named)
        await (made if inspect.isawaitable(made) else anext(made))
    except UsageError as error:
        return str(error)
    raise AssertionError("it was not refused")


@pytest.mark.parametrize(("name", "call"), list(calls()), ids=lambda one: one)
async def test_every_argument_of_a_wrong_type_is_refused(name, call):
    for tried, parameter, label in CASES:
        if tried is call:
            text = await refused(call, parameter, WRONG[label])
            assert parameter.name in text, (name, label)
            assert ";" in text, (name, label)


@pytest.mark.parametrize("record", RECORDS)
async def test_every_field_of_a_wrong_type_is_refused(record):
    taker, parameter = next(
        (call, parameter)
        for _, call in calls()
        for parameter in inspect.signature(call).parameters.values()
        if parameter.name == record
    )
    for name, field, label in FIELDS:
        if name == record:
            good, change = RECORDS[name], {field: WRONG[label]}
            wrong = (
                good._replace(**change) if hasattr(good, "_replace") else replace(good, **change)
            )
            assert f"{name}.{field}" in await refused(taker, parameter, wrong), label


def whole_parameters():
    """Parameters and fields that are whole numbers, with one out of 64 bits, by the path to it."""
    for name, call in calls():
        for parameter in inspect.signature(call).parameters.values():
            if int in (parameter.annotation, *get_args(parameter.annotation)):
                yield name, call, parameter
            if parameter.name == "known":
                yield name, call, parameter


BEYOND = [2**64, -(2**63) - 1, np.float64(5), np.uint64(2**64 - 1), *(2**40, -(2**40))]
WIDE = {"partition", "partitions", "replication", "known"}
"""Parameters that travel in 32 bits."""


def of_kind(call, parameter, value):
    """An argument with a value as its number: the key of the innermost mapping, if it is one."""
    if parameter.name != "known":
        return value
    return {"s": {value: 1}} if call.__name__ == "await_news" else {value: 1}


@pytest.mark.parametrize(
    ("call", "parameter"),
    [pytest.param(*rest, id=f"{name}-{rest[1].name}") for name, *rest in whole_parameters()],
)
async def test_every_number_that_does_not_fit_is_refused(call, parameter):
    is_unsigned = parameter.name.endswith(("_id", "_epoch", "per_second"))
    for value in BEYOND:
        fits = abs(int(value)) == 2**40 and parameter.name not in WIDE
        fits = fits or (is_unsigned and type(value) is np.uint64)
        if fits and (value > 0 or not is_unsigned) and parameter.name not in BOUNDED:
            continue
        text = await refused(call, parameter, of_kind(call, parameter, value))
        assert parameter.name in text
        assert shown(value) in text


LIMITS = {
    "max_in_flight": (0, 1_000_001),
    "prefetch": (-1, 1_001),
    "level": (-1, 2**32),
    "batch_messages": (0, 1_000_001),
    "buffer_messages": (0, 1_000_001),
    "buffer_bytes": (0, 2**40 + 1),
}
BOUNDED = set(LIMITS) - {"buffer_bytes"}


@pytest.mark.parametrize("name", LIMITS)
async def test_what_is_held_here_has_bounds(name):
    call, parameter = next((call, one) for _, call, one in whole_parameters() if one.name == name)
    for value in LIMITS[name]:
        assert f"{name} {value}: must be from " in await refused(call, parameter, value)


def test_a_batch_does_not_linger_for_longer_than_anybody_would_wait():
    stream = connect("127.0.0.1").streams.get("s")
    stream.publisher(linger=timedelta(minutes=1))
    with pytest.raises(UsageError, match=r"linger .*: must be at most 0:01:00"):
        stream.publisher(linger=timedelta(minutes=1, seconds=1))


@pytest.mark.parametrize("numbers", [{"timeout": timedelta(0)}, {"timeout": 5}], ids=repr)
def test_a_timeout_in_which_nothing_can_happen_is_refused(numbers):
    for make in (connect, client.connect_sync, client.connect_admin):
        with pytest.raises(UsageError, match=r"timeout .*use timedelta\(seconds="):
            make("127.0.0.1", **numbers)


@pytest.mark.parametrize("label", [one for one in WRONG if one not in {"None", "whole", "true"}])
def test_a_partition_of_a_wrong_type_is_refused_by_publishers(label):
    for partitioner, partition in ((by_key, WRONG[label]), (lambda *_: WRONG[label], None)):
        with pytest.raises(UsageError, match="partition"):
            choose(partitioner, b"", partition, 3)


def test_whole_numbers_of_other_types_are_taken():
    assert choose(round_robin(), b"", np.int64(2), 3) == 2
