"""Values of command lines: durations, sizes, times, positions, headers, keys."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import typer

from liftbridge_client.errors import UsageError
from liftbridge_client.model import Start, Stop

_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_DURATION: Final = re.compile(r"(\d+)(ms|[smhdw])", re.ASCII)
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)(i?)b?", re.ASCII | re.IGNORECASE)
_DURATION_MAX: Final = timedelta(days=36_500)
OFFSET_MAX: Final = 2**63 - 1
COUNT_MAX: Final = 2**31 - 1
"""Largest number of partitions, replicas and other fields of 32 bits."""

SHOWN_MAX: Final = 60
"""Maximum number of characters shown of a wrong value."""


def given(text: str) -> str:
    """Refuse an empty value, as of `--servers "$BROKERS"` with an unset variable.

    Raises:
        typer.BadParameter: It is empty.
    """
    if not text:
        raise typer.BadParameter("'': must not be empty; omit it to use the default")
    return text


def one_of(*words: str) -> Callable[[str], str]:
    """Return a function that accepts one of these words.

    Returns:
        It raises `typer.BadParameter` for any other.
    """

    def chosen(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"{text!r}: must be one of {', '.join(words)}")
        return text

    return chosen


def duration(text: str) -> timedelta:
    """Parse a duration: `500ms`, `10m`, `1h30m`, `7d`; `0` is none.

    Raises:
        typer.BadParameter: It is invalid, or longer than a century.
    """
    matches = list(_DURATION.finditer(text))
    if text != "0" and (not matches or "".join(part[0] for part in matches) != text):
        raise typer.BadParameter(f"{text!r}: must be a duration such as 500ms, 10m, 1h30m or 7d")
    try:
        total = sum((int(part[1]) * _UNITS[part[2]] for part in matches), timedelta())
    except OverflowError:
        total = timedelta.max
    if total > _DURATION_MAX:
        raise typer.BadParameter(f"{text!r}: must be at most 36500d")
    return total


def size(text: str) -> int:
    """Parse a size in bytes: `1048576`, `1MiB`, `1MB`.

    Raises:
        typer.BadParameter: It is invalid, or more than 2^63 - 1.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r}: must be a size such as 1048576, 64MiB or 1GB")
    step = 1024 if match[3] else 1000
    total: int = int(match[1]) * step ** " kmgt".index(match[2].lower() or " ")
    if total > OFFSET_MAX:
        raise typer.BadParameter(f"{text!r}: must be at most 2^63 - 1 bytes")
    return total


def time(text: str, now: datetime) -> datetime | None:
    """Parse `-10m` (before now) or an ISO time (local without a zone); `None` if it is neither."""
    if text.startswith("-") and text[1:2].isdigit() and text[-1:].isalpha():
        return now - duration(text[1:])
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _offset(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) <= OFFSET_MAX else None


def start(text: str, now: datetime) -> Start:
    """Parse a start position.

    Raises:
        UsageError: The text is no start position.
    """
    match text:
        case "beginning" | "earliest":
            return Start.earliest()
        case "new" | "end":
            return Start.new()
        case "latest":
            return Start.latest()
        case _:
            pass
    if (offset := _offset(text)) is not None:
        return Start.at(offset)
    if (moment := time(text, now)) is not None:
        return Start.time(moment)
    raise UsageError(
        f"--from {text!r}: must be beginning, latest, new, an offset, "
        "a time such as -10m, or an ISO time"
    )


def stop(text: str, now: datetime) -> Stop:
    """Parse a stop position.

    Raises:
        UsageError: The text is no stop position.
    """
    if text in ("end", "latest"):
        return Stop.latest()
    if text == "never":
        return Stop.never()
    if (offset := _offset(text)) is not None:
        return Stop.at(offset)
    if (moment := time(text, now)) is not None:
        return Stop.time(moment)
    raise UsageError(
        f"--to {text!r}: must be end, never, an offset, a time such as -10m, or an ISO time"
    )


def header(text: str) -> tuple[str, bytes]:
    """Parse a header, `NAME=VALUE`.

    Raises:
        typer.BadParameter: There is no `=`, or no name.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"--header {text!r}: must be NAME=VALUE")
    return name, value.encode("utf-8", "surrogateescape")


def shown(value: object) -> str:
    """Quote a wrong value for a message; truncate a long one."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def partition_option(text: str) -> Any:
    """Return the option `--partition`, with its help."""
    return typer.Option("--partition", "-p", min=0, max=COUNT_MAX, metavar="NUMBER", help=text)
