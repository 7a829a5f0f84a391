"""Given values of settings, each with its source, and typed access to them by key."""

from collections.abc import Mapping
from typing import NamedTuple

from liftbridge_broker.config.options import EffectiveSetting, Origin
from liftbridge_broker.config.settings import Kind, Status, Value
from liftbridge_broker.config.table import SETTINGS
from liftbridge_broker.config.values import Address
from liftbridge_broker.errors import ConfigError
from liftbridge_broker.model.units import MILLISECOND_NS


class Given(NamedTuple):
    """A value from a file, the environment or a flag.

    Attributes:
        value: The value.
        origin: Kind of source.
        source: Place, for messages: `broker.yaml:12`, `LIFTBRIDGE_PORT`, `--port`.
    """

    value: Value
    origin: Origin
    source: str


class Values:
    """Values by key, with typed accessors and the source of each value."""

    def __init__(self, given: Mapping[str, Given]) -> None:
        self._given = given
        self._values = {key: given[key].value for key in given}
        for key, setting in SETTINGS.items():
            if setting.default and key not in self._values:
                self._values[key] = setting.read(setting.default)

    def is_given(self, key: str) -> bool:
        """Return whether the setting was given."""
        return key in self._given and self._values[key] not in ("", ())

    def fill(self, key: str, value: Value) -> None:
        """Set a derived default unless the setting was given."""
        if not self.is_given(key):
            self._values[key] = value

    def put(self, key: str, value: Value) -> None:
        """Replace a value by the one that it means, such as 0 by a default."""
        self._values[key] = value

    def number(self, key: str) -> int:
        """A whole number."""
        value = self._values[key]
        assert isinstance(value, int)
        return value

    def flag(self, key: str) -> bool:
        """A boolean."""
        value = self._values[key]
        assert isinstance(value, bool)
        return value

    def text(self, key: str) -> str:
        """A text, empty without one."""
        value = self._values.get(key, "")
        assert isinstance(value, str)
        return value

    def items(self, key: str) -> tuple[str, ...]:
        """A list."""
        value = self._values.get(key, ())
        assert isinstance(value, tuple)
        return value

    def address(self, key: str) -> Address:
        """An address."""
        value = self._values[key]
        assert isinstance(value, Address)
        return value

    def milliseconds(self, key: str) -> int:
        """Return a duration in milliseconds; refuse less than one, which would become 0 ("off")."""
        duration_ns = self.number(key)
        if 0 < duration_ns < MILLISECOND_NS:
            raise self.refusal(key, "is shorter than 1ms")
        return duration_ns // MILLISECOND_NS

    def refusal(self, key: str, text: str) -> ConfigError:
        """Make an error whose text begins with the source of the setting."""
        place = f"{self._given[key].source}: " if key in self._given else ""
        return ConfigError(f"{place}{key} {text}")

    def effective(self) -> tuple[EffectiveSetting, ...]:
        """Return every effective setting, in the order of the table."""
        shown = []
        for key, setting in SETTINGS.items():
            given = self._given.get(key)
            empty: Value = () if setting.kind is Kind.LIST else ""
            shown.append(
                EffectiveSetting(
                    key=key,
                    text=setting.show(self._values.get(key, empty)),
                    origin=given.origin if given else Origin.DEFAULT,
                    source=given.source if given else "",
                    is_reloadable=setting.is_reloadable,
                    has_effect=setting.status is not Status.NO_EFFECT,
                )
            )
        return tuple(shown)
