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
    SyncStream,
)
from pyspark_liftbridge.plan.options import SourceOptions
from pyspark_liftbridge.plan.ranges import Range
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
    stream, place = client.streams.get(wanted.stream), Place(wanted.stream, wanted.partition)
    position = wanted.start
    while position < wanted.end:
        try:
            for batch in stream.fetch_columns(
                wanted.partition,
                position,
                wanted.end,
                columns=layout.needs,
                stream_id=wanted.stream_id,
                read_replica=options.fetch.read_replica,
            ):
                yield layout.rows(batch.records, place)
                position = batch.next_offset
        except OutOfRangeError:
            (bounds,) = stream.bounds(wanted.partition)
            # What is not kept any more, or all of it where the log ends before.
            kept = bounds.log_start if position < bounds.log_start else wanted.end
            _lost(wanted, position, min(kept, wanted.end), options)
            position = kept
            continue
        except (NotFoundError, FailedPreconditionError):
            now = _id_of(stream, wanted.partition)
            if now == wanted.stream_id:
                raise  # it is paused, say
            _gone(wanted, position, now, options)
            return
        # What compaction removed at the end of the range is not missing.
        (bounds,) = stream.bounds(wanted.partition)
        position = max(position, min(bounds.high_watermark, wanted.end))
        if position < wanted.end:
            _lost(wanted, position, wanted.end, options)
            return


def _id_of(stream: SyncStream, partition: int) -> int | None:
    """Id of what has the name now, `None` for nothing."""
    try:
        (bounds,) = stream.bounds(partition)
    except NotFoundError:
        return None
    return bounds.stream_id


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
