"""Fields read from a log: checked before use, and named in the error if they are wrong."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_liftbridge.archive.errors import DamagedError

WHOLE_MAX: Final = 2**63 - 1
TEXT_BYTES_MAX: Final = 1 << 20
ENTRIES_MAX: Final = 100_000
"""Maximum number of members of an object or an array."""

_SHOWN_MAX: Final = 60


def parse_json(text: str | bytes, place: str) -> object:
    """Parse a JSON text without duplicate names.

    Raises:
        DamagedError: The text is not such JSON.
    """
    try:
        value: object = json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedError(
            f"{place}: not JSON as the Delta protocol defines it ({error})"
        ) from error
    return value


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name occurs twice in an object")
    return members


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


@dataclass(frozen=True)
class Fields:
    """Members of an object that was read.

    Each method takes the name of a member and returns its value, or raises `DamagedError`. A null
    member counts as absent.

    Attributes:
        place: Location of the object, for errors.
        members: By name.
    """

    place: str
    members: Mapping[str, object]

    @classmethod
    def of(cls, found: object, place: str) -> "Fields":
        """Check that a value is an object, and return its members."""
        if not isinstance(found, Mapping) or len(found) > ENTRIES_MAX:
            raise DamagedError(f"{place}: {_shown(found)} is not an object")
        if not all(isinstance(name, str) for name in found):
            raise DamagedError(f"{place}: a name in {_shown(found)} is not a string")
        return cls(place, found)

    def has(self, name: str) -> bool:
        """Return whether a member exists."""
        return self.members.get(name) is not None

    def wrong(self, name: str, rule: str) -> DamagedError:
        """Create an error that states the rule for a member."""
        return DamagedError(
            f"{self.place}: {name} must be {rule}, it is {_shown(self.members.get(name))}"
        )

    def whole(self, name: str, *, least: int = 0, most: int = WHOLE_MAX) -> int:
        """Return an integer within bounds, both inclusive."""
        value = self.members.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(name, f"a whole number of {least} to {most}")
        return value

    def whole_or_none(self, name: str, *, least: int = 0) -> int | None:
        """Return an integer within bounds, `None` if absent."""
        return self.whole(name, least=least) if self.has(name) else None

    def text(self, name: str) -> str:
        """Return a text of at most `TEXT_BYTES_MAX` bytes."""
        value = self.members.get(name)
        if not isinstance(value, str) or not _is_text(value):
            raise self.wrong(name, f"a text of at most {TEXT_BYTES_MAX} bytes")
        return value

    def text_or(self, name: str, default: str) -> str:
        """Return a text as by `text`, `default` if absent."""
        return self.text(name) if self.has(name) else default

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        value = self.members.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def inner(self, name: str) -> "Fields":
        """Return an object; an empty object if absent."""
        value = self.members.get(name)
        return Fields.of({} if value is None else value, f"{self.place}, {name}")

    def texts(self, name: str) -> dict[str, str]:
        """Return an object whose members are all texts; null members are left out."""
        inner = self.inner(name)
        return {key: inner.text(key) for key in inner.members if inner.has(key)}

    def items(self, name: str) -> list[object]:
        """Return an array; an empty array if absent."""
        value = self.members.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > ENTRIES_MAX:
            raise self.wrong(name, f"an array of at most {ENTRIES_MAX} members")
        return value


def _is_text(value: str) -> bool:
    try:
        return len(value.encode()) <= TEXT_BYTES_MAX
    except UnicodeEncodeError:
        return False  # half of a surrogate pair, which JSON can carry and UTF-8 cannot


def _shown(found: object) -> str:
    text = ascii(found)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
