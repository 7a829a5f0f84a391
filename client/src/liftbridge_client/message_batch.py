"""Batches of messages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, cast, overload

from liftbridge_client.codecs import Codec, decoded
from liftbridge_client.model import Message, Value

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class MessageBatch(Sequence[Message[Value]], Generic[Value]):
    """Messages that arrived together, in order.

    With a codec, a value is decoded when its message is accessed, so a value that cannot be decoded
    does not affect other messages.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        next_offset: Offset to continue at after them.
    """

    stream: str
    partition: int
    next_offset: int
    _messages: Sequence[Message] = field(repr=False)
    _codec: Codec[Value] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message[Value]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Message[Value]]: ...

    def __getitem__(self, index: int | slice) -> Message[Value] | Sequence[Message[Value]]:
        if self._codec is None:
            plain = cast("Sequence[Message[Value]]", self._messages)
            return plain[index]
        if isinstance(index, slice):
            return [_typed(message, self._codec) for message in self._messages[index]]
        return _typed(self._messages[index], self._codec)

    def __iter__(self) -> Iterator[Message[Value]]:
        if self._codec is None:
            return iter(cast("Sequence[Message[Value]]", self._messages))
        codec = self._codec
        return (_typed(message, codec) for message in self._messages)

    def to_arrow(self) -> "pa.RecordBatch":
        """Convert to an Arrow record batch: offset, timestamp, key, value (bytes) and headers."""
        from liftbridge_client.columns import from_messages  # noqa: PLC0415 - pyarrow is heavy

        return from_messages(self._messages)


def _typed(message: Message, codec: Codec[Value]) -> Message[Value]:
    """Decode the value of a message.

    Raises:
        CodecError: The codec cannot decode it.
    """
    offset, key, data, timestamp, stream, partition, subject, reply, headers = message
    value = decoded(codec, data, stream, partition, offset)
    return Message(offset, key, value, timestamp, stream, partition, subject, reply, headers)
