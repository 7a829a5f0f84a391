"""Texts in requests: none gets further that is longer than anything of its kind may be.

A broker that does not lead the metadata cannot tell whether what a text names exists, and passes a
change on as it is. So this is checked as a request is read, for all calls at once.
"""

from collections.abc import Sequence
from functools import cache
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from liftbridge_broker.errors import InvalidRequestError

TEXT_BYTES_MAX: Final = 4_096
"""Longest text in a request without records. Names, subjects, cursors and marks have bounds of
their own, which are smaller and are told by those who know them."""

LOOKED_AT_MAX: Final = 1_024
"""Entries of a list whose texts are looked at: a change of the metadata has no list that is longer
and has texts."""


class _Step(NamedTuple):
    """A field on the way to a text."""

    name: str
    is_list: bool


@cache
def _paths(kind: Descriptor) -> Sequence[Sequence[_Step]]:
    """Ways to all texts of a message."""
    found: list[Sequence[_Step]] = []
    open_kinds: list[tuple[Descriptor, tuple[_Step, ...]]] = [(kind, ())]
    while open_kinds:
        message, before = open_kinds.pop()
        for field in message.fields:
            path = (*before, _Step(field.name, field.is_repeated))
            if field.type == FieldDescriptor.TYPE_STRING:
                found.append(path)
            elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
                open_kinds.append((field.message_type, path))
    return found


def check_texts(request: Message) -> None:
    """Refuse a request with a text that is too long to be anything.

    Raises:
        InvalidRequestError: One is longer than `TEXT_BYTES_MAX`.
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
