"""Positions of consumers, archived and restored together with the records."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from liftbridge_client import SyncClient
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.stores.store import Store
from pyspark_liftbridge.plan.options import OptionError

ENTRIES_MAX: Final = 1_000
"""Number of newest entries of a log that are searched for positions."""

Positions = Mapping[str, Mapping[int, int]]
"""Offset of the last message processed, by cursor and partition."""


class End(NamedTuple):
    """End of the replay of a partition.

    Attributes:
        partition: Number of the partition.
        end: First offset not replayed.
    """

    partition: int
    end: int


def take(
    client: SyncClient, stream: str, names: Iterable[str], partitions: Collection[int]
) -> dict[str, dict[int, int]]:
    """Fetch positions of cursors of a stream.

    A cursor that was never set in a partition is left out.

    Raises:
        LiftbridgeError: The brokers keep no cursors, or do not answer.
    """
    positions: dict[str, dict[int, int]] = {}
    of = client.streams.get(stream)
    for name in names:
        known = {partition: of.fetch_cursor(name, partition=partition) for partition in partitions}
        positions[name] = {one: at for one, at in known.items() if at is not None}
    return positions


def newest(store: Store) -> Positions:
    """Return the positions that were recorded last in the log of a table.

    Raises:
        OptionError: The newest `ENTRIES_MAX` entries have none.
        ArchiveError: The log cannot be read.
    """
    version = log.load(store).version
    for at in range(version, max(-1, version - ENTRIES_MAX), -1):
        for one in log.read_entry(store, at) or ():
            if isinstance(one, delta.CommitInfo) and one.run is not None and one.run.cursors:
                return one.run.cursors
    raise OptionError(
        "the archive has no cursor positions: it was not made with --save-cursor, or not recently"
    )


def put_back(client: SyncClient, stream: str, positions: Positions, ends: Iterable[End]) -> int:
    """Set cursors of a stream; return the number of positions set.

    A position beyond the end of the replay, or beyond the end of the stream, is set to the last
    offset before that end; otherwise a consumer would miss the next messages. The stream may end
    first, if the last replayed offsets have no record, or no selected record.

    Raises:
        LiftbridgeError: The brokers keep no cursors, or do not answer.
    """
    of, count = client.streams.get(stream), 0
    for partition, replayed in ends:
        (bounds,) = of.bounds(partition)
        end = min(replayed, bounds.high_watermark)
        for name, known in positions.items():
            if partition in known and end > 0:
                of.set_cursor(name, min(known[partition], end - 1), partition=partition)
                count += 1
    return count
