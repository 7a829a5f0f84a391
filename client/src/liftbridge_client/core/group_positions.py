"""Positions of consumer groups: where they are stored, and where reading continues."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final
from zlib import crc32

from liftbridge_client.admin_model import PartitionName
from liftbridge_client.model import Start
from liftbridge_proto.ext.v1 import data_pb2

POSITIONS_A_CALL_MAX: Final = 1_000
"""Positions that a broker accepts in one call."""

CURSOR_PREFIX: Final = "__group:"
"""Beginning of the cursor ids that hold positions of groups, as in the original."""


def place_of(cursor_id: str, partition: PartitionName, count: int) -> int:
    """Return the partition of `__cursors`, of `count`, that stores a cursor."""
    return crc32(f"{cursor_id},{partition.stream},{partition.partition}".encode()) % count


def by_place(
    group: str, partitions: Iterable[PartitionName], count: int
) -> Iterator[tuple[int, Sequence[PartitionName]]]:
    """Divide partitions among calls: each for one partition of `__cursors`, and not too large."""
    places: dict[int, list[PartitionName]] = {}
    for partition in partitions:
        places.setdefault(place_of(CURSOR_PREFIX + group, partition, count), []).append(partition)
    for place, found in sorted(places.items()):
        for first in range(0, len(found), POSITIONS_A_CALL_MAX):
            yield place, found[first : first + POSITIONS_A_CALL_MAX]


def first_offset(position: int | None, start: Start, bounds: data_pb2.PartitionBounds) -> int:
    """Return the offset at which a group continues.

    Args:
        position: Offset of the last message processed; `None` if none is stored.
        start: Where to start without a position; not a cursor.
        bounds: Bounds of the log, with the offset of the time for a start by time.

    Returns:
        The offset after the position, or the first one that retention left. A position beyond the
        end belongs to another history: reading then continues where an unclean election cut the
        log, or at the beginning of a stream that was created again.
    """
    if position is not None:
        if position < bounds.log_end:
            return max(position + 1, bounds.log_start)
        starts: Mapping[int, int] = {one.leader_epoch: one.start_offset for one in bounds.epochs}
        cut = starts.get(bounds.unclean_epoch, bounds.log_start)
        return max(min(cut, bounds.log_end), bounds.log_start)
    wanted = {
        "new": bounds.high_watermark,
        "latest": bounds.high_watermark - 1,
        "offset": min(start.offset, bounds.log_end),
        "time": bounds.timestamp_offset,
    }
    return max(wanted.get(start.kind, 0), bounds.log_start)
