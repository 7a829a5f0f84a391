"""Encrypted batches: what follows the header, and what can be read of it without a key (ADR 0023).

Layout after the header of `batch.py`, all integers big-endian::

     88 16 salt of the writer      104 12 nonce: number of the batch among those of the writer
    116  8 first offset           124  8 last offset, inclusive      132  8 first timestamp
    140  4 record count           144  4 bytes of the table          148  4 bytes of the cipher text
    152  .. table
     ..  .. frames under AES-256-GCM, and the tag of 16 bytes

The associated data are the partition id and the leader epoch of the header, then everything from
byte 88 to the end of the table. Offsets and timestamps here are those of the records that were
encrypted. The header of a batch that was cut has a smaller range; its cipher text stays whole,
because a replica cuts without a key, and readers drop the records outside of the range.

The table has two numbers for each record: how far its offset is above the one before (the first is
relative to the first offset), and the difference of the timestamps in zigzag form, both as varints.
It is empty if all offsets follow one another and all timestamps are equal. So truncation, look-ups
by time and recovery need no key.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.batch import (
    ATTRIBUTE_ENCRYPTED,
    HEADER_SIZE,
    LENGTH_MIN,
    BatchHeader,
)
from liftbridge_broker.logformat.frames import frame_timestamp, iter_frames
from liftbridge_broker.logformat.varint import (
    UINT64_MASK,
    decode_varint,
    encode_varint,
    to_int64,
)
from liftbridge_broker.model.ids import Offset

SALT_SIZE: Final = 16
NONCE_SIZE: Final = 12
TAG_SIZE: Final = 16

CIPHER_HEAD: Final = Struct(">16s12sqqqIII")
TABLE_START: Final = HEADER_SIZE + CIPHER_HEAD.size

assert CIPHER_HEAD.size == 64

RecordTimes = Sequence[tuple[int, int]]
"""Offset and timestamp of each record, in nanoseconds, by rising offset."""


class CipherHead(NamedTuple):
    """Fields between the header of a batch and its table; layout in the module's docstring."""

    salt: bytes
    nonce: bytes
    base_offset: int
    last_offset: int
    first_timestamp: int
    record_count: int
    table_bytes: int
    cipher_bytes: int

    @property
    def cipher_start(self) -> int:
        """Position of the cipher text in the batch."""
        return TABLE_START + self.table_bytes


def read_cipher_head(batch: bytes, header: BatchHeader) -> CipherHead:
    """Read the fields after the header of an encrypted batch, and check them against it.

    Raises:
        CorruptionError: The batch is not encrypted, or its fields contradict each other.
    """
    if not header.attributes & ATTRIBUTE_ENCRYPTED:
        raise CorruptionError("batch of an encrypted stream is not encrypted")
    if header.size < TABLE_START + TAG_SIZE or len(batch) < TABLE_START:
        raise CorruptionError("encrypted batch is cut off")
    head = CipherHead._make(CIPHER_HEAD.unpack_from(batch, HEADER_SIZE))
    size = TABLE_START - HEADER_SIZE + head.table_bytes + head.cipher_bytes
    is_inside = head.base_offset <= header.base_offset <= header.last_offset <= head.last_offset
    span = header.last_offset - header.base_offset + 1
    whole = head.last_offset - head.base_offset + 1
    if (
        not is_inside
        or header.length != LENGTH_MIN + size
        or head.cipher_bytes < TAG_SIZE
        or not 0 < header.count <= head.record_count <= whole
        or (not head.table_bytes and (head.record_count != whole or header.count != span))
    ):
        raise CorruptionError("fields of the encrypted batch contradict each other")
    return head


def lacks_cipher_text(data: bytes) -> bool:
    """Return whether the start of an encrypted batch ends before its cipher text does.

    The length in the header is not covered by the checksum; that in the cipher head is.
    """
    if len(data) < TABLE_START:
        return True
    head = CipherHead._make(CIPHER_HEAD.unpack_from(data, HEADER_SIZE))
    return len(data) < head.cipher_start + head.cipher_bytes


def encode_table(records: RecordTimes, base_offset: int, last_offset: int) -> bytes:
    """Encode the table of the given records of a batch."""
    first = records[0][1]
    is_dense = len(records) == last_offset - base_offset + 1
    if is_dense and all(timestamp == first for _, timestamp in records):
        return b""
    parts = []
    offset, timestamp = base_offset, first
    for at, when in records:
        step = to_int64((when - timestamp) & UINT64_MASK)
        parts.append(encode_varint(at - offset))
        parts.append(encode_varint(step << 1 if step >= 0 else (-step << 1) - 1))
        offset, timestamp = at, when
    return b"".join(parts)


def encrypted_times(batch: bytes, header: BatchHeader, head: CipherHead) -> RecordTimes:
    """Return the records in the range of the header, without a key.

    Raises:
        CorruptionError: The table is not one of this batch.
    """
    first, end = header.base_offset, header.end_offset
    if not head.table_bytes:
        return [(offset, head.first_timestamp) for offset in range(first, end)]
    at, limit = TABLE_START, head.cipher_start
    offset, timestamp = head.base_offset, head.first_timestamp
    found: list[tuple[int, int]] = []
    for number in range(head.record_count):
        step, at = decode_varint(batch, at, limit)
        change, at = decode_varint(batch, at, limit)
        offset += step
        difference = -((change + 1) >> 1) if change & 1 else change >> 1
        timestamp = to_int64((timestamp + difference) & UINT64_MASK)
        if (number and not step) or offset > head.last_offset:
            raise CorruptionError("offsets in the table of the batch are out of order")
        if first <= offset < end:
            found.append((offset, timestamp))
    if at != limit or len(found) != header.count:
        raise CorruptionError("table of the batch does not match its records")
    return found


def times_of(batch: bytes, header: BatchHeader) -> RecordTimes:
    """Return offset and timestamp of each record of a verified batch, encrypted or not.

    Raises:
        CorruptionError: The frames or the table of the batch are not whole.
    """
    if header.attributes & ATTRIBUTE_ENCRYPTED:
        return encrypted_times(batch, header, read_cipher_head(batch, header))
    return frame_times(batch, HEADER_SIZE, header.size)


def frame_times(buffer: bytes, start: int, end: int) -> list[tuple[Offset, int]]:
    """Return offset and timestamp of each frame of `buffer[start:end]`; errors as `iter_frames`."""
    return [
        (offset, frame_timestamp(buffer, position))
        for position, _, offset in iter_frames(buffer, start, end)
    ]
