"""Codecs: they convert the values of an application to bytes and back.

    publisher = stream.publisher(codec=JsonCodec(Order))      # Publisher[Order]
    async for message in stream.subscribe(codec=JsonCodec(Order)): ...   # Message[Order]

Any object with `encode` and `decode` is a codec; it raises `ValueError` or `TypeError` if it cannot
convert a value.
"""

import json
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message import Message as ProtoMessage

from liftbridge_client.core.json_shapes import Reader, reader_of, written
from liftbridge_client.errors import CodecError

_Value = TypeVar("_Value")
_Proto = TypeVar("_Proto", bound=ProtoMessage)


@runtime_checkable
class Codec(Protocol[_Value]):
    """Converts values to bytes and back."""

    def encode(self, value: _Value, /) -> bytes:
        """Encode a value.

        Raises:
            ValueError, TypeError: The value cannot be encoded.
        """
        ...

    def decode(self, data: bytes, /) -> _Value:
        """Decode a value.

        Raises:
            ValueError, TypeError: The bytes cannot be decoded.
        """
        ...


class JsonCodec(Generic[_Value]):
    """Values as JSON (UTF-8, without spaces).

    Supports JSON types, `datetime` (ISO 8601) and `bytes` (base64); dataclasses, TypedDicts, enums,
    literals, unions, lists, tuples and mappings of them; and pydantic models, by their own methods.
    When decoding, unknown fields are ignored and fields with a default may be absent, so types can
    gain fields.
    """

    def __init__(self, kind: type[_Value]) -> None:
        """Prepare the codec for a type.

        Raises:
            UsageError: JSON cannot represent the type.
        """
        self._kind: Final[Any] = kind
        self._is_model = hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump_json")
        self._read: Reader | None = None if self._is_model else reader_of(kind)

    def encode(self, value: _Value, /) -> bytes:
        """Encode a value as JSON."""
        if self._is_model:
            model: Any = value
            return str(model.model_dump_json()).encode()
        return json.dumps(
            value, default=written, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()

    def decode(self, data: bytes, /) -> _Value:
        """Decode a value from JSON."""
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
        """Encode text."""
        return value.encode(self._encoding)

    def decode(self, data: bytes, /) -> str:
        """Decode text."""
        return data.decode(self._encoding)


class ProtobufCodec(Generic[_Proto]):
    """Messages of one protobuf type."""

    def __init__(self, kind: type[_Proto]) -> None:
        self._kind = kind

    def encode(self, value: _Proto, /) -> bytes:
        """Serialize a message.

        Raises:
            TypeError: The message is of another type.
            ValueError: A required field is missing.
        """
        if not isinstance(value, self._kind):
            raise TypeError(f"{type(value).__name__} is not a {self._kind.__name__}")
        try:
            return value.SerializeToString()
        except EncodeError as error:
            raise ValueError(str(error)) from error

    def decode(self, data: bytes, /) -> _Proto:
        """Parse a message."""
        try:
            return self._kind.FromString(data)
        except DecodeError as error:
            raise ValueError(str(error)) from error


def encoded(codec: Codec[_Value], value: _Value) -> bytes:
    """Encode a value.

    Raises:
        CodecError: The codec cannot encode it, or does not return bytes.
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
    """Decode the value of a stored message.

    Raises:
        CodecError: The codec cannot decode it; the error has the bytes and the offset.
    """
    try:
        return codec.decode(data)
    except (ValueError, TypeError) as error:
        text = f"the message at {stream}/{partition} offset {offset} cannot be decoded: {error}"
        raise CodecError(text, data=data, offset=offset) from error
