"""What a task does: records of its ranges, each once and in order, or an error that says why."""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from liftbridge_client import (
    FailedPreconditionError,
    NotFoundError,
    OutOfRangeError,
    SyncClient,
)
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.options import SourceOptions
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.source import cluster
from pyspark_liftbridge.source.messages import by_message
from pyspark_liftbridge.source.schema import Layout, Place

_log: Final = logging.getLogger(__name__)


class DataLossError(RuntimeError):
    """Records of a range are gone, and the query is to fail then."""


def records_of(
    client: SyncClient, ranges: Sequence[Range], layout: Layout, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Rows of ranges, a batch for each answer of a broker.

    Raises:
        DataLossError: Records are gone, the stream is, or it was made anew.
        LiftbridgeError: Nobody could serve a range within the timeout, or what came is damaged.
    """
    for one in ranges:
        yield from _range(client, one, layout, options)


def _range(
    client: SyncClient, wanted: Range, layout: Layout, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    place = Place(wanted.stream, wanted.partition)
    is_raw = client.has_data and options.fetch.encoding != "subscribe"
    pieces = _by_batch if is_raw else by_message
    position = wanted.start
    while position < wanted.end:
        try:
            for records, after in pieces(client, wanted, position, layout.needs, options):
                yield layout.rows(records, place)
                position = after
            known = cluster.known_of(client, wanted, options)
        except OutOfRangeError:
            known = cluster.known_of(client, wanted, options)
            # What is not kept any more, or all of it where the log ends before.
            kept = known.earliest if position < known.earliest else wanted.end
            _lost(wanted, position, min(kept, wanted.end), options)
            position = kept
            continue
        except (NotFoundError, FailedPreconditionError) as error:
            now = _id_of(client, wanted, options)
            if now != wanted.stream_id:
                _gone(wanted, position, now, options)
                return
            cluster.check_not_paused(client, PartitionId(wanted.stream, wanted.partition), error)
            raise
        # What compaction removed at the end of the range is not missing.
        position = max(position, min(known.latest, wanted.end))
        if position < wanted.end:
            _lost(wanted, position, wanted.end, options)
            return


def _by_batch(
    client: SyncClient,
    wanted: Range,
    position: int,
    columns: Sequence[str],
    options: SourceOptions,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """As `by_message`, of stored batches."""
    batches = client.streams.get(wanted.stream).fetch_columns(
        wanted.partition,
        position,
        wanted.end,
        columns=columns,
        call_bytes=options.fetch.bytes_max,
        stream_id=wanted.stream_id,
        read_replica=options.fetch.read_replica,
    )
    return ((batch.records, batch.next_offset) for batch in batches)


def _id_of(client: SyncClient, wanted: Range, options: SourceOptions) -> int | None:
    """Id of what has the name now, `None` for nothing."""
    try:
        return cluster.known_of(client, wanted, options).stream_id
    except NotFoundError:
        return None


def _lost(wanted: Range, start: int, end: int, options: SourceOptions) -> None:
    where = f"offsets {start} to {end - 1} of {wanted.stream}/{wanted.partition}"
    if options.fails_on_loss:
        raise DataLossError(
            f"{where} are gone: retention or an unclean election removed them before they were "
            "read. Set archive= to read them from an archive, or failOnDataLoss=false to go on "
            "without them."
        )
    _log.warning("%s are gone; the query goes on without them (failOnDataLoss=false)", where)


def _gone(wanted: Range, start: int, now: int | None, options: SourceOptions) -> None:
    where = f"offsets {start} to {wanted.end - 1} of {wanted.stream}/{wanted.partition}"
    what = "was deleted" if now is None else f"is another one now, of id {now}"
    text = f"{where} are gone: the stream of id {wanted.stream_id} {what}"
    if options.fails_on_loss:
        raise DataLossError(
            f"{text}. Set failOnDataLoss=false to go on with what has its name now, from earliest."
        )
    _log.warning("%s; the query goes on without them (failOnDataLoss=false)", text)
