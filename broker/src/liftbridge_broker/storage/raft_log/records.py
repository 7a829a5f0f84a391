"""Format of a file of the Raft log, and its verification.

Layout, big-endian. File header of 24 bytes: magic `LBML`, version u16 = 2, reserved u16, number of
the file u64, chain u32 (CRC of the last record of the file before, 0 in the very first), CRC-32C
u32 of the 20 bytes before it. Then records, each with a header of 40 bytes:

```
 0  4 magic: `LBR` and a letter for the kind (`RecordKind`)
 4  4 length of the payload
 8  4 CRC-32C of the 8 bytes before it and of everything after it
12  4 chain: CRC of the record before, of the file header for the first
16  8 index
24  8 term
32  8 length of this file that was known to be synced when this was written
40    payload
```

Kinds: an entry carries its data; a hard state its term in the header, the commit index in place of
the index, and its vote; a cut records that the log now ends at its index and term, with the
configuration in force there; a base opens a file and records the same for the place where the file
continues; a reset is a base that does not continue the previous file, because a snapshot replaced
everything.

Every record can be verified on its own, and the chain proves that none is missing between two. The
synced length in a record distinguishes a torn tail from rot. If an intact record records that an
earlier, damaged place was synced, that place was whole once. It may have been acknowledged and is
never truncated (storage policy 1).
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.checksum import crc32c, crc32c_extend
from liftbridge_broker.model.metadata_log import EntryKind

_FILE: Final = Struct(">4sHHQI")
_CRC: Final = Struct(">I")
_FILE_MAGIC: Final = b"LBML"
_VERSION: Final = 2
FILE_HEADER_SIZE: Final = _FILE.size + _CRC.size

_RECORD: Final = Struct(">4sIIIQQQ")
_COVERED: Final = Struct(">IQQQ")
_HEAD_SIZE: Final = 8
_COVERED_FROM: Final = 12
_MAGIC: Final = b"LBR"
RECORD_HEADER_SIZE: Final = _RECORD.size


class RecordKind(Enum):
    """Kind of a record; the value is its magic."""

    COMMAND = _MAGIC + b"C"
    NOOP = _MAGIC + b"N"
    CONFIG = _MAGIC + b"G"
    HARD_STATE = _MAGIC + b"H"
    CUT = _MAGIC + b"T"
    BASE = _MAGIC + b"B"
    RESET = _MAGIC + b"R"


_BY_MAGIC: Final = {kind.value: kind for kind in RecordKind}

KIND_OF_ENTRY: Final = {
    EntryKind.COMMAND: RecordKind.COMMAND,
    EntryKind.NOOP: RecordKind.NOOP,
    EntryKind.CONFIG: RecordKind.CONFIG,
}
ENTRY_OF_KIND: Final = {record: entry for entry, record in KIND_OF_ENTRY.items()}


class Record(NamedTuple):
    """A verified record.

    Attributes:
        kind: Its kind.
        entry_index: The index field of the layout.
        term: See the layout.
        synced_bytes: Length of the file that was known to be synced when it was written.
        chain: CRC of the record before.
        crc: Its own CRC, the chain of the next one.
        payload: Its payload.
        position: Start in its file.
        end: Position after it.
    """

    kind: RecordKind
    entry_index: int
    term: int
    synced_bytes: int
    chain: int
    crc: int
    payload: bytes
    position: int
    end: int


class FileScan(NamedTuple):
    """Content of a file from its start up to the first doubt.

    Attributes:
        number: Number of the file.
        chain_before: CRC of the last record of the file before.
        records: Intact records, chained.
        chain: CRC of the last intact record.
        end: Position after the last intact record; the size of the file without doubt.
        synced_bytes: Greatest synced length in any intact record, even after the doubt.
    """

    number: int
    chain_before: int
    records: Sequence[Record]
    chain: int
    end: int
    synced_bytes: int


def encode_file_header(number: int, chain: int) -> tuple[bytes, int]:
    """Encode the header of a new file; return its bytes and its CRC for the chain."""
    body = _FILE.pack(_FILE_MAGIC, _VERSION, 0, number, chain)
    crc = crc32c(body)
    return body + _CRC.pack(crc), crc


def encode_record(
    kind: RecordKind, index: int, term: int, payload: bytes, *, synced_bytes: int, chain: int
) -> tuple[bytes, int]:
    """Encode a record; return its bytes and its CRC for the chain."""
    head = kind.value + _CRC.pack(len(payload))
    covered = _COVERED.pack(chain, index, term, synced_bytes)
    crc = crc32c(head + covered + payload)
    return b"".join((head, _CRC.pack(crc), covered, payload)), crc


def record_at(data: bytes, position: int) -> Record | None:
    """Return the record at a position, `None` if its checksum does not match."""
    if position + RECORD_HEADER_SIZE > len(data):
        return None
    magic, length, crc, chain, index, term, synced = _RECORD.unpack_from(data, position)
    end = position + RECORD_HEADER_SIZE + length
    kind = _BY_MAGIC.get(magic)
    if kind is None or end > len(data):
        return None
    head = crc32c(data[position : position + _HEAD_SIZE])
    if crc != crc32c_extend(head, data[position + _COVERED_FROM : end]):
        return None
    payload = data[position + RECORD_HEADER_SIZE : end]
    return Record(kind, index, term, synced, chain, crc, payload, position, end)


def scan(data: bytes, path: str) -> FileScan:
    """Read a file up to its end or the first doubt.

    Raises:
        CorruptionError: The header is damaged. It was durable before the file got its name, so no
            crash explains that.
    """
    body = data[: _FILE.size]
    if len(data) < FILE_HEADER_SIZE or _CRC.unpack_from(data, _FILE.size) != (crc32c(body),):
        raise CorruptionError("metadata log: damaged header", path=path, position=0)
    magic, version, _, number, chain_before = _FILE.unpack(body)
    if magic != _FILE_MAGIC or version != _VERSION:
        raise CorruptionError("metadata log: header of another version", path=path, position=0)
    records: list[Record] = []
    chain = crc32c(body)
    position = FILE_HEADER_SIZE
    synced = 0
    while position < len(data):
        record = record_at(data, position)
        if record is None or record.chain != chain:
            break
        records.append(record)
        position, chain = record.end, record.crc
        synced = max(synced, record.synced_bytes)
    for later in _records_behind(data, position):
        # A record cannot record bytes after it as synced; such a record was never written.
        if later.synced_bytes <= later.position:
            synced = max(synced, later.synced_bytes)
    return FileScan(number, chain_before, records, chain, position, synced)


def _records_behind(data: bytes, position: int) -> Iterator[Record]:
    """Yield records with intact checksums anywhere from a position on."""
    start = data.find(_MAGIC, position)
    while start >= 0:
        record = record_at(data, start)
        if record is not None:
            yield record
        start = data.find(_MAGIC, start + 1)
