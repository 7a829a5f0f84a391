"""Check the columns of a frame before a sink writes anything."""

from collections.abc import Mapping
from typing import Final

from pyspark_liftbridge.plan.options import OptionError, SinkOptions

_BYTES: Final = ("binary", "string")
TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "stream": ("string",),
    "partition": ("int", "bigint"),
}
"""Columns that are written, each with its allowed types; `value` is required."""


def check_columns(given: Mapping[str, str], options: SinkOptions) -> None:
    """Check the columns of a frame.

    Args:
        given: Types by name, as Spark DDL.
        options: Options of the sink.

    Raises:
        OptionError: A column is unknown, missing, of a wrong type, or conflicts with an option.
    """
    if unknown := [name for name in given if name not in TYPES]:
        raise OptionError(
            f"column {unknown[0]!r} cannot be written: a frame to write must have value and any of "
            f"{', '.join(sorted(set(TYPES) - {'value'}))}; select these"
        )
    for name, kind in given.items():
        if kind not in TYPES[name]:
            raise OptionError(
                f"column {name!r} is of type {kind}: it must be {' or '.join(TYPES[name])}"
            )
    if "value" not in given:
        raise OptionError("column 'value' is missing: it holds what is written")
    if "stream" not in given and not options.stream:
        raise OptionError("no stream is named: set option 'stream', or add a column 'stream'")
    _check_pair(given, "headers", "includeHeaders true", is_chosen=options.has_headers)
    _check_pair(given, "partition", "partitioner column", is_chosen=options.partitioner == "column")


def _check_pair(given: Mapping[str, str], name: str, choice: str, *, is_chosen: bool) -> None:
    """Check that a column exists if, and only if, its option requires it."""
    option, value = choice.split()
    if is_chosen and name not in given:
        raise OptionError(f"option {option!r}: {value} needs a column {name!r}")
    if name in given and not is_chosen:
        raise OptionError(f"column {name!r} needs option {option!r} {value}; or leave it out")
