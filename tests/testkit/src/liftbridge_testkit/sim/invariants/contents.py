"""Check that partition, leader epoch and offset identify one record on all disks (I14).

It checks the bytes that processes write to log files. Two contents mean that an epoch had two
leaders, two brokers or two processes of one broker, or that a copy changed.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from struct import Struct
from typing import Final

from liftbridge_broker.logformat.frames import iter_frames
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.disk import LOG_FILES
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher

_HEADER: Final = Struct(">HBBIIHHQQqqIIqqQq")
"""Header of a batch, defined independently (docs/internals/on-disk-format.md)."""

_MAGIC: Final = 0x4C42
_ENCRYPTED: Final = 2
"""Bit of the attributes: records and their times are encrypted."""
_COVERED_START: Final = 12

_Place = tuple[int, int, int]


class Contents(Watcher):
    """Compares each written record with the first one at its offset and epoch."""

    def __init__(self) -> None:
        self._batches: set[bytes] = set()
        self._records: dict[_Place, tuple[int, str]] = {}

    def on_append(self, machine: Machine, path: str, data: bytes) -> None:
        """Check batches that no process wrote before."""
        if not fnmatchcase(path, LOG_FILES):
            return
        for batch in batches_of(data):
            if batch not in self._batches:
                self._batches.add(batch)
                for place, content in _records(batch):
                    self._check(machine, place, content)

    def _check(self, machine: Machine, place: _Place, content: int) -> None:
        before, writer = self._records.setdefault(place, (content, machine.name))
        if before != content:
            partition, epoch, offset = place
            raise BrokenInvariantError(
                "I14",
                f"{machine.name} writes another record at offset {offset} of partition "
                f"{partition}, leader epoch {epoch}, than {writer} did",
            )


def batches_of(data: bytes) -> Iterator[bytes]:
    """Yield whole batches from the begin of written bytes; other data begin otherwise."""
    at = 0
    while at + _HEADER.size <= len(data):
        magic, _, _, length, *_ = _HEADER.unpack_from(data, at)
        end = at + _COVERED_START + length
        if magic != _MAGIC or end > len(data):
            return
        yield data[at:end]
        at = end


def range_of(batch: bytes) -> tuple[int, int]:
    """Return the offsets that a batch covers, the end exclusive, even if records were removed."""
    base, last = _HEADER.unpack_from(batch)[-8:-6]
    return base, last + 1


def frames_of(batch: bytes) -> bytes:
    """Return the records of a batch as they are sent."""
    return batch[_HEADER.size :]


def _records(batch: bytes) -> Iterator[tuple[_Place, int]]:
    """Yield the position of each record of a batch, with a hash of its bytes and its publisher.

    An encrypted batch, which is copied as a whole, counts as one record.
    """
    (
        *_,
        attributes,
        _,
        partition,
        epoch,
        base,
        _last,
        _count,
        publisher_epoch,
        _first,
        _largest,
        publisher,
        sequence,
    ) = _HEADER.unpack_from(batch)
    if attributes & _ENCRYPTED:
        yield (partition, epoch, base), hash(batch[_HEADER.size :])
        return
    for start, end, offset in iter_frames(batch, _HEADER.size, len(batch)):
        stamp = (publisher, publisher_epoch, sequence + offset - base) if publisher else ()
        yield (partition, epoch, offset), hash((batch[start:end], stamp))
