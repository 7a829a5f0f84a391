"""Encodes records as frames: the hot encoder of a partition's leader.

A frame is what a gRPC subscriber receives for one message::

    0  1 always 0 (gRPC: not compressed)
    1  4 length of the message, big-endian
    5  .. protobuf `proto.Message`, canonical

Canonical means: only fields 1 to 9, ascending, each once, defaults of proto3 omitted, varints in
their shortest form. Headers (field 9, a map) are the publisher's, sorted by key, without `subject`
and `reply`; then `subject` with the NATS subject and `reply` with the NATS reply subject, both
always present, as the original stores them. A map entry always carries key and value.

`frames.py` reads frames; it refuses what is not canonical.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import add
from struct import Struct
from typing import Final

from liftbridge_broker.logformat.varint import encode_int64, encode_varint

FRAME_PREFIX: Final = Struct(">BI")
FRAME_PREFIX_SIZE: Final = FRAME_PREFIX.size

TAG_OFFSET: Final = 0x08
TAG_KEY: Final = 0x12
TAG_VALUE: Final = 0x1A
TAG_TIMESTAMP: Final = 0x20
TAG_STREAM: Final = 0x2A
TAG_PARTITION: Final = 0x30
TAG_SUBJECT: Final = 0x3A
TAG_REPLY_SUBJECT: Final = 0x42
TAG_HEADER: Final = 0x4A
TAG_ENTRY_KEY: Final = 0x0A
TAG_ENTRY_VALUE: Final = 0x12

HEADER_SUBJECT: Final = "subject"
HEADER_REPLY: Final = "reply"
HEADERS_RESERVED: Final = frozenset((HEADER_SUBJECT, HEADER_REPLY))

_CACHE_ENTRIES_MAX: Final = 4096
_CACHED_SUBJECTS_BYTES_MAX: Final = 256
_PAGE_BITS: Final = 14
_PAGE_SIZE: Final = 1 << _PAGE_BITS

# Varints of all numbers below 2**14, and the two low bytes of varints of all larger ones: only
# these differ between the offsets of a batch.
_SHORT: Final = [encode_varint(number) for number in range(_PAGE_SIZE)]
_LOW: Final = [bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(_PAGE_SIZE)]


class _Heads(dict[int, bytes]):
    """Frame prefix and tag of the offset by the number of body bytes that vary by record."""

    def __init__(self, constant_size: int, tag: bytes) -> None:
        self._constant_size = constant_size
        self._tag = tag

    def __missing__(self, varying_size: int) -> bytes:
        if len(self) >= _CACHE_ENTRIES_MAX:
            self.clear()
        made = FRAME_PREFIX.pack(0, self._constant_size + varying_size) + self._tag
        self[varying_size] = made
        return made


class _Lengths(dict[int, bytes]):
    """Bytes before a key or value, by its length; empty ones are omitted."""

    def __init__(self, before: bytes, tag: int) -> None:
        self._before = before
        self._tag = tag

    def __missing__(self, length: int) -> bytes:
        if len(self) >= _CACHE_ENTRIES_MAX:
            self.clear()
        made = self._before
        if length:
            made += bytes((self._tag,)) + encode_varint(length)
        self[length] = made
        return made


class _Sizes(dict[int, int]):
    """Size of a key or value in its frame with tag and length, by its length."""

    def __missing__(self, length: int) -> int:
        if len(self) >= _CACHE_ENTRIES_MAX:
            self.clear()
        made = length + 1 + len(encode_varint(length)) if length else 0
        self[length] = made
        return made


class _Constants:
    """Fields of a frame that depend on the subject and the reply subject only.

    Attributes:
        names: Fields 5 to 8.
        headers: The header entries `subject` and `reply`.
        all: Both.
    """

    __slots__ = ("all", "headers", "names")

    def __init__(self, names: bytes, headers: bytes) -> None:
        self.names = names
        self.headers = headers
        self.all = names + headers


class RecordEncoder:
    """Encodes the records of one partition; owned by the partition's leader.

    Everything that records share is built once: fields after the timestamp by (subject, reply),
    the rest by lengths. The remaining work runs in C over whole batches, five pieces for a
    record: 0.15 us for a 256-byte value without key (tests/bench/bench_log.py).
    """

    __slots__ = (
        "_clock_bytes",
        "_clock_high",
        "_constants",
        "_heads",
        "_key_sizes",
        "_keys",
        "_keys_before",
        "_stream",
        "_value_sizes",
        "_values",
        "_values_before",
        "_values_only",
    )

    def __init__(self, stream: str, partition: int) -> None:
        assert partition >= 0
        self._stream = _text_field(TAG_STREAM, stream.encode())
        if partition:
            self._stream += bytes((TAG_PARTITION,)) + encode_varint(partition)
        self._constants: dict[tuple[str | bytes, str | bytes], _Constants] = {}
        self._clock_high = 0
        self._clock_bytes = b""
        self._heads: dict[tuple[int, bytes], _Heads] = {}
        self._key_sizes = _Sizes()
        self._value_sizes = _Sizes()
        self._values_only = _Lengths(b"", TAG_VALUE)
        self._keys_before = b""
        self._keys = _Lengths(b"", TAG_KEY)
        self._values_before = b""
        self._values = _Lengths(b"", TAG_VALUE)

    def encode(
        self,
        *,
        base_offset: int,
        timestamp: int,
        subject: str | bytes,
        reply: str | bytes,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
    ) -> list[bytes]:
        """Encode records that arrived together.

        Args:
            base_offset: Offset of the first record; the following ones are consecutive.
            timestamp: Wall clock of the run, nanoseconds.
            subject: NATS subject.
            reply: NATS reply subject, empty for none.
            values: Values, one for each record.
            keys: Keys, an empty one for a record without key; `None` when none has one.
            headers: Publishers' headers; `None` when none has any.

        Returns:
            Pieces of frames, for one join by `seal`; runs of one batch are concatenated.
        """
        assert base_offset >= 0
        assert keys is None or len(keys) == len(values)
        assert headers is None or len(headers) == len(values)
        if headers is not None:
            return [
                self.encode_record(
                    offset=base_offset + number,
                    timestamp=timestamp,
                    subject=subject,
                    reply=reply,
                    value=value,
                    key=b"" if keys is None else keys[number],
                    headers=headers[number],
                )
                for number, value in enumerate(values)
            ]
        constants = self._constants.get((subject, reply)) or self._make_constants(subject, reply)
        tail = self._clock(timestamp) + constants.all
        count = len(values)
        if count == 1 and not keys:
            return self._encode_one(base_offset, tail, values[0])
        if not count:
            return []
        if count <= _page_end(base_offset) - base_offset:
            return self._encode_page(base_offset, tail, values, keys)
        pieces: list[bytes] = []
        for first, end in _pages(base_offset, count):
            some = slice(first - base_offset, end - base_offset)
            some_keys = None if keys is None else keys[some]
            pieces += self._encode_page(first, tail, values[some], some_keys)
        return pieces

    def encode_record(
        self,
        *,
        offset: int,
        timestamp: int,
        subject: str | bytes,
        reply: str | bytes,
        value: bytes,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
    ) -> bytes:
        """Frame of one record; the plain path, for records with their own headers.

        Args:
            offset: Offset of the record.
            timestamp: Wall clock, nanoseconds.
            subject: NATS subject.
            reply: NATS reply subject, empty for none.
            value: Value, may be empty.
            key: Key, empty for none.
            headers: Publisher's headers; `subject` and `reply` in it are dropped.
        """
        constants = self._constants.get((subject, reply)) or self._make_constants(subject, reply)
        parts = [b"\x08" + encode_varint(offset) if offset else b""]
        parts.append(_bytes_field(TAG_KEY, key))
        parts.append(_bytes_field(TAG_VALUE, value))
        if timestamp:
            parts.append(b"\x20" + encode_int64(timestamp))
        parts.append(constants.names)
        if headers:
            parts.extend(
                header_entry(name.encode(), headers[name])
                for name in sorted(headers)
                if name not in HEADERS_RESERVED
            )
        parts.append(constants.headers)
        body = b"".join(parts)
        return FRAME_PREFIX.pack(0, len(body)) + body

    def _clock(self, timestamp: int) -> bytes:
        """The timestamp field; its high bytes stay the same for a quarter of a second."""
        high = timestamp >> 2 * _PAGE_BITS
        if high <= 0:
            return b"\x20" + encode_int64(timestamp) if timestamp else b""
        if high != self._clock_high:
            self._clock_high = high
            self._clock_bytes = encode_int64(high)
        low = _LOW[timestamp & _PAGE_SIZE - 1] + _LOW[timestamp >> _PAGE_BITS & _PAGE_SIZE - 1]
        return b"\x20" + low + self._clock_bytes

    def _encode_one(self, offset: int, tail: bytes, value: bytes) -> list[bytes]:
        """Encode one record without key, for batches of one (tests/bench/bench_log.py)."""
        if offset >= _PAGE_SIZE:
            number = b"\x08" + _LOW[offset & _PAGE_SIZE - 1] + encode_varint(offset >> _PAGE_BITS)
        else:
            number = b"\x08" + _SHORT[offset] if offset else b""
        before = self._values_only[len(value)]
        length = len(number) + len(before) + len(value) + len(tail)
        return [FRAME_PREFIX.pack(0, length) + number + before, value, tail]

    def _make_constants(self, subject: str | bytes, reply: str | bytes) -> _Constants:
        """Build the fields that depend on the subjects, and cache them unless they are long."""
        if len(self._constants) >= _CACHE_ENTRIES_MAX:
            self._constants.clear()
        subject_bytes = _as_bytes(subject)
        reply_bytes = _as_bytes(reply)
        names = (
            self._stream
            + _text_field(TAG_SUBJECT, subject_bytes)
            + _text_field(TAG_REPLY_SUBJECT, reply_bytes)
        )
        entries = header_entry(b"subject", subject_bytes) + header_entry(b"reply", reply_bytes)
        made = _Constants(names, entries)
        if len(subject_bytes) + len(reply_bytes) <= _CACHED_SUBJECTS_BYTES_MAX:
            self._constants[subject, reply] = made
        return made

    def _encode_page(
        self, first: int, tail: bytes, values: Sequence[bytes], keys: Sequence[bytes] | None
    ) -> list[bytes]:
        """Encode records whose offsets differ only in the part from one table of varints.

        Measured by tests/bench/bench_log.py: no bytecode runs per record here.
        """
        high = b""
        start = first
        if first >= _PAGE_SIZE:
            high = encode_varint(first >> _PAGE_BITS)
            start = first & _PAGE_SIZE - 1
            lows = _LOW[start : start + len(values)]
        elif first:
            lows = _SHORT[start : start + len(values)]
        else:
            lows = [b""]
        tag = b"\x08" if first else b""
        constant_size = len(tag) + len(lows[0]) + len(high) + len(tail)
        heads = self._heads.get((constant_size, tag))
        if heads is None:
            if len(self._heads) >= _CACHE_ENTRIES_MAX:
                self._heads.clear()
            heads = self._heads[constant_size, tag] = _Heads(constant_size, tag)
        if keys is not None:
            return self._with_keys(heads, lows, high, tail, values, keys)
        if high != self._values_before:
            self._values_before = high
            self._values = _Lengths(high, TAG_VALUE)
        lengths = list(map(len, values))
        pieces = [tail] * (5 * len(values))
        pieces[0::5] = map(heads.__getitem__, map(self._value_sizes.__getitem__, lengths))
        pieces[1::5] = lows
        pieces[2::5] = map(self._values.__getitem__, lengths)
        pieces[3::5] = values
        return pieces

    def _with_keys(
        self,
        heads: _Heads,
        lows: list[bytes],
        high: bytes,
        tail: bytes,
        values: Sequence[bytes],
        keys: Sequence[bytes],
    ) -> list[bytes]:
        """Do as `_encode_page`, with seven pieces for a record."""
        if high != self._keys_before:
            self._keys_before = high
            self._keys = _Lengths(high, TAG_KEY)
        lengths = list(map(len, values))
        key_lengths = list(map(len, keys))
        sizes = map(
            add,
            map(self._key_sizes.__getitem__, key_lengths),
            map(self._value_sizes.__getitem__, lengths),
        )
        pieces = [tail] * (7 * len(values))
        pieces[0::7] = map(heads.__getitem__, sizes)
        pieces[1::7] = lows
        pieces[2::7] = map(self._keys.__getitem__, key_lengths)
        pieces[3::7] = keys
        pieces[4::7] = map(self._values_only.__getitem__, lengths)
        pieces[5::7] = values
        return pieces


def header_entry(name: bytes, value: bytes) -> bytes:
    """One entry of the header map, with its tag and length."""
    entry = b"\x0a" + encode_varint(len(name)) + name + b"\x12" + encode_varint(len(value)) + value
    return b"\x4a" + encode_varint(len(entry)) + entry


def _page_end(first: int) -> int:
    """End of the offsets whose varints `_encode_page` can take from one table with `first`."""
    if first >= _PAGE_SIZE:
        return (first | _PAGE_SIZE - 1) + 1
    if first >= 0x80:
        return _PAGE_SIZE
    return 0x80 if first else 1


def _pages(base_offset: int, count: int) -> Iterator[tuple[int, int]]:
    """Cut [base_offset, base_offset + count) where `_encode_page` needs it."""
    first = base_offset
    end = base_offset + count
    while first < end:
        page_end = min(end, _page_end(first))
        yield first, page_end
        first = page_end


def _as_bytes(text: str | bytes) -> bytes:
    """UTF-8 of a subject."""
    return text if isinstance(text, bytes) else text.encode(errors="replace")


def _bytes_field(tag: int, value: bytes) -> bytes:
    """A field of type `bytes`, empty when the value is empty."""
    return bytes((tag,)) + encode_varint(len(value)) + value if value else b""


def _text_field(tag: int, value: bytes) -> bytes:
    """A field of type `string`; bytes that are not UTF-8 become U+FFFD, else clients fail on it."""
    return _bytes_field(tag, value.decode(errors="replace").encode())
