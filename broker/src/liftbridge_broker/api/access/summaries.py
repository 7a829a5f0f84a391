"""One line about a request, for people who read an audit; bounded, whatever the request holds."""

from collections.abc import Iterator
from typing import Any, Final, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

SUMMARY_LENGTH_MAX: Final = 512
"""Characters of a summary; the rest of the request is left out."""

TEXT_LENGTH_MAX: Final = 80
"""Characters of one text in it."""

_CUT: Final = "..."


def summary_of(message: Message, length_max: int = SUMMARY_LENGTH_MAX) -> str:
    """Return the set fields of a request as text, cut at a length; takes no longer than that.

    Fields of bytes are shown as their length alone: no secret is in a text.
    """
    parts: list[str] = []
    length = 0
    open_messages = [_entries(message)]
    while open_messages:
        entry = next(open_messages[-1], None)
        if entry is None:
            open_messages.pop()
            part = "}" if open_messages else ""
        else:
            name, field, value = entry
            if isinstance(value, Message):
                open_messages.append(_entries(value))
                part = f"{name} {{"
            else:
                part = f"{name}: {_text_of(field, value)}"
        parts.append(part)
        length += len(part) + 1
        if length > length_max:
            return " ".join(parts)[: length_max - len(_CUT)] + _CUT
    return " ".join(parts).strip()


def _entries(message: Message) -> Iterator[tuple[str, FieldDescriptor, object]]:
    """Yield the name, the field and the value of each entry of a message's fields."""
    for field, value in message.ListFields():
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            for key in value:
                named = f"{field.name}[{str(key)[:TEXT_LENGTH_MAX]}]"
                yield named, kind.fields_by_name["value"], value[key]
        elif field.is_repeated:
            for one in cast("list[Any]", value):
                yield field.name, field, one
        else:
            yield field.name, field, value


def _text_of(field: FieldDescriptor, value: object) -> str:
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    if isinstance(value, str):
        return repr(value if len(value) <= TEXT_LENGTH_MAX else value[:TEXT_LENGTH_MAX] + _CUT)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(cast("int", value))
        return str(value) if named is None else str(named.name)
    return str(value).lower() if isinstance(value, bool) else str(value)
