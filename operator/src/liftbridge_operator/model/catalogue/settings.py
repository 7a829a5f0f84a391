"""The settings of brokers, copied from their own table, and checks of values.

Operator and brokers share no code, so `settings.yaml` is a copy of the table; a test compares them,
and parses the same texts with both. Conflicts between settings show only in the first broker.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

INTEGER_MAX: Final = 2**63 - 1
TEXT_LENGTH_MAX: Final = 4_096
PORT_MAX: Final = 65_535
TEXT_SHOWN_MAX: Final = 64

_DURATION_UNITS_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, micro sign
    "μs": 1_000,  # U+03BC, Greek mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART: Final = r"([0-9]{1,19})(?:\.([0-9]{1,18}))?(ns|us|µs|μs|ms|s|m|h)"
_DURATION: Final = re.compile(f"(?:{_PART})+")
_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SIZE: Final = re.compile(r"([0-9]{1,19}) ?([a-zA-Z]{0,3})")
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_ADDRESS: Final = re.compile(
    r"(?:(?:\[[0-9A-Za-z._:%-]{0,255}\]|[0-9A-Za-z._%-]{0,255}):)?([0-9]{1,5})"
)
_BOOLEANS: Final = frozenset({"1", "t", "true", "yes", "on", "0", "f", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """One setting.

    Attributes:
        kind: Type of its values: `duration`, `size`, `integer`, `boolean`, `text`, `list`, `choice`
            or `address`.
        minimum: Smallest duration (nanoseconds), size or integer.
        maximum: Largest one.
        choices: Values of a choice.
        off: Word that an address takes instead; empty for none.
        is_secret: Whether its values must never be shown.
    """

    kind: str
    minimum: int = 0
    maximum: int = INTEGER_MAX
    choices: tuple[str, ...] = ()
    off: str = ""
    is_secret: bool = False

    def against(self, text: str) -> str:
        """Complete a sentence that begins with a value and says what is wrong; empty if valid.

        Args:
            text: Value as written in the file of a broker.
        """
        if self.off and text.lower() == self.off:
            return ""
        if self.kind == "choice":
            return (
                "" if text.lower() in self.choices else f"is not one of {', '.join(self.choices)}"
            )
        number = _READERS[self.kind](text)
        if number is None:
            return f"is not a valid {self.kind}"
        return self._beyond(number) if self.kind in _BOUNDED else ""

    def _beyond(self, number: int) -> str:
        if number < self.minimum:
            return f"is less than {self._shown(self.minimum)}"
        return f"is more than {self._shown(self.maximum)}" if number > self.maximum else ""

    def _shown(self, bound: int) -> str:
        """Format a bound in its human-readable unit."""
        if self.kind != "duration":
            return str(bound)
        for unit in ("h", "m", "s", "ms", "us"):
            if bound % _DURATION_UNITS_NS[unit] == 0:
                return f"{bound // _DURATION_UNITS_NS[unit]}{unit}"
        return f"{bound}ns"


def _duration(text: str) -> int | None:
    if text == "0":
        return 0
    if not _DURATION.fullmatch(text):
        return None
    total = 0
    for whole, fraction, unit in re.findall(_PART, text):
        unit_ns = _DURATION_UNITS_NS[unit]
        total += int(whole) * unit_ns
        total += int(fraction) * unit_ns // 10 ** len(fraction) if fraction else 0
    return total if total <= INTEGER_MAX else None


def _size(text: str) -> int | None:
    found = _SIZE.fullmatch(text)
    unit = _SIZE_UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        return None
    size = int(found[1]) * unit
    return size if size <= INTEGER_MAX else None


def _integer(text: str) -> int | None:
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -INTEGER_MAX - 1 <= number <= INTEGER_MAX else None


def _boolean(text: str) -> int | None:
    return 0 if text.lower() in _BOOLEANS else None


def _text(text: str) -> int | None:
    return 0 if len(text) <= TEXT_LENGTH_MAX and text.isprintable() else None


def _address(text: str) -> int | None:
    found = _ADDRESS.fullmatch(text)
    return 0 if found and int(found[1]) <= PORT_MAX else None


_READERS: Final[Mapping[str, Callable[[str], int | None]]] = {
    "duration": _duration,
    "size": _size,
    "integer": _integer,
    "boolean": _boolean,
    "text": _text,
    "list": _text,
    "address": _address,
}
_BOUNDED: Final = frozenset({"duration", "size", "integer"})


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The table.

    Attributes:
        version: Version of the brokers that have this table.
        rows: Settings by name.
    """

    version: str
    rows: Mapping[str, BrokerSetting]

    def against(self, version: str, given: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return settings that brokers refuse, with the reason.

        Args:
            version: Version of the brokers; if it is another one, unknown settings are accepted.
            given: Values by name.
        """
        found = []
        for key, text in given.items():
            row = self.rows.get(key)
            if row is not None:
                reason = row.against(text)
                if reason:
                    shown = "the value" if row.is_secret else repr(text[:TEXT_SHOWN_MAX])
                    found.append((key, f"{shown} {reason}"))
            elif version == self.version:
                near = difflib.get_close_matches(key, self.rows, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                found.append((key, f"brokers know no such setting{hint}"))
        return found


@cache
def load_settings() -> BrokerSettings:
    """The shipped table."""
    text = resources.files(__package__).joinpath("settings.yaml").read_text(encoding="utf-8")
    tree = yaml.safe_load(text)
    rows: dict[str, dict[str, Any]] = tree["settings"]
    made = {
        key: BrokerSetting(**{**row, "choices": tuple(row.get("choices", ()))})
        for key, row in rows.items()
    }
    return BrokerSettings(tree["version"], made)
