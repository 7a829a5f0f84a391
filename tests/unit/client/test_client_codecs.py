"""Codecs: values of many types come back as they went in, and wrong bytes are refused."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal, NotRequired, TypedDict

import pydantic
import pytest

from liftbridge_client import CodecError, JsonCodec, Message, ProtobufCodec, TextCodec, UsageError
from liftbridge_client.codecs import decoded, encoded
from liftbridge_client.message_batch import MessageBatch
from liftbridge_proto import api_pb2


class Kind(Enum):
    FRUIT = "fruit"
    TOOL = 2


class Place(TypedDict):
    city: str
    zip: NotRequired[int]


@dataclass
class Item:
    name: str
    kind: Kind
    weight: float = 1.0
    inside: list["Item"] = field(default_factory=list)


@dataclass(frozen=True)
class Order:
    id: int
    at: datetime
    items: tuple[Item, ...]
    place: Place | None = None
    raw: bytes = b""
    state: Literal["open", "paid"] = "open"
    notes: dict[str, str | int] = field(default_factory=dict)
    pair: tuple[int, str] = (0, "")
    other: Any = None


class Model(pydantic.BaseModel):
    id: int
    at: datetime


AT = datetime(2026, 11, 21, 12, 0, 0, 5, tzinfo=UTC)
ORDER = Order(
    7,
    AT,
    (Item("äpple", Kind.FRUIT, inside=[Item("core", Kind.TOOL, 0.5)]),),
    {"city": "Ü"},
    b"\xff\0",
    "paid",
    {"a": "b", "c": 1},
    (1, "x"),
    [{"free": None}],
)


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (JsonCodec(Order), ORDER),
        (JsonCodec(Order), Order(1, AT, ())),
        (JsonCodec(Place), {"city": "x", "zip": 4}),
        (JsonCodec(list[int]), [1, 2]),
        (JsonCodec(Model), Model(id=1, at=AT)),
        (TextCodec(), "ünï"),
        (TextCodec("latin-1"), "ü"),
        (ProtobufCodec(api_pb2.Ack), api_pb2.Ack(stream="s", offset=3)),
    ],
    ids=lambda part: type(part).__name__,
)
def test_value_comes_back_as_it_was(codec, value):
    data = codec.encode(value)
    assert isinstance(data, bytes)
    again = codec.decode(data)
    assert again == value
    assert type(again) is type(value)


def test_json_is_compact_text():
    assert JsonCodec(Place).encode({"city": "ü", "zip": 1}) == '{"city":"ü","zip":1}'.encode()


def test_types_may_grow_on_either_side():
    codec = JsonCodec(Item)
    assert codec.decode(b'{"name":"a","kind":2,"new":[1]}') == Item("a", Kind.TOOL)


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (Item, []),
        (Item, {"name": "a"}),
        (Item, {"name": 1, "kind": 2}),
        (Item, {"name": "a", "kind": 3}),
        (Item, {"name": "a", "kind": 2, "weight": True}),
        (Item, {"name": "a", "kind": 2, "inside": [{}]}),
        (Order, {"id": True, "at": AT.isoformat(), "items": []}),
        (Order, {"id": 1, "at": "yesterday", "items": []}),
        (Order, {"id": 1, "at": AT.isoformat(), "items": [], "raw": "?"}),
        (Order, {"id": 1, "at": AT.isoformat(), "items": [], "state": "lost"}),
        (Order, {"id": 1, "at": AT.isoformat(), "items": [], "notes": {"a": None}}),
        (Order, {"id": 1, "at": AT.isoformat(), "items": [], "pair": [1]}),
        (Place, {"zip": 1}),
        (Model, {"id": "x"}),
        (dict[str, int], {"a": "b"}),
        (list[str], {"a": "b"}),
    ],
)
def test_document_of_another_shape_is_refused(kind, document):
    with pytest.raises(CodecError, match=r"s/2 offset 9 cannot be decoded") as caught:
        decoded(JsonCodec(kind), json.dumps(document).encode(), "s", 2, 9)
    assert caught.value.offset == 9
    assert json.loads(caught.value.data) == document


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (JsonCodec(Item), b"{"),
        (JsonCodec(Item), b"\xff"),
        (TextCodec(), b"\xff"),
        (ProtobufCodec(api_pb2.Ack), b"\xff"),
    ],
)
def test_bytes_that_are_nothing_are_refused(codec, data):
    with pytest.raises(CodecError):
        decoded(codec, data, "s", 0, 0)


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (JsonCodec(Item), Item("a", Kind.TOOL, float("nan"))),
        (JsonCodec(dict[str, Any]), {"a": object()}),
        (TextCodec("ascii"), "ü"),
        (ProtobufCodec(api_pb2.Ack), api_pb2.Message()),
    ],
)
def test_value_that_cannot_be_encoded_is_refused(codec, value):
    with pytest.raises(CodecError, match="cannot be encoded"):
        encoded(codec, value)


@pytest.mark.parametrize("kind", [complex, set[int], dict[int, str], type("C", (), {})])
def test_type_that_json_cannot_hold_is_refused_at_once(kind):
    with pytest.raises(UsageError, match="JsonCodec"):
        JsonCodec(kind)


def test_message_that_cannot_be_decoded_hides_no_other():
    messages = [
        Message(offset, b"", value, 0, "s", 0, "s", "", {})
        for offset, value in enumerate([b'"a"', b"?", b'"c"'])
    ]
    batch = MessageBatch("s", 0, 3, messages, JsonCodec(str))
    assert (batch[0].value, batch[2].value) == ("a", "c")
    assert [m.value for m in batch[::2]] == ["a", "c"]
    with pytest.raises(CodecError, match="offset 1"):
        batch[1]
    iterator = iter(batch)
    assert next(iterator).value == "a"
    with pytest.raises(CodecError):
        next(iterator)
    assert batch.to_arrow().column("value").to_pylist() == [b'"a"', b"?", b'"c"']
