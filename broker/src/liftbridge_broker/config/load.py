"""Merge flags, environment, file and defaults, in this order of precedence.

The result is one frozen `BrokerOptions`, or one `ConfigError` whose text names the first wrong
values with their sources. No file except the configuration file is read.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from liftbridge_broker.config.build import build_options
from liftbridge_broker.config.given import Given
from liftbridge_broker.config.options import BrokerOptions, Origin
from liftbridge_broker.config.settings import (
    ENVIRONMENT_PREFIX,
    Kind,
    Setting,
    Status,
    Value,
    mask_url,
)
from liftbridge_broker.config.table import SETTINGS
from liftbridge_broker.config.values import parse_text
from liftbridge_broker.config.yamlfile import FILE_BYTES_MAX, Entry, read_entries
from liftbridge_broker.errors import ConfigError

PROBLEMS_SHOWN_MAX: Final = 5
_SHOWN_LENGTH_MAX: Final = 60

# Kubernetes gives every pod variables named after the services of its namespace, so a service
# called `liftbridge` makes LIFTBRIDGE_PORT=tcp://10.0.0.1:9292 and a dozen more.
_SERVICE_LINK_NAME: Final = re.compile(
    r".*_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_SERVICE_LINK_VALUE: Final = re.compile(r"(tcp|udp|sctp)://.*")


def load(
    *, flags: Mapping[str, str | Sequence[str]], environ: Mapping[str, str], path: str | None
) -> BrokerOptions:
    """Read the configuration.

    Args:
        flags: Values from the command line by dotted key; several texts for a list.
        environ: Environment variables; those not beginning with `LIFTBRIDGE_` are ignored.
        path: Configuration file, None for none.

    Raises:
        ConfigError: The file cannot be read, a setting is unknown or given twice, a value is
            wrong, or settings contradict each other.
    """
    sources = _Sources()
    if path is not None:
        sources.take_file(path)
    sources.take_environment(environ)
    sources.take_flags(flags)
    sources.refuse_problems()
    sources.note_without_effect()
    return build_options(sources.given, sources.notices)


class _Sources:
    """Values read so far; each source overrides earlier ones."""

    def __init__(self) -> None:
        self.given: dict[str, Given] = {}
        self.notices: list[str] = []
        self._problems: list[str] = []

    def take_file(self, path: str) -> None:
        try:
            with Path(path).open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(f"cannot read {path}: {reason}") from error
        lines: dict[str, int] = {}
        for entry in read_entries(data, path):
            self._take_entry(entry, path, lines)

    def _take_entry(self, entry: Entry, path: str, lines: dict[str, int]) -> None:
        source = f"{path}:{entry.line}"
        setting = SETTINGS.get(entry.key)
        if setting is None:
            # An empty section, such as `tls:` with everything below commented out, is harmless.
            if entry.text is not None or not _is_section(entry.key):
                self._problems.append(f"{source}: unknown setting {unknown_text(entry.key)}")
            return
        if entry.key in lines:
            self._problems.append(
                f"{source}: {entry.key} is set twice, first on line {lines[entry.key]}"
            )
        lines[entry.key] = entry.line
        if entry.text is not None and (entry.text != "" or setting.kind is Kind.TEXT):
            self._take(setting, entry.text, Origin.FILE, source)

    def take_environment(self, environ: Mapping[str, str]) -> None:
        names = {setting.environment_name: setting for setting in SETTINGS.values()}
        for name in sorted(environ):
            if not name.startswith(ENVIRONMENT_PREFIX):
                continue
            text = environ[name]
            setting = names.get(name)
            if setting is None:
                self._notice_unknown_variable(name, names)
            elif setting.key == "port" and _SERVICE_LINK_VALUE.fullmatch(text):
                self.notices.append(
                    f"{name} is ignored: {text[:_SHOWN_LENGTH_MAX]!r} is a "
                    "Kubernetes service link, not a port"
                )
            elif text:
                self._take(setting, text, Origin.ENVIRONMENT, name)

    def _notice_unknown_variable(self, name: str, names: Mapping[str, Setting]) -> None:
        if not _SERVICE_LINK_NAME.fullmatch(name):
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.notices.append(f"environment variable {name} is not a setting{hint}")

    def take_flags(self, flags: Mapping[str, str | Sequence[str]]) -> None:
        for key, given in flags.items():
            setting = SETTINGS.get(key.lower())
            if setting is None:
                self._problems.append(f"--set: unknown setting {unknown_text(key.lower())}")
                continue
            source = setting.flags[0] if setting.flags else "--set"
            text = given
            if setting.kind is Kind.LIST and not isinstance(given, str):
                text = ",".join(given)
            self._take(setting, text, Origin.FLAG, source)

    def _take(
        self, setting: Setting, text: str | Sequence[str], origin: Origin, source: str
    ) -> None:
        try:
            value = _read(setting, text)
        except ValueError as error:
            shown = "the value" if setting.is_secret else _shown(text)
            self._problems.append(f"{source}: {setting.key}: {shown} {error}")
            return
        self.given[setting.key] = Given(value, origin, source)

    def refuse_problems(self) -> None:
        if self._problems:
            more = len(self._problems) - PROBLEMS_SHOWN_MAX
            tail = [f"and {more} more"] if more > 0 else []
            raise ConfigError("; ".join(self._problems[:PROBLEMS_SHOWN_MAX] + tail))

    def note_without_effect(self) -> None:
        for key, given in self.given.items():
            setting = SETTINGS[key]
            if setting.status is Status.NO_EFFECT:
                self.notices.append(f"{given.source}: {key} has no effect: {setting.reason}")


def unknown_text(key: str) -> str:
    """Quote an unknown key, and suggest the nearest known one."""
    near = difflib.get_close_matches(key[:_SHOWN_LENGTH_MAX], SETTINGS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{_shown(key)}{hint}"


def _read(setting: Setting, text: str | Sequence[str]) -> Value:
    if isinstance(text, str):
        return setting.read(text)
    if setting.kind is not Kind.LIST:
        raise ValueError("is a list, but the setting takes one value")
    return tuple(parse_text(item.strip()) for item in text if item.strip())


def _shown(text: str | Sequence[str]) -> str:
    whole = text if isinstance(text, str) else ",".join(text)
    masked = mask_url(whole)
    return repr(masked if len(masked) <= _SHOWN_LENGTH_MAX else masked[:_SHOWN_LENGTH_MAX] + "...")


def _is_section(key: str) -> bool:
    return any(known.startswith(key + ".") for known in SETTINGS)
