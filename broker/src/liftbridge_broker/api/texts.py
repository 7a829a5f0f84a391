"""Bounds for texts in requests: a text that is too long to be valid is refused immediately.

A broker that does not lead the metadata cannot know whether a named object exists, and passes a
change on unmodified. So the length is checked when a request is read, for all calls alike.
"""

from collections.abc import Sequence
from functools import cache
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from liftbridge_broker.errors import InvalidRequestError

TEXT_BYTES_MAX: Final = 4_096
"""Longest text in a request without records. Names, subjects, cursors and marks have their own
bounds, which are smaller and are checked in their own places."""

LOOKED_AT_MAX: Final = 1_024
"""Entries of a list whose texts are checked: no metadata change has a longer list with texts."""


class _Step(NamedTuple):
    """A field on the way to a text."""

    name: str
    is_list: bool


@cache
def _paths(kind: Descriptor) -> Sequence[Sequence[_Step]]:
    """Return the paths to all texts of a message."""
    paths: list[Sequence[_Step]] = []
    open_kinds: list[tuple[Descriptor, tuple[_Step, ...]]] = [(kind, ())]
    while open_kinds:
        message, before = open_kinds.pop()
        for field in message.fields:
            path = (*before, _Step(field.name, field.is_repeated))
            if field.type == FieldDescriptor.TYPE_STRING:
                paths.append(path)
            elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
                open_kinds.append((field.message_type, path))
    return paths


def check_texts(request: Message) -> None:
    """Refuse a request with a text that is too long to be valid.

    Raises:
        InvalidRequestError: A text is longer than `TEXT_BYTES_MAX`.
    """
    for path in _paths(request.DESCRIPTOR):
        values: list[Any] = [request]
        for name, is_list in path:
            values = [getattr(value, name) for value in values]
            if is_list:
                values = list(islice(chain.from_iterable(values), LOOKED_AT_MAX))
        for text in values:
            assert isinstance(text, str)
            size = len(text.encode())
            if size > TEXT_BYTES_MAX:
                name = ".".join(step.name for step in path)
                raise InvalidRequestError(f"{name}: {size} bytes, at most {TEXT_BYTES_MAX}")
