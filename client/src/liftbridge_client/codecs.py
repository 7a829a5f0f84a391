"""Typed values: what turns the values of an application into bytes and back.

    publisher = stream.publisher(codec=JsonCodec(Order))      # Publisher[Order]
    async for message in stream.subscribe(codec=JsonCodec(Order)): ...   # Message[Order]

Any object with `encode` and `decode` is a codec; it says by `ValueError` or `TypeError` that it
cannot do what is asked.
"""

import json
from typing import Any, Final, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message import Message as ProtoMessage

from liftbridge_client.core.json_shapes import Reader, reader_of, written
from liftbridge_client.errors import CodecError

_Value = TypeVar("_Value")
_Proto = TypeVar("_Proto", bound=ProtoMessage)


class Codec(Protocol[_Value]):
    """Turns values into bytes and back."""

    def encode(self, value: _Value, /) -> bytes:
        """Bytes of a value.

        Raises:
            ValueError, TypeError: The value cannot be encoded.
        """
        ...

    def decode(self, data: bytes, /) -> _Value:
        """The value that bytes stand for.

        Raises:
            ValueError, TypeError: The bytes stand for no value.
        """
        ...


class JsonCodec(Generic[_Value]):
    """Values as JSON (UTF-8, without spaces).

    Knows dataclasses, TypedDicts, enums, literals, unions, lists, tuples and mappings of what JSON
    has, `datetime` (ISO 8601) and `bytes` (base64), and models of pydantic by their own methods.
    Fields that the type does not have are ignored when read, fields with a default may be absent,
    so that types may grow.
    """

    def __init__(self, kind: type[_Value]) -> None:
        """Look at the type.

        Raises:
            UsageError: JSON cannot hold the type.
        """
        self._kind: Final[Any] = kind
        self._is_model = hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump_json")
        self._read: Reader | None = None if self._is_model else reader_of(kind)

    def encode(self, value: _Value, /) -> bytes:
        """JSON text of a value."""
        if self._is_model:
            model: Any = value
            return str(model.model_dump_json()).encode()
        return json.dumps(
            value, default=written, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()

    def decode(self, data: bytes, /) -> _Value:
        """The value of a JSON text."""
        if self._read is None:
            model: _Value = self._kind.model_validate_json(data)
            return model
        value: _Value = self._read(json.loads(data))
        return value


class TextCodec:
    """Text in an encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def encode(self, value: str, /) -> bytes:
        """Bytes of a text."""
        return value.encode(self._encoding)

    def decode(self, data: bytes, /) -> str:
        """The text."""
        return data.decode(self._encoding)


class ProtobufCodec(Generic[_Proto]):
    """Messages of one protobuf type."""

    def __init__(self, kind: type[_Proto]) -> None:
        self._kind = kind

    def encode(self, value: _Proto, /) -> bytes:
        """The message on the wire.

        Raises:
            TypeError: It is of another type.
            ValueError: A required field is missing.
        """
        if not isinstance(value, self._kind):
            raise TypeError(f"{type(value).__name__} is not a {self._kind.__name__}")
        try:
            return value.SerializeToString()
        except EncodeError as error:
            raise ValueError(str(error)) from error

    def decode(self, data: bytes, /) -> _Proto:
        """The message."""
        try:
            return self._kind.FromString(data)
        except DecodeError as error:
            raise ValueError(str(error)) from error


def encoded(codec: Codec[_Value], value: _Value) -> bytes:
    """Bytes of a value.

    Raises:
        CodecError: The codec refuses it, or does not give bytes.
    """
    try:
        data = codec.encode(value)
    except (ValueError, TypeError) as error:
        raise CodecError(
            f"a value of type {type(value).__name__} cannot be encoded: {error}"
        ) from error
    if not isinstance(data, bytes):
        kind = type(data).__name__
        raise CodecError(f"{type(codec).__name__}.encode returned {kind}, not bytes: correct it")
    return data


def decoded(codec: Codec[_Value], data: bytes, stream: str, partition: int, offset: int) -> _Value:
    """The value of a stored message.

    Raises:
        CodecError: The codec refuses it; holds the bytes and the offset.
    """
    try:
        return codec.decode(data)
    except (ValueError, TypeError) as error:
        text = f"the message at {stream}/{partition} offset {offset} cannot be decoded: {error}"
        raise CodecError(text, data=data, offset=offset) from error
