"""The cursor `archive/<root id>`: how far partitions are archived, for retention that waits for it.

It is the first offset not archived, so retention that removes nothing from there on keeps what is
not committed to the archive. It is set before and after each commit to what the log of the table
says, for the stream that the table is of: where another has its name by now, brokers refuse it. It
is never set to what the stream does not hold: an unclean election lost that.

A process sets each position once even where it is right. Brokers do not tell for which stream one
was set; kept for a former stream, or by a broker that noted none, it would hold retention back.

Brokers know no "set if it is more"; so a runner that was overtaken between its question and its
answer puts the right position in place afterwards. Where the cursor was behind meanwhile, retention
only waits.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from liftbridge_client import (
    FailedPreconditionError,
    LiftbridgeError,
    RetriableError,
    SyncClient,
    SyncStream,
    UnimplementedError,
)
from pyspark_liftbridge.archive import log, reading
from pyspark_liftbridge.archive.table import Table
from pyspark_liftbridge.plan.places import Known

_log: Final = logging.getLogger(__name__)

ROUNDS_MAX: Final = 5
"""How often positions are set again because another runner has committed meanwhile."""


@dataclass
class Shown:
    """What a process knows of the cursors that it has set, from one run to the next.

    Attributes:
        stream_id: Id of the stream that they are of.
        positions: By partition.
        has_warned: Whether it was logged that the brokers keep no cursors, or are too old for them.
    """

    stream_id: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    has_warned: bool = False


def name_of(root_id: str) -> str:
    """Name of the cursor of an archive."""
    return f"archive/{root_id}"


def show(
    client: SyncClient, name: str, table: Table, bounds: Mapping[int, Known], shown: Shown
) -> None:
    """Set the cursor of a stream to where its table ends; a failure is only logged.

    Args:
        client: Client for the requests.
        name: Of the cursor.
        table: Of the stream.
        bounds: What the log of each partition holds.
        shown: What is known; it is brought up to date.

    Raises:
        ArchiveError: The log of the table cannot be read.
    """
    metadata = table.snapshot.metadata
    assert metadata is not None, "the table is there"
    if shown.stream_id != metadata.stream_id:
        shown.stream_id, shown.positions = metadata.stream_id, {}
    stream = client.streams.get(metadata.stream)
    try:
        for _ in range(ROUNDS_MAX):
            ends = _ends(table, bounds)
            if ends == shown.positions:
                return
            for partition, end in ends.items():
                if shown.positions.get(partition) != end:
                    _set(stream, partition, name, end, table, bounds)
                    shown.positions[partition] = end
            table = _followed(table)
    except (RetriableError, FailedPreconditionError) as error:
        _log.warning("cursor %s is not up to date: %s", name, error)
    except LiftbridgeError as error:
        if not shown.has_warned:
            shown.has_warned = True
            why, remedy = "keep no cursors", "set cursors.stream.partitions there"
            if isinstance(error, UnimplementedError):
                why, remedy = "are too old for cursors of one stream", "upgrade them"
            _log.warning(
                "the brokers %s (%s): no cursor %s shows what is archived; %s",
                why,
                error,
                name,
                remedy,
            )


def _set(
    stream: SyncStream,
    partition: int,
    name: str,
    end: int,
    table: Table,
    bounds: Mapping[int, Known],
) -> None:
    """Set one position for the stream of the table, unless another runner is ahead.

    A cursor that is ahead of what is committed is of a former stream of the name. One that is right
    is set all the same: brokers do not report which stream it was set for.
    """
    metadata = table.snapshot.metadata
    assert metadata is not None, "the table is there"
    found = stream.fetch_cursor(name, partition=partition)
    if found is not None and found > end:
        end = _ends(_followed(table), bounds)[partition]
        if found <= end:
            return
    elif found is None and not _is_archived(table, partition):
        return
    stream.set_cursor(name, end, partition=partition, stream_id=metadata.stream_id)


def _ends(table: Table, bounds: Mapping[int, Known]) -> dict[int, int]:
    """First offset not archived of each partition; where its log begins, with nothing archived."""
    held = reading.held_of(table.snapshot)
    return {one: held[one].end if one in held else known.earliest for one, known in bounds.items()}


def _is_archived(table: Table, partition: int) -> bool:
    return partition in reading.held_of(table.snapshot)


def _followed(table: Table) -> Table:
    return table._replace(snapshot=log.follow(table.store, table.snapshot))
