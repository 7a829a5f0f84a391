"""A configuration file, read without trusting it.

The file is read as YAML events, so no object is ever built from a tag, an alias or a type that YAML
guesses: every scalar stays the text in the file (`off` stays `off`), and its setting parses it.
Time and memory are bounded by size, depth and number of events; aliases, with which a small file
could expand without bound, are refused.

Keys may be dotted, nested or mixed, in any case; the result is flat: one entry for each setting,
with its line.
"""

from typing import Final, NamedTuple

import yaml

from liftbridge_broker.errors import ConfigError

FILE_BYTES_MAX: Final = 262_144
DEPTH_MAX: Final = 16
EVENT_COUNT_MAX: Final = 20_000
KEY_LENGTH_MAX: Final = 256

# The parser in C is twenty times faster; wheels have it, a build from source may not.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_CORE_TAG_PREFIX: Final = "tag:yaml.org,2002:"
_CORE_TAGS: Final = frozenset({"str", "int", "bool", "float", "null", "seq", "map"})


class Entry(NamedTuple):
    """One setting of a file.

    Attributes:
        key: Dotted, lower case.
        text: The value as written in the file; a tuple for a YAML list; None when it is empty.
        line: Line of the key, from 1.
    """

    key: str
    text: str | tuple[str, ...] | None
    line: int


def read_entries(data: bytes, name: str) -> list[Entry]:
    """Flatten a configuration file.

    Args:
        data: Contents of the file, UTF-8.
        name: Name of the file in messages.

    Returns:
        Entries in the order of the file; a key may appear twice.

    Raises:
        ConfigError: The file is too large or too deep, is not YAML, or holds anything except
            mappings, plain values and lists of plain values.
    """
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{name}: the file is larger than {FILE_BYTES_MAX} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: not UTF-8") from error
    flattener = _Flattener(name)
    count = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            count += 1
            if count > EVENT_COUNT_MAX:
                raise ConfigError(f"{name}: more than {EVENT_COUNT_MAX} YAML elements")
            flattener.on_event(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        raise ConfigError(f"{where}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{name}: not valid YAML: {reason}") from error
    return flattener.entries


class _Flattener:
    """Turns events into entries; keeps only the path of the current one."""

    def __init__(self, name: str) -> None:
        self.entries: list[Entry] = []
        self._name = name
        self._prefixes: list[str] = []
        self._key: str | None = None  # key whose value comes next; None when a key comes next
        self._key_line = 0
        self._items: list[str] | None = None
        self._document_count = 0

    def on_event(self, event: yaml.Event) -> None:
        """Handle the next event of the file."""
        match event:
            case yaml.ScalarEvent():
                self._check_tag(event)
                self._on_scalar(event)
            case yaml.MappingStartEvent():
                self._check_tag(event)
                self._on_mapping_start(event)
            case yaml.MappingEndEvent():
                self._prefixes.pop()
                self._key = None
            case yaml.SequenceStartEvent():
                self._check_tag(event)
                self._on_sequence_start(event)
            case yaml.SequenceEndEvent():
                self._emit(tuple(self._items or ()))
                self._items = None
            case yaml.AliasEvent():
                raise self._refusal(event, "YAML aliases are not supported; write out the value")
            case yaml.DocumentStartEvent():
                self._document_count += 1
                if self._document_count > 1:
                    raise self._refusal(event, "contains more than one YAML document")
            case _:
                pass  # starts and ends of the stream, end of the document

    def _on_scalar(self, event: yaml.ScalarEvent) -> None:
        # `implicit[0]`: unquoted and untagged; a quoted "null" is text.
        is_null = event.implicit[0] and event.value in _NULLS
        if self._items is not None:
            self._items.append(event.value)
        elif not self._prefixes:
            if not is_null:
                raise self._refusal(event, "must be a mapping of settings to values")
        elif self._key is None:
            # Each entry carries its whole path, so an unbounded name would multiply.
            if len(event.value) > KEY_LENGTH_MAX:
                raise self._refusal(event, f"a name is longer than {KEY_LENGTH_MAX} characters")
            self._key = event.value.lower()
            self._key_line = _line(event)
        else:
            self._emit(None if is_null else event.value)

    def _on_mapping_start(self, event: yaml.Event) -> None:
        if self._items is not None:
            raise self._refusal(event, "a list may contain only plain values")
        if len(self._prefixes) == DEPTH_MAX:
            raise self._refusal(event, f"nested deeper than {DEPTH_MAX} levels")
        if self._prefixes:
            if self._key is None:
                raise self._refusal(event, "the name of a setting must be plain text")
            self._prefixes.append(f"{self._prefixes[-1]}{self._key}.")
        else:
            self._prefixes.append("")
        self._key = None

    def _on_sequence_start(self, event: yaml.Event) -> None:
        if self._items is not None:
            raise self._refusal(event, "a list may contain only plain values")
        if not self._prefixes:
            raise self._refusal(event, "must be a mapping of settings to values")
        if self._key is None:
            raise self._refusal(event, "the name of a setting must be plain text")
        self._items = []

    def _emit(self, text: str | tuple[str, ...] | None) -> None:
        assert self._key is not None
        self.entries.append(Entry(self._prefixes[-1] + self._key, text, self._key_line))
        self._key = None

    def _check_tag(
        self, event: yaml.ScalarEvent | yaml.MappingStartEvent | yaml.SequenceStartEvent
    ) -> None:
        tag = event.tag
        if tag is None:
            return
        if not tag.startswith(_CORE_TAG_PREFIX) or tag[len(_CORE_TAG_PREFIX) :] not in _CORE_TAGS:
            raise self._refusal(event, "YAML tags are not supported")

    def _refusal(self, event: yaml.Event, text: str) -> ConfigError:
        return ConfigError(f"{self._name}:{_line(event)}: {text}")


def _line(event: yaml.Event) -> int:
    mark = event.start_mark
    return mark.line + 1 if mark else 0
