"""A row of the table of settings; the rows are in `table`."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Final

from liftbridge_broker.config import values
from liftbridge_broker.config.values import Address

ENVIRONMENT_PREFIX: Final = "LIFTBRIDGE_"
MASK: Final = "***"
OFF: Final = Address("", 0)
"""Value of an address setting that is turned off."""

Value = int | bool | str | tuple[str, ...] | Address
"""Value of a setting; durations are nanoseconds, sizes bytes."""


class Kind(StrEnum):
    """Type of a value; `values` has a parser for each."""

    DURATION = "duration"
    SIZE = "size"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    TEXT = "text"
    LIST = "list"
    CHOICE = "choice"
    ADDRESS = "address"


_READERS: Final[dict[Kind, Callable[[str], Value]]] = {
    Kind.DURATION: values.parse_duration,
    Kind.SIZE: values.parse_size,
    Kind.INTEGER: values.parse_integer,
    Kind.BOOLEAN: values.parse_boolean,
    Kind.TEXT: values.parse_text,
    Kind.LIST: values.parse_list,
    Kind.CHOICE: str.lower,
    Kind.ADDRESS: values.parse_address,
}


class Status(StrEnum):
    """Effect of a setting that is given.

    `NO_EFFECT` settings are accepted, since files of the original have them.
    """

    WORKS = "works"
    NO_EFFECT = "accepted, no effect"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    Attributes:
        key: Dotted name, lower case.
        kind: Type of the value.
        default: Default in the syntax of the file; empty for none or a derived one.
        derived: The derived default in words, if `default` is empty.
        doc: One sentence for the reference.
        status: Whether it works.
        reason: Reason why it has no effect, or the missing feature.
        is_reloadable: Whether SIGHUP applies a new value.
        is_secret: Whether the value must never be shown.
        is_original: Whether the original has the key.
        choices: Values of a choice.
        minimum: Smallest integer, size or duration (nanoseconds).
        maximum: Largest one.
        off: Word that an address takes instead, to turn the listener off.
        flags: Its command-line flags; every setting can also be given by `--set`.
    """

    key: str
    kind: Kind
    default: str
    doc: str
    _: KW_ONLY
    derived: str = ""
    status: Status = Status.WORKS
    reason: str = ""
    is_reloadable: bool = False
    is_secret: bool = False
    is_original: bool = True
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 2**63 - 1
    off: str = ""
    flags: tuple[str, ...] = ()

    @property
    def environment_name(self) -> str:
        """Environment variable that sets it, with or without a file."""
        return ENVIRONMENT_PREFIX + self.key.upper().replace(".", "_")

    def read(self, text: str) -> Value:
        """Read a value of this setting.

        Raises:
            ValueError: The text is not such a value or is out of bounds; the message continues a
                sentence that begins with the text.
        """
        if self.off and text.lower() == self.off:
            return OFF
        value = _READERS[self.kind](text)
        if self.kind is Kind.CHOICE and value not in self.choices:
            raise ValueError("is not one of " + ", ".join(self.choices))
        if isinstance(value, int) and not isinstance(value, bool):
            if value < self.minimum:
                raise ValueError(f"is less than {self.show(self.minimum)}")
            if value > self.maximum:
                raise ValueError(f"is more than {self.show(self.maximum)}")
        return value

    def show(self, value: Value) -> str:
        """Canonical text of a value; secrets are masked, and passwords inside URLs too."""
        if self.is_secret:
            return MASK if value else ""
        if isinstance(value, Address):
            return self.off if value == OFF else values.show_address(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(mask_url(item) for item in value)
        if self.kind is Kind.DURATION:
            assert isinstance(value, int)
            return values.show_duration(value)
        return str(value)


def mask_url(url: str) -> str:
    """Return the URL with its credentials masked."""
    scheme, separator, rest = url.rpartition("://")
    credentials, at, address = rest.rpartition("@")
    return f"{scheme}{separator}{MASK if credentials else ''}{at}{address}"
