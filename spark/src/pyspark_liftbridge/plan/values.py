"""Parse texts of options; each kind refuses texts that do not fit."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

from pyspark_liftbridge.units import MILLISECOND_NS, SECOND_NS

PARTITION_MAX: Final = 2**24 - 1
OFFSET_MAX: Final = 2**63 - 1

_UNITS_NS: Final = {
    "ms": MILLISECOND_NS,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3_600 * SECOND_NS,
    "d": 86_400 * SECOND_NS,
}
_UNITS_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

Parse = Callable[[str], object]
"""Parses a text; raises a bare `ValueError` if it cannot."""


def text(given: str) -> str:
    """Parse a text that is not empty."""
    if not given.strip():
        raise ValueError
    return given.strip()


def flag(given: str) -> bool:
    """Parse `true` or `false`."""
    try:
        return {"true": True, "false": False}[given.strip().lower()]
    except KeyError:
        raise ValueError from None


def whole(least: int, most: int) -> Callable[[str], int]:
    """Parse a whole number within inclusive bounds."""

    def parse(given: str) -> int:
        digits = given.strip()
        if not re.fullmatch(r"-?[0-9]{1,19}", digits) or not least <= int(digits) <= most:
            raise ValueError
        return int(digits)

    return parse


def duration(given: str) -> int:
    """Parse `500ms`, `120s`, `15m`, `2h` or `1d` to nanoseconds; more than zero."""
    match = re.fullmatch(r"([0-9]{1,9})\s*(ms|s|m|h|d)", given.strip().lower())
    if match is None or not int(match[1]):
        raise ValueError
    return int(match[1]) * _UNITS_NS[match[2]]


def size(given: str) -> int:
    """Parse `4194304`, `4096k`, `4m`, `1g` or `4MiB` to bytes; more than zero."""
    match = re.fullmatch(r"([0-9]{1,15})\s*([kmg]?)(?:i?b)?", given.strip().lower())
    if match is None or not int(match[1]):
        raise ValueError
    return int(match[1]) * _UNITS_BYTES[match[2]]


def choice(*names: str) -> Callable[[str], str]:
    """Parse one of the allowed words."""

    def parse(given: str) -> str:
        word = given.strip().lower()
        if word not in names:
            raise ValueError
        return word

    return parse


def names(given: str) -> tuple[str, ...]:
    """Parse names separated by commas, each once."""
    names_given = tuple(name.strip() for name in given.split(","))
    if not all(names_given) or len(set(names_given)) < len(names_given):
        raise ValueError
    return names_given


def pattern(given: str) -> re.Pattern[str]:
    """Parse a regular expression of Python."""
    try:
        return re.compile(text(given))
    except re.error:
        raise ValueError from None


def partitions(given: str) -> Mapping[str, tuple[int, ...]]:
    """Parse JSON such as `{"orders": [0, 1]}`."""
    by_stream: dict[str, tuple[int, ...]] = {}
    for name, numbers in _object(given).items():
        if not isinstance(numbers, list) or not numbers or not all(map(_is_partition, numbers)):
            raise ValueError
        by_stream[name] = tuple(sorted(set(numbers)))
    return by_stream


def numbers(least: int) -> Callable[[str], Mapping[str, Mapping[int, int]]]:
    """Parse JSON such as `{"orders": {"0": 123, "1": -2}}`; no number is below `least`."""

    def parse(given: str) -> Mapping[str, Mapping[int, int]]:
        by_stream: dict[str, dict[int, int]] = {}
        for name, by_partition in _object(given).items():
            if not isinstance(by_partition, dict) or not by_partition:
                raise ValueError
            by_stream[name] = {}
            for partition, number in by_partition.items():
                is_number = isinstance(number, int) and not isinstance(number, bool)
                if not partition.isdecimal() or not _is_partition(int(partition)):
                    raise ValueError
                if not is_number or not least <= number <= OFFSET_MAX:
                    raise ValueError
                by_stream[name][int(partition)] = number
        return by_stream

    return parse


def _object(given: str) -> Mapping[str, object]:
    """Parse a JSON object that is not empty and has no duplicate names."""
    try:
        value = json.loads(given, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError from None
    if not isinstance(value, dict) or not value or not all(value):
        raise ValueError
    return value


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError
    return members


def _is_partition(number: object) -> bool:
    if not isinstance(number, int) or isinstance(number, bool):
        return False
    return 0 <= number <= PARTITION_MAX
