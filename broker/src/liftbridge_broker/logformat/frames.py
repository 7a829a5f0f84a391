"""Decodes frames strictly, and reads single fields of verified frames quickly.

The layout is in `records.py`. `decode_frame` refuses whatever `RecordEncoder` would not have
written, so that accepted frames re-encode to the same bytes.
"""

from collections.abc import Iterator
from typing import NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.records import (
    FRAME_PREFIX,
    FRAME_PREFIX_SIZE,
    HEADER_REPLY,
    HEADER_SUBJECT,
    TAG_ENTRY_KEY,
    TAG_ENTRY_VALUE,
    TAG_HEADER,
    TAG_KEY,
    TAG_OFFSET,
    TAG_PARTITION,
    TAG_REPLY_SUBJECT,
    TAG_STREAM,
    TAG_SUBJECT,
    TAG_TIMESTAMP,
    TAG_VALUE,
)
from liftbridge_broker.logformat.varint import decode_varint, to_int64
from liftbridge_broker.model.ids import Offset

PARTITION_MAX = (1 << 31) - 1


class Frame(NamedTuple):
    """A decoded record.

    Attributes:
        offset: Offset of the record.
        key: Key, empty for none.
        value: Value.
        timestamp: Wall clock of the leader, nanoseconds.
        stream: Name of the stream.
        partition: Number of the partition.
        subject: NATS subject, as text.
        reply_subject: NATS reply subject, as text, empty for none.
        headers: All headers in stored order: the publisher's, then `subject` and `reply`.
    """

    offset: Offset
    key: bytes
    value: bytes
    timestamp: int
    stream: str
    partition: int
    subject: str
    reply_subject: str
    headers: tuple[tuple[str, bytes], ...]


def frame_end(buffer: bytes | memoryview, position: int, end: int) -> int:
    """Position after the frame that starts at `position`.

    Raises:
        CorruptionError: No whole frame starts there, or it ends after `end`.
    """
    if end - position < FRAME_PREFIX_SIZE:
        raise CorruptionError("frame is cut off", position=position)
    compressed, length = FRAME_PREFIX.unpack_from(buffer, position)
    behind: int = position + FRAME_PREFIX_SIZE + length
    if compressed or behind > end:
        raise CorruptionError("no whole frame begins here", position=position)
    return behind


def frame_offset(buffer: bytes | memoryview, position: int) -> Offset:
    """Offset of the frame at `position` of a verified batch.

    Raises:
        CorruptionError: The frame is not canonical.
    """
    end = frame_end(buffer, position, len(buffer))
    at = position + FRAME_PREFIX_SIZE
    if at == end or buffer[at] != TAG_OFFSET:
        return Offset(0)
    return Offset(decode_varint(buffer, at + 1, end)[0])


def frame_key(buffer: bytes | memoryview, position: int) -> bytes:
    """Key of the frame at `position` of a verified batch; empty for none.

    Raises:
        CorruptionError: The frame is not canonical.
    """
    end = frame_end(buffer, position, len(buffer))
    at = _skip_offset(buffer, position + FRAME_PREFIX_SIZE, end)
    if at == end or buffer[at] != TAG_KEY:
        return b""
    return _take_bytes(buffer, at + 1, end)[0]


def frame_timestamp(buffer: bytes | memoryview, position: int) -> int:
    """Timestamp of the frame at `position` of a verified batch; nanoseconds.

    Raises:
        CorruptionError: The frame is not canonical.
    """
    end = frame_end(buffer, position, len(buffer))
    at = _skip_offset(buffer, position + FRAME_PREFIX_SIZE, end)
    for tag in (TAG_KEY, TAG_VALUE):
        if at < end and buffer[at] == tag:
            length, at = decode_varint(buffer, at + 1, end)
            at += length
    if at >= end or buffer[at] != TAG_TIMESTAMP:
        return 0
    return to_int64(decode_varint(buffer, at + 1, end)[0])


def iter_frames(
    buffer: bytes | memoryview, start: int, end: int
) -> Iterator[tuple[int, int, Offset]]:
    """Frames of `buffer[start:end]` as (position, end, offset), of a verified batch.

    Raises:
        CorruptionError: The bytes are not a sequence of whole frames with rising offsets.
    """
    position = start
    before = -1
    while position < end:
        behind = frame_end(buffer, position, end)
        offset = 0
        at = position + FRAME_PREFIX_SIZE
        if at < behind and buffer[at] == TAG_OFFSET:
            offset, _ = decode_varint(buffer, at + 1, behind)
        if offset <= before:
            raise CorruptionError("offsets of frames do not rise", position=position)
        before = offset
        yield position, behind, Offset(offset)
        position = behind


