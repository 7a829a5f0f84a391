"""Format of a metadata log file of the previous version, and its verification.

Layout, big-endian. File header of 24 bytes: magic `LBML`, version u16 = 1, reserved u16, index of
the first entry u64, chain u32 (CRC of the last entry of the file before, 0 in the very first),
CRC-32C u32 of the 20 bytes before it. Then entries, each with a header of 40 bytes:

```
 0  4 magic `LBME` of an entry, `LBMK` of a mark
 4  4 length of the command, 0 for a mark
 8  4 CRC-32C of everything from byte 12 to the end of the command
12  4 chain: CRC of the entry before, of the file header for the first
16  8 index; of a mark that of the entry before
24  8 term
32  8 index of the last entry known to be synced when this was written
40    command
```

Every entry can be verified on its own, and the chain proves that none is missing between two. The
synced index in an entry distinguishes a torn tail from rot. If a good entry records that an
earlier, damaged entry was synced, that entry was whole once. It may have been acknowledged and is
never truncated (storage policy 1). A mark records the same for the entries before it if no other
entry follows soon.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.model.ids import MetadataIndex

_FILE: Final = Struct(">4sHHQI")
_CRC: Final = Struct(">I")
_FILE_MAGIC: Final = b"LBML"
_VERSION: Final = 1
FILE_HEADER_SIZE: Final = _FILE.size + _CRC.size

_ENTRY: Final = Struct(">4sIIIQQQ")
_ENTRY_MAGIC: Final = b"LBME"
_MARK_MAGIC: Final = b"LBMK"
_COVERED_FROM: Final = 12
ENTRY_HEADER_SIZE: Final = _ENTRY.size


class Entry(NamedTuple):
    """A verified entry or mark.

    Attributes:
        entry_index: Its index; of a mark that of the entry before it.
        term: Term of the leader that wrote it.
        synced_index: Index up to which everything was synced when it was written.
        chain: CRC of the entry before.
        crc: Its own CRC, the chain of the next one.
        command: Bytes of the command; empty for a mark.
        is_mark: Whether it has only `synced_index`.
        end: Position after it.
    """

    entry_index: MetadataIndex
    term: int
    synced_index: MetadataIndex
    chain: int
    crc: int
    command: bytes
    is_mark: bool
    end: int


class Scan(NamedTuple):
    """Content of a file from its start up to the first doubt.

    Attributes:
        entries: Entries without the marks, contiguous.
        chain: CRC of the last entry or mark.
        synced_index: Greatest index recorded as synced in the file, even after the doubt.
        end: Position after the last good entry; the size of the file when there is no doubt.
    """

    entries: tuple[Entry, ...]
    chain: int
    synced_index: MetadataIndex
    end: int


def read_file_header(data: bytes, path: str) -> tuple[MetadataIndex, int]:
    """Read the first index and the chain of a file.

    Raises:
        CorruptionError: The header is damaged. It was durable before the file got its name, so no
            crash explains that.
    """
    body = data[: _FILE.size]
    if len(data) < FILE_HEADER_SIZE or _CRC.unpack_from(data, _FILE.size) != (crc32c(body),):
        raise CorruptionError("metadata log: damaged header", path=path, position=0)
    magic, version, _, first_index, chain = _FILE.unpack(body)
    if magic != _FILE_MAGIC or version != _VERSION:
        raise CorruptionError("metadata log: header of another version", path=path, position=0)
    return MetadataIndex(first_index), chain


def entry_at(data: bytes, position: int) -> Entry | None:
    """Return the entry or mark at a position, `None` if its checksum does not match."""
    if position + ENTRY_HEADER_SIZE > len(data):
        return None
    magic, length, crc, chain, index, term, synced = _ENTRY.unpack_from(data, position)
    end = position + ENTRY_HEADER_SIZE + length
    is_mark = magic == _MARK_MAGIC
    if end > len(data) or not (magic == _ENTRY_MAGIC or (is_mark and length == 0)):
        return None
    if crc != crc32c(data[position + _COVERED_FROM : end]):
        return None
    return Entry(
        entry_index=MetadataIndex(index),
        term=term,
        synced_index=MetadataIndex(synced),
        chain=chain,
        crc=crc,
        command=data[position + ENTRY_HEADER_SIZE : end],
        is_mark=is_mark,
        end=end,
    )


def scan(data: bytes, first_index: MetadataIndex) -> Scan:
    """Read a file with a good header up to its end or the first doubt.

    Args:
        data: The whole file.
        first_index: Index of its first entry, from the header.
    """
    entries: list[Entry] = []
    expected = first_index
    (chain,) = _CRC.unpack_from(data, _FILE.size)
    synced = MetadataIndex(first_index - 1)
    position = FILE_HEADER_SIZE
    while position < len(data):
        entry = entry_at(data, position)
        if entry is None or entry.chain != chain:
            break
        if entry.entry_index != (expected - 1 if entry.is_mark else expected):
            break
        if not entry.is_mark:
            entries.append(entry)
            expected = MetadataIndex(expected + 1)
        position, chain = entry.end, entry.crc
        synced = max(synced, entry.synced_index)
    for later in _entries_behind(data, position):
        synced = max(synced, later.synced_index)
    return Scan(tuple(entries), chain, synced, position)


def _entries_behind(data: bytes, position: int) -> Iterator[Entry]:
    """Yield entries and marks with intact checksums anywhere from a position on."""
    for magic in (_ENTRY_MAGIC, _MARK_MAGIC):
        start = data.find(magic, position)
        while start >= 0:
            entry = entry_at(data, start)
            if entry is not None:
                yield entry
            start = data.find(magic, start + 1)
