"""Message classes whose maps are lists of entries, to count the entries before the map is built.

On the wire a map is such a list. Building the list is a tenth of the work, and by its length a
message is refused or processed: 4 MiB of headers take 300 ms as a map.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar, cast

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_Kind = TypeVar("_Kind", bound=Message)
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Entry(Protocol[_Key, _Value]):
    key: _Key
    value: _Value


def with_lists(kind: type[_Kind]) -> type[_Kind]:
    """Create the same message class with lists of entries for maps, also in nested messages.

    For callers that access its maps only by `len` and `mapping`; everything else is unchanged.
    """
    return _made(kind, _as_lists)


def without_maps(kind: type[_Kind]) -> type[_Kind]:
    """Create the same message class without maps, for callers that refuse the message anyway."""
    return _made(kind, _leave_out)


def _made(kind: type[_Kind], change: Callable[[DescriptorProto], None]) -> type[_Kind]:
    """Create a message class with a changed descriptor."""
    pool, added = DescriptorPool(), set[str]()

    def add(file: FileDescriptor) -> None:
        """Add a file, after its imports."""
        if file.name not in added:
            added.add(file.name)
            for needed in file.dependencies:
                add(needed)
            copy = FileDescriptorProto()
            file.CopyToProto(copy)
            for message in copy.message_type:
                change(message)
            pool.Add(copy)

    add(cast("FileDescriptor", kind.DESCRIPTOR.file))
    made = GetMessageClass(pool.FindMessageTypeByName(kind.DESCRIPTOR.full_name))
    return cast("type[_Kind]", made)


def _as_lists(message: DescriptorProto) -> None:
    for nested in message.nested_type:
        nested.options.ClearField("map_entry")


def _leave_out(message: DescriptorProto) -> None:
    maps = {one.name for one in message.nested_type if one.options.map_entry}
    kept = [one for one in message.field if one.type_name.rpartition(".")[2] not in maps]
    del message.field[:]
    message.field.extend(kept)


def mapping(field: Mapping[_Key, _Value]) -> dict[_Key, _Value]:
    """Build a map of such a message after a check of its length; the last of equal keys counts."""
    return {one.key: one.value for one in cast("Sequence[_Entry[_Key, _Value]]", field)}
