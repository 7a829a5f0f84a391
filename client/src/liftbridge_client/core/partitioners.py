"""Partitioners: they choose the partition of a message, as the Go client does."""

from collections.abc import Callable
from itertools import count
from numbers import Integral
from zlib import crc32

from liftbridge_client.core.arguments import shown
from liftbridge_client.errors import UsageError

Partitioner = Callable[[bytes, int], int]
"""Takes the key and the number of partitions, and returns the partition."""


def by_key(key: bytes, partition_count: int) -> int:
    """Choose by CRC-32 (IEEE) of the key modulo the number of partitions; 0 without a key."""
    return crc32(key) % partition_count if key else 0


def round_robin() -> Partitioner:
    """Create a partitioner that uses the partitions in turn, regardless of the key."""
    numbers = count()
    return lambda _key, partition_count: next(numbers) % partition_count


def choose(
    partitioner: Partitioner, key: bytes, partition: int | None, partition_count: int
) -> int:
    """Return the requested partition, or choose one by the partitioner.

    Raises:
        UsageError: The partition is not an integer or does not exist.
    """
    chosen = partitioner(key, partition_count) if partition is None else partition
    if type(chosen) is not int and not isinstance(chosen, Integral):
        what = "the partitioner returned" if partition is None else "partition"
        raise UsageError(f"{what} {shown(chosen)}: must be a whole number; use int(...)")
    if not 0 <= chosen < partition_count:
        raise UsageError(
            f"partition {shown(chosen)}: the stream has partitions 0 to {partition_count - 1}"
        )
    return chosen