def decode_frame(buffer: bytes | memoryview, position: int, end: int) -> Frame:
    """Decode the frame that fills `buffer[position:end]`.

    Raises:
        CorruptionError: It is not a canonical frame, or does not end at `end`.
    """
    if frame_end(buffer, position, end) != end:
        raise CorruptionError("frame does not end with its bytes", position=position)
    cursor = _Cursor(buffer, position + FRAME_PREFIX_SIZE, end)
    offset = cursor.integer(TAG_OFFSET)
    if offset >> 63:
        raise CorruptionError("offset is negative", position=position)
    key = cursor.data(TAG_KEY)
    value = cursor.data(TAG_VALUE)
    timestamp = to_int64(cursor.integer(TAG_TIMESTAMP))
    stream = cursor.text(TAG_STREAM)
    partition = cursor.integer(TAG_PARTITION)
    if partition > PARTITION_MAX:
        raise CorruptionError("partition number is out of bounds", position=position)
    subject = cursor.text(TAG_SUBJECT)
    reply_subject = cursor.text(TAG_REPLY_SUBJECT)
    headers = tuple(cursor.headers())
    _check_headers(headers, subject, reply_subject, position)
    return Frame(
        Offset(offset),
        key,
        value,
        timestamp,
        stream,
        partition,
        subject,
        reply_subject,
        headers,
    )


class _Cursor:
    """Takes the fields of one message in order; a field that is not next has its default."""

    __slots__ = ("_buffer", "_end", "_position")

    def __init__(self, buffer: bytes | memoryview, position: int, end: int) -> None:
        self._buffer = buffer
        self._position = position
        self._end = end

    def integer(self, tag: int) -> int:
        """A varint field, 0 when absent."""
        if not self._is_next(tag):
            return 0
        value, self._position = decode_varint(self._buffer, self._position + 1, self._end)
        if value == 0:
            raise CorruptionError("default value is stored", position=self._position)
        return value

    def data(self, tag: int) -> bytes:
        """A field of type `bytes`, empty when absent."""
        if not self._is_next(tag):
            return b""
        value, self._position = _take_bytes(self._buffer, self._position + 1, self._end)
        if not value:
            raise CorruptionError("default value is stored", position=self._position)
        return value

    def text(self, tag: int) -> str:
        """A field of type `string`, empty when absent."""
        return _decode_text(self.data(tag), self._position)

    def headers(self) -> Iterator[tuple[str, bytes]]:
        """All entries of the header map, which must be the rest of the message."""
        while self._position < self._end:
            if not self._is_next(TAG_HEADER):
                raise CorruptionError("field is out of order", position=self._position)
            entry, self._position = _take_bytes(self._buffer, self._position + 1, self._end)
            yield _decode_entry(entry, self._position)

    def _is_next(self, tag: int) -> bool:
        return self._position < self._end and self._buffer[self._position] == tag


def _decode_entry(entry: bytes, position: int) -> tuple[str, bytes]:
    """Key and value of one entry of the header map."""
    end = len(entry)
    if not end or entry[0] != TAG_ENTRY_KEY:
        raise CorruptionError("header has no name", position=position)
    name, at = _take_bytes(entry, 1, end)
    if at == end or entry[at] != TAG_ENTRY_VALUE:
        raise CorruptionError("header has no value", position=position)
    value, at = _take_bytes(entry, at + 1, end)
    if at != end:
        raise CorruptionError("header has more than name and value", position=position)
    return _decode_text(name, position), value


def _check_headers(
    headers: tuple[tuple[str, bytes], ...], subject: str, reply_subject: str, position: int
) -> None:
    """Check order and the two headers that repeat the subjects."""
    names = [name for name, _ in headers]
    if names[-2:] != [HEADER_SUBJECT, HEADER_REPLY]:
        raise CorruptionError("headers do not end with subject and reply", position=position)
    checked = names[:-2]
    if sorted(set(checked)) != checked or HEADER_SUBJECT in checked or HEADER_REPLY in checked:
        raise CorruptionError("headers are not sorted", position=position)
    stored_subject, stored_reply = headers[-2][1], headers[-1][1]
    if stored_subject.decode(errors="replace") != subject:
        raise CorruptionError("header subject differs from the subject", position=position)
    if stored_reply.decode(errors="replace") != reply_subject:
        raise CorruptionError("header reply differs from the reply subject", position=position)


def _skip_offset(buffer: bytes | memoryview, position: int, end: int) -> int:
    """Position after the offset field, if there is one."""
    if position < end and buffer[position] == TAG_OFFSET:
        return decode_varint(buffer, position + 1, end)[1]
    return position


def _take_bytes(buffer: bytes | memoryview, position: int, end: int) -> tuple[bytes, int]:
    """Length-prefixed bytes at `position`, and the position after them."""
    length, start = decode_varint(buffer, position, end)
    if length > end - start:
        raise CorruptionError("field ends outside its message", position=position)
    return bytes(buffer[start : start + length]), start + length


def _decode_text(data: bytes, position: int) -> str:
    """Text of a `string` field."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptionError("text is not UTF-8", position=position) from error
