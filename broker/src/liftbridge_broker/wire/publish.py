r"""What a broker publishes to NATS for a client: `PUB` frames around enveloped messages, in runs.

A frame is ``PUB <subject> <size>\r\n``, the 8-byte envelope header, a protobuf `Message` and
``\r\n``; with the header that tells brokers who has stored the message already it is an `HPUB`.
The fields are those that the original's API server writes, ascending, defaults omitted: offset
(the expected one), key, value, stream, partition, subject, headers, ackInbox, correlationId,
ackPolicy.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.wire.envelope import HEADER_SIZE, PUBLISH_HEADER
from liftbridge_broker.wire.fields import bytes_field, bytes_head, headers_field, varint_field
from liftbridge_broker.wire.nats import CRLF, appended_header_block, publish_head

LENGTH_CACHE_COUNT_MAX: Final = 4096
LAYOUT_CACHE_COUNT_MAX: Final = 64


class _ByLength(dict[int, bytes]):
    """Bytes that depend on a length, built when first asked for, forgotten when too many."""

    def __init__(self, build: Callable[[int], bytes]) -> None:
        super().__init__()
        self._build = build

    def __missing__(self, length: int) -> bytes:
        if len(self) >= LENGTH_CACHE_COUNT_MAX:
            self.clear()
        built = self[length] = self._build(length)
        return built


class _Layout(NamedTuple):
    """Constants of a run of messages that differ only in value and correlation id.

    Attributes:
        middle: Between value and correlation id.
        tail: Behind the correlation id, the end of the frame included.
        between: By length of the value that follows: all that stands between the last byte of one
            message that varies and that value; begins with `tail`, or with `middle` and `tail` when
            there are no correlation ids.
        end: What `between` begins with.
    """

    middle: bytes
    tail: bytes
    between: _ByLength
    end: bytes


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
        self._heads: dict[int | None, _ByLength] = {}
        self._key_heads = _ByLength(lambda length: bytes_head(2, length))
        self._value_heads = _ByLength(lambda length: bytes_head(3, length))

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
        """Frames of a run of messages, as pieces to be joined.

        All sequences have the length of `values`. Hot without keys, headers and expected offsets
        when the correlation ids have one length (benchmark `bench_nats.py::publish`).

        Args:
            values: Values.
            keys: Keys, empty ones for messages without.
            headers: User headers of each message.
            correlation_ids: UTF-8 bytes.
            ack_inbox: Where brokers that store the message later send their acks; empty for none.
            ack_policy: Policy of all these messages.
            expected_offsets: Expected offsets for optimistic concurrency.
            appended_partition_id: Partition that holds the messages already, `None` for none.
        """
        id_size = _uniform_size(correlation_ids)
        if not values or keys or headers or expected_offsets or id_size is None:
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
        count = len(values)
        between = list(map(layout.between.__getitem__, map(len, values)))
        first = between[0][len(layout.end) :]
        if not id_size or correlation_ids is None:
            pieces = [layout.end] * (2 * count + 1)
            pieces[0:-1:2] = between
            pieces[1::2] = values
        else:
            pieces = [layout.middle] * (4 * count + 1)
            pieces[0:-1:4] = between
            pieces[1::4] = values
            pieces[3::4] = correlation_ids
            pieces[-1] = layout.end
        pieces[0] = first
        return pieces

    def _layout(
        self, ack_inbox: bytes, ack_policy: int, appended: PartitionId | None, id_size: int
    ) -> _Layout:
        """Build and keep the constants for messages of this kind."""
        middle = self._address + bytes_field(10, ack_inbox) + bytes_head(11, id_size)
        tail = varint_field(12, ack_policy) + CRLF
        end = tail if id_size else middle + tail
        fixed_size = len(middle) + id_size + len(tail) - len(CRLF)
        heads, value_heads = self._heads_for(appended), self._value_heads

        def between(value_size: int) -> bytes:
            value_head = value_heads[value_size]
            return end + heads[len(value_head) + value_size + fixed_size] + value_head

        if len(self._layouts) >= LAYOUT_CACHE_COUNT_MAX:
            self._layouts.clear()
        layout = _Layout(middle, tail, _ByLength(between), end)
        self._layouts[ack_inbox, ack_policy, appended, id_size] = layout
        return layout

    def _heads_for(self, appended: PartitionId | None) -> _ByLength:
        """What stands before the fields, by their length."""
        heads = self._heads.get(appended)
        if heads is None:
            block = b"" if appended is None else appended_header_block(appended)
            if len(self._heads) >= LAYOUT_CACHE_COUNT_MAX:
                self._heads.clear()
            heads = self._heads[appended] = _ByLength(
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
        """Frames of messages that differ in more than value and correlation id."""
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


def _uniform_size(texts: Sequence[bytes] | None) -> int | None:
    """Length that all texts have, 0 for no texts, `None` when they differ."""
    if not texts:
        return 0
    sizes = set(map(len, texts))
    return sizes.pop() if len(sizes) == 1 else None
