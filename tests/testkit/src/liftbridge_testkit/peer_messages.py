"""One message of every kind that brokers send to each other, made from the message definitions."""

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from liftbridge_broker.wire.peer.bodies import ORIGIN_SIZE, Body, read_body
from liftbridge_proto.internal.v1 import peer_pb2 as pb

_VALUES: dict[int, object] = {
    FieldDescriptor.CPPTYPE_STRING: "x",
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_ENUM: 1,
}


def kinds() -> list[str]:
    """Return the names of all kinds, as the `oneof` of the definition has them."""
    return [field.name for field in pb.Peer.DESCRIPTOR.oneofs_by_name["body"].fields]


def body_of(kind: str) -> Body:
    """Return a body of a kind in which every field is set."""
    message = pb.Peer()
    body = getattr(message, kind)
    body.SetInParent()
    _fill(body)
    return read_body(message)


def _fill(message: Message) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            part = getattr(message, field.name)
            _fill(part.add() if field.is_repeated else part)
            continue
        value = _VALUES.get(field.cpp_type, 1)
        if field.type == FieldDescriptor.TYPE_BYTES:
            value = bytes(ORIGIN_SIZE)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
