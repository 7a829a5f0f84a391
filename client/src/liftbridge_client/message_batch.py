"""Messages that came together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, overload

from liftbridge_client.model import Message

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class MessageBatch(Sequence[Message]):
    """Messages that came together, in order.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        next_offset: Where to go on behind them.
    """

    stream: str
    partition: int
    next_offset: int
    _messages: Sequence[Message] = field(repr=False)

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def to_arrow(self) -> "pa.RecordBatch":
        """Columns offset, timestamp, key, value and headers as an Arrow record batch."""
        from liftbridge_client.columns import from_messages  # noqa: PLC0415 - pyarrow is heavy

        return from_messages(self._messages)
