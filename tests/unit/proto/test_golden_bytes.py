"""Golden bytes: each message of every `.proto` file, with every field set, as it is on the wire.

A difference means that peers of another version, or data already stored, are read as something
else. `--rewrite` renews the file. A message with a `oneof` has one entry for each alternative.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import liftbridge_proto

GOLDEN = Path(__file__).with_name("golden_bytes.txt")
INTEGERS = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_SINT32,
    FieldDescriptor.TYPE_SINT64,
    FieldDescriptor.TYPE_FIXED32,
    FieldDescriptor.TYPE_FIXED64,
    FieldDescriptor.TYPE_SFIXED32,
    FieldDescriptor.TYPE_SFIXED64,
}


def descriptors() -> Iterator[Descriptor]:
    for module in pkgutil.walk_packages(liftbridge_proto.__path__, "liftbridge_proto."):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(module.name).DESCRIPTOR
            yield from file.message_types_by_name.values()


def alternatives(descriptor: Descriptor) -> list[FieldDescriptor | None]:
    """Members of the message's `oneof`s; `None` alone when it has none."""
    members = [field for field in descriptor.fields if is_alternative(field)]
    return [*members] or [None]


def is_alternative(field: FieldDescriptor) -> bool:
    """Whether the field is in a `oneof` with others; an `optional` field is alone in its own."""
    return field.containing_oneof is not None and len(field.containing_oneof.fields) > 1


def filled(descriptor: Descriptor, chosen: FieldDescriptor | None = None) -> Message:
    """A message with every field set, of its alternatives the chosen one or the first.

    Values follow from field numbers; lists have two entries and maps one.
    """
    message = GetMessageClass(descriptor)()
    chosen = chosen or alternatives(descriptor)[0]
    for field in descriptor.fields:
        if not is_alternative(field) or field is chosen:
            fill(message, field)
    return message


def fill(message: Any, field: FieldDescriptor) -> None:
    kind, name = field.message_type, field.name
    if kind is not None and kind.GetOptions().map_entry:
        key, item = kind.fields_by_name["key"], kind.fields_by_name["value"]
        if item.message_type is None:
            getattr(message, name)[scalar(key, 1)] = scalar(item, 2)
        else:
            getattr(message, name)[scalar(key, 1)].CopyFrom(filled(item.message_type))
    elif field.is_repeated:
        values = [filled(kind)] * 2 if kind is not None else [scalar(field, 1), scalar(field, 200)]
        getattr(message, name).extend(values)
    elif kind is not None:
        getattr(message, name).CopyFrom(filled(kind))
        getattr(message, name).SetInParent()
    else:
        setattr(message, name, scalar(field, 300))


def scalar(field: FieldDescriptor, salt: int) -> Any:
    """A value of the field's type that is not its default; integers take more than one byte."""
    if field.type in INTEGERS:
        return field.number * 1000 + salt
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    if field.type == FieldDescriptor.TYPE_STRING:
        return f"{field.name}-{salt}-ü"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes([0, 255, field.number, salt % 256])
    assert field.enum_type is not None, f"no example value for {field.full_name}"
    return field.enum_type.values[-1].number


CASES = {
    descriptor.full_name + (f"[{choice.name}]" if choice else ""): (descriptor, choice)
    for descriptor in descriptors()
    for choice in alternatives(descriptor)
}


@pytest.fixture(scope="module")
def golden(rewrite):
    if rewrite:
        lines = ["# Full name of a message, then its bytes with every field set, in hexadecimal."]
        for name, (descriptor, choice) in CASES.items():
            encoded = filled(descriptor, choice).SerializeToString(deterministic=True)
            lines.append(f"{name} {encoded.hex()}".rstrip())
        GOLDEN.write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    pairs = (line.partition(" ") for line in lines if not line.startswith("#"))
    return {name: bytes.fromhex(text) for name, _, text in pairs}


def test_golden_file_lists_exactly_the_messages_that_exist(golden):
    assert sorted(golden) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_message_has_its_golden_bytes(name, golden):
    message = filled(*CASES[name])
    assert message.SerializeToString(deterministic=True).hex() == golden[name].hex()
    assert GetMessageClass(CASES[name][0]).FromString(golden[name]) == message


def test_golden_bytes_cover_every_field():
    set_somewhere: dict[str, set[str]] = {}
    for descriptor, choice in CASES.values():
        names = {field.name for field, _ in filled(descriptor, choice).ListFields()}
        set_somewhere.setdefault(descriptor.full_name, set()).update(names)
    assert set_somewhere == {d.full_name: set(d.fields_by_name) for d in descriptors()}
