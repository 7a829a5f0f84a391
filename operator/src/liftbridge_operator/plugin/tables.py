"""Text output: columns, ages, and placeholders for unknown values."""

from collections.abc import Iterable, Sequence
from typing import Final

from liftbridge_operator.cluster.observing.times import moment_ms

NOTHING: Final = "-"
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def table(heading: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Format rows in columns as wide as their widest cell; the last one is not padded."""
    cells = [tuple(heading), *(tuple(one or NOTHING for one in row) for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(heading))]
    return [
        indent
        + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def age(moment: str | None, now_ms: int) -> str:
    """Age of an RFC 3339 time, in its two largest units; `-` for none."""
    since_ms = moment_ms(moment)
    if not since_ms:
        return NOTHING
    seconds = max(0, now_ms - since_ms) // 1_000
    parts: list[str] = []
    for size, unit in _UNITS:
        count, seconds = divmod(seconds, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
        elif parts:
            parts.append("")
    return "".join(parts[:2])


def yes(value: object) -> str:
    """Format a boolean as `yes` or `no`."""
    return "yes" if value else "no"


def counted(count: int, one: str) -> str:
    """Format a count with its noun: `1 step`, `2 steps`."""
    return f"{count} {one}" + ("" if count == 1 else "s")
