r"""Messages that a broker publishes to NATS for a client: `PUB` frames with envelopes, in runs.

A frame is ``PUB <subject> <size>\r\n``, the 8-byte envelope header, a protobuf `Message` and
``\r\n``; with the header that names a partition that has already stored the message, it is an
`HPUB`. The fields are those that the original's API server writes, ascending, defaults omitted:
offset (the expected one), key, value, stream, partition, subject, headers, ackInbox, correlationId,
ackPolicy.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.wire.envelope import HEADER_SIZE, PUBLISH_HEADER
from liftbridge_broker.wire.fields import bytes_field, bytes_head, headers_field, varint_field
from liftbridge_broker.wire.nats import CRLF, appended_header_block, publish_head

LENGTH_CACHE_COUNT_MAX: Final = 4096
LAYOUT_CACHE_COUNT_MAX: Final = 64

_Size = TypeVar("_Size", bound=Hashable)


class _Built(dict[_Size, bytes], Generic[_Size]):
    """Bytes that depend on one or two lengths, built on first use.

    The cache is cleared once it has `LENGTH_CACHE_COUNT_MAX` entries.
    """

    def __init__(self, build: Callable[[_Size], bytes]) -> None:
        super().__init__()
        self._build = build

    def __missing__(self, size: _Size) -> bytes:
        if len(self) >= LENGTH_CACHE_COUNT_MAX:
            self.clear()
        built = self[size] = self._build(size)
        return built


class _Layout(NamedTuple):
    """Constants of a run of messages that differ only in key, value and correlation id.

    Attributes:
        middle: Between value and correlation id.
        end: After the last varying byte of a message, the end of the frame included: the bytes
            after the correlation id, preceded by `middle` if there are no correlation ids.
        between: By length of the value that follows: `end` of one message and the bytes before
            the value of the next.
        between_keyed: By lengths of the key that follows and of its value: `end` of one message and
            the bytes before the key of the next.
    """

    middle: bytes
    end: bytes
    between: _Built[int]
    between_keyed: _Built[tuple[int, int]]


class EnvelopeEncoder:
    """Builds `PUB` frames for one partition of one stream.

    Args:
        stream: Name of the stream.
        subject: Subject of the partition, published to and named in the message.
        partition: Number of the partition.
    """

    def __init__(self, stream: str, subject: str, partition: int) -> None:
        self._subject = subject.encode()
        self._address = b"".join(
            (
                bytes_field(5, stream.encode()),
                varint_field(6, partition),
                bytes_field(7, self._subject),
            )
        )
        self._layouts: dict[tuple[bytes, int, int | None, int], _Layout] = {}
        self._heads: dict[int | None, _Built[int]] = {}
        self._key_heads: _Built[int] = _Built(lambda length: bytes_head(2, length))
        self._value_heads: _Built[int] = _Built(lambda length: bytes_head(3, length))

    def frames(
        self,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
        correlation_ids: Sequence[bytes] | None = None,
        ack_inbox: bytes = b"",
        ack_policy: int = 0,
        expected_offsets: Sequence[int] | None = None,
        appended_partition_id: PartitionId | None = None,
    ) -> list[bytes]:
        """Return the frames of a run of messages, as pieces to join.

        All sequences have the length of `values`. Hot without headers and expected offsets when the
        correlation ids have one length (benchmark `bench_nats.py::publish`).

        Args:
            values: Values.
            keys: Keys, empty for messages without a key.
            headers: User headers of each message.
            correlation_ids: UTF-8 bytes.
            ack_inbox: Inbox for acks of brokers that store the message later; empty for none.
            ack_policy: Policy of all these messages.
            expected_offsets: Expected offsets for optimistic concurrency.
            appended_partition_id: Partition that already holds the messages, `None` for none.
        """
        id_size = _uniform_size(correlation_ids)
        if not values or headers or expected_offsets or id_size is None:
            return self._general_frames(
                values,
                keys,
                headers,
                correlation_ids,
                bytes_field(10, ack_inbox),
                varint_field(12, ack_policy),
                expected_offsets,
                appended_partition_id,
            )
        layout = self._layouts.get((ack_inbox, ack_policy, appended_partition_id, id_size))
        if layout is None:
            layout = self._layout(ack_inbox, ack_policy, appended_partition_id, id_size)
        varying: list[Sequence[bytes]] = []
        if keys:
            sizes = zip(map(len, keys), map(len, values), strict=True)
            between = list(map(layout.between_keyed.__getitem__, sizes))
            value_heads = list(map(self._value_heads.__getitem__, map(len, values)))
            varying = [between, keys, value_heads, values]
        else:
            between = list(map(layout.between.__getitem__, map(len, values)))
            varying = [between, values]
        between[0] = between[0][len(layout.end) :]
        if id_size and correlation_ids is not None:
            varying += ([layout.middle] * len(values), correlation_ids)
        return _interleaved(varying, layout.end)

    def _layout(
        self, ack_inbox: bytes, ack_policy: int, appended: PartitionId | None, id_size: int
    ) -> _Layout:
        """Build and cache the constants for a run of messages."""
        middle = self._address + bytes_field(10, ack_inbox) + bytes_head(11, id_size)
        tail = varint_field(12, ack_policy) + CRLF
        end = tail if id_size else middle + tail
        fixed_size = len(middle) + id_size + len(tail) - len(CRLF)
        heads, key_heads, value_heads = (
            self._heads_for(appended),
            self._key_heads,
            self._value_heads,
        )

        def between(value_size: int) -> bytes:
            value_head = value_heads[value_size]
            return end + heads[len(value_head) + value_size + fixed_size] + value_head

        def between_keyed(sizes: tuple[int, int]) -> bytes:
            key_size, value_size = sizes
            key_head = key_heads[key_size]
            size = len(key_head) + key_size + len(value_heads[value_size]) + value_size
            return end + heads[size + fixed_size] + key_head

        if len(self._layouts) >= LAYOUT_CACHE_COUNT_MAX:
            self._layouts.clear()
        layout = _Layout(middle, end, _Built(between), _Built(between_keyed))
        self._layouts[ack_inbox, ack_policy, appended, id_size] = layout
        return layout

    def _heads_for(self, appended: PartitionId | None) -> _Built[int]:
        """Return the bytes before the fields, by their length."""
        heads = self._heads.get(appended)
        if heads is None:
            block = b"" if appended is None else appended_header_block(appended)
            if len(self._heads) >= LAYOUT_CACHE_COUNT_MAX:
                self._heads.clear()
            heads = self._heads[appended] = _Built(
                lambda length: (
                    publish_head(self._subject, HEADER_SIZE + length, headers=block)
                    + PUBLISH_HEADER
                )
            )
        return heads

    def _general_frames(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None,
        headers: Sequence[Mapping[str, bytes] | None] | None,
        correlation_ids: Sequence[bytes] | None,
        inbox: bytes,
        policy: bytes,
        expected_offsets: Sequence[int] | None,
        appended: PartitionId | None,
    ) -> list[bytes]:
        """Return the frames of messages that vary in more than value and correlation id."""
        heads = self._heads_for(appended)
        key_heads, value_heads, address = self._key_heads, self._value_heads, self._address
        pieces: list[bytes] = []
        for i, value in enumerate(values):
            key = keys[i] if keys else b""
            expected = varint_field(1, expected_offsets[i]) if expected_offsets else b""
            given = headers[i] if headers else None
            fields = (
                expected,
                key_heads[len(key)],
                key,
                value_heads[len(value)],
                value,
                address,
                headers_field(9, given) if given else b"",
                inbox,
                bytes_field(11, correlation_ids[i]) if correlation_ids else b"",
                policy,
            )
            pieces.append(heads[sum(map(len, fields))])
            pieces += fields
            pieces.append(CRLF)
        return pieces


def _interleaved(varying: Sequence[Sequence[bytes]], end: bytes) -> list[bytes]:
    """Return the first items of all sequences, then the second items, and so on, then `end`."""
    width = len(varying)
    pieces = [end] * (width * len(varying[0]) + 1)
    for place, items in enumerate(varying):
        pieces[place:-1:width] = items
    return pieces


def _uniform_size(texts: Sequence[bytes] | None) -> int | None:
    """Return the common length of all texts, 0 for no texts, `None` if lengths differ."""
    if not texts:
        return 0
    sizes = set(map(len, texts))
    return sizes.pop() if len(sizes) == 1 else None
