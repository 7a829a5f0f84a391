"""The cursor `archive/<root id>`.

The end of the archive in each partition, for retention that waits for it.

It is the first offset not archived, so retention that removes nothing from this offset on keeps all
records that the archive lacks. It is set before and after each commit to the end in the table's
log, for the table's stream and for the history of the partition that was compared with it: if
another stream has the name now, or another history began, brokers refuse it. It is never set to an
offset that the stream does not hold because an unclean election lost it.

A process sets each position once even if it is already right. Old brokers do not report the stream
that a position was set for; a position of a former stream, or without a recorded stream, would hold
retention back.

Brokers have no "set if greater"; so a runner that was overtaken between its read and its write sets
the right position afterwards. While the cursor is behind, retention only waits.
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
from pyspark_liftbridge.archive import reading
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.table import Table
from pyspark_liftbridge.plan.histories import has_diverged
from pyspark_liftbridge.plan.places import Known

_log: Final = logging.getLogger(__name__)

ROUNDS_MAX: Final = 5
"""Maximum number of times to set positions again because another runner has committed since."""


Place = tuple[int, int | None]
"""Position with its history, which is `None` if brokers do not report it."""


@dataclass
class Shown:
    """State of the cursors that a process has set, kept between runs.

    Attributes:
        stream_id: Id of the stream.
        places: Positions by partition.
        has_warned: Whether it was logged that the brokers store no cursors, or are too old for
            them.
    """

    stream_id: int = 0
    places: dict[int, Place] = field(default_factory=dict)
    has_warned: bool = False

    def same(self, ends: Mapping[int, int], bounds: Mapping[int, Known]) -> set[int]:
        """Return partitions whose position is known to be at that end, in the current history."""
        return {
            one
            for one, end in ends.items()
            if self.places.get(one) == (end, bounds[one].unclean_epoch)
        }


def name_of(root_id: str) -> str:
    """Return the name of an archive's cursor."""
    return f"archive/{root_id}"


def show(
    client: SyncClient, name: str, table: Table, bounds: Mapping[int, Known], shown: Shown
) -> None:
    """Set the cursor of a stream to the end of its table; a failure is only logged.

    Args:
        client: Client for the requests.
        name: Name of the cursor.
        table: Table of the stream.
        bounds: Bounds of the log of each partition.
        shown: State of the cursor, which is updated.

    Raises:
        ArchiveError: The log of the table cannot be read.
    """
    metadata = table.snapshot.metadata
    assert metadata is not None, "the table is there"
    if shown.stream_id != metadata.stream_id:
        shown.stream_id, shown.places = metadata.stream_id, {}
    stream = client.streams.get(metadata.stream)
    try:
        for _ in range(ROUNDS_MAX):
            ends = _ends(table, bounds)
            news = ends.keys() - shown.same(ends, bounds)
            if not news:
                return
            for partition in sorted(news):
                end = ends[partition]
                _set(stream, partition, name, end, table, bounds)
                shown.places[partition] = end, bounds[partition].unclean_epoch
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

    A cursor beyond the high watermark belongs to a former stream of the name, which old brokers
    report. A right cursor is set nevertheless: there it may have been set for the former stream.
    """
    metadata = table.snapshot.metadata
    assert metadata is not None, "the table is there"
    cursor = stream.fetch_cursor(name, partition=partition)
    if cursor is not None and cursor > end:
        newer = _ends(_followed(table), bounds).get(partition)
        if newer is None or cursor <= newer:
            return
        end = newer
    elif cursor is None and not _is_archived(table, partition):
        return
    stream.set_cursor(
        name,
        end,
        partition=partition,
        stream_id=metadata.stream_id,
        unclean_epoch=bounds[partition].unclean_epoch,
    )


def _ends(table: Table, bounds: Mapping[int, Known]) -> dict[int, int]:
    """Return the first offset not archived of each partition; if none is, its log start offset.

    A partition is left out if its log may have other records there: after this runner compared log
    and archive, another runner may have committed records that it read before an unclean election.
    """
    ends: dict[int, int] = {}
    held = reading.held_of(table.snapshot)
    for one, known in bounds.items():
        of = held.get(one)
        if of is None:
            ends[one] = known.earliest
        elif of.read is None or not has_diverged(of.read, known):  # guard Archive.cursor_history
            ends[one] = of.end
    return ends


def _is_archived(table: Table, partition: int) -> bool:
    return partition in reading.held_of(table.snapshot)


def _followed(table: Table) -> Table:
    return table._replace(snapshot=log.follow(table.store, table.snapshot))
