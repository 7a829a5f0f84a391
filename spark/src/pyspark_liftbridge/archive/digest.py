"""A digest of records that does not depend on their division into batches and files.

Each record is hashed separately; a digest is the count of records and the xor and the sum of their
hashes, so digests of pieces add up to the digest of the whole. The hash covers the fields that
replicas must have in common: offset, time, key, value, subjects and headers, but not the leader
epoch. It detects damage and differences, but not deliberate forgery.

Bytes are hashed as a polynomial: byte number i counts T[byte] * R^i modulo 2^64, with a table T of
random numbers and an odd R. All values of a column are summed up in one pass, by prefix sums at
their ends, and divided by R to the power of their start: no step for each record.
"""

import re
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Hashes = npt.NDArray[np.uint64]

_MASK: Final = 2**64 - 1
_BLOCK: Final = 1 << 16
"""Number of bytes hashed at a time, so that their arrays fit in the processor's cache."""

_NULL: Final = 0x9E3779B97F4A7C15


class Digest(NamedTuple):
    """Digest of some records.

    Attributes:
        records: Number of records.
        xor: Xor of their hashes.
        total: Sum of their hashes, modulo 2^64.
    """

    records: int = 0
    xor: int = 0
    total: int = 0

    def joined(self, other: "Digest") -> "Digest":
        """Return the digest of both sets of records, which must have no record in common."""
        return Digest(
            self.records + other.records, self.xor ^ other.xor, (self.total + other.total) & _MASK
        )

    def without(self, part: "Digest") -> "Digest":
        """Return the digest of the records without those of `part`, which must be among them."""
        return Digest(
            self.records - part.records, self.xor ^ part.xor, (self.total - part.total) & _MASK
        )

    def text(self) -> str:
        """Format the digest as in files and the log."""
        return f"{self.records}:{self.xor:016x}:{self.total:016x}"

    @staticmethod
    def parse(text: str) -> "Digest | None":
        """Parse the result of `text`, `None` if it is not one."""
        match = re.fullmatch(r"([0-9]{1,19}):([0-9a-f]{16}):([0-9a-f]{16})", text)
        return (
            None if match is None else Digest(int(match[1]), int(match[2], 16), int(match[3], 16))
        )


def digest_of(records: pa.RecordBatch) -> Digest:
    """Compute the digest of records with the columns of an archive."""
    hashes = record_hashes(records)
    if not len(hashes):
        return Digest()
    return Digest(
        len(hashes), int(np.bitwise_xor.reduce(hashes)), int(np.add.reduce(hashes, dtype=np.uint64))
    )


def record_hashes(records: pa.RecordBatch) -> _Hashes:
    """Hash each record."""
    hashes = _mixed(_numbers(records.column("offset")))
    for part in (
        _numbers(records.column("timestamp_ns")),
        _bytes(records.column("key")),
        _bytes(records.column("value")),
        _bytes(records.column("subject")),
        _bytes(records.column("reply_subject")),
        _headers(records.column("headers")),
    ):
        # Not symmetric, so that swapping a key and a value changes the hash.
        hashes = _mixed(hashes * np.uint64(3) + part)
    return hashes


def key_hashes(records: pa.RecordBatch) -> _Hashes:
    """Hash each key; all records without a key have the same hash."""
    return _bytes(records.column("key"))


def _numbers(column: pa.Array) -> _Hashes:
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.int64).view(np.uint64)


def _headers(column: pa.Array) -> _Hashes:
    """Hash the headers of each record, independent of their order."""
    offsets = column.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    entries = column.values.slice(first, last - first)
    each = _mixed(_bytes(entries.field("key")) * np.uint64(5) + _bytes(entries.field("value")))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(each, dtype=np.uint64)))
    ends = offsets - first
    return _mixed(sums[ends[1:]] - sums[ends[:-1]] + np.diff(ends).astype(np.uint64))


def _bytes(column: pa.Array) -> _Hashes:
    """Hash each text or sequence of bytes; null differs from empty."""
    _, ends_buffer, data_buffer = column.buffers()
    count, at = len(column), column.offset
    if not count:
        return np.zeros(0, np.uint64)
    ends = np.frombuffer(ends_buffer, np.int32)[at : at + count + 1].astype(np.int64)
    first, last = int(ends[0]), int(ends[-1])
    data = np.frombuffer(data_buffer or b"", np.uint8)[first:last]
    ends -= first
    sums = _prefix_sums(data, ends)
    lengths = np.diff(ends).astype(np.uint64)
    hashes = _mixed((sums[1:] - sums[:-1]) * _powers_down(ends[:-1]) + lengths)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _prefix_sums(data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> _Hashes:
    """Compute the polynomial over all bytes before each place; places ascend."""
    sums = np.zeros(len(places), np.uint64)
    total, scale = 0, 1
    for start in range(0, len(data), _BLOCK):
        block = data[start : start + _BLOCK]
        terms = np.cumsum(_TABLE.take(block) * _UP[: len(block)], dtype=np.uint64)
        low, high = np.searchsorted(places, (start, start + len(block)), side="right")
        within = terms[places[low:high] - start - 1]
        sums[low:high] = within * np.uint64(scale) + np.uint64(total)
        total = (total + int(terms[-1]) * scale) & _MASK
        scale = scale * _BLOCK_UP & _MASK
    return sums


def _powers_down(places: npt.NDArray[np.int64]) -> _Hashes:
    """Compute R to the power of minus each place."""
    blocks, within = np.divmod(places, _BLOCK)
    count = int(blocks[-1]) + 1
    by_block = _powers(_BLOCK_DOWN, count)
    return by_block[blocks] * _DOWN[within]


def _powers(base: int, count: int) -> _Hashes:
    return np.concatenate(
        (
            np.ones(1, np.uint64),
            np.cumprod(np.full(max(0, count - 1), base, np.uint64), dtype=np.uint64),
        )
    )


def _mixed(values: _Hashes) -> _Hashes:
    """Spread every bit of each value over all bits (the finalizer of SplitMix64)."""
    mixed = values + np.uint64(_NULL)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


_BASE: Final = 0xD1342543DE82EF95
_INVERSE: Final = pow(_BASE, -1, 2**64)
_BLOCK_UP: Final = pow(_BASE, _BLOCK, 2**64)
_BLOCK_DOWN: Final = pow(_INVERSE, _BLOCK, 2**64)
_TABLE: Final = _mixed(_mixed(np.arange(256, dtype=np.uint64)))
_UP: Final = _powers(_BASE, _BLOCK)
_DOWN: Final = _powers(_INVERSE, _BLOCK)
