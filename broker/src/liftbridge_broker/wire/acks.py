r"""Acks as bytes, in runs: constants around an offset and a correlation id.

Three forms of one `proto.Ack`: alone, inside a gRPC frame of `PublishResponse` (0, length as four
bytes big-endian, fields ack = 1 and correlationId = 3), and as ``PUB <inbox> <size>\r\n``, envelope
of type 1, ack, ``\r\n``. Fields ascend and defaults are omitted, so that the bytes equal those of a
protobuf library. Building an ack through protobuf objects costs more than storing the message.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from liftbridge_broker.wire.envelope import ACK_HEADER, HEADER_SIZE
from liftbridge_broker.wire.fields import bytes_field, bytes_head, varint, varint_field
from liftbridge_broker.wire.nats import CRLF, publish_head

# Offsets below 2**14 as whole fields; of higher ones the lower 14 bits with the tag before and the
# continuation bit, so that the offsets of a run are a slice of a list.
_OFFSET_TAG: Final = b"\x20"
_LOW_BITS: Final = 14
_LOW_COUNT: Final = 1 << _LOW_BITS
_WHOLE: Final = [varint_field(4, offset) for offset in range(_LOW_COUNT)]
_LOW: Final = [
    _OFFSET_TAG + bytes((low & 0x7F | 0x80, low >> 7 | 0x80)) for low in range(_LOW_COUNT)
]


# Tags of leaderEpoch and refusal, which the original lacks.
_LEADER_EPOCH_TAG: Final = varint(1_000 << 3)
_REFUSAL_TAG: Final = varint(1_001 << 3 | 2)


class AckPolicy(IntEnum):
    """Condition for the ack of a publish; values of the API."""

    LEADER = 0
    ALL = 1
    NONE = 2


class AckError(IntEnum):
    """Reason why a message was not stored; values of the API."""

    OK = 0
    UNKNOWN = 1
    INCORRECT_OFFSET = 2
    TOO_LARGE = 3
    ENCRYPTION = 4


class _Shape(NamedTuple):
    """Constants of the acks of a run whose offsets and correlation ids have one length each.

    Attributes:
        head: Bytes before the offset.
        middle: Bytes between offset and correlation id, after the upper bits of the offset.
        tail: Bytes after the correlation id.
    """

    head: bytes
    middle: bytes
    tail: bytes


class AckEncoder:
    """Builds acks of one partition.

    Args:
        stream: Name of the stream.
        stream_subject: Subject of the stream, without a partition's suffix.
    """

    def __init__(self, stream: str, stream_subject: str) -> None:
        self._address = bytes_field(1, stream.encode()) + bytes_field(2, stream_subject.encode())

    def ack(
        self,
        *,
        offset: int,
        correlation_id: bytes,
        policy: int,
        reception_ts: int,
        commit_ts: int,
        msg_subject: bytes,
        ack_inbox: bytes = b"",
        error: int = 0,
        leader_epoch: int = 0,
        refusal: bytes = b"",
    ) -> bytes:
        """Encode one `proto.Ack`.

        Args:
            offset: Offset of the stored message; 0 with an error.
            correlation_id: UTF-8 bytes, empty for none.
            policy: Policy that the publisher requested.
            reception_ts: Timestamp of the message, Unix nanoseconds.
            commit_ts: Time at which the ack is sent, Unix nanoseconds; 0 for a message that was too
                large.
            msg_subject: NATS subject of the message.
            ack_inbox: Inbox the publisher named, empty for none.
            error: An `AckError`.
            leader_epoch: Epoch of the leader that stored the message, 0 with an error.
            refusal: Reason of the refusal, UTF-8 bytes; empty without an error.
        """
        return b"".join(
            (
                self._address,
                bytes_field(3, msg_subject),
                varint_field(4, offset),
                bytes_field(5, ack_inbox),
                bytes_field(6, correlation_id),
                varint_field(7, policy),
                varint_field(8, reception_ts),
                varint_field(9, commit_ts),
                varint_field(10, error),
                _leader_epoch_field(leader_epoch),
                _REFUSAL_TAG + varint(len(refusal)) + refusal if refusal else b"",
            )
        )

    def publish_responses(
        self,
        base_offset: int,
        correlation_ids: Sequence[bytes],
        *,
        policy: int,
        reception_ts: int,
        commit_ts: int,
        msg_subject: bytes,
        ack_inbox: bytes = b"",
        leader_epoch: int = 0,
    ) -> list[bytes]:
        """Encode gRPC frames of `PublishResponse` for consecutive messages, as pieces.

        Hot when the correlation ids have one length (benchmark `bench_nats.py::acks`).

        Args:
            base_offset: Offset of the first message.
            correlation_ids: One for each message, UTF-8 bytes, empty for none.
            policy: Policy of all these messages.
            reception_ts: Timestamp of all these messages, Unix nanoseconds.
            commit_ts: Time at which the acks are sent, Unix nanoseconds.
            msg_subject: NATS subject of these messages.
            ack_inbox: Inbox named in the acks, empty for none.
            leader_epoch: Epoch of the leader that acknowledges, 0 for none.
        """
        before = self._address + bytes_field(3, msg_subject)
        inbox = bytes_field(5, ack_inbox)
        rest = _end(policy, reception_ts, commit_ts, leader_epoch)

        def shape(offset_size: int, id_size: int) -> _Shape:
            id_field = len(bytes_head(6, id_size)) + id_size
            ack_size = len(before) + offset_size + len(inbox) + id_field + len(rest)
            # The correlation id field of the response has the same size as that of the ack.
            size = len(bytes_head(1, ack_size)) + ack_size + id_field
            head = b"\0" + size.to_bytes(4, "big") + bytes_head(1, ack_size) + before
            middle = inbox + bytes_head(6, id_size)
            return _Shape(head, middle, rest + bytes_head(3, id_size))

        return _run(base_offset, correlation_ids, shape, _response_pieces)

    def inbox_acks(
        self,
        base_offset: int,
        correlation_ids: Sequence[bytes],
        *,
        policy: int,
        reception_ts: int,
        commit_ts: int,
        msg_subject: bytes,
        ack_inbox: bytes,
        leader_epoch: int = 0,
    ) -> list[bytes]:
        """Encode `PUB` frames of acks to one inbox for consecutive messages, as pieces.

        Arguments as in `publish_responses`; the inbox has passed `ReservedSubjects`. For messages
        with gaps between their offsets, call it once for each.
        """
        before = self._address + bytes_field(3, msg_subject)
        inbox = bytes_field(5, ack_inbox)
        rest = _end(policy, reception_ts, commit_ts, leader_epoch)

        def shape(offset_size: int, id_size: int) -> _Shape:
            id_field = len(bytes_head(6, id_size)) + id_size
            size = len(before) + offset_size + len(inbox) + id_field + len(rest)
            head = publish_head(ack_inbox, HEADER_SIZE + size) + ACK_HEADER + before
            return _Shape(head, inbox + bytes_head(6, id_size), rest + CRLF)

        return _run(base_offset, correlation_ids, shape, _inbox_pieces)


def inbox_frame(ack_inbox: bytes, ack: bytes) -> bytes:
    """Encode the `PUB` frame of a serialised ack, for instance an ack with an error."""
    return publish_head(ack_inbox, HEADER_SIZE + len(ack)) + ACK_HEADER + ack + CRLF


def _end(policy: int, reception_ts: int, commit_ts: int, leader_epoch: int) -> bytes:
    """Encode the fields ackPolicy, receptionTimestamp, commitTimestamp and leaderEpoch."""
    times = varint_field(8, reception_ts) + varint_field(9, commit_ts)
    return varint_field(7, policy) + times + _leader_epoch_field(leader_epoch)


def _leader_epoch_field(leader_epoch: int) -> bytes:
    return _LEADER_EPOCH_TAG + varint(leader_epoch) if leader_epoch else b""


def _offset_fields(offset: int, count: int) -> tuple[list[bytes], bytes]:
    """Encode offset fields of one size for up to `count` consecutive offsets.

    Returns:
        The varying part, one or more pieces, and the bytes after each piece.
    """
    if offset >= _LOW_COUNT:
        low = offset & (_LOW_COUNT - 1)
        return _LOW[low : low + count], varint(offset >> _LOW_BITS)
    # Fields of 0, 1..127 and 128..16383 have 0, 2 and 3 bytes.
    size_end = 1 if offset == 0 else 128 if offset < 128 else _LOW_COUNT
    return _WHOLE[offset : min(offset + count, size_end)], b""


def _run(
    base_offset: int,
    ids: Sequence[bytes],
    shape: Callable[[int, int], _Shape],
    assemble: Callable[[_Shape, list[bytes], Sequence[bytes]], list[bytes]],
) -> list[bytes]:
    """Return the pieces of a run, cut where the size of an offset or correlation id changes."""
    assert base_offset >= 0
    pieces: list[bytes] = []
    position, count = 0, len(ids)
    is_uniform = len(set(map(len, ids))) <= 1
    while position < count:
        wanted = count - position if is_uniform else _equal_sizes(ids, position)
        offsets, high = _offset_fields(base_offset + position, wanted)
        end = position + len(offsets)
        head, middle, tail = shape(len(offsets[0]) + len(high), len(ids[position]))
        whole = position == 0 and end == count
        run_ids = ids if whole else ids[position:end]
        pieces += assemble(_Shape(head, high + middle, tail), offsets, run_ids)
        position = end
    return pieces


def _equal_sizes(ids: Sequence[bytes], position: int) -> int:
    """Return the number of correlation ids from `position` on that have one length."""
    size = len(ids[position])
    end = position + 1
    while end < len(ids) and len(ids[end]) == size:
        end += 1
    return end - position


def _response_pieces(shape: _Shape, offsets: list[bytes], ids: Sequence[bytes]) -> list[bytes]:
    """Return the frames that contain the correlation id twice."""
    pieces = [shape.head] * (6 * len(offsets))
    pieces[1::6] = offsets
    pieces[2::6] = [shape.middle] * len(offsets)
    pieces[3::6] = ids
    pieces[4::6] = [shape.tail] * len(offsets)
    pieces[5::6] = ids
    return pieces


def _inbox_pieces(shape: _Shape, offsets: list[bytes], ids: Sequence[bytes]) -> list[bytes]:
    """Return the frames that contain the correlation id once."""
    pieces = [shape.head] * (5 * len(offsets))
    pieces[1::5] = offsets
    pieces[2::5] = [shape.middle] * len(offsets)
    pieces[3::5] = ids
    pieces[4::5] = [shape.tail] * len(offsets)
    return pieces
