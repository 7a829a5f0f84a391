"""Requests with lists and maps of any length, generated from the messages of every unary call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import (
    access_pb2,
    admin_pb2,
    data_pb2,
    groups_pb2,
    quotas_pb2,
    tokens_pb2,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

STREAM: Final = "s"
"""Name of the stream in requests."""


class Case(NamedTuple):
    """A list or a map in a request.

    Attributes:
        method: The call.
        path: Fields from the request to the list or map.
    """

    method: MethodDescriptor
    path: tuple[FieldDescriptor, ...]

    @property
    def name(self) -> str:
        """Return the call and the path."""
        return ".".join((self.method.name, *(field.name for field in self.path)))

    @property
    def is_map(self) -> bool:
        """Return whether its entries have keys."""
        kind = self.path[-1].message_type
        return kind is not None and kind.GetOptions().map_entry

    def request(self, *, distinct: bool, times: int) -> Message:
        """Return a request with this number of entries, all for the stream or each for another."""
        request = named(GetMessageClass(self.method.input_type)())
        place = request
        for field in self.path[:-1]:
            place = named(getattr(place, field.name).add())
        fill(place, self.path[-1], distinct=distinct, times=times)
        return request


def named(message: Message, name: str = STREAM) -> Message:
    """Set the stream name wherever a message has a field for it, and return the message."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None and field.name in ("name", "stream", "cluster_id"):
            setattr(message, field.name, name)
        elif field.name == "partition" and field.message_type is not None:
            named(getattr(message, field.name), name)
    return message


def fill(place: Message, field: FieldDescriptor, *, distinct: bool, times: int) -> None:
    """Add this number of entries to a list or a map; map keys are always distinct."""
    entries = getattr(place, field.name)
    kind = field.message_type
    numbers = range(times) if distinct else [0] * times
    if kind is None:
        is_text = field.type == FieldDescriptor.TYPE_STRING
        entries.extend([f"{STREAM}{n or ''}" if is_text else n for n in numbers])
    elif kind.GetOptions().map_entry:
        is_text = kind.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING
        is_bytes = kind.fields_by_name["value"].type == FieldDescriptor.TYPE_BYTES
        entries.update({str(n) if is_text else n: b"" if is_bytes else 0 for n in range(times)})
    else:
        for n in numbers:
            named(entries.add(), f"{STREAM}{n or ''}")


def lists_of(
    method: MethodDescriptor, message: Descriptor, path: tuple[FieldDescriptor, ...] = ()
) -> Iterator[Case]:
    """Yield the lists and maps in a message, including those in list entries."""
    for field in message.fields:
        whole = (*path, field)
        if field.is_repeated:
            yield Case(method, whole)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from lists_of(method, field.message_type, whole)


ACCESS: Final = access_pb2.DESCRIPTOR.services_by_name["Access"]
ADMIN: Final = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
SERVICES: Final = (
    api_pb2.DESCRIPTOR.services_by_name["API"],
    data_pb2.DESCRIPTOR.services_by_name["Data"],
    groups_pb2.DESCRIPTOR.services_by_name["Groups"],
    ADMIN,
    ACCESS,
    tokens_pb2.DESCRIPTOR.services_by_name["Tokens"],
    quotas_pb2.DESCRIPTOR.services_by_name["Quotas"],
)
UNARY: Final = [
    method
    for service in SERVICES
    for method in service.methods
    if not (method.client_streaming or method.server_streaming)
]
CASES: Final = [case for method in UNARY for case in lists_of(method, method.input_type)]
